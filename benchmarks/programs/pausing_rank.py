"""A rank that notes its longest involuntary pause, and prints it (in milliseconds) when its standard input ends."""

import sys
import threading
import time

longest_s = 0.0
done = threading.Event()


def wait_for_end() -> None:
    """Set `done` once nobody wants us any more."""
    sys.stdin.read()
    done.set()


threading.Thread(target=wait_for_end, daemon=True).start()
print("running", flush=True)
last = time.monotonic()
while not done.is_set():
    time.sleep(0.001)
    now = time.monotonic()
    longest_s = max(longest_s, now - last)
    last = now
print(longest_s * 1000)
