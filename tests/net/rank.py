"""A rank that goes from one named step to the next as the test tells it.

    rank.py FOLDER NAME

Says `rank NAME RANK HOST PID ATTEMPT` and waits for a word: `go` ends it well, `fail` badly. At SIGTERM it says `term …` and
waits for `bye`. Gates are named by step, NAME, rank and attempt, so that a word for one attempt never reaches another.
"""

import os
import signal
import socket
import sys

FOLDER, NAME = sys.argv[1:]
RANK, ATTEMPT = os.environ["RANK"], os.environ["RAYCTL_ATTEMPT"]


class Term(Exception):
    pass


def terminate(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Term


def say(step):
    pipe = os.open(os.path.join(FOLDER, "events"), os.O_WRONLY)
    os.write(pipe, f"{step} {NAME} {RANK} {socket.gethostname()} {os.getpid()} {ATTEMPT}\n".encode())
    os.close(pipe)


def hear(step):
    with open(os.path.join(FOLDER, f"gate_{step}_{NAME}_{RANK}_{ATTEMPT}"), encoding="utf-8") as gate:
        return gate.readline().strip()


signal.signal(signal.SIGTERM, terminate)
try:
    say("rank")
    sys.exit(hear("go") != "go")
except Term:
    say("term")
    hear("bye")
