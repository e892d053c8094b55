"""Operations read in columns: the same as line by line, whatever stands between the lines and wherever they are cut."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_logs import Log, gathered

from ddx_tools.parsers.nccl.nccl_blocks import read_block
from ddx_tools.probes.nccl_log.compare import OperationKind, Sums, differing, launches_of, parting
from ddx_tools.probes.nccl_log.gather import Total
from ddx_tools.probes.nccl_log.streams import BUCKET_OPS, streams_of

_PATTERN = re.compile(
    rb"(\S+):(\d+):\d+ \[\d+\] NCCL INFO (\w+): opCount ([0-9a-f]+) sendbuff \S+ recvbuff \S+ count (\d+) "
    rb"datatype (\d+) op (\d+) root (\d+) comm (\S+) \[nranks=(\d+)\] stream \S+$"
)


def line_by_line(data: bytes) -> dict[tuple[str, int, str], Counter[str]]:
    """Names of operations by host, pid and pointer: the simple way."""
    found: dict[tuple[str, int, str], Counter[str]] = defaultdict(Counter)
    for line in data.split(b"\n"):
        if match := _PATTERN.search(line):
            found[match[1].decode(), int(match[2]), match[9].decode()][match[3].decode()] += 1
    return found


def in_columns(data: bytes) -> dict[tuple[str, int, str], Counter[str]]:
    found: dict[tuple[str, int, str], Counter[str]] = defaultdict(Counter)
    for stream in streams_of(read_block(data)):
        found[stream.host, stream.pid, stream.pointer].update(stream.names)
    return found


OPERATIONS = st.tuples(
    st.integers(0, 3), st.sampled_from(["AllReduce", "AllGather", "Broadcast"]), st.integers(0, 5000), st.integers(0, 9)
)
NOISE = st.sampled_from(
    [b"step 1 loss 0.3", b"", b"a: opCount b", b"\xff\xfe\x00", b"50%|###  | 5/10\r60%|####| 6/10", b"x " * 40]
)


@given(st.lists(st.one_of(OPERATIONS, NOISE), max_size=60), st.sampled_from([b"", b"[rank0]: ", b"0: "]))
def test_columns_hold_what_the_lines_hold(items: list[tuple[int, str, int, int] | bytes], label: bytes) -> None:
    lines = []
    for item in items:
        if isinstance(item, bytes):
            lines.append(item)
        else:
            log = Log(item[0])
            log.op(item[1], item[2], item[3])
            lines.append(label + log.lines[-1].encode())
    data = b"".join(line + b"\n" for line in lines)
    assert in_columns(data) == line_by_line(data)


def test_labels_on_some_lines_only_do_not_matter() -> None:
    log = Log(0)
    for number in range(100):
        log.op("AllReduce", number)
    mixed = "".join(f"[rank0]: {line}\n" if number % 3 else f"{line}\n" for number, line in enumerate(log.lines))
    (one,) = streams_of(read_block(log.text().encode()))
    (other,) = streams_of(read_block(mixed.encode()))
    assert (one.buckets, one.names, len(one.tail)) == (other.buckets, other.names, len(other.tail))
    assert [op.op_count for op in other.tail] == list(range(100))


def test_windows_line_ends_do_not_matter() -> None:
    log = Log(0)
    for number in range(10):
        log.op("AllReduce", number)
    (one,) = totals(log.text().encode()).values()
    (other,) = totals(log.text().replace("\n", "\r\n").encode()).values()
    assert (one.names, one.tail, one.buckets) == (other.names, other.tail, other.buckets)


def test_of_two_processes_in_one_line_only_what_is_whole_counts() -> None:
    one, two = Log(0), Log(1)
    one.op("AllReduce", 1)
    two.op("AllReduce", 1)
    first, second = one.lines[0], two.lines[0]
    block = read_block(f"{first}\n{first[:100]}{second}{first[100:]}\n".encode())
    assert block.operations.num_rows == 1


@pytest.mark.parametrize(
    "change",
    [
        {"name": "AllGather"},
        {"count": 1025},
        {"datatype": 9},
        {"op": 2},
        {"root": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_checksum_tells_any_difference(change: dict[str, str | int]) -> None:
    def checksum(**facts: str | int) -> list[tuple[int, int, int, int]]:
        log = Log(0)
        log.op("AllReduce", 4)
        log.op(str(facts.pop("name", "AllReduce")), 5, int(facts.pop("count", 1024)), **facts)  # type: ignore[arg-type]
        (stream,) = streams_of(read_block(log.text().encode()))
        return list(stream.buckets.values())

    assert checksum() != checksum(**change)
    assert checksum() == checksum()


def test_ranks_of_one_order_have_one_checksum_though_addresses_differ() -> None:
    sums = []
    for rank in (0, 1):
        log = Log(rank)
        for number in range(300):
            log.op("AllReduce" if number % 2 else "AllGather", number)
        (stream,) = streams_of(read_block(log.text().replace("0x7f0", f"0x7{rank}0").encode()))
        sums.append(stream.buckets)
    assert sums[0] == sums[1]
    assert sorted(sums[0]) == [0, 1, 2]


def test_swapped_operations_have_another_checksum() -> None:
    sums = []
    for names in (("AllReduce", "AllGather"), ("AllGather", "AllReduce")):
        log = Log(0)
        for number, name in enumerate(names):
            log.op(name, number)
        (stream,) = streams_of(read_block(log.text().encode()))
        sums.append(stream.buckets)
    assert sums[0] != sums[1]


# --- blocks


def totals(data: bytes, block_bytes: int = 1 << 20) -> dict[str, Total]:
    return {total.pointer: total for total in gathered(data, block_bytes).totals.values()}


@pytest.mark.slow
@settings(max_examples=25)
@given(block_bytes=st.integers(300, 5000))
def test_where_blocks_are_cut_does_not_matter(block_bytes: int) -> None:
    log = Log(0)
    log.start(8)
    log.complete(8)
    for number in range(200):
        log.op("AllReduce", number, number % 7)
    data = log.text().encode()
    whole, pieces = totals(data), totals(data, block_bytes)
    (one,), (other,) = whole.values(), pieces.values()
    assert {n: (b.operations, b.first, b.last, b.checksum) for n, b in one.buckets.items()} == {
        n: (b.operations, b.first, b.last, b.checksum) for n, b in other.buckets.items()
    }
    last = [[(op.op_count, line) for op, line in total.tail][-BUCKET_OPS:] for total in (one, other)]
    assert last[0] == last[1]
    assert one.tail[-1][1] == len(log.lines)


# --- classes of ranks


def kind(name: str = "AllReduce", elements: int = 8) -> OperationKind:
    return OperationKind(name, elements, 7, 0, 0)


def test_ranks_that_agree_make_no_bucket() -> None:
    sums = Sums(128, 0, 127, 42)
    assert list(differing({0: {0: sums}, 1: {0: sums}})) == []


def test_the_last_launch_of_a_log_may_be_a_part_of_a_group() -> None:
    """Of a group of three, one rank's log holds the first only: it was cut there, or the rank is printing."""
    whole = launches_of([(0, kind()), (1, kind()), (1, kind(elements=9)), (1, kind(elements=10))])
    part = launches_of([(0, kind()), (1, kind(elements=9))])
    classes = {Sums(4, 0, 1, 1): [0, 1], Sums(2, 0, 1, 2): [2]}
    (bucket,) = differing({rank: {0: sums} for sums, ranks in classes.items() for rank in ranks})
    assert parting(bucket, {0: whole, 2: part}) is None
    other = launches_of([(0, kind()), (1, kind("Broadcast"))])
    parted = parting(bucket, {0: whole, 2: other})
    assert parted is not None and (parted.op_count, parted.before) == (1, 0)


def test_a_rank_that_is_behind_does_not_differ() -> None:
    ahead = launches_of((number, kind()) for number in range(BUCKET_OPS))
    behind = launches_of((number, kind()) for number in range(40))
    (bucket,) = differing({0: {0: Sums(BUCKET_OPS, 0, 127, 1)}, 1: {0: Sums(40, 0, 39, 2)}})
    assert not bucket.same_range
    assert parting(bucket, {0: ahead, 1: behind}) is None
