"""A rank as py-spy sees it: a deep stack that waits, beside some threads that wait, too."""

import sys
import threading

DEPTH = 40
THREADS = 8


def call(depth: int) -> None:
    """Wait at the bottom of a stack of `depth` frames."""
    if depth:
        call(depth - 1)
    else:
        print("waiting", flush=True)
        sys.stdin.read()


for _ in range(THREADS):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
call(DEPTH)
