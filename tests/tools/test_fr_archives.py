"""Archives of flight records: read like the directory they stand for, and hostile ones within limits."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_records import (
    CASE,
    DUMPS,
    HEADERS,
    PACKERS,
    captured,
    gz,
    opened,
    ranks_of,
    rows_of,
    tar,
    tar_gz,
    tar_zst,
    zipped,
    zst,
)

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.files.kinds import FileKind, kind_of

pytestmark = pytest.mark.slow

FILES = {**DUMPS, **HEADERS}
MIB = 1 << 20


def without_source(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of dumps and entries, apart from what names the file they came from."""
    of_file = ("dump", "source", "attempt", "membership", "written_ns")
    return {
        table: sorted(
            ({key: value for key, value in row.items() if key not in of_file} for row in rows[table]), key=repr
        )
        for table in ("fr_dumps", "fr_entries", "fr_groups", "fr_calls")
    }


# --- the same as the directory


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("folder", ["", "./", "attempt_0/"])
def test_an_archive_is_read_like_the_directory_it_stands_for(tmp_path: Path, name: str, folder: str) -> None:
    """Headers that come behind the dumps serve them all the same: hosts and times are known."""
    (tmp_path / name).write_bytes(PACKERS[name]({folder + file: data for file, data in FILES.items()}))
    raw = captured(tmp_path)
    rows = rows_of(raw)
    assert (raw.status, raw.problems) == (ProbeStatus.OK, [])
    assert without_source(rows) == without_source(rows_of(captured(CASE)))
    assert {dump["host"] for dump in rows["fr_dumps"]} == {"node-0"}
    sources = sorted(dump["source"] for dump in rows["fr_dumps"])
    assert sources == [f"{tmp_path / name}!{folder.removeprefix('./')}rank_{rank}.pkl" for rank in range(4)]


def test_single_files_may_be_compressed_and_all_forms_mixed(tmp_path: Path) -> None:
    (tmp_path / "rank_0.pkl").write_bytes(DUMPS["rank_0.pkl"])
    (tmp_path / "nccl_trace_rank_1.gz").write_bytes(gz(DUMPS["rank_1.pkl"]))
    (tmp_path / "rank_2.pkl.zst").write_bytes(zst(DUMPS["rank_2.pkl"]))
    (tmp_path / "rank_2.header.json.gz").write_bytes(gz(HEADERS["rank_2.header.json"]))
    (tmp_path / "node-7.zip").write_bytes(zipped({"nccl_trace_rank_3": DUMPS["rank_3.pkl"]}))
    (tmp_path / "access.log.gz").write_bytes(gz(b"GET / 200\n"))
    (tmp_path / "data.tar").write_bytes(tar({"a.jpg": b"\xff\xd8", "b.txt": b"a cat"}))
    raw = captured(tmp_path)
    rows = rows_of(raw)
    assert {dump["rank"]: dump["host"] for dump in rows["fr_dumps"]} == {0: None, 1: None, 2: "node-0", 3: "node-7"}
    assert raw.problems == []
    assert raw.searched == [f"8 files in {tmp_path}: 4 flight records"]


def test_what_is_no_record_is_passed_over_in_silence() -> None:
    others = {"readme.txt": b"hello", "x/model.json": b'{"layers": 2}', "empty": b"", "y.bin": os.urandom(2000)}
    for pack in PACKERS.values():
        members, problems = opened(pack({**others, **DUMPS}))
        assert [member.data for member in members if member.kind is FileKind.DUMP] == list(DUMPS.values())
        assert problems == []


def test_what_a_rank_left_that_died_while_writing_is_named_inside_an_archive_too(tmp_path: Path) -> None:
    (tmp_path / "dumps.tar").write_bytes(tar({**DUMPS, "rank_4.pkl": b"", "rank_5.pkl": b"\x80\x02}q", "empty": b""}))
    raw = captured(tmp_path)
    assert ranks_of(raw) == [0, 1, 2, 3]
    assert len(raw.problems) == 2
    assert "dumps.tar!rank_4.pkl: the file is empty" in raw.problems[0]
    assert "dumps.tar!rank_5.pkl: the pickle is truncated" in raw.problems[1]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar_and_long_names_are_read(format: int) -> None:
    folder = "d" * 90 + "/" + "é" * (0 if format == tarfile.USTAR_FORMAT else 100) + "/"
    members, problems = opened(tar({folder + name: data for name, data in DUMPS.items()}, format=format))
    assert [member.data for member in members] == list(DUMPS.values())
    assert all(member.path.endswith(f"/{name}") for member, name in zip(members, DUMPS, strict=True))
    assert problems == []


def test_archives_may_lie_in_an_archive_and_no_deeper(tmp_path: Path) -> None:
    node0 = tar_gz({name: FILES[name] for name in list(FILES)[:2]})
    node1 = zipped({"rank_2.pkl.gz": gz(DUMPS["rank_2.pkl"]), "deep.tar": tar({"rank_3.pkl": DUMPS["rank_3.pkl"]})})
    (tmp_path / "all.tar").write_bytes(tar({"node0.tar.gz": node0, "node1.zip": node1}))
    raw = captured(tmp_path)
    rows = rows_of(raw)
    assert {dump["rank"]: dump["host"] for dump in rows["fr_dumps"]} == {0: "node0", 1: "node0", 2: "node1"}
    (problem,) = raw.problems
    assert problem.startswith(f"{tmp_path}/all.tar!node1.zip!deep.tar: nested more than two archives deep")


