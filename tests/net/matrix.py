"""The kill matrix: what dies, at which moment of a job's life, on one node and on two, and what becomes of the job.

    python3 run.py matrix [--victim NAME]... [--moment NAME]... [--nodes N]... [--quick]

Every cell has a cluster of its own: a head on host a, agents on b (and c). Host b or the head is struck exactly when the
job is at the named moment, which a rank, or the shim that begins, says itself; then what a person or systemd would do is
done (started again, plugged in, continued). The job must come to the end that DESIGN promises, with no more attempts than
it allows; no process may be left on any host and every resource must be free. Prints each cell and the counts.
"""

import argparse
import collections
import os
import select
import shutil
import signal
import sys
import time

from kit import BIN
from lab import Lab, wait_gone
from run import HERE

ATTEMPTS_MAX = 6  # Gates are made for so many.
RANKS = 2
PATIENCE_SECONDS = 120.0

MOMENTS = ("queued", "starting", "running", "stopping", "recovering")
VICTIMS = ("head", "agent", "shim", "rank", "cut", "reboot", "head stopped", "agent stopped", "shim stopped")
# With a free node beside: longer than any rule waits. Only while the job runs.
LONG_VICTIMS = ("agent gone", "long cut")
# A new attempt follows these and no other.
COSTLY = {"shim", "rank", "reboot", *LONG_VICTIMS}
# About a minute's worth.
QUICK = [("head", moment, 2) for moment in MOMENTS] + [(victim, "running", 2) for victim in VICTIMS if victim != "head"] + [
    ("reboot", "stopping", 1), ("agent", "recovering", 1), ("agent", "starting", 1), ("shim", "starting", 1)]

SHIM = """#!/bin/sh
# A shim that says when it begins, and waits if it is asked to.
if [ -e {folder}/hold-shims ]; then
  echo "shim - - $(hostname) $$ -" > {folder}/events
  read word < {folder}/gate_shim
fi
exec {folder}/real/rayctl-shim "$@"
"""


class Impossible(Exception):
    """There is no such victim at this moment."""


