"""What the integration tests stand on: clusters of real daemons in a folder of their own, and ranks that are steered
through named pipes instead of delays.

Nothing here sleeps. A test waits for a line that a rank wrote, for a process to end (pidfd), or for an answer of the
cluster, always with a deadline.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BIN = os.path.abspath(os.environ.get("RAYCTL_BIN_DIR", "build/dev/bin"))
RAYCTL = os.path.join(BIN, "rayctl")
LEAK_SUPPRESSIONS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lsan.supp")
DEADLINE_SECONDS = 60.0


class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __repr__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def start_ticks(pid):
    """When the process began, so that a pid cannot come to name another; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def wait_gone(pid, seconds=DEADLINE_SECONDS):
    """True once the process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


class Steps:
    """Named pipes between a test and the ranks of its job.

    A rank runs `say word…` to tell the test something and `hear NAME` to wait until the test says `go NAME`.
    """

    def __init__(self, folder):
        self.folder = folder
        self.events_path = os.path.join(folder, "events")
        os.mkfifo(self.events_path)
        self.events = os.open(self.events_path, os.O_RDWR | os.O_NONBLOCK)
        self.buffer = b""
        self.gates = {}

    def gate(self, name):
        """The path of a pipe that a rank reads a line from; made on first use and held open."""
        path = os.path.join(self.folder, f"gate_{name}")
        if name not in self.gates:
            os.mkfifo(path)
            self.gates[name] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        return path

    def go(self, name):
        self.gate(name)
        os.write(self.gates[name], b"go\n")

    def said(self):
        """Whether a whole line was already read and waits for `next`."""
        return b"\n" in self.buffer

    def next(self, seconds=DEADLINE_SECONDS):
        """The next line that a rank wrote, as a list of words."""
        end = time.monotonic() + seconds
        while not self.said():
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.events], [], [], left)[0]:
                raise AssertionError(f"no rank said anything for {seconds} s")
            self.buffer += os.read(self.events, 65536)
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode().split()

    def close(self):
        for fd in [self.events, *self.gates.values()]:
            os.close(fd)


class Watched:
    """What has logs and a folder of sanitizers' findings, and is asked until it is as it should be."""

    deadline_seconds = DEADLINE_SECONDS

    def until(self, condition, what, seconds=None):
        """Asks the cluster again until the answer fits; every question takes a round trip, so this never spins."""
        seconds = seconds or self.deadline_seconds
        end = time.monotonic() + seconds
        while True:
            answer = condition()
            if answer:
                return answer
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {what}\n{self.logs()}")

    def findings(self):
        """What sanitizers said about any program of this cluster."""
        text = ""
        for name in sorted(os.listdir(self.findings_dir)):
            with open(os.path.join(self.findings_dir, name), encoding="utf-8", errors="replace") as report:
                text += report.read()
        return text