def test_what_is_packed_twice_is_named() -> None:
    members, problems = opened(gz(gz(DUMPS["rank_0.pkl"])))
    assert (members, len(problems)) == ([], 1)
    assert "compressed more than once" in problems[0]


def test_checkpoints_are_left_alone(tmp_path: Path) -> None:
    """Constructed with the names that torch.save of torch 2.13 gives, in their order."""
    names = ("data.pkl", ".format_version", ".storage_alignment", "byteorder", "data/0", "version")
    checkpoint = zipped({f"rank_0_step_100/{name}": b"\x80\x02}q\x00X\x07\x00\x00\x00version" for name in names})
    (tmp_path / "rank_0_step_100.pt").write_bytes(checkpoint)
    for target in (tmp_path, tmp_path / "rank_0_step_100.pt"):
        raw = captured(target)
        assert (raw.items, raw.problems, raw.status) == ([], [], ProbeStatus.NO_DATA)


def test_two_members_of_one_name_are_two_records() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for _ in range(3):
            member = tarfile.TarInfo("rank_0.pkl")
            member.size = len(DUMPS["rank_0.pkl"])
            archive.addfile(member, io.BytesIO(DUMPS["rank_0.pkl"]))
    members, _ = opened(out.getvalue())
    assert [member.path for member in members] == ["dumps!rank_0.pkl", "dumps!rank_0.pkl#2", "dumps!rank_0.pkl#3"]


# --- damaged


@pytest.mark.parametrize(("pack", "step"), [(tar_gz, 29), (tar_zst, 29), (zipped, 97), (tar, 997)])
def test_of_every_truncation_what_was_whole_is_read_and_the_rest_is_named(pack: Any, step: int) -> None:
    whole = pack(FILES)
    least = 0
    for length in (*range(300, len(whole), step), *range(len(whole) - 4, len(whole))):
        members, problems = opened(whole[:length])
        complete = [member for member in members if FILES.get(member.path.removeprefix("dumps!")) == member.data]
        assert len(members) - len(complete) <= 1, "only the last one may be cut"
        assert len(complete) >= least
        assert problems or (pack is tar and len(complete) == len(FILES)), f"{length} of {len(whole)} bytes"
        least = len(complete)
    assert pack is zipped or least == len(FILES), "a zip archive is nothing without its end"


def test_a_truncated_archive_costs_only_what_is_missing(tmp_path: Path) -> None:
    whole = tar(FILES)
    (tmp_path / "dumps.tar.gz").write_bytes(gz(whole[: whole.index(DUMPS["rank_3.pkl"]) + 100]))
    raw = captured(tmp_path)
    assert ranks_of(raw) == [0, 1, 2]
    assert raw.status is ProbeStatus.PARTIAL
    assert any("cut off" in problem for problem in raw.problems)


def test_a_damaged_tar_header_costs_only_its_member() -> None:
    whole = tar(DUMPS)
    at = whole.index(b"rank_1.pkl")
    members, problems = opened(whole[:at] + b"\xff" * 200 + whole[at + 200 :])
    assert [member.path[-10:] for member in members] == ["rank_0.pkl", "rank_2.pkl", "rank_3.pkl"]
    assert len(problems) == 1 and "a damaged header" in problems[0]


@pytest.mark.parametrize("pack", [tar_gz, tar_zst, zipped, tar])
def test_no_flipped_byte_gets_through_unseen(pack: Any) -> None:
    """Where the format has checksums; a plain tar has them for headers only, and must merely survive."""
    whole = pack(FILES)
    for at in range(0, len(whole), max(1, len(whole) // 150)):
        members, problems = opened(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        if pack is not tar and not problems:
            assert {member.path.removeprefix("dumps!"): member.data for member in members}.items() <= FILES.items()


@given(st.sampled_from([pack(FILES) for pack in PACKERS.values()]), st.data())
def test_no_damage_is_too_much(whole: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 4000)))
    opened(whole[:start] + data.draw(st.binary(max_size=600)) + whole[end:])


@given(
    st.sampled_from([b"", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PK\x05\x06", b"\x50\x2a\x4d\x18"]),
    st.binary(max_size=2000),
)
def test_random_bytes_are_survived(magic: bytes, noise: bytes) -> None:
    opened(magic + noise)
    opened(tar({"rank_0.gz": magic + noise}))


def test_headers_are_told_by_what_they_say() -> None:
    assert kind_of(json.dumps({"rank": 0, "taken_at_ns": 1, "groups": []}).encode()) is FileKind.HEADER
    assert kind_of(b"") is FileKind.EMPTY
    assert kind_of(gzip.compress(b"")) is FileKind.GZIP
    assert kind_of(zlib.compress(b"x" * 100)) is None
