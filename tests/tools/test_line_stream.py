"""One pass over a log serves everybody; what it repeats is cheap, what is new in it is found."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_reading import LOGS
from nccl_logs import gathered, train, world

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.log_text import TextBlock, read_blocks
from ddx_tools.parsers.lines.selection import Allowance, LineSelection
from ddx_tools.parsers.lines.stream import read_lines
from ddx_tools.parsers.logs.log_lines import FileIdentity
from ddx_tools.probes.job_log.scan import JobLog, scan_log
from ddx_tools.probes.nccl_log.gather import LogFile, NcclLog
from ddx_tools.probes.nccl_log.rows import log_rows


def rows(text: str) -> list[dict[str, Any]]:
    return scan_log(io.BytesIO(text.encode()), "x.log", FileIdentity(), None)


def test_job_log_and_nccl_log_share_one_pass() -> None:
    logs = world(2)
    train(logs, steps=60, nranks=2)
    lines = [line for log in logs for line in log.lines]
    data = ("\n".join(lines) + "\n" + (LOGS / "torchrun_raise.log").read_text()).encode()
    file = LogFile("x.log", lambda: io.BytesIO(data))
    job, nccl = JobLog("x.log", FileIdentity(), None), NcclLog()
    read_lines(io.BytesIO(data), [job, nccl.of(file)], block_bytes=20_000)
    assert job.rows() == scan_log(io.BytesIO(data), "x.log", FileIdentity(), None, 20_000)
    together = log_rows(nccl.gathered(set()))
    assert together == log_rows(gathered(data, 20_000))
    assert together["nccl_streams"] and any(row["kind"] == "traceback" for row in job.rows())


@settings(max_examples=30)
@given(st.lists(st.sampled_from([b"a", b"b\r", b"", b"\xff" * 50]), max_size=60), st.integers(60, 300))
def test_a_block_is_found_again_where_it_began(lines: list[bytes], block_bytes: int) -> None:
    data = b"\n".join(lines)
    blocks = list(read_blocks(io.BytesIO(data), block_bytes))
    assert b"".join(block.data for block in blocks) == data
    for block in blocks:
        assert block.offset is not None
        assert (
            next(read_blocks(io.BytesIO(data[block.offset :]), block_bytes, block.number)).data[:10] == block.data[:10]
        )


class Breaking(io.BytesIO):
    """A file whose end cannot be unpacked."""

    def read(self, count: int | None = -1, /) -> bytes:
        data = super().read(count)
        if not data:
            raise UnreadableInput("its end is damaged")
        return data


def test_what_could_be_read_is_told_beside_what_could_not() -> None:
    job = JobLog("x.log", FileIdentity(), None)
    reading = read_lines(Breaking(b"nothing new\n" * 900 + b"KeyError: 1\n"), [job], block_bytes=4_096)
    assert reading.problem == "its end is damaged"
    assert [(row["code"], row["source_line"]) for row in job.rows()] == [("KeyError", 901)]


def test_the_steps_of_a_thousand_ranks_are_read_where_they_begin_and_end() -> None:
    def block(first: int) -> TextBlock:
        steps = (f"[rank{rank}]: step {step} loss 0.5" for step in range(first, first + 40) for rank in range(1_024))
        return TextBlock(first, "\n".join(steps).encode(), first)

    first, middle, last = (LineSelection(block(step)) for step in (0, 40, 80))
    allowance = Allowance()
    first.choose(allowance, middle.kinds)
    middle.choose(allowance, last.kinds)
    last.choose(allowance, set())
    assert read(first) >= 1_024 and read(middle) < 32 and read(last) >= 1_024


def read(selection: LineSelection) -> int:
    found, place = 0, selection.next_place(0)
    while place is not None:
        found, place = found + 1, selection.next_place(place + 1)
    return found


TRACEBACK = '{0}Traceback (most recent call last):\n{0}  File "train.py", line {1}, in main\n{0}KeyError: {2}\n'


def test_ranks_that_all_fail_at_once_are_all_told() -> None:
    text = "".join(TRACEBACK.format(f"[rank{rank}]: ", 7, rank) for rank in range(1_600))
    raised = [row for row in rows(text) if row["kind"] == "traceback"]
    assert {row["rank"] for row in raised} == set(range(1_600))


@pytest.mark.parametrize("label", ["", "[rank3]: "])
def test_a_traceback_among_thousands_that_are_alike_is_told(label: str) -> None:
    again = TRACEBACK.format(label, 7, 1) * 4_000
    other = TRACEBACK.format(label, 9, "'new'").replace("KeyError", "OSError")
    raised = rows(again + other + again)
    (new,) = [row for row in raised if row["code"] == "OSError"]
    assert (new["line"], new["source_line"]) == (9, 12_003)
    details = {key: value for key, value in json.loads(new["details"]).items() if key == "is_cut"}
    assert details == {}
    assert all(row["code"] == "KeyError" for row in raised if row is not new)
