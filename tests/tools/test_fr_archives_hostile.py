"""Archives made to do harm: bombs, sizes and names that cannot be, members that are no files."""

from __future__ import annotations

import io
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard
from packed_records import DUMPS, HEADERS, PACKERS, captured, gz, open_end, opened, rows_of, tar, tar_gz, zipped, zst

pytestmark = pytest.mark.slow

FILES = {**DUMPS, **HEADERS}
MIB = 1 << 20


@contextmanager
def at_most(most_bytes: int) -> Iterator[None]:
    """Memory that Python takes meanwhile."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most_bytes, f"{peak >> 20} MiB"


def with_zeros(archive: bytes, size: int) -> bytes:
    """A tar archive with a member of zeros behind its last one."""
    member = tarfile.TarInfo("zeros")
    member.size = size
    return open_end(archive) + member.tobuf() + bytes(size)


def test_a_gzip_bomb_is_stopped_and_named() -> None:
    bomb = gz(with_zeros(tar(DUMPS), 200 * MIB))
    with at_most(8 * MIB):
        members, problems = opened(bomb)
    assert len(members) == 4
    assert any("decompression bomb" in problem for problem in problems)


def test_a_zstd_bomb_is_stopped_and_named() -> None:
    bomb = zst(with_zeros(tar(DUMPS), 400 * MIB))
    with at_most(32 * MIB):
        members, problems = opened(bomb)
    assert len(members) == 4
    assert any("decompression bomb" in problem for problem in problems)


def test_a_record_that_unpacks_to_too_much_is_left_out() -> None:
    large = DUMPS["rank_0.pkl"] + bytes(65 * MIB)
    for data in (gz(large), zst(large), zipped({"rank_0": large}), tar_gz({"rank_0": large})):
        with at_most(140 * MIB):
            members, problems = opened(data)
        assert members == [] and problems
        assert any("more than 64 MiB, the limit for one file" in p or "a decompression bomb" in p for p in problems)


def test_a_huge_window_is_refused() -> None:
    """`zstd --ultra --long=31` makes every reader take 2 GiB."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=30, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(DUMPS["rank_0.pkl"]) + compressor.flush()
    with at_most(2 * MIB):
        members, problems = opened(data)
    assert members == []
    assert len(problems) == 1 and "zstd" in problems[0]


def test_a_long_name_in_a_gzip_header_takes_no_time() -> None:
    header = b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * (32 * MIB) + b"\0"
    plain = gz(DUMPS["rank_0.pkl"])
    members, problems = opened(header + plain[10:])
    assert [member.data for member in members] == [DUMPS["rank_0.pkl"]] and problems == []


def test_endless_empty_gzip_members_are_named() -> None:
    members, problems = opened(gz(DUMPS["rank_0.pkl"]) + gz(b"") * 120_000)
    assert len(members) == 1
    assert len(problems) == 1 and "more than 100000 streams" in problems[0]


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_records_before_a_tar_header_are_not_read_whole(kind: bytes) -> None:
    name = tarfile.TarInfo("long")
    name.type, name.size = kind, 100 * MIB
    hostile = name.tobuf() + b"3" * name.size + tar(DUMPS)
    packed = zst(hostile)
    with at_most(32 * MIB):
        members, problems = opened(packed, most_ratio=1 << 30)
    assert members == []
    assert len(problems) == 1 and "a record in it is larger than the limit of 8 MiB" in problems[0]


@pytest.mark.parametrize("size", [1 << 62, -1, 8 << 30])
def test_sizes_that_cannot_be_are_survived(size: int) -> None:
    member = tarfile.TarInfo("rank_9.pkl")
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    for pack in (bytes, gz):
        members, problems = opened(pack(open_end(tar(DUMPS)) + bytes(header) + DUMPS["rank_0.pkl"]))
        assert [member.data for member in members] == list(DUMPS.values())
        assert problems


def test_links_devices_and_sparse_files_are_left_out_and_named() -> None:
    others = []
    for name, kind in (
        ("rank_5", tarfile.SYMTYPE),
        ("rank_6", tarfile.LNKTYPE),
        ("rank_7", tarfile.CHRTYPE),
        ("rank_8", tarfile.FIFOTYPE),
        ("rank_9", tarfile.GNUTYPE_SPARSE),
    ):
        other = tarfile.TarInfo(name)
        other.type, other.linkname = kind, "/etc/passwd"
        others.append(other)
    members, problems = opened(tar(DUMPS, *others, format=tarfile.GNU_FORMAT))
    assert [member.data for member in members] == list(DUMPS.values())
    assert len(problems) == 1 and "links, devices, pipes and sparse files" in problems[0]


