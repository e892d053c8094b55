"""`python unpickle_all.py DIRECTORY PROCESSES keep|drop`: what it costs to unpickle all dumps, and nothing else."""

import os
import pickle
import sys


def main(directory: str, processes: int, keep: bool) -> None:
    """Each of the processes loads its share of the files."""
    files = sorted(entry.path for entry in os.scandir(directory))
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            kept = []
            for file in files[number::processes]:
                with open(file, "rb") as stream:
                    dump = pickle.load(stream)
                if keep:
                    kept.append(dump)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "keep")
