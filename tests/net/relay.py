"""A wire that misbehaves: carries frames between two TAP devices, late, twice or out of order, from a seed.

    relay.py NAME_A NAME_B {"seed": 1, "delay_ms": 20, "jitter_ms": 10, "duplicate": 0.05, "reorder": 0.05}

Prints one line when frames flow. The kernel here has no netem.
"""

import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
FRAME_MAX = 65536
WAITING_MAX = 10_000  # Frames in the wire; more are lost, as in any queue.


def open_tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def main():
    first, second = open_tap(sys.argv[1]), open_tap(sys.argv[2])
    faults = json.loads(sys.argv[3])
    chance = random.Random(faults.get("seed", 1))
    other = {first: second, second: first}
    newest = {first: 0.0, second: 0.0}  # When the last frame that way leaves: order holds but where it is broken on purpose.
    waiting, count = [], itertools.count()
    print("up", flush=True)
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for fd in select.select([first, second], [], [], timeout)[0]:
            try:
                frame = os.read(fd, FRAME_MAX)
            except BlockingIOError:
                continue
            to, now = other[fd], time.monotonic()
            for _ in range(1 + (chance.random() < faults.get("duplicate", 0))):
                leaves = now + (faults.get("delay_ms", 0) + chance.random() * faults.get("jitter_ms", 0)) / 1000
                if chance.random() >= faults.get("reorder", 0):
                    leaves = newest[to] = max(leaves, newest[to])
                if len(waiting) < WAITING_MAX:
                    heapq.heappush(waiting, (leaves, next(count), to, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(waiting)
            try:
                os.write(to, frame)
            except OSError:
                pass  # The other end is down: a cut wire loses frames.


main()
