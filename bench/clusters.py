"""The three systems that are measured, each with the same few things to do. Everything that one keeps is below `home`."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time

import measure

ROOT = pathlib.Path(__file__).resolve().parent.parent
READY_SECONDS_MAX = 60
READY_PAUSE_SECONDS = 0.02


def base_env(home):
    """Little of this shell reaches what is measured: no address, no state folder, no Python path."""
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "TERM", "USER", "LOGNAME")}
    keep.update({"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "TMPDIR": str(home)})
    return keep


def until(ask, what):
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not ask():
        if time.monotonic() > deadline:
            raise measure.Failed(f"{what} within {READY_SECONDS_MAX} s")
        time.sleep(READY_PAUSE_SECONDS)


class Rayctl:
    name = "rayctl"

    def __init__(self, home):
        self.home, self.state = home, home / "rayctl"
        self.bin = ROOT / "build/release/bin/rayctl"
        self.calls = ROOT / "build/release/bench/rayctl_bench_calls"
        self.env = base_env(home)

    @staticmethod
    def missing():
        return "" if (ROOT / "build/release/bin/rayctl").exists() else "build/release has no rayctl"

    def start(self):
        """A new cluster, until status answers."""
        begun = time.perf_counter()
        started = measure.run([self.bin, "start", "--head", "--port", "0", "--dashboard-port", "0", "--node-name",
                               "bench", "--state-dir", self.state, "-o", "json"], self.env)
        self.env["RAYCTL_ADDRESS"] = json.loads(started.stdout)["address"]
        self.status()
        return time.perf_counter() - begun

    def status(self):
        return measure.run([self.bin, "status"], self.env).seconds

    def echo(self):
        done = measure.run([self.bin, "submit", "--", "echo", "hi"], self.env)
        if "hi" not in done.stdout.split():
            raise measure.Failed("the job's output did not arrive")
        return done.seconds

    def jobs(self, count):
        return self.ask("jobs", count)["jobs_per_second"]

    def ask(self, *words):
        return json.loads(measure.run([self.calls, *map(str, words)], self.env, seconds=300).stdout)

    def stop(self):
        done = measure.run([self.bin, "stop", "--state-dir", self.state], self.env)
        shutil.rmtree(self.state, ignore_errors=True)
        self.env.pop("RAYCTL_ADDRESS", None)
        return done.seconds


class Ray:
    name = "Ray"

    def __init__(self, home):
        self.home = home
        self.bin = ROOT / ".venv/bench/bin/ray"
        self.env = base_env(home) | {"RAY_USAGE_STATS_ENABLED": "0", "NO_COLOR": "1"}
        self.env["PATH"] = f"{self.bin.parent}:{self.env['PATH']}"
        self.dashboard = 0
        self.temp = pathlib.Path("/tmp") / f"ray-bench-{os.getpid()}"  # Its sockets need a short path.

    @staticmethod
    def missing():
        return "" if (ROOT / ".venv/bench/ready").exists() else "Ray is not installed in .venv/bench"

    def version(self):
        return measure.run([self.bin, "--version"], self.env).stdout.strip().removeprefix("ray, version ")

    def start(self):
        with socket.socket() as free:  # Outside the range that its workers take.
            free.bind(("127.0.0.1", 0))
            self.dashboard = free.getsockname()[1]
        begun = time.perf_counter()
        measure.run([self.bin, "start", "--head", "--port=0", f"--dashboard-port={self.dashboard}",
                     f"--temp-dir={self.temp}", "--disable-usage-stats"], self.env)
        until(lambda: "Resources" in measure.run([self.bin, "status"], self.env, check=False).stdout,
              "ray status did not answer")
        return time.perf_counter() - begun

    def status(self):
        return measure.run([self.bin, "status"], self.env).seconds

    def echo(self):
        done = measure.run([self.bin, "job", "submit", "--address", f"http://127.0.0.1:{self.dashboard}", "--", "echo",
                            "hi"], self.env)
        if "succeeded" not in done.stdout + done.stderr:
            raise measure.Failed("ray job submit did not say that the job succeeded")
        return done.seconds

    def stop(self):
        seconds = measure.run([self.bin, "stop"], self.env).seconds
        shutil.rmtree(self.temp, ignore_errors=True)
        return seconds


class Slurm:
    """One node and munge, set to pass many small jobs: cores are shared, and the scheduler waits for nothing. (By default
    a node takes one job at a time and looks at its queue every 3 s.) Its daemons stay in the foreground as children."""

    name = "Slurm"
    CONFIG = """ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:1000