class Cell:
    def __init__(self, victim, moment, nodes):
        self.victim, self.moment, self.nodes = victim, moment, nodes
        self.lab = Lab()
        self.steps = self.lab.steps
        self.released = False  # Whatever says where it is may go on.
        self.seen = {}         # (name, rank) -> (host, pid there, attempt) of the newest.
        self.job = None
        self.jobs = []

    def __str__(self):
        return f"{self.victim} x {self.moment}, {self.nodes} node{'s' if self.nodes > 1 else ''}"

    # ---- The cluster.
    def build(self):
        self.steps.gate("shim")
        for name in ("main", "blocker"):
            for rank in range(RANKS):
                for attempt in range(ATTEMPTS_MAX):
                    for step in ("go", "bye"):
                        self.steps.gate(f"{step}_{name}_{rank}_{attempt}")
        real = os.path.join(self.lab.folder, "real")
        os.mkdir(real)
        shutil.copy(os.path.join(BIN, "rayctl-shim"), real)
        shim = os.path.join(self.lab.folder, "shim")
        with open(shim, "w", encoding="utf-8") as file:
            file.write(SHIM.format(folder=self.lab.folder))
        os.chmod(shim, 0o755)
        self.lab.covered = [(shim, os.path.join(BIN, "rayctl-shim"))]
        cpus = RANKS // self.nodes
        self.a = self.lab.host("a")
        self.a.start_head("--num-cpus", "0")
        self.others = [self.lab.host(name) for name in "bc"[:self.nodes]]
        self.join_flags = ("--num-cpus", str(cpus))
        for host in self.others:
            host.join(*self.join_flags)
        self.b = self.others[0]

    def submit(self, name, agent_grace="60s", grace_period="60s"):
        path = self.a.write(f"{name}.yaml", f"""
name: {name}
entrypoint: exec {sys.executable} {HERE}/rank.py {self.lab.folder} {name}
scaling_config: {{num_workers: {RANKS}, placement_strategy: {"STRICT_SPREAD" if self.nodes > 1 else "PACK"}}}
run_config: {{failure_config: {{max_failures: {ATTEMPTS_MAX}}}}}
grace_period: {grace_period}
agent_grace: {agent_grace}
""")
        job = int(self.a.ok("submit", "--no-wait", path).out.splitlines()[-1])
        self.jobs.append(job)
        return job

    def state(self, job):
        return self.a.json("describe", job)["state"]

    def expect(self, job, state):
        now = self.state(job)
        if now != state:
            raise AssertionError(f"job {job} should be {state} by now and is {now}")

    # ---- Steps of ranks.
    def hear(self, *wanted, name=None, count=1):
        """Waits until so many ranks (or shims) have said one of these steps; what they said."""
        found = []
        while len(found) < count:
            step, who, rank, host, pid, attempt = self.take(self.steps.next(PATIENCE_SECONDS))
            if step in wanted and name in (None, who):
                found.append((int(rank) if rank.isdigit() else 0, host, int(pid)))
        return found

    def take(self, words):
        step, who, rank, host, pid, attempt = words
        if step in ("rank", "term"):
            self.seen[who, int(rank)] = (host, int(pid), int(attempt))
            if self.released:
                self.tell("go" if step == "rank" else "bye", who, int(rank), int(attempt))
        elif step == "shim" and self.released:
            self.steps.go("shim")
        return words

    def tell(self, step, who, rank, attempt, word="go"):
        gate = f"{step}_{who}_{rank}_{attempt}"
        os.write(self.steps.gates[gate], f"{word}\n".encode())

    def release(self):
        """From now on every rank goes on as soon as it says where it is; those that said so already go on now."""
        self.released = True
        for (who, rank), (_, _, attempt) in self.seen.items():
            for step in ("go", "bye"):
                self.tell(step, who, rank, attempt)
        hold = os.path.join(self.lab.folder, "hold-shims")
        if os.path.exists(hold):
            os.unlink(hold)
        for _ in range(self.nodes):
            self.steps.go("shim")

    # ---- Up to the moment.
    def reach(self):
        if self.moment == "queued":
            self.blocker = self.submit("blocker")
            self.hear("rank", name="blocker", count=RANKS)
            self.job = self.submit("main")
            self.expect(self.job, "QUEUED")
            return
        if self.moment == "starting":
            with open(os.path.join(self.lab.folder, "hold-shims"), "w", encoding="utf-8"):
                pass
            self.job = self.submit("main")
            self.held = {host: pid for _, host, pid in self.hear("shim", count=self.nodes)}
            self.expect(self.job, "STARTING")
            return
        self.job = self.submit("main", *(["1s", "2s"] if self.victim == "agent gone" else []))
        self.hear("rank", name="main", count=RANKS)
        self.lab.until(lambda: self.state(self.job) == "RUNNING", "the job runs")
        if self.moment == "stopping":
            self.a.ok("cancel", self.job)
            self.hear("term", name="main", count=RANKS)
            self.expect(self.job, "STOPPING")
        if self.moment == "recovering":
            # The rank that fails is not the one that is struck: that one lingers on b.
            lingers = self.rank_on_b("main")
            self.tell("go", "main", 1 - lingers, 0, word="fail")
            self.hear("term", name="main")
            self.expect(self.job, "RECOVERING")
        if self.victim in LONG_VICTIMS:
            spare = self.lab.host("spare")
            spare.join(*self.join_flags)
            self.others.append(spare)

    def rank_on_b(self, name):
        for (who, rank), (host, _, _) in self.seen.items():
            if who == name and host == "b":
                return rank
        raise AssertionError("no rank runs on b")

    def lab_pid(self, host, inner):
        """The lab's pid of what a process of the host knows as `inner`."""
        for pid, _ in host.processes():
            try:
                with open(f"/proc/{pid}/status", encoding="utf-8") as status:
                    if any(line.startswith("NSpid:") and int(line.split()[-1]) == inner for line in status):
                        return pid
            except (FileNotFoundError, ProcessLookupError):
                pass
        raise AssertionError(f"no process {inner} on {host.name}")

    # ---- The blow, and what a person or systemd does then.
    def strike(self):
        getattr(self, "strike_" + self.victim.replace(" ", "_"))()

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)

    def strike_head(self):
        self.kill(self.a.find("head")[0])
        self.a.start_head("--num-cpus", "0")

    def strike_agent(self):
        self.kill(self.b.find("agent")[0])
        self.b.join(*self.join_flags)

    def strike_shim(self):
        if self.moment == "starting":
            self.kill(self.lab_pid(self.b, self.held["b"]))
        else:
            self.kill(self.b.find("shim")[0])

    def strike_rank(self):
        if self.moment == "starting":
            raise Impossible  # A rank that is there has started.
        name = "blocker" if self.moment == "queued" else "main"
        self.kill(self.lab_pid(self.b, self.seen[name, self.rank_on_b(name)][1]))

    def node_is(self, state):
        nodes = {node["name"]: node["state"] for node in self.a.json("list", "nodes")["nodes"]}
        return nodes["b"] == state

    def strike_cut(self):
        self.b.cut()
        self.lab.until(lambda: self.node_is("suspect"), "b is suspect")
        self.b.mend()
        self.lab.until(lambda: self.node_is("alive"), "b is alive")

    def strike_reboot(self):
        self.b.reboot()
        self.b.join(*self.join_flags)

    def stopped(self, pid, meanwhile):
        os.kill(pid, signal.SIGSTOP)
        meanwhile()
        os.kill(pid, signal.SIGCONT)

    def strike_head_stopped(self):
        # The ranks go on while it stands still.
        self.stopped(self.a.find("head")[0], self.release)

    def strike_agent_stopped(self):
        self.stopped(self.b.find("agent")[0], lambda: self.lab.until(lambda: self.node_is("suspect"), "b is suspect"))

    def strike_shim_stopped(self):
        pid = self.lab_pid(self.b, self.held["b"]) if self.moment == "starting" else self.b.find("shim")[0]
        self.stopped(pid, self.release)

    def strike_agent_gone(self):
        pid = self.lab_pid(self.b, self.seen["main", self.rank_on_b("main")][1])
        self.kill(self.b.find("agent")[0])
        if not wait_gone(pid, PATIENCE_SECONDS):
            raise AssertionError("the rank outlives agent_grace")
        self.hear("term", name="main", count=self.nodes - 1)
        self.release()
        self.until_attempt(1)
        self.b.join(*self.join_flags)

    def strike_long_cut(self):
        pid = self.lab_pid(self.b, self.seen["main", self.rank_on_b("main")][1])
        self.b.cut()
        self.lab.until(lambda: self.node_is("dead"), "b is dead")
        self.hear("term", name="main", count=self.nodes - 1)
        for rank in range(RANKS):
            if self.seen["main", rank][0] != "b":
                self.tell("bye", "main", rank, 0)
        self.hear("rank", name="main", count=RANKS)  # Of the next attempt, elsewhere.
        if not os.path.exists(f"/proc/{pid}"):
            raise AssertionError("the rank behind the cut ended by itself")
        self.b.mend()
        self.lab.until(lambda: self.node_is("alive"), "b is alive")
        # Told to end with no grace: it may say a last word first.
        if not wait_gone(pid, PATIENCE_SECONDS):
            raise AssertionError("the stale rank lives on")

    def until_attempt(self, attempt):
        self.lab.until(lambda: self.a.json("describe", self.job)["attempt"] >= attempt, f"attempt {attempt}")

    # ---- The end.
    def settle(self):
        """Lets every rank go on until every job has ended."""
        if not self.released:
            self.release()
        for job in self.jobs:
            waiting = self.a.popen("wait", job)
            done = os.pidfd_open(waiting.pid)
            end = time.monotonic() + PATIENCE_SECONDS
            try:
                while True:
                    while self.steps.said():
                        self.take(self.steps.next())
                    ready = select.select([done, self.steps.events], [], [], max(0.0, end - time.monotonic()))[0]
                    if done in ready:
                        break
                    if not ready:
                        waiting.kill()
                        raise AssertionError(f"job {job} does not end: {self.a.ok('describe', job).out}")
                    self.take(self.steps.next())
            finally:
                os.close(done)
                waiting.communicate()

    def verdict(self):
        for host in self.others:
            self.lab.until(lambda host=host: not host.find("shim"), f"no shim is left on {host.name}")
            left = [words for _, words in host.processes() if any("rank.py" in word for word in words)]
            if left:
                raise AssertionError(f"left on {host.name}: {left}")

        def free():
            resources = self.a.json("status")["resources"]
            return all(amount["used"] == 0 for amount in resources.values())

        self.lab.until(free, "every resource is free")
        for job in self.jobs:
            now = self.a.json("describe", job)
            right = "CANCELLED" if self.moment == "stopping" else "SUCCEEDED"
            if now["state"] != right:
                raise AssertionError(f"job {job} ended {now['state']}, not {right}: {now['message']}")
            base = 1 if self.moment == "recovering" else 0
            struck = job == self.jobs[0]  # Of a job that waits nothing can be struck.
            most = base + (1 if self.victim in COSTLY and struck else 0)
            if now["attempt"] > most:
                raise AssertionError(f"job {job} needed attempt {now['attempt']}, {most} is the most: {now['message']}")
        return f"{now['state']} in attempt {now['attempt']}"

    def run(self):
        self.build()
        self.reach()
        self.strike()
        self.settle()
        return self.verdict()


