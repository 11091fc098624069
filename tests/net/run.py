"""Runs network tests, or the kill matrix, inside a lab: namespaces of their own in which every process, address, rule and
file of the test lives, and with which all of it vanishes, however the test ends.

    python3 run.py test_network [unittest options]
    python3 run.py matrix [options]

Ends with SKIPPED and one printed reason where this machine lets nobody make namespaces.
"""

import os
import runpy
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "integration")]

SKIPPED = 77  # SKIP_RETURN_CODE of ctest.
INSIDE = "RAYCTL_TEST_LAB"  # The folder of the lab; set in it.
TOOLS = {"ip": "iproute2", "nft": "nftables", "unshare": "util-linux", "nsenter": "util-linux"}
# One of these is covered by the lab's file system, in the lab alone.
PLACES = ("/mnt", "/media", "/srv", "/opt")


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


def place(kept):
    """An existing folder that holds nothing that the tests need."""
    for folder in PLACES:
        if os.path.isdir(folder) and not any(path.startswith(folder + "/") for path in kept):
            return folder
    skip(f"none of {', '.join(PLACES)} can be covered by a file system of the test's own")


def enter():
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # Where ip and nft are, for users too.
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            skip(f"{tool} is not here; it comes with the package {package}")
    binaries = os.path.abspath(os.environ.get("RAYCTL_BIN_DIR", "build/dev/bin"))
    lab = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.getuid() != 0:
        lab.insert(1, "--map-root-user")
    tried = subprocess.run([*lab, "ip", "link", "add", "name", "switch", "type", "bridge"], capture_output=True, text=True,
                           check=False)
    if tried.returncode != 0:
        skip("this machine lets nobody make network namespaces: " + tried.stderr.strip())
    os.environ["RAYCTL_BIN_DIR"] = binaries
    os.environ[INSIDE] = place([binaries, HERE])
    os.execvp(lab[0], [*lab, "--", sys.executable, os.path.join(HERE, "run.py"), *sys.argv[1:]])


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if INSIDE not in os.environ:
        enter()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "lab", os.environ[INSIDE]], check=True)
    what, words = sys.argv[1], sys.argv[2:]
    sys.argv = [what, *words]
    if what == "matrix":
        runpy.run_module("matrix", run_name="__main__")
    else:
        unittest.main(module=what, argv=[what, *words], verbosity=2)


if __name__ == "__main__":
    main()