def sanitizer_options(findings_dir):
    """Variables by which what a sanitizer finds goes to files: nobody reads the stderr of a daemon."""
    variables = {options: f"{os.environ.get(options, '')} log_path={findings_dir}/report".strip()
                 for options in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")}
    return {**variables, "LSAN_OPTIONS": f"suppressions={LEAK_SUPPRESSIONS} print_suppressions=0"}


class Cluster(Watched):
    """A head and its agent, with a home of their own, on ports that the system picks."""

    def __init__(self, *flags, start=True):
        self.folder = tempfile.mkdtemp(prefix="rayctl-test-")
        self.home = os.path.join(self.folder, "home")
        self.state = os.path.join(self.folder, "state")
        os.mkdir(self.home)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("RAYCTL_", "XDG_"))}
        self.env["HOME"] = self.home
        self.findings_dir = os.path.join(self.folder, "findings")
        os.mkdir(self.findings_dir)
        self.env.update(sanitizer_options(self.findings_dir))
        self.agents = []
        self.program = RAYCTL
        self.prefix = []  # Words before the program of every `start`, such as one that enters a namespace.
        self.address = None
        self.started = None
        if start:
            self.start(*flags)

    def start(self, *flags):
        done = self.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir", self.state, "-o",
                        "json", *(flags or ("--num-cpus", "8")), address=False)
        if done.code != 0:
            raise AssertionError(f"start --head failed: {done!r}\n{self.logs()}")
        self.started = json.loads(done.out)
        self.address = self.started["address"]
        return self.started

    def run(self, *args, address=True, env=None, timeout=DEADLINE_SECONDS, stdin=subprocess.DEVNULL):
        environment = dict(self.env)
        if address and self.address:
            environment["RAYCTL_ADDRESS"] = self.address
        environment.update(env or {})
        try:
            prefix = self.prefix if args[0] == "start" else []
            return Result(subprocess.run([*prefix, self.program, *map(str, args)], env=environment, text=True,
                                         capture_output=True, timeout=timeout, stdin=stdin, check=False,
                                         cwd=self.folder))
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{late}\n--- stdout\n{late.stdout}\n--- stderr\n{late.stderr}\n{self.logs()}") from late

    def popen(self, *args, env=None):
        environment = dict(self.env)
        if self.address:
            environment["RAYCTL_ADDRESS"] = self.address
        environment.update(env or {})
        return subprocess.Popen([self.program, *map(str, args)], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, cwd=self.folder)

    def ok(self, *args, **kwargs):
        done = self.run(*args, **kwargs)
        if done.code != 0:
            raise AssertionError(f"rayctl {' '.join(map(str, args))}: {done!r}\n{self.logs()}")
        return done

    def json(self, *args):
        return json.loads(self.ok(*args, "-o", "json").out)

    def find_address(self):
        """Of a head that something else than start() started: what it says of itself in its runtime folder."""
        for name in runtime_dirs():
            try:
                with open(f"/tmp/rayctl-{os.getuid()}/{name}/head.json", encoding="utf-8") as file:
                    said = json.load(file)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if said["state_dir"] == self.state:
                self.address = said["address"]
                return
        raise AssertionError(f"no head says that it has {self.state}\n{self.logs()}")

    def join(self, name, *flags):
        """One more agent on this machine, with a state folder of its own."""
        state = os.path.join(self.folder, f"state-{name}")
        done = self.run("start", "--address", self.address, "--token-file", self.started["token_file"], "--node-name",
                        name, "--state-dir", state, *flags, address=False)
        if done.code != 0:
            raise AssertionError(f"start --address failed: {done!r}\n{self.logs()}")
        self.agents.append(state)
        return state

    def submit(self, *args):
        """Submits without waiting and gives the id."""
        return int(self.ok("submit", "--no-wait", *args).out.splitlines()[-1])

    def job(self, job):
        return self.json("describe", job)

    def until_state(self, job, *states):
        def check():
            now = self.job(job)
            return now if now["state"] in states else None

        return self.until(check, f"job {job} is {' or '.join(states)}")

    def daemons(self):
        """{"head": pid, "agent": pid} of those that run on the head's state folder."""
        found = {}
        for pid, words in processes():
            if len(words) > 1 and os.path.basename(words[0]) == "rayctl" and words[1] in ("head", "agent"):
                if self.state in words:
                    found[words[1]] = pid
        return found

    def kill(self, daemon, how=signal.SIGKILL):
        pid = self.daemons()[daemon]
        os.kill(pid, how)
        if how == signal.SIGKILL:
            wait_gone(pid)
        return pid

    def logs(self):
        text = ""
        for state in [self.state, *self.agents]:
            for name in ("head.log", "agent.log"):
                path = os.path.join(state, "log", name)
                if os.path.exists(path):
                    with open(path, encoding="utf-8", errors="replace") as log:
                        text += f"--- {path}\n" + "".join(log.readlines()[-40:])
        return text

    def stop(self):
        for state in [self.state, *self.agents]:
            if os.path.exists(state):
                self.run("stop", "--state-dir", state, address=False)

    def left_behind(self):
        """Processes that still speak of this cluster's folder."""
        return [(pid, words) for pid, words in processes() if any(self.folder in word for word in words)]

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def processes():
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as cmdline:
                words = cmdline.read().decode(errors="replace").split("\0")[:-1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words and start_ticks(int(entry)) is not None:
            yield int(entry), words


def job_cgroups(state):
    """The cgroup folders of jobs of this state folder (docs/contracts.md), wherever they are mounted."""
    if not os.path.exists(state):
        return []
    info = os.stat(state)
    number = 0xCBF29CE484222325
    for byte in f"{os.path.realpath(state)}:{info.st_dev}:{info.st_ino}".encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    found = []
    for parent, folders, _ in os.walk("/sys/fs/cgroup"):
        found += [os.path.join(parent, name) for name in folders if name.startswith(f"rayctl-{number:016x}-")]
        folders[:] = [name for name in folders if not name.startswith("rayctl-")]
    return found


def remove_cgroup(folder):
    """Once nobody is in it."""
    for parent, folders, _ in os.walk(folder, topdown=False):
        for name in folders:
            os.rmdir(os.path.join(parent, name))
    os.rmdir(folder)


def runtime_dirs():
    base = f"/tmp/rayctl-{os.getuid()}"
    return set(os.listdir(base)) if os.path.isdir(base) else set()


class ClusterTest(unittest.TestCase):
    """A cluster for each test; afterwards nothing of it may be left."""

    flags = ()
    autostart = True

    def setUp(self):
        self.before = runtime_dirs()
        self.cluster = Cluster(*self.flags, start=False)
        self.addCleanup(self.check_nothing_left)
        self.steps = Steps(self.cluster.folder)
        if self.autostart:
            self.cluster.start(*self.flags)

    def check_nothing_left(self):
        self.cluster.stop()
        left = self.cluster.left_behind()
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        self.steps.close()
        logs = self.cluster.logs()
        findings = self.cluster.findings()
        cgroups = [folder for state in (self.cluster.state, *self.cluster.agents) for folder in job_cgroups(state)]
        mine = [name for name in runtime_dirs() - self.before
                if self.cluster.folder in self.runtime_owner(name)]
        self.cluster.remove()
        self.assertEqual(findings, "", f"a sanitizer found something\n{findings}")
        self.assertEqual(left, [], f"processes were left behind\n{logs}")
        self.assertEqual(cgroups, [], f"cgroups were left behind\n{logs}")
        self.assertEqual(mine, [], "runtime folders were left behind")

    @staticmethod
    def runtime_owner(name):
        folder = f"/tmp/rayctl-{os.getuid()}/{name}"
        text = ""
        for daemon in ("head.json", "agent.json"):
            try:
                with open(os.path.join(folder, daemon), encoding="utf-8") as file:
                    text += file.read()
            except (FileNotFoundError, NotADirectoryError):  # Others put there what they like.
                pass
        return text

    def gated(self, script_after="exit 0", ranks=4):
        """A shell line: each rank says `rank N pid attempt`, waits for its gate, then goes on."""
        for rank in range(ranks):
            self.steps.gate(str(rank))
        return (f'echo "rank $RANK $$ $RAYCTL_ATTEMPT" > {self.steps.events_path}; '
                f"read word < {self.steps.folder}/gate_$RANK; {script_after}")

    def ranks_said(self, count):
        """{rank: (pid, attempt)} once `count` ranks have said where they are."""
        said = {}
        for _ in range(count):
            word, rank, pid, attempt = self.steps.next()
            self.assertEqual(word, "rank")
            said[int(rank)] = (int(pid), int(attempt))
        return said

    def ranks_run(self, job, count):
        """The same, once the head knows it too: a rank speaks before its shim's word has come that far."""
        said = self.ranks_said(count)
        self.cluster.until_state(job, "RUNNING")
        return said
