"""Start one training process a rank on this machine: python launch.py RANKS SCRIPT [ARGUMENT...]."""

import os
import socket
import subprocess
import sys


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    world, command = int(sys.argv[1]), sys.argv[2:]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    ranks = []
    for rank in range(world):
        environment = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, *command], env=environment))
    for process in ranks:
        process.wait()


if __name__ == "__main__":
    main()
