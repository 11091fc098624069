#!/usr/bin/env python3
"""Measures rayctl against its bars, beside Ray and Slurm when asked. Started by `./dev bench`.

Runs of the systems alternate, so that a busy minute of the machine falls on all of them. Nothing of it outlives the
run: everything is in one temporary folder, every process is a descendant.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import clusters
import measure
import recovery

ROOT = clusters.ROOT
IDLE_SECONDS = 3.0  # From ready until memory is read.
CALLS = 2000
COMMITS = 2000
DURABLE_CALLS = 1000


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


class Bench:
    def __init__(self, options):
        self.options, self.series = options, []
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rayctl-bench."))
        self.folder.chmod(0o755)

    def new(self, name, unit, bar=None, better="less", note="", scale=1.0):
        one = measure.Series(name, unit, bar, better, note, scale)
        if self.options.filter and self.options.filter not in name:
            return one  # Measured on the way, perhaps, but not shown.
        self.series.append(one)
        return one

    def wanted(self, *names):
        return not self.options.filter or any(self.options.filter in name for name in names)

    # -- one system, one run each

    def systems(self):
        found = []
        kinds = [clusters.Rayctl] + ([clusters.Ray, clusters.Slurm] if self.options.peers else [])
        for kind in kinds:
            why = kind.missing()
            if why:
                say(f"{kind.name} is left out: {why}")
            else:
                home = self.folder / kind.name.lower()
                home.mkdir()
                found.append(kind(home))
        return found

    def whole_systems(self):
        bars = {"start": 0.1, "stop": 0.2, "status": 0.02, "echo hi": 0.03, "idle memory": 40, "no-op jobs": 200}
        names = ("start", "stop", "status", "echo hi", "idle memory", "no-op jobs")
        if not self.wanted(*names):
            return
        systems, rows = self.systems(), {}
        for name in names:
            for system in systems:
                if name == "no-op jobs" and not hasattr(system, "jobs"):
                    continue
                bar = bars[name] if system.name == "rayctl" else None
                label = name if system.name == "rayctl" else f"{name} ({system.name})"
                unit, better = {"idle memory": ("MiB", "less"), "no-op jobs": ("jobs/s", "more")}.get(
                    name, ("ms", "less"))
                if unit == "ms":
                    rows[name, system.name] = self.new(label, unit, bar and bar * 1000, scale=1000.0)
                else:
                    rows[name, system.name] = self.new(label, unit, bar, better)
        for round_number in range(self.options.runs):
            for system in systems:
                slow = system.name == "Ray"
                if slow and round_number >= self.options.peer_runs:
                    continue
                say(f"{system.name}, run {round_number + 1}")
                try:
                    self.one_life(system, rows, repeats=2 if slow else 10)
                except measure.Failed as failed:
                    for (_, owner), one in rows.items():
                        if owner == system.name and not one.values:
                            one.skipped = str(failed)
                    say(f"{system.name}: {failed}")
                    try:
                        system.stop()
                    except measure.Failed as again:
                        say(f"{system.name} does not stop: {again}")
                left = measure.end_family()
                if left and system.name == "rayctl":
                    say(f"rayctl left {left} processes behind")
                    rows["stop", "rayctl"].note = f"a stop left {left} processes behind"
        for system in systems:
            if hasattr(system, "version"):
                for (name, owner), one in rows.items():
                    if owner == system.name and name == "start":
                        one.note = f"{system.name} {system.version()}"

    def one_life(self, system, rows, repeats):
        def row(name):
            return rows[name, system.name]

        row("start").add(system.start())
        for _ in range(repeats):
            row("status").add(system.status())
        time.sleep(IDLE_SECONDS)
        rss, pss = measure.memory(measure.family())
        row("idle memory").add(rss)
        row("idle memory").note = f"RSS of all processes summed; shared pages counted once (PSS): {pss:.0f} MiB"
        for _ in range(repeats):
            row("echo hi").add(system.echo())
        if ("no-op jobs", system.name) in rows:
            count = self.options.jobs if system.name == "rayctl" else min(self.options.jobs, 60)
            row("no-op jobs").add(system.jobs(count))
            row("no-op jobs").note = f"{count} at once"
        row("stop").add(system.stop())

    # -- calls and their floors

    def calls(self):
        if not self.wanted("call", "commit", "calls"):
            return
        commit = self.new("commit floor", "µs", note="SQLite alone: WAL, synchronous FULL, one record a transaction")
        floor = self.new("call floor", "µs", note="a bare C++ gRPC server over TLS")
        floor_rate = self.new("calls floor", "calls/s", better="more", note="the same, 100 outstanding")
        version = self.new("call", "µs", note="GetVersion on the head")
        rate = self.new("calls", "calls/s", better="more", note="the same, 100 outstanding")
        durable = self.new("durable call", "µs", note="CreateToken, answered after its commit")
        why = clusters.Rayctl.missing()
        if why:
            for one in (commit, floor, floor_rate, version, rate, durable):
                one.skipped = why
            return
        home = self.folder / "calls"
        home.mkdir()
        system = clusters.Rayctl(home)
        bare = None
        try:
            system.start()
            keys = system.state / "head"
            bare = subprocess.Popen([system.calls, "serve", keys / "server.pem", keys / "server.key"], env=system.env,
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            port = bare.stdout.readline().strip()
            if not port:
                raise measure.Failed("the bare gRPC server did not come up")
            for number in range(self.options.runs):
                say(f"calls and floors, run {number + 1}")
                program = ROOT / "build/release/bench/rayctl_bench_commits"
                got = json.loads(measure.run([program, home / f"floor{number}.db", COMMITS], system.env).stdout)
                commit.add(got["median_us"])
                got = system.ask("floor", port, keys / "ca.pem", CALLS)
                floor.add(got["median_us"])
                floor_rate.add(got["calls_per_second"])
                got = system.ask("version", CALLS)
                version.add(got["median_us"])
                rate.add(got["calls_per_second"])
                durable.add(system.ask("durable", DURABLE_CALLS)["median_us"])
        except measure.Failed as failed:
            say(f"calls: {failed}")
            for one in (commit, floor, floor_rate, version, rate, durable):
                if not one.values:
                    one.skipped = str(failed)
        finally:
            if bare is not None:
                bare.stdin.close()
                bare.wait(10)
            try:
                system.stop()
            except measure.Failed as failed:
                say(f"stop: {failed}")
            measure.end_family()

    def finish(self):
        print(measure.table(self.series))
        out = ROOT / "build/bench/results.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine(),
                                   "commit": commit_hash(), "results": [one.as_json() for one in self.series]},
                                  indent=1, ensure_ascii=False) + "\n")
        say(f"written to {out.relative_to(ROOT)}")

    def clear_up(self):
        measure.end_family()
        shutil.rmtree(self.folder, ignore_errors=True)


def machine():
    model = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return {"cores": os.cpu_count(), "cpu": model, "kernel": platform.release()}


def commit_hash():
    got = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
                         check=False)
    return got.stdout.strip() or None


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", epilog="example: ./dev bench --peers echo")
    parser.add_argument("filter", nargs="?", help="only what has this in its name")
    parser.add_argument("--peers", action="store_true", help="measure Ray and Slurm beside it")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="lives of each system (default 5)")
    parser.add_argument("--peer-runs", type=int, default=3, metavar="N", help="of Ray, which is slow (default 3)")
    parser.add_argument("--jobs", type=int, default=200, metavar="N", help="no-op jobs submitted at once")
    options = parser.parse_args()
    measure.under_a_reaper()
    bench = Bench(options)
    try:
        bench.whole_systems()
        bench.calls()
        recovery.run(bench)
        bench.finish()
    finally:
        bench.clear_up()
    return 0


if __name__ == "__main__":
    sys.exit(main())
