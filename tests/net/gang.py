"""A rank that proves where its gang's traffic goes: rank 0 listens at MASTER_ADDR, every other sends it bytes and the
interface that it was told to use. Prints one JSON object a rank into the file named by the first argument."""

import json
import os
import socket
import sys

BYTES = 1 << 20


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    received = 0
    if rank == 0:
        with socket.create_server(address, family=family) as server:
            for _ in range(size - 1):
                peer, _ = server.accept()
                with peer:
                    while chunk := peer.recv(1 << 16):
                        received += len(chunk)
    else:
        while True:
            try:
                with socket.create_connection(address, timeout=30) as peer:
                    peer.sendall(b"x" * BYTES)
                break
            except ConnectionRefusedError:
                pass  # Rank 0 does not listen yet; every try is a round trip.
    with open(sys.argv[1], "a", encoding="utf-8") as out:
        out.write(json.dumps({"rank": rank, "received": received, "master": address[0], "host": socket.gethostname(),
                              "interfaces": [os.environ[f"{who}_SOCKET_IFNAME"] for who in ("GLOO", "NCCL", "TP")]}) + "\n")


main()
