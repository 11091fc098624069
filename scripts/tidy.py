#!/usr/bin/env python3
"""Runs clang-tidy over files in parallel, longest first, and remembers which ones were clean.

A file is remembered by the hash of its preprocessed text and of the rules, so that a change in any header that it
includes, in a flag or in .clang-tidy is a new question. Usage: tidy.py BUILD_FOLDER FILE...
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

CLANG_TIDY = "clang-tidy-14"
SECONDS_MAX = 600
ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "rayctl" / "tidy"


def compile_commands(build):
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        commands.setdefault(path, entry)  # The same file in two targets is looked at once.
    return commands


def fingerprint(entry, rules):
    """What the answer depends on, or None when the file does not even preprocess."""
    words = [w for w in shlex.split(entry["command"]) if not w.endswith("ccache")]
    if "-o" in words:
        at = words.index("-o")
        del words[at : at + 2]
    words = [w for w in words if w != "-c"]
    text = subprocess.run(words + ["-E", "-P"], cwd=entry["directory"], capture_output=True, check=False)
    if text.returncode != 0:
        return None
    digest = hashlib.sha256(rules)
    digest.update(text.stdout)
    # Line numbers and comments (NOLINT) are lost in preprocessed text.
    digest.update((pathlib.Path(entry["directory"]) / entry["file"]).read_bytes())
    return digest.hexdigest()


def look(build, path, entry, rules):
    begun = time.monotonic()
    key = fingerprint(entry, rules)
    if key and (CACHE / key).exists():
        return path, 0, "", None
    command = [CLANG_TIDY, "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        code, out = done.returncode, done.stdout + ("" if done.returncode == 0 else done.stderr)
    except subprocess.TimeoutExpired:
        code, out = 1, f"{path}: clang-tidy gave no answer in {SECONDS_MAX} s\n"
    if code == 0 and key:
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / key).touch()
    return path, code, out, time.monotonic() - begun


def main():
    build, names = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    rules = (ROOT / ".clang-tidy").read_bytes() + CLANG_TIDY.encode()
    commands = compile_commands(build)
    files = [p for p in (pathlib.Path(n).resolve() for n in names) if p in commands]
    files.sort(key=lambda p: -p.stat().st_size)
    failed, remembered, slowest = [], 0, []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(look, build, p, commands[p], rules) for p in files]
        for number, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            path, code, out, seconds = job.result()
            name = path.relative_to(ROOT)
            if seconds is None:
                remembered += 1
                continue
            slowest.append((seconds, str(name)))
            print(f"[{number}/{len(files)}] {name} {seconds:.1f} s" + (" FAILED" if code else ""), flush=True)
            if code:
                failed.append(str(name))
                print(out, flush=True)
    total = sum(s for s, _ in slowest)
    print(f"clang-tidy: {len(files)} files, {remembered} known to be clean, {len(failed)} with findings, "
          f"{total:.0f} s of work")
    for seconds, name in sorted(slowest, reverse=True)[:3]:
        print(f"  slow: {name} {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
