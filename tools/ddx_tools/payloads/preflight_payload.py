"""Test the process group that a launcher sets up, and record each rank's results.

Started as `preflight_payload.py OUT PLAN` by torchrun, or by anything that sets RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT. PLAN is JSON, see `DEFAULTS`. Every rank appends lines of JSON to `OUT/rank-<rank>.jsonl`:

    {"kind": "rank"}    the rank's host, pid, device, versions, ports of its network devices
    {"kind": "clock"}   offset_s of its wall clock from rank 0's, known within error_s
    {"kind": "group"}   a sub-group and the global ranks of its members
    {"kind": "begin"}   it begins a step: step, operation, group, dtype, bytes, at_s
    {"kind": "end"}     the step is done: time_s of one operation (mean), number of wrong elements, the first
                        of them, and the global ranks that they came from, if the operation shows it
    {"kind": "skipped"} the backend does not have this operation
    {"kind": "failed"}  the step raised: error
    {"kind": "round"}   equal work, then a tiny all_reduce: compute_s, its cpu_s, arrived_at_s, waited_s
    {"kind": "done"}    all steps are done

`bytes` is the size in nccl-tests 2.19.6: the larger of a rank's input and output. Data are small integers, exact in
every data type and summation order, so each element of each result is compared with its expected value. The kernel ends
the process after `lifetime_s` (SIGALRM), whatever it is doing. Python 3.8, torch 2.0.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import socket
import sys
import time
import warnings
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError:
    # Only when it runs as a program: the package must be importable without torch.
    if __name__ == "__main__":
        raise

DEFAULTS: Dict[str, Any] = {
    "backend": "auto",  # auto | nccl | gloo
    "budget_s": 12.0,  # for larger messages; the checks at small sizes always run
    "max_bytes": None,  # size of the largest message; None: 64 MiB on CPU, 1 GiB on GPU
    "lifetime_s": 300.0,
    "sweep": True,  # False: bandwidth is measured by nccl-tests
    "rounds": 8,  # rounds of equal work
    "pairs": False,
    "dims": [],  # [[name, size], …], slowest-varying first
}
SMALLEST_BYTES, FACTOR = 1 << 10, 4
CHECKED_BYTES = 1 << 16
LATENCY_BYTES = 1 << 18  # up to this size, a larger message takes hardly longer
PAIR_BYTES = 4 << 20
DTYPES = ("bfloat16", "float16", "int32")
ROUND_S = 0.1  # at least the 100 ms period of a CPU quota, so that no round fits between two periods
PINGS = 5

Line = Dict[str, Any]


class Report:
    """The file of one rank. Each line is written at once, so that it shows what a hung or killed rank did so far."""

    def __init__(self, out: str, rank: int) -> None:
        self.file = open(os.path.join(out, "rank-%d.jsonl" % rank), "ab", buffering=0)  # noqa: SIM115
        self.step = -1

    def write(self, kind: str, **facts: Any) -> None:
        """Write one line."""
        self.file.write(json.dumps(dict(facts, kind=kind)).encode() + b"\n")

    def run(self, operation: str, action: Callable[[], Optional[Line]], **facts: Any) -> None:
        """Run a test step between a `begin` line and an `end` line, which holds the result of `action`.

        If it raises, a `failed` line replaces the `end` line and the error propagates. If the backend lacks the
        operation, a `skipped` line replaces it.
        """
        self.step += 1
        self.write("begin", step=self.step, operation=operation, at_s=time.time(), **facts)
        try:
            result = action() or {}
        except Exception as error:
            text = "{}: {}".format(type(error).__name__, error)[:1000]
            lacks = any(word in text.lower() for word in ("not support", "not implemented", "unsupported"))
            self.write("skipped" if lacks else "failed", step=self.step, error=text, at_s=time.time())
            if not lacks:
                raise
            return
        self.write("end", step=self.step, at_s=time.time(), **result)


class Group:
    """A process group, as the steps use it."""

    def __init__(self, name: str, members: Sequence[int], handle: Any, device: torch.device) -> None:
        self.name, self.members, self.handle, self.device = name, list(members), handle, device
        self.size, self.index = len(self.members), self.members.index(dist.get_rank())


def periodic(period: Sequence[int], count: int, group: Group, dtype: torch.dtype) -> torch.Tensor:
    """The period repeated to `count` elements."""
    once = torch.tensor(period, dtype=dtype, device=group.device)
    return once.repeat(-(-count // len(period)))[:count].contiguous()


def numbers_of(index: int, count: int, group: Group, dtype: torch.dtype) -> torch.Tensor:
    """The data that a member sends if nothing is summed: it differs per member and position."""
    return periodic([(7 * index + p) % 101 for p in range(101)], count, group, dtype)


class Prepared:
    """A prepared call with its output (None if this member gets none) and the expected output.

    `origins` maps positions of wrong elements to the members that they came from; [] if unknown.
    """

    def __init__(
        self,
        call: Callable[[], Any],
        out: Optional[torch.Tensor] = None,
        want: Optional[torch.Tensor] = None,
        origins: Callable[[torch.Tensor], List[int]] = lambda _: [],
        restore: Callable[[], Any] = lambda: None,
    ) -> None:
        self.call, self.out, self.want, self.origins, self.restore = call, out, want, origins, restore


class Messages:
    """Builds inputs and outputs of `count` elements, or of `share` = count / members if each member has a part.

    The first member is the root; in a broadcast, the last one. If data are summed, each member contributes 1 at
    positions p with (p + index) % modulus == 0, else 0: sums stay exact in bfloat16, and with up to 64 members a wrong
    element shows whose contribution it was.
    """

    def __init__(self, group: Group, count: int, dtype: torch.dtype) -> None:
        self.group, self.count, self.share, self.dtype = group, count, count // group.size, dtype
        self.out = torch.empty(count, dtype=dtype, device=group.device)
        self.modulus = min(group.size, 64) + 1
        if group.size % self.modulus == 0:
            self.modulus += 1

    def numbers(self, index: int, count: int) -> torch.Tensor:
        """Return `count` elements of test data that differ for each `index`.

        The index is a member's index in the group, or the number of a message between two members.
        """
        return numbers_of(index, count, self.group, self.dtype)

    def from_all(self, index_of: Callable[[int], int] = lambda member: member) -> torch.Tensor:
        """Concatenate one part (`share` elements) of test data for each member, in member order.

        `index_of` maps a member's index to the index from which its data are generated.
        """
        return torch.cat([self.numbers(index_of(j), self.share) for j in range(self.group.size)])

    def segments(self, wrong: torch.Tensor) -> List[int]:
        """Return the indices of the members whose parts contain wrong elements.

        `wrong` holds positions in an output that consists of one part from each member, in member order.
        """
        return list(torch.unique(wrong // self.share).tolist())

    def ones(self) -> torch.Tensor:
        """This member's contribution to a sum."""
        period = [int((p + self.group.index) % self.modulus == 0) for p in range(self.modulus)]
        return periodic(period, self.count, self.group, self.dtype)

    def sums(self, count: int, offset: int = 0) -> torch.Tensor:
        """The expected sum for `count` elements from position `offset` on."""
        members = range(self.group.size)
        period = [sum((p + offset + j) % self.modulus == 0 for j in members) for p in range(self.modulus)]
        return periodic(period, count, self.group, self.dtype)

    def contributors(self, wrong: torch.Tensor, offset: int = 0) -> List[int]:
        """The members that contribute 1 at all wrong positions: one of them may be missing or counted twice."""
        classes = torch.unique((-(wrong + offset)) % self.modulus).tolist()
        return [j for j in range(self.group.size) if j % self.modulus == classes[0]] if len(classes) == 1 else []

    def barrier(self) -> Prepared:
        """Prepare a barrier."""
        return Prepared(lambda: dist.barrier(group=self.group.handle))

    def all_reduce(self) -> Prepared:
        """Prepare an all_reduce in place, as in training."""
        data, mine = self.out, self.ones()
        call = lambda: dist.all_reduce(data, group=self.group.handle)  # noqa: E731
        data.copy_(mine)
        return Prepared(call, data, self.sums(self.count), self.contributors, lambda: data.copy_(mine))

    def reduce(self) -> Prepared:
        """Prepare a reduce: only the root gets the sum."""
        data, mine, root = self.out, self.ones(), self.group.members[0]
        call = lambda: dist.reduce(data, root, group=self.group.handle)  # noqa: E731
        data.copy_(mine)
        received = data if self.group.index == 0 else None
        return Prepared(call, received, self.sums(self.count), self.contributors, lambda: data.copy_(mine))

    def reduce_scatter(self) -> Prepared:
        """Prepare a reduce_scatter: each member gets its part of the sum."""
        out, mine, offset = self.out[: self.share], self.ones(), self.group.index * self.share
        call = lambda: dist.reduce_scatter_tensor(out, mine, group=self.group.handle)  # noqa: E731
        return Prepared(call, out, self.sums(self.share, offset), lambda wrong: self.contributors(wrong, offset))

    def all_gather(self) -> Prepared:
        """Prepare an all_gather: every member gets all parts."""
        mine = self.numbers(self.group.index, self.share)
        call = lambda: dist.all_gather_into_tensor(self.out, mine, group=self.group.handle)  # noqa: E731
        return Prepared(call, self.out, self.from_all(), self.segments)

    def broadcast(self) -> Prepared:
        """Prepare a broadcast of the last member's data."""
        last = self.group.size - 1
        want, root = self.numbers(last, self.count), self.group.members[last]
        self.out.copy_(want) if self.group.index == last else self.out.zero_()
        call = lambda: dist.broadcast(self.out, root, group=self.group.handle)  # noqa: E731
        return Prepared(call, self.out, want, lambda _: [last])

    def gather(self) -> Prepared:
        """Prepare a gather: the root gets all parts."""
        mine, root = self.numbers(self.group.index, self.share), self.group.members[0]
        parts = list(self.out.split(self.share)) if self.group.index == 0 else None
        call = lambda: dist.gather(mine, parts, root, group=self.group.handle)  # noqa: E731
        return Prepared(call, self.out if parts else None, self.from_all(), self.segments)

    def scatter(self) -> Prepared:
        """Prepare a scatter: each member gets its part of the root's data."""
        out, me, root = self.out[: self.share], self.group.index, self.group.members[0]
        parts = [self.numbers(j, self.share) for j in range(self.group.size)] if me == 0 else None
        call = lambda: dist.scatter(out, parts, root, group=self.group.handle)  # noqa: E731
        return Prepared(call, out, self.numbers(me, self.share), lambda _: [0])

    def all_to_all(self) -> Prepared:
        """Prepare an all_to_all: each member sends a different part to each other one."""
        size, me = self.group.size, self.group.index
        mine, want = self.from_all(lambda j: me * size + j), self.from_all(lambda j: j * size + me)
        call = lambda: dist.all_to_all_single(self.out, mine, group=self.group.handle)  # noqa: E731
        return Prepared(call, self.out, want, self.segments)

    def sendrecv(self) -> Prepared:
        """Prepare transfers around the ring: to the next member, from the previous one."""
        size, me = self.group.size, self.group.index
        return self.exchange((me + 1) % size, (me - 1) % size)

    def exchange(self, to: int, source: int) -> Prepared:
        """Prepare a send to one member and a simultaneous receive from another, or the same."""
        mine, out, members = self.numbers(self.group.index, self.count), self.out, self.group.members

        def call() -> None:
            operations = [
                dist.P2POp(dist.isend, mine, members[to], self.group.handle),
                dist.P2POp(dist.irecv, out, members[source], self.group.handle),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        return Prepared(call, out, self.numbers(source, self.count), lambda _: [source])


def settle(group: Group) -> None:
    """Wait until the device has finished its queued work."""
    if group.device.type == "cuda":
        torch.cuda.synchronize(group.device)


def measure(group: Group, prepared: Prepared, iterations: int, together: bool = True) -> Line:
    """Run a call once to check its result, then time `iterations` runs; `together`: after a barrier."""
    prepared.call()
    settle(group)
    result = compared(group, prepared)
    prepared.restore()
    if together:
        dist.barrier(group=group.handle)
    settle(group)
    started = time.perf_counter()
    for _ in range(iterations):
        prepared.call()
    settle(group)
    return dict(result, iterations=iterations, time_s=(time.perf_counter() - started) / iterations)


def compared(group: Group, prepared: Prepared) -> Line:
    """Run a call and report the wrong elements: their number, the first ones, and the members they came from."""
    out, want = prepared.out, prepared.want
    if out is None or want is None:
        return {}
    places = torch.nonzero(torch.ne(out, want)).flatten().cpu()
    if not len(places):
        return {"wrong": 0}
    first = int(places[0])
    return {
        "wrong": len(places),
        "elements": len(out),
        "first": {"index": first, "got": repr(out[first].item()), "expected": repr(want[first].item())},
        "origins": [group.members[j] for j in prepared.origins(places)],
    }


OPERATIONS = (
    "barrier",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "sendrecv",
)


class Preflight:
    """The steps of one rank, the same in the same order on every rank."""

    def __init__(self, report: Report, plan: Line, world: Group) -> None:
        self.report, self.plan, self.world = report, plan, world
        on_gpu = world.device.type == "cuda"
        self.max_bytes = int(plan["max_bytes"] or (1 << 30 if on_gpu else 64 << 20))

    def all_say(self, yes: bool) -> bool:
        """Whether all ranks say yes, so that all of them take the same next step."""
        no = torch.tensor([0 if yes else 1], dtype=torch.int32, device=self.world.device)
        dist.all_reduce(no, group=self.world.handle)
        return int(no.item()) == 0

    def try_out(self, operation: str, group: Group, size: int, dtype: str = "float32") -> None:
        """Run one operation at one size as a step; the number of iterations does not depend on this rank's clock."""
        if operation == "sendrecv" and group.size < 2:
            return
        kind = getattr(torch, dtype)
        width = torch.empty(0, dtype=kind).element_size()
        count = max(size // width // group.size, 1) * group.size
        iterations = 20 if size <= 1 << 16 else 5 if size <= 4 << 20 else 2
        facts = {"group": group.name, "dtype": dtype, "bytes": 0 if operation == "barrier" else count * width}
        action = lambda: measure(group, getattr(Messages(group, count, kind), operation)(), iterations)  # noqa: E731
        self.report.run(operation, action, **facts)

    def check_everything(self, group: Group) -> None:
        """Run every operation at a small size, and in other data types."""
        for operation in OPERATIONS:
            self.try_out(operation, group, SMALLEST_BYTES)
        for dtype in DTYPES:
            for operation in OPERATIONS[1:]:
                self.try_out(operation, group, CHECKED_BYTES, dtype)

    def sweep(self) -> None:
        """Measure growing message sizes until time or memory runs out; all_reduce gets half of the time."""
        ends = time.monotonic() + float(self.plan["budget_s"])
        others = len(OPERATIONS) - 2
        for place, operation in enumerate(OPERATIONS[1:]):
            left_s = max(ends - time.monotonic(), 0.0)
            stop = time.monotonic() + (left_s / 2 if place == 0 else left_s / (others - place + 1))
            size, next_s = SMALLEST_BYTES * FACTOR, 0.0
            while size <= self.max_bytes and self.all_say(time.monotonic() + next_s < stop):
                began = time.monotonic()
                self.try_out(operation, self.world, size)
                next_s = (time.monotonic() - began) * (FACTOR if size > LATENCY_BYTES else 1)
                size *= FACTOR

    def equal_work(self) -> None:
        """Time equal work before a tiny all_reduce, to find slow ranks; inside it, the slowest rank waits least."""
        edge, kind = (2048, torch.bfloat16) if self.world.device.type == "cuda" else (256, torch.float32)
        left = torch.ones(edge, edge, dtype=kind, device=self.world.device)
        unit_s = min(self.work(left, 1)[0] for _ in range(10))
        fastest = torch.tensor([unit_s], dtype=torch.float32, device=self.world.device)
        dist.all_reduce(fastest, op=dist.ReduceOp.MIN, group=self.world.handle)
        units = max(int(ROUND_S / float(fastest.item())), 1)
        meeting = torch.zeros(1, device=self.world.device)
        for number in range(int(self.plan["rounds"])):
            compute_s, cpu_s = self.work(left, units)
            arrived_at_s, began = time.time(), time.perf_counter()
            dist.all_reduce(meeting, group=self.world.handle)
            settle(self.world)
            waited_s = time.perf_counter() - began
            times = {"compute_s": compute_s, "cpu_s": cpu_s, "arrived_at_s": arrived_at_s, "waited_s": waited_s}
            self.report.write("round", round=number, **times)

    def work(self, left: torch.Tensor, units: int) -> Tuple[float, float]:
        """Multiply the square matrix `left` by itself `units` times.

        Return the elapsed seconds and this thread's CPU seconds.
        """
        began, cpu = time.perf_counter(), time.thread_time()
        for _ in range(units):
            left @ left
        settle(self.world)
        return time.perf_counter() - began, time.thread_time() - cpu

    def groups_of_mesh(self) -> None:
        """Create every group of every dimension on all ranks in one order, then let its members test it."""
        mine: List[Group] = []

        def make() -> None:
            ranks = torch.arange(self.world.size).reshape([size for _, size in self.plan["dims"]])
            for axis, (name, _) in enumerate(self.plan["dims"]):
                for members in ranks.movedim(axis, -1).reshape(-1, ranks.shape[axis]).tolist():
                    handle = dist.new_group(members)
                    if dist.get_rank() in members:
                        mine.append(Group(name, members, handle, self.world.device))

        self.report.run("new_group", make)
        for group in mine:
            self.report.write("group", group=group.name, members=group.members)
            for size in (SMALLEST_BYTES, CHECKED_BYTES, PAIR_BYTES):
                self.try_out("all_reduce", group, min(size, self.max_bytes))

    def all_pairs(self) -> None:
        """Test all pairs in a round-robin: in each round every rank has one partner, and all pairs exchange at once."""
        n, me = self.world.size, self.world.index
        seats = n + n % 2
        count = min(PAIR_BYTES, self.max_bytes) // 4
        for turn in range(seats - 1):
            place = seats - 1 if me == turn else (2 * turn - me) % (seats - 1)
            if me == seats - 1:
                place = turn
            if place < n and place != me:
                prepared = Messages(self.world, count, torch.float32).exchange(place, place)
                action = lambda prepared=prepared: measure(self.world, prepared, 5, together=False)  # noqa: E731
                self.report.run("pair", action, group="world", dtype="float32", bytes=count * 4, peer=place)
            else:
                self.report.run("idle", lambda: None)  # so that all ranks have the same step numbers
            dist.barrier(group=self.world.handle)


def machine(backend: str, device: torch.device) -> Line:
    """The machine, device and versions of this rank."""
    facts: Line = {
        "local_rank": local_rank(),
        "local_world_size": int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "backend": backend,
        "device": str(device),
        "torch": str(torch.__version__),
        "cpus": len(os.sched_getaffinity(0)),
        "nic_gb_per_s": list(active_ports()),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["device_name"] = properties.name
        facts["device_id"] = str(getattr(properties, "uuid", "")) or None
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts


def active_ports() -> Iterator[float]:
    """Yield the rates of the RDMA ports that are up, in 1e9 bytes per second."""
    for port in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        try:
            with open(os.path.join(port, "state")) as state, open(os.path.join(port, "rate")) as rate:
                if "ACTIVE" in state.read():  # "4: ACTIVE"
                    yield float(rate.read().split()[0]) / 8  # "400 Gb/sec (4X NDR)"
        except (OSError, ValueError, IndexError):
            continue


def local_rank() -> int:
    """The local rank; if the launcher does not set it, ranks are assigned to GPUs round-robin."""
    said = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID")
    return int(said) if said else int(os.environ["RANK"]) % max(torch.cuda.device_count(), 1)


def compare_clocks(store: Any, rank: int, size: int) -> Line:
    """Measure the clock offset from rank 0, which serves peers in turn; half the best round trip bounds the error."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    store.set("ddx/boot/%d" % rank, boot)
    if rank == 0:
        for peer in range(1, size):
            if store.get("ddx/boot/%d" % peer).decode() != boot:
                for number in range(PINGS):
                    store.get("ddx/ping/%d/%d" % (peer, number))
                    store.set("ddx/pong/%d/%d" % (peer, number), repr(time.time()))
        return {"offset_s": 0.0, "error_s": 0.0}
    if store.get("ddx/boot/0").decode() == boot:
        return {"offset_s": 0.0, "error_s": 0.0}
    answers = []
    for number in range(PINGS):
        asked, began = time.time(), time.perf_counter()
        store.set("ddx/ping/%d/%d" % (rank, number), "")
        theirs = float(store.get("ddx/pong/%d/%d" % (rank, number)).decode())
        half = (time.perf_counter() - began) / 2
        answers.append((half, asked + half - theirs))
    error_s, offset_s = min(answers)
    return {"offset_s": offset_s, "error_s": error_s}


def choose_backend(wanted: str) -> str:
    """The wanted backend; for auto, NCCL if each rank on the host can have its own GPU, otherwise Gloo."""
    per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    enough = torch.cuda.is_available() and torch.cuda.device_count() >= per_host and dist.is_nccl_available()
    return wanted if wanted != "auto" else "nccl" if enough else "gloo"


def main() -> None:
    """Join the process group and run all steps in order."""
    warnings.filterwarnings("ignore")  # names of operations that newer versions of torch deprecate
    out, plan = sys.argv[1], dict(DEFAULTS, **json.loads(sys.argv[2]))
    signal.setitimer(signal.ITIMER_REAL, float(plan["lifetime_s"]))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    backend = choose_backend(plan["backend"])
    device = torch.device("cuda", local_rank()) if backend == "nccl" else torch.device("cpu")
    report = Report(out, rank)
    report.write("rank", rank=rank, world_size=size, **machine(backend, device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=float(plan["lifetime_s"]))  # the process that watches the deadlines acts earlier
    stores: List[Any] = []
    report.run("rendezvous", lambda: stores.append(next(iter(dist.rendezvous("env://", timeout=timeout)))[0]))
    store = stores[0]
    options = {"store": store, "rank": rank, "world_size": size, "timeout": timeout}
    report.run("init_process_group", lambda: dist.init_process_group(backend, **options))
    report.run("compare_clocks", lambda: report.write("clock", **compare_clocks(store, rank, size)))
    world = Group("world", range(size), dist.group.WORLD, device)
    preflight = Preflight(report, plan, world)
    preflight.check_everything(world)
    report.run("equal_work", preflight.equal_work)
    if plan["sweep"]:
        preflight.sweep()
    if plan["dims"]:
        preflight.groups_of_mesh()
    if plan["pairs"]:
        preflight.all_pairs()
    report.run("barrier", lambda: dist.barrier(), group="world")
    report.write("done", at_s=time.time())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