def cells(args):
    if args.quick:
        return QUICK
    chosen = [(victim, moment, nodes) for nodes in (1, 2) for victim in VICTIMS for moment in MOMENTS]
    chosen += [(victim, "running", nodes) for nodes in (1, 2) for victim in LONG_VICTIMS]
    return [cell for cell in chosen if (not args.victim or cell[0] in args.victim)
            and (not args.moment or cell[1] in args.moment) and (not args.nodes or cell[2] in args.nodes)]


def table(outcomes):
    """Rows: what was struck. Columns: when. A field: how the job ended, on one node / on two."""
    width = max(len(victim) for victim, _, _ in outcomes) + 2
    lines = [" " * width + "".join(f"{moment:28}" for moment in MOMENTS)]
    for victim in dict.fromkeys(victim for victim, _, _ in outcomes):
        fields = []
        for moment in MOMENTS:
            fields.append(" / ".join(outcomes.get((victim, moment, nodes), "").replace(" in attempt ", ":")
                                     .replace("SUCCEEDED", "ok").replace("CANCELLED", "cancelled") or "."
                                     for nodes in (1, 2)))
        lines.append(f"{victim:{width}}" + "".join(f"{field:28}" for field in fields))
    return "\n".join(line.rstrip() for line in lines)


def main():
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--victim", action="append", choices=VICTIMS + LONG_VICTIMS)
    parser.add_argument("--moment", action="append", choices=MOMENTS)
    parser.add_argument("--nodes", action="append", type=int, choices=(1, 2))
    parser.add_argument("--quick", action="store_true", help="the cells that run with every test")
    args = parser.parse_args()
    outcomes, wrong = {}, []
    for victim, moment, nodes in cells(args):
        cell = Cell(victim, moment, nodes)
        try:
            outcome = cell.run()
        except Impossible:
            outcome = "none"
        except Exception as why:
            outcome = "WRONG"
            wrong.append(str(cell))
            print(f"{cell}: {why}\n{cell.lab.logs()}", flush=True)
        finally:
            cell.lab.close()
        outcomes[victim, moment, nodes] = outcome
        print(f"{cell}: {outcome}", flush=True)
    print("\n" + table(outcomes) + "\n")
    counts = collections.Counter(outcomes.values())
    print(f"{sum(counts.values()) - counts['none']} cells ran: "
          + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()) if outcome != "none")
          + (f"; {counts['none']} do not exist" if counts["none"] else ""))
    if wrong:
        sys.exit("wrong: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
