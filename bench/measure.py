"""How things are timed and weighed: medians of runs, memory of every process that came of them."""

import ctypes
import os
import pathlib
import signal
import statistics
import subprocess
import time

COMMAND_SECONDS_MAX = 120


class Failed(Exception):
    """A measurement that could not be made; its text is a sentence for the table."""


def run(command, env, check=True, seconds=COMMAND_SECONDS_MAX, stdin=subprocess.DEVNULL):
    """Runs a command to its end. The result has out, err, code and seconds."""
    begun = time.perf_counter()
    try:
        done = subprocess.run([str(word) for word in command], env=env, stdin=stdin, capture_output=True, text=True,
                              timeout=seconds, check=False)
    except subprocess.TimeoutExpired as expired:
        raise Failed(f"{pathlib.Path(command[0]).name} gave no answer in {seconds} s") from expired
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from error
    done.seconds = time.perf_counter() - begun
    if check and done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Failed(f"`{' '.join(map(str, command[:4]))}` exited {done.returncode}: {words[-1] if words else 'no word'}")
    return done


def under_a_reaper():
    """Goes on in a child of this process, which from now on only reaps: what a measured system leaves to itself becomes
    its child, so that nothing is lost sight of, whatever it does to its name or environment."""
    prctl_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(prctl_set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    child = os.fork()
    if child == 0:
        return
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda number, _: os.kill(child, number))
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) % 256)


def family():
    """The pids of all living descendants of the reaper, this process left out."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # It ended while we looked.
        if fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
    found, grown = {os.getppid()}, True
    while grown:
        new = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | new, bool(new)
    return sorted(found - {os.getppid(), os.getpid()})


def memory(pids):
    """(RSS, PSS) in MiB, summed."""
    rss = pss = 0
    for pid in pids:
        try:
            for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Rss:"):
                    rss += int(line.split()[1])
                elif line.startswith("Pss:"):
                    pss += int(line.split()[1])
        except OSError:
            continue
    return rss / 1024, pss / 1024


def end_family():
    """Ends what a measurement left behind, politely and then not. Gives how many there were."""
    left = family()
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in family():
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + 5
        while family() and time.monotonic() < deadline:
            time.sleep(0.05)
    return len(left)


class Series:
    """The runs of one measurement."""

    def __init__(self, name, unit, bar=None, better="less", note="", scale=1.0):
        self.name, self.unit, self.bar, self.better, self.note, self.scale = name, unit, bar, better, note, scale
        self.values, self.skipped = [], ""

    def add(self, value):
        self.values.append(value * self.scale)

    @property
    def median(self):
        return statistics.median(self.values) if self.values else None

    def verdict(self):
        if self.skipped:
            return "not measured"
        if self.bar is None or self.median is None:
            return ""
        good = self.median <= self.bar if self.better == "less" else self.median >= self.bar
        return "met" if good else "MISSED"

    def as_json(self):
        return {"name": self.name, "unit": self.unit, "bar": self.bar, "better": self.better, "median": self.median,
                "min": min(self.values, default=None), "max": max(self.values, default=None),
                "runs": len(self.values), "values": self.values, "verdict": self.verdict(), "note": self.note,
                "skipped": self.skipped or None}


def number(value):
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def table(series):
    rows = [("what", "median", "min", "max", "unit", "bar", "verdict")]
    for one in series:
        bar = "" if one.bar is None else ("≤ " if one.better == "less" else "≥ ") + number(one.bar)
        rows.append((one.name, number(one.median), number(min(one.values, default=None)),
                     number(max(one.values, default=None)), one.unit, bar, one.verdict()))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(w) if i in (0, 4, 6) else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    remarks = [f"{one.name}: {one.skipped or one.note}" for one in series if one.skipped or one.note]
    return "\n".join(lines + ([""] + remarks if remarks else []))
