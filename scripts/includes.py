#!/usr/bin/env python3
"""Who may include whom: the folders' rule of ARCHITECTURE.md. The link test sees what is called, this what is named."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Folder: the folders that it may include from, besides itself.
MAY = {
    "base": [],
    "scheduler": ["base"],
    "tune": ["base"],
    "worker/device": ["base"],
    "worker/process": ["base"],
    "worker/shim": ["base", "worker/process"],
    "client": ["base"],
    "working_dir": ["base"],
    "cli": ["base", "client", "working_dir", "worker/process"],  # doctor asks what a job would get here.
    "daemon/link": ["base", "scheduler"],
    "daemon/head": ["base", "scheduler", "daemon/link"],
    "daemon/agent": ["base", "worker/device", "worker/process", "worker/shim", "client", "working_dir", "daemon/link", "daemon/net",
                     "daemon/rpc"],
    "daemon/store": ["base", "daemon/link", "daemon/head"],
    "daemon/rpc": ["base", "scheduler", "client", "working_dir", "worker/process", "daemon/link", "daemon/head",
                   "daemon/agent", "daemon/store", "daemon/net", "daemon/web"],
    "daemon/net": ["base"],
    "daemon/web": ["base", "daemon/net"],
}
# What decides names nothing that waits, writes or speaks to the network.
PURE = ["base", "scheduler", "daemon/link", "daemon/head", "daemon/agent"]
# In daemon/agent two libraries share the folder: the machine, and the daemon around it, which is this target's files.
EDGE = {"daemon/agent": "rayctl_agent_daemon"}
# The local sockets' messages are plain values (protobuf-lite) and the agent's language towards its shims.
OUTSIDE = re.compile(r"^(grpc|boost/asio|sqlite3|openssl/|(?!(shim|rank)\.pb\.h).*\.pb\.h)")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def edge_files():
    """The files of the targets in EDGE, by what their folder's CMakeLists.txt says."""
    files = set()
    for folder, target in EDGE.items():
        text = (ROOT / folder / "CMakeLists.txt").read_text()
        for listed in re.findall(rf"(?:target_sources|add_library)\({target}\b([^)]*)\)", text):
            files.update(f"{folder}/{word}" for word in listed.split() if word.endswith((".cc", ".h")))
    return files


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cc"], cwd=ROOT, text=True,
                            capture_output=True, check=True).stdout.split()
    wrong, edge = [], edge_files()
    for name in listed:
        folder = str(pathlib.PurePath(name).parent)
        if folder not in MAY or not (ROOT / name).exists():
            continue
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            included = match.group(1)
            target = str(pathlib.PurePath(included).parent)
            may = MAY[folder] if folder not in EDGE or name in edge else ["base", "worker/process", "daemon/link"]
            if target in MAY and target != folder and target not in may:
                wrong.append(f"{name}:{number}: {folder} may not include {included}")
            if folder in PURE and name not in edge and OUTSIDE.match(included):
                wrong.append(f"{name}:{number}: {folder} is pure and may not include {included}")
    print("\n".join(wrong) if wrong else f"{len(listed)} files keep to it")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