"""

    def __init__(self, home):
        self.home = home
        self.env = base_env(home) | {"SLURM_CONF": str(home / "slurm.conf")}
        self.env["PATH"] += ":/usr/sbin:/sbin"
        self.daemons = []

    @staticmethod
    def missing():
        if os.geteuid() != 0:
            return "a private Slurm needs root"
        absent = [p for p in ("munged", "slurmctld", "slurmd", "srun")
                  if not shutil.which(p, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")]
        return f"{', '.join(absent)} not installed" if absent else ""

    def version(self):
        return measure.run(["srun", "--version"], self.env).stdout.strip().removeprefix("slurm-wlm ")

    def _daemon(self, *command):
        self.daemons.append(subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, cwd=self.home,
                                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def start(self):
        shutil.rmtree(self.home, ignore_errors=True)
        for folder in (self.home, self.home / "state", self.home / "spool", self.home / "munge"):
            folder.mkdir(mode=0o755)
        (self.home / "munge").chmod(0o700)
        key = self.home / "munge/key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        host = socket.gethostname().split(".")[0]
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            two.bind(("127.0.0.1", 0))
            ports = one.getsockname()[1], two.getsockname()[1]
        (self.home / "slurm.conf").write_text(self.CONFIG.format(host=host, home=self.home, cpus=os.cpu_count(),
                                                                 port=ports[0], node_port=ports[1]))
        (self.home / "cgroup.conf").write_text("CgroupAutomount=no\n")
        begun = time.perf_counter()
        munge = self.home / "munge"
        self._daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.home}/munge.socket",
                     f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        until((self.home / "munge.socket").exists, "munged did not come up")
        self._daemon("slurmctld", "-D", "-f", self.env["SLURM_CONF"])
        self._daemon("slurmd", "-D", "-f", self.env["SLURM_CONF"], "-N", host)
        until(lambda: "idle" in measure.run(["sinfo", "-h", "-o", "%T"], self.env, check=False).stdout,
              "the node of Slurm did not become idle")
        return time.perf_counter() - begun

    def status(self):
        return measure.run(["sinfo"], self.env).seconds

    def echo(self):
        done = measure.run(["srun", "echo", "hi"], self.env)
        if done.stdout.strip() != "hi":
            raise measure.Failed("srun did not print the job's output")
        return done.seconds

    def jobs(self, count):
        """`count` sbatch commands, as many at a time as there are cores, until the queue is empty."""
        begun = time.perf_counter()
        measure.run(["xargs", "-P", os.cpu_count(), "-n", "1", "sbatch", "-Q", "-o", "/dev/null", "-e", "/dev/null",
                     "--wrap=true", "-J"], self.env, stdin=numbers(count))
        until(lambda: not measure.run(["squeue", "-h"], self.env).stdout.strip(), "the queue of Slurm did not empty")
        return count / (time.perf_counter() - begun)

    def stop(self):
        begun = time.perf_counter()
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons = []
        return time.perf_counter() - begun


def numbers(count):
    """A readable descriptor with one number a line."""
    read, write = os.pipe()
    with contextlib.closing(os.fdopen(write, "w")) as pipe:
        pipe.write("".join(f"{i}\n" for i in range(count)))
    return read
