"""Replays the calls of some ranks and reports which ones finish; `ddx repro` inserts description and program here."""

# DESCRIPTION
from __future__ import annotations

import argparse
import datetime
import mmap
import os
import signal
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Tuple

try:
    import torch
    import torch.distributed as dist
except ImportError:
    if __name__ == "__main__":
        raise

# PROGRAM
GROUPS = {"world": [0, 1]}


def recorded(rank: int) -> None:
    """Make the calls that this rank made in the job under investigation, faults included."""
    if rank == 0:
        do("all_reduce", "world", 4)
    stay_away()


def healthy(rank: int) -> None:
    """Make the calls that this rank would make in a correct program, for comparison with `recorded`."""
    do("all_reduce", "world", 4)


# PLAYER
SLOT = 160  # bytes of a rank's line, which says what it is doing
RANK, DEVICE = 0, "cpu"
GROUP_OF: Dict[str, Any] = {}
WORKS: List[Tuple[Any, str, List[torch.Tensor], Optional[int], str]] = []
LINES: Optional[mmap.mmap] = None
THROUGH = "has finished"
LIFETIME_S = 600  # the longest life of a rank


def do(
    op: str,
    group: str,
    elements: int = 1,
    dtype: str = "float32",
    source: int = -1,
    target: int = -1,
    sends: Optional[List[int]] = None,
    receives: Optional[List[int]] = None,
    later: bool = False,
) -> None:
    """Run one operation with tensors of ones, if this rank takes part in it."""
    members = GROUPS[group]
    ends = members if source < 0 else [source, target]
    if RANK not in ends:
        return
    words = "in %s of %s (%d x %s)%s" % (op, group, elements, dtype, "" if source < 0 else " %d->%d" % (source, target))
    say(words)
    count, pg, kind = len(members), GROUP_OF[group], getattr(torch, dtype)
    mine = torch.ones(elements, dtype=kind, device=DEVICE)
    first, is_first = members[0], members[0] == RANK
    parts = [torch.empty_like(mine) for _ in members]
    work: Any = None
    expected: Optional[int] = None
    if op == "all_reduce":
        work, expected = dist.all_reduce(mine, group=pg, async_op=later), count
    elif op == "all_gather":
        work, expected = dist.all_gather(parts, mine, group=pg, async_op=later), 1
    elif op == "reduce_scatter":
        work = dist.reduce_scatter(mine, [torch.ones_like(mine) for _ in members], group=pg, async_op=later)
        expected = count
    elif op == "broadcast":
        work = dist.broadcast(mine, src=first, group=pg, async_op=later)
    elif op == "reduce":
        work = dist.reduce(mine, dst=first, group=pg, async_op=later)
    elif op == "gather":
        work = dist.gather(mine, parts if is_first else None, dst=first, group=pg, async_op=later)
    elif op == "scatter":
        work = dist.scatter(mine, parts if is_first else None, src=first, group=pg, async_op=later)
    elif op == "all_to_all":
        into, out = sum(receives or [elements] * count), sum(sends or [elements] * count)
        arrived = torch.empty(into, dtype=kind, device=DEVICE)
        given = torch.ones(out, dtype=kind, device=DEVICE)
        work = dist.all_to_all_single(arrived, given, receives, sends, group=pg, async_op=later)
    elif op == "barrier":
        work = dist.barrier(group=pg, async_op=later)
    elif op == "new_group":
        dist.new_group(list(range(len(GROUPS["world"]))))
    elif op == "send" or (op == "transfer" and source == RANK):
        work = (dist.isend if later else dist.send)(mine, target, group=pg)
    elif op in ("recv", "transfer"):
        work = (dist.irecv if later else dist.recv)(mine, source, group=pg)
    checked = parts if op == "all_gather" else [mine]
    if later:
        WORKS.append((work, op, checked, expected, words))
    else:
        check(op, checked, expected)


def check(op: str, tensors: List[torch.Tensor], expected: Optional[int]) -> None:
    """Raise RuntimeError if the values are not the result of ones from all members."""
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    got = sorted({float(value) for tensor in tensors for value in (tensor.double().min(), tensor.double().max())})
    if expected is not None and got != [float(expected)]:
        raise RuntimeError("%s gave %s where all must be %s" % (op, got, float(expected)))


