"""How long it takes to go on after something died, what a shim weighs, and whether the daemons grow with the jobs they ran."""

import json
import os
import pathlib
import select
import signal
import time

import clusters
import measure

KILLS = 10                 # Of a rank, in each run.
FINISHED_JOBS = 10_000
LIVE_JOBS = 1_000
LIVE_RUNNING = 40          # Of those; the rest waits in the queue.
SHORT_JOBS = 20_000
BATCH = 500                # Jobs submitted at once.
WARM_UP = 12_000           # Short jobs before memory is looked at: by then the head forgets one for each that ends.
PATIENCE_SECONDS = 60.0
KIB = 1024


def rss_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * KIB
    raise measure.Failed(f"process {pid} is gone")


def slope(points):
    """Of the line through (x, y) with the least squares."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    return (sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points))


def kill(pid):
    """kill -9, until it has ended."""
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        select.select([fd], [], [], PATIENCE_SECONDS)
    finally:
        os.close(fd)


class Cluster(clusters.Rayctl):
    """One that is killed in parts and started again."""

    def begin(self, cpus):
        started = measure.run([self.bin, *self.start_words(), "--num-cpus", cpus], self.env)
        self.env["RAYCTL_ADDRESS"] = json.loads(started.stdout)["address"]
        self.cpus = cpus

    def start_words(self):
        return ["start", "--head", "--port", "0", "--dashboard-port", "0", "--node-name", "bench", "--state-dir",
                self.state, "-o", "json"]

    def again(self):
        return measure.run([self.bin, *self.start_words(), "--num-cpus", self.cpus], self.env).seconds

    def ask_json(self, *words):
        return json.loads(measure.run([self.bin, *words, "-o", "json"], self.env).stdout)

    def pid(self, daemon):
        for pid in measure.family():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:
                continue  # It ended while we looked.
            name = pathlib.Path(words[0]).name
            if name == "rayctl-shim" if daemon == "shim" else (name == "rayctl" and words[1] == daemon):
                return pid
        raise measure.Failed(f"there is no {daemon}")

    def submit(self, *words):
        return measure.run([self.bin, "submit", "--no-wait", *words], self.env).stdout.split()[-1]

    def alive(self):
        done = measure.run([self.bin, "status", "-o", "json"], self.env, check=False)
        return done.returncode == 0 and json.loads(done.stdout)["nodes"]["alive"] == 1


class Voice:
    """A named pipe by which ranks say their pid."""

    def __init__(self, path):
        self.path = path
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def next(self):
        if not select.select([self.fd], [], [], PATIENCE_SECONDS)[0]:
            raise measure.Failed("a rank does not start")
        return int(os.read(self.fd, 64).split()[-1])

    def close(self):
        os.close(self.fd)


def lives(bench, home):
    """A rank, an agent and a head that die, and a shim on the scales."""
    replaced = bench.new("rank killed to its replacement running", "ms", 50, scale=1000.0)
    adopted = bench.new("agent restart to adoption", "ms", 200, scale=1000.0,
                        note="`rayctl start` after a kill -9: it returns when the agent has found its shims and registered with their ranks")
    shim = bench.new("memory of a shim", "MiB", 3, scale=1 / KIB / KIB)
    for number in range(bench.options.runs):
        cluster = Cluster(home / f"lives{number}")
        cluster.home.mkdir()
        voice = Voice(cluster.home / "voice")
        try:
            cluster.begin("4")
            job = cluster.submit("--max-failures", "1000", "--", "sh", "-c", f"echo $$ > {voice.path}; exec sleep 600")
            rank = voice.next()
            for _ in range(KILLS):
                begun = time.perf_counter()
                os.kill(rank, signal.SIGKILL)
                rank = voice.next()
                replaced.add(time.perf_counter() - begun)
            shim.add(rss_bytes(cluster.pid("shim")))
            before = cluster.ask_json("describe", job)
            kill(cluster.pid("agent"))
            adopted.add(cluster.again())
            clusters.until(cluster.alive, "the agent did not come back")
            after = cluster.ask_json("describe", job)
            if (after["state"], after["attempt"]) != ("RUNNING", before["attempt"]):
                raise measure.Failed(f"the job is {after['state']} in attempt {after['attempt']}")
        finally:
            voice.close()
            cluster.stop()
            measure.end_family()


def head_restart(bench, home):
    back = bench.new("head restart", "ms", 1000, scale=1000.0,
                     note=f"from `rayctl start` after a kill -9 until status answers and the node is alive, with "
                          f"{FINISHED_JOBS:,} jobs finished and {LIVE_JOBS:,} live, {LIVE_RUNNING} of them running")
    cluster = Cluster(home / "restart")
    cluster.home.mkdir()
    try:
        cluster.begin(str(LIVE_RUNNING))
        for _ in range(FINISHED_JOBS // BATCH):
            cluster.jobs(BATCH)
        for _ in range(LIVE_JOBS):
            cluster.submit("--", "sleep", "3600")
        for _ in range(bench.options.runs):
            kill(cluster.pid("head"))
            begun = time.perf_counter()
            cluster.again()
            clusters.until(cluster.alive, "the head did not come back")
            back.add(time.perf_counter() - begun)
    finally:
        cluster.stop()
        measure.end_family()


def growth(bench, home):
    head = bench.new("growth of the head", "B/job", note=f"RSS over {SHORT_JOBS:,} short jobs, by a linear fit")
    agent = bench.new("growth of the agent", "B/job", note="the same")
    cluster = Cluster(home / "growth")
    cluster.home.mkdir()
    points = {"head": [], "agent": []}
    try:
        cluster.begin("4")
        pids = {daemon: cluster.pid(daemon) for daemon in points}
        done = 0
        while done < SHORT_JOBS + WARM_UP:
            cluster.jobs(BATCH)
            done += BATCH
            if done >= WARM_UP:
                for daemon, pid in pids.items():
                    points[daemon].append((done, rss_bytes(pid)))
        for daemon, one in (("head", head), ("agent", agent)):
            one.add(slope(points[daemon]))
            first, last = points[daemon][0], points[daemon][-1]
            one.note += f": {first[1] / KIB / KIB:.1f} MiB after {first[0]:,} jobs, {last[1] / KIB / KIB:.1f} MiB after {last[0]:,}"
    finally:
        cluster.stop()
        measure.end_family()


def run(bench):
    home = bench.folder / "recovery"
    home.mkdir()
    parts = ((lives, ("rank killed to its replacement running", "agent restart to adoption", "memory of a shim")),
             (head_restart, ("head restart",)), (growth, ("growth of the head", "growth of the agent")))
    for part, names in parts:
        if not bench.wanted(*names):
            continue
        before = len(bench.series)
        try:
            part(bench, home)
        except measure.Failed as failed:
            for one in bench.series[before:]:
                if not one.values:
                    one.skipped = str(failed)
