"""A cluster under load of short jobs while its parts are killed at random, then a look at what is left (`./dev soak`).

    RAYCTL_BIN_DIR=… python3 soak.py [--minutes M] [--seed N] [--agents N]

A head and several agents on this machine; jobs that say something and end, alone and in gangs, some cancelled. Ranks,
shims, agents and the head are killed (kill -9) at drawn moments, and what a person or systemd would do follows. At the end
everything is let come to rest: every job must have ended as it should, every resource must be free, and no process,
socket, descriptor, cgroup or file of a job may be left. Prints counts and the seed.
"""

import argparse
import collections
import json
import os
import random
import signal
import sys
import time

from kit import Cluster, job_cgroups, processes, runtime_dirs, wait_gone

JOBS_OPEN_MAX = 24
CPUS_A_NODE = 4
QUIET_SECONDS_MAX = 240.0  # From the last kill until all has come to rest.
PAUSE_SECONDS_MAX = 0.2    # Between two things that happen.
OUTAGE_SECONDS_MAX = 3.0   # Until a daemon that was killed is started again.
FDS_MORE_MAX = 16          # Connections of clients come and go; a leak is one a job.
MAX_FAILURES = "1000"


class Soak:
    def __init__(self, args):
        self.random = random.Random(args.seed)
        self.runtime_before = runtime_dirs()
        self.cluster = Cluster("--num-cpus", str(CPUS_A_NODE))
        self.counts = collections.Counter()
        self.open, self.cancelled = set(), set()
        self.down = {}  # State folder -> when what is missing there is started again.
        self.states = {self.cluster.state: None}
        for number in range(args.agents - 1):
            name = f"soak-{number}"
            self.states[self.cluster.join(name, "--num-cpus", str(CPUS_A_NODE))] = name

    # ---- Load.
    def submit(self):
        ranks = self.random.choice((1, 1, 1, 2, 3))
        script = self.random.choice((
            "true", "echo done $RANK", "sleep 0.$((RANK + 1))", "sleep 1; echo done",
            "head -c 200000 /dev/zero | tr '\\0' x", "sleep 30 & echo parent has gone"))
        done = self.cluster.run("submit", "--no-wait", "--num-workers", ranks, "--max-failures", MAX_FAILURES, "--", "sh", "-c",
                                script)
        if done.code != 0:
            self.counts["submissions refused while the head was away"] += 1
            return
        self.open.add(int(done.out.splitlines()[-1]))
        self.counts["jobs submitted"] += 1

    def cancel(self):
        job = self.random.choice(sorted(self.open))
        if self.cluster.run("cancel", job).code == 0:
            self.cancelled.add(job)
            self.counts["cancels"] += 1

    def look(self):
        """Who has ended."""
        done = self.cluster.run("list", "jobs", "-o", "json")
        if done.code == 0:
            states = {job["id"]: job["state"] for job in json.loads(done.out)["jobs"]}
            self.open = {job for job in self.open if states.get(job) not in ("SUCCEEDED", "FAILED", "CANCELLED")}

    # ---- Trouble.
    def of_cluster(self):
        """(pid, kind, state folder) of every daemon and shim of this cluster."""
        for pid, words in processes():
            name = os.path.basename(words[0])
            state = next((state for state in self.states if state in words), None)
            if state is None:
                continue
            if name == "rayctl-shim":
                yield pid, "shim", state
            elif name == "rayctl" and len(words) > 1 and words[1] in ("head", "agent"):
                yield pid, words[1], state

    def ranks(self):
        shims = {pid for pid, kind, _ in self.of_cluster() if kind == "shim"}
        for pid, _ in processes():
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                    if int(stat.read().rsplit(")", 1)[1].split()[1]) in shims:
                        yield pid
            except (FileNotFoundError, ProcessLookupError):
                pass

    def strike(self):
        kind = self.random.choices(("rank", "shim", "agent", "head"), (6, 3, 2, 1))[0]
        if kind == "rank":
            victims = [(pid, None) for pid in self.ranks()]
        else:
            victims = [(pid, state) for pid, what, state in self.of_cluster() if what == kind]
        if not victims:
            return
        pid, state = self.random.choice(sorted(victims, key=lambda victim: victim[0]))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.counts[f"kills of a {kind}"] += 1
        if kind in ("agent", "head"):
            wait_gone(pid)
            self.down.setdefault(state, time.monotonic() + self.random.uniform(0, OUTAGE_SECONDS_MAX))

    def start_again(self, everything=False):
        now = time.monotonic()
        due = [state for state, when in self.down.items() if everything or when <= now]
        # The head before those who have to find it.
        for state in sorted(due, key=lambda state: state != self.cluster.state):
            if state == self.cluster.state:
                done = self.cluster.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir", state,
                                        "--num-cpus", CPUS_A_NODE, address=False)
            else:
                done = self.cluster.run("start", "--address", self.cluster.address, "--token-file",
                                        self.cluster.started["token_file"], "--node-name", self.states[state],
                                        "--state-dir", state, "--num-cpus", CPUS_A_NODE, address=False)
            if done.code == 0:
                del self.down[state]
                self.counts["starts"] += 1
            else:
                self.counts["starts tried while the head was away"] += 1
                self.why_down = done

    def run(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.start_again()
            what = self.random.random()
            if len(self.open) < JOBS_OPEN_MAX and what < 0.7:
                self.submit()
            elif what < 0.75 and self.open:
                self.cancel()
            elif what < 0.92:
                self.strike()
            else:
                self.look()
            time.sleep(self.random.uniform(0, PAUSE_SECONDS_MAX))

    # ---- Rest.
    def settle(self):
        end = time.monotonic() + QUIET_SECONDS_MAX
        while self.down:
            self.start_again(everything=True)
            if time.monotonic() > end:
                raise AssertionError(f"cannot be started again: {self.down}: {self.why_down!r}\n{self.cluster.logs()}")

        def at_rest():
            jobs = self.cluster.json("list", "jobs")["jobs"]
            return all(job["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") for job in jobs) and jobs

        jobs = self.cluster.until(at_rest, "every job has ended", QUIET_SECONDS_MAX)
        self.cluster.until(lambda: all(amount["used"] == 0 for amount in self.cluster.json("status")["resources"].values()),
                           "every resource is free", QUIET_SECONDS_MAX)
        self.cluster.until(lambda: not any(kind == "shim" for _, kind, _ in self.of_cluster()), "no shim is left",
                           QUIET_SECONDS_MAX)
        return self.cluster.json("list", "jobs")["jobs"]

    def descriptors(self):
        return {f"{kind} of {os.path.basename(state)}": len(os.listdir(f"/proc/{pid}/fd"))
                for pid, kind, state in self.of_cluster() if kind in ("head", "agent")}

    def wrong(self, jobs, descriptors_before):
        for job in jobs:
            self.counts[f"jobs {job['state']}"] += 1
            if job["state"] == "FAILED" or (job["state"] == "CANCELLED" and job["id"] not in self.cancelled):
                yield f"job {job['id']} ended {job['state']}: {json.dumps(self.cluster.job(job['id']))}"
        for who, now in self.descriptors().items():
            print(f"descriptors of {who}: {descriptors_before.get(who)} before, {now} after")
            if now > descriptors_before.get(who, 0) + FDS_MORE_MAX:
                yield f"{who} holds {now} descriptors"
        yield from self.processes_left(daemons_too=False)
        for state in self.states:
            for folder in job_cgroups(state):
                yield f"cgroup {folder} is left"
            folder = os.path.join(state, "jobs")
            for job in filter(str.isdigit, os.listdir(folder) if os.path.isdir(folder) else ()):
                for name in os.listdir(os.path.join(folder, job)):
                    if name == "shim.state":
                        yield f"{folder}/{job}/{name} is left"
        for name in runtime_dirs() - self.runtime_before:
            folder = f"/tmp/rayctl-{os.getuid()}/{name}"
            sockets = [entry for entry in os.listdir(folder) if entry.endswith(".sock")]
            if sockets and self.is_ours(folder):
                yield f"sockets are left in {folder}: {sockets}"

    def is_ours(self, folder):
        for name in ("head.json", "agent.json"):
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    if self.cluster.folder in file.read():
                        return True
            except FileNotFoundError:
                pass
        return False

    def processes_left(self, daemons_too):
        known = set() if daemons_too else {pid for pid, _, _ in self.of_cluster()}
        for pid, words in processes():
            try:
                with open(f"/proc/{pid}/environ", "rb") as environ:
                    ours = self.cluster.folder.encode() in environ.read()
            except (OSError, ProcessLookupError):
                continue
            if (ours or any(self.cluster.folder in word for word in words)) and pid not in known:
                yield f"process {pid} is left: {' '.join(words)}"

    def close(self):
        self.cluster.stop()
        left = list(self.processes_left(daemons_too=True))
        for pid, words in processes():
            if any(self.cluster.folder in word for word in words):
                os.kill(pid, signal.SIGKILL)
        findings = self.cluster.findings()
        self.cluster.remove()
        return [f"after the stop, {what}" for what in left] + ([findings] if findings else [])


def main():
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--agents", type=int, default=3)
    args = parser.parse_args()
    print(f"seed: {args.seed}", flush=True)
    begun = time.monotonic()
    soak = Soak(args)
    wrong = []
    try:
        for _ in range(3):  # So that what a daemon opens once is open.
            soak.submit()
        soak.settle()
        descriptors = soak.descriptors()
        soak.run(args.minutes * 60)
        troubled = time.monotonic() - begun
        jobs = soak.settle()
        print(f"at rest {time.monotonic() - begun - troubled:.1f} s after the last kill")
        wrong = list(soak.wrong(jobs, descriptors))
        if wrong:
            print(soak.cluster.logs())
    finally:
        wrong += soak.close()
    for what, count in sorted(soak.counts.items()):
        print(f"{what}: {count}")
    print(f"left or wrong: {len(wrong)}")
    if wrong:
        sys.exit("\n".join(wrong) + f"\nagain: ./dev soak --minutes {args.minutes} --seed {args.seed}")


if __name__ == "__main__":
    main()