def wait() -> None:
    """Wait for all asynchronous calls."""
    while WORKS:
        work, op, tensors, expected, words = WORKS.pop(0)
        say(words + ", an asynchronous call")
        work.wait()
        check(op, tensors, expected)


def stay_away() -> None:
    """Act as a rank that makes no further call."""
    say("stays away from its peers' calls")
    time.sleep(LIFETIME_S)


def leave() -> None:
    """Act as a rank that exits."""
    say("leaves")
    os._exit(1)


def say(text: str) -> None:
    """Report what the rank is doing now."""
    if LINES is None:
        print("rank %d %s" % (RANK, text), flush=True)
    else:
        LINES[RANK * SLOT : (RANK + 1) * SLOT] = text.encode()[:SLOT].ljust(SLOT)


def play(rank: int, args: argparse.Namespace, store: str) -> None:
    """Join the group as `rank` and make its calls."""
    global RANK, DEVICE
    RANK = rank
    if args.backend == "nccl":
        DEVICE = "cuda:%d" % int(os.environ.get("LOCAL_RANK", rank))
        torch.cuda.set_device(DEVICE)
    limit, world = datetime.timedelta(seconds=LIFETIME_S), len(GROUPS["world"])
    dist.init_process_group(args.backend, store, rank=rank, world_size=world, timeout=limit)
    for name in GROUPS:
        GROUP_OF[name] = None if name == "world" else dist.new_group(GROUPS[name])
    (healthy if args.healthy else recorded)(rank)
    wait()
    say(THROUGH)


def start(rank: int, args: argparse.Namespace, store: str) -> None:
    """Run a forked rank; it stays until all have finished, since exiting would be a fault of its own."""
    try:
        play(rank, args, store)
        time.sleep(LIFETIME_S)
    except BaseException as error:
        say("failed: %s" % error)
        os._exit(1)


def main() -> None:
    """Run the script as one rank of torchrun, or fork all ranks on this host."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--healthy", action="store_true", help="make the calls that all ranks should make")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument(
        "--deadline", type=float, default=20, help="seconds without progress after which it counts as hung"
    )
    args = parser.parse_args()
    if "RANK" in os.environ:  # torchrun started it, on one host or several; only the user ends it
        play(int(os.environ["RANK"]), args, "env://")
        time.sleep(args.deadline)
        os._exit(0)
    sys.exit(attend(args))


def attend(args: argparse.Namespace) -> int:
    """Fork the ranks and watch them until all have finished or none makes progress; 0 if all have finished, else 1."""
    global LINES
    world = len(GROUPS["world"])
    pids: List[int] = []
    lines: List[str] = []
    LINES = mmap.mmap(-1, world * SLOT)
    with tempfile.TemporaryDirectory() as place:
        try:
            for rank in range(world):
                pids.append(os.fork())
                if pids[rank] == 0:
                    start(rank, args, "file://" + os.path.join(place, "store"))
            lines = watch(world, args.deadline)
        finally:
            for rank, pid in enumerate(pids):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                elif os.WIFSIGNALED(status):
                    lines[rank] += ", killed by signal %d" % os.WTERMSIG(status)
    for rank, line in enumerate(lines):
        print("rank %d %s" % (rank, line or "is still starting"))
    through = all(line == THROUGH for line in lines)
    print("all ranks finished" if through else "not all ranks finished")
    return 0 if through else 1


def watch(world: int, deadline: float) -> List[str]:
    """Wait until all ranks have finished or none has moved for `deadline` seconds; return what each is doing."""
    assert LINES is not None
    seen, moved = b"", time.monotonic()
    lines: List[str] = []
    while time.monotonic() - moved < deadline and lines != [THROUGH] * world:
        time.sleep(0.05)
        if LINES[:] != seen:
            seen, moved = LINES[:], time.monotonic()
        lines = [seen[rank * SLOT : (rank + 1) * SLOT].strip(b" \0").decode() for rank in range(world)]
    return lines


if __name__ == "__main__":
    main()
