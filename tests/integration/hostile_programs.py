"""Programs that try to outlive their job. `hostile_programs.py NAME` does its worst, says `ready NAME` to the test, and
ends; with HOSTILE_STAYS set its first process stays until somebody ends it.
"""

import os
import signal
import sys

MARK = os.environ.get("HOSTILE_MARK", "")
FORKS = 6  # 2^6 processes.
FLOOD_BYTES = 640 << 20
EATEN_BYTES = 192 << 20
PIECE = 1 << 20
ZOMBIES = 30


def forever():
    while True:
        signal.pause()


def say(name):
    with open(os.environ["HOSTILE_EVENTS"], "w", encoding="utf-8") as events:
        events.write(f"ready {name}\n")


def finish(name, code=0):
    say(name)
    if os.environ.get("HOSTILE_STAYS"):
        forever()
    os._exit(code)


def started():
    """A pipe: its first end reads the end of file once every child that holds the other has done what it should."""
    return os.pipe()


def become_sleep(keeps_environment):
    """Runs on under a name that the test finds, with or without our environment."""
    os.execve("/bin/sleep", [f"sleep_{MARK}", "1000"], dict(os.environ) if keeps_environment else {})


def fork_bomb():
    wait, done = started()
    leader = os.getpid()
    for _ in range(FORKS):
        try:
            os.fork()
        except OSError:
            break  # Refused; what there is stays.
    os.close(done)
    if os.getpid() != leader:
        forever()
    os.read(wait, 1)  # All of them have forked, or were refused.
    finish("fork_bomb", 2)


def detached(name, new_session, twice, keeps_environment, closes=False):
    wait, done = started()
    if os.fork() == 0:
        os.close(wait)
        if new_session:
            os.setsid()
        if twice and os.fork() != 0:
            os._exit(0)
        if closes:
            for fd in (0, 1, 2):
                os.close(fd)
        become_sleep(keeps_environment)  # `done` closes by exec.
    os.close(done)
    os.read(wait, 1)
    finish(name)


def double_fork():
    detached("double_fork", new_session=False, twice=True, keeps_environment=True)


def new_session():
    """And nothing that tells where it came from."""
    detached("new_session", new_session=True, twice=True, keeps_environment=False)


def term_ignored():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    detached("term_ignored", new_session=False, twice=False, keeps_environment=True)


def flood():
    piece = (b"x" * 1023 + b"\n") * (PIECE // 1024)
    for _ in range(FLOOD_BYTES // PIECE if not os.environ.get("HOSTILE_STAYS") else 1):
        os.write(1, piece)
    say("flood")
    while os.environ.get("HOSTILE_STAYS"):
        os.write(1, piece)
    os._exit(0)


def no_newline():
    for _ in range(8):
        os.write(1, b"y" * PIECE)
    finish("no_newline", 3)


def closed_stdout():
    os.close(1)
    os.close(2)
    for _ in range(2):
        os.open("/dev/null", os.O_RDWR)  # Or the pipe of `started` would have their numbers.
    detached("closed_stdout", new_session=True, twice=True, keeps_environment=True, closes=True)


def child_outlives():
    """Holds the output open, too."""
    detached("child_outlives", new_session=False, twice=False, keeps_environment=True)


def zombies():
    for _ in range(ZOMBIES):
        if os.fork() == 0:
            os._exit(0)
    finish("zombies")


def memory_eater():
    say("memory_eater")
    eaten = bytearray()
    for _ in range(EATEN_BYTES // PIECE):
        eaten += b"z" * PIECE
    os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
