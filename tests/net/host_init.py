"""The first process of a host of the lab: makes the host's own view of the system, says so, and reaps until it is killed,
with which every process of the host ends, as at a power cut."""

import json
import os
import signal
import socket
import subprocess
import sys


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def main():
    view = json.loads(sys.argv[1])
    mount("-t", "proc", "proc", "/proc")
    # A boot has an id of its own, by which the head tells a reboot from a crash.
    mount("--bind", view["boot_id"], "/proc/sys/kernel/random/boot_id")
    mount("--bind", view["hosts"], "/etc/hosts")
    # A /tmp of its own; what the tests need of the real one stays where it was.
    staging = view["tmp"]
    for path in view["kept"]:
        inside = os.path.join(staging, os.path.relpath(path, "/tmp"))
        os.makedirs(inside, exist_ok=True)
        mount("--bind", path, inside)
    mount("--rbind", staging, "/tmp")
    for file, place in view["covered"]:
        mount("--bind", file, place)
    socket.sethostname(view["name"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    print("up", flush=True)
    while True:
        signal.sigwaitinfo({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass


main()