def test_names_that_lead_out_are_labels_and_nothing_is_written(tmp_path: Path) -> None:
    names = ["../../rank_0", "/etc/rank_1", "..\\..\\rank_2", "\x1b[31m\u202e\nrank_3"]
    hostile = dict(zip(names, DUMPS.values(), strict=True))
    for name, pack in PACKERS.items():
        folder = tmp_path / name / "in"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(pack(hostile))
        raw = captured(folder)
        rows = rows_of(raw)
        assert sorted(dump["rank"] for dump in rows["fr_dumps"]) == [0, 1, 2, 3]
        assert len(raw.problems) == 1 and "names that point outside it" in raw.problems[0]
        texts = [text for dump in rows["fr_dumps"] for text in (dump["source"], dump["attempt"])]
        assert all(text.isprintable() for text in texts)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted(f"{name}/in/{name}" for name in PACKERS)


def test_a_name_without_end_is_shown_by_its_end() -> None:
    (member,), _ = opened(tar({"a" * 5000 + "/rank_3": DUMPS["rank_3.pkl"]}))
    assert len(member.path) < 500 and member.path.endswith("aaa/rank_3")


def test_too_many_members_are_named() -> None:
    for pack in PACKERS.values():
        members, problems = opened(pack(FILES), most_members=6)
        assert len(members) == 6
        assert len(problems) == 1 and "more than 6 members" in problems[0]


def test_a_zip_of_overlapping_members_is_stopped() -> None:
    """Constructed after D. Fifield, A better zip bomb (2019): every entry of the directory names the same bytes."""
    one = zipped({"rank_0": DUMPS["rank_0.pkl"] + bytes(MIB)})
    directory = one[one.index(b"PK\x01\x02") : one.index(b"PK\x05\x06")]
    content = one[: one.index(b"PK\x01\x02")]
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 9000, 9000, 9000 * len(directory), len(content), 0)
    members, problems = opened(content + 9000 * directory + end, most_bytes=100 * MIB)
    assert 0 < len(members) <= 100
    assert len(problems) == 1 and "unpacks to more than" in problems[0]


def test_a_zip_directory_without_end_is_not_read() -> None:
    plain = zipped(DUMPS)
    comment = bytearray(plain[plain.index(b"PK\x05\x06") :])
    comment[12:16] = struct.pack("<L", 200 * MIB)
    padded = plain[: plain.index(b"PK\x01\x02")] + bytes(200 * MIB) + bytes(comment)
    with at_most(20 * MIB):
        members, problems = opened(padded)
    assert members == []
    assert len(problems) == 1 and "8 MiB" in problems[0]


def test_encrypted_and_unusual_zip_members_are_left_out_and_named() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("rank_0", DUMPS["rank_0.pkl"], zipfile.ZIP_LZMA)
        archive.writestr("rank_1", DUMPS["rank_1.pkl"], zipfile.ZIP_BZIP2)
        archive.writestr("rank_2", DUMPS["rank_2.pkl"])
        link = zipfile.ZipInfo("rank_3")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    data = bytearray(out.getvalue())
    at = data.index(b"PK\x01\x02", data.rindex(b"PK\x01\x02", 0, data.rindex(b"rank_2")))
    data[at + 8] |= 1
    members, problems = opened(bytes(data))
    assert members == []
    assert ["other than deflate" in p or "links" in p or "encrypted" in p for p in problems] == [True] * 3


def test_a_member_whose_checksum_is_wrong_costs_only_itself() -> None:
    data = bytearray(zipped(DUMPS, zipfile.ZIP_STORED))
    at = data.index(DUMPS["rank_1.pkl"])
    data[at + 1000] ^= 1
    members, problems = opened(bytes(data))
    assert [member.path[-1 - 9 :] for member in members] == ["rank_0.pkl", "rank_2.pkl", "rank_3.pkl"]
    assert len(problems) == 1 and "rank_1.pkl" in problems[0] and "CRC" in problems[0]
