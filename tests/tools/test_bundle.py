"""Bundles: what is written comes back, and no bundle of somebody else can hurt."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from stack_bundles import FIXTURES, NAMES, manifest, packed, unpacked, write_manifest

from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.sources import packed_bundle
from ddx_tools.sources.bundle import Bundle, BundleWriter, is_bundle, valid_text
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.packed_bundle import MANIFEST, pack

EMPTY = {"schema": "ddx.bundle/1", "created": "2026-01-01T00:00:00+00:00"}


def written(directory: Path, *answers: tuple[HostCall, Reply], host: str = "node1") -> Path:
    writer = BundleWriter(directory, ["42"])
    for call, reply in answers:
        writer.write(host, "stacks", call, reply, at=1.0)
    writer.close()
    return directory


def with_journal(directory: Path, path: str, **extra: Any) -> Path:
    """A bundle whose journal names a path of somebody's choice."""
    directory.mkdir(exist_ok=True)
    entry = {"host": "node1", "op": "read", "key": "x", "occurrence": 0, "at": 0.0, "path": path}
    (directory / MANIFEST).write_text(json.dumps(EMPTY | {"hosts": ["node1"], "journal": [entry | extra]}))
    return directory


def archive(file: Path, *members: tarfile.TarInfo, data: bytes = b"") -> Path:
    """A `.tar.zst` with members of somebody's choice, behind a good manifest."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        head = json.dumps(EMPTY).encode()
        first = tarfile.TarInfo(MANIFEST)
        first.size = len(head)
        tar.addfile(first, io.BytesIO(head))
        for member in members:
            tar.addfile(member, io.BytesIO(data))
    file.write_bytes(zstandard.compress(plain.getvalue()))
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info


# --- writing and reading


def test_an_answer_comes_back_byte_for_byte(tmp_path: Path) -> None:
    data = bytes(range(256))
    directory = written(tmp_path / "b", (HostCall("stack", "42", suffix="json"), Reply(data, rc=3, truncated=True)))
    with Bundle(directory) as bundle:
        (entry,) = bundle.manifest.journal
        assert (entry.host, entry.op, entry.key, entry.rc, entry.truncated) == ("node1", "stack", "42", 3, True)
        assert entry.path is not None
        assert bundle.read(entry.path) == data


def test_the_same_question_asked_twice_keeps_both_answers(tmp_path: Path) -> None:
    call = HostCall("stack", "42")
    directory = written(tmp_path / "b", (call, Reply(b"first")), (call, Reply(b"second")))
    with Bundle(directory) as bundle:
        kept = [(e.occurrence, bundle.read(e.path or "")) for e in bundle.manifest.journal]
    assert kept == [(0, b"first"), (1, b"second")]


@given(key=st.text(max_size=300), host=st.text(max_size=40))
def test_no_key_and_no_host_name_leads_out_of_the_section(
    tmp_path_factory: pytest.TempPathFactory, key: str, host: str
) -> None:
    directory = written(tmp_path_factory.mktemp("b") / "b", (HostCall("read", key), Reply(b"x")), host=host)
    (file,) = (p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST)
    assert re.fullmatch(r"raw/[0-9a-f]{32}\.txt", file.relative_to(directory).as_posix())
    with Bundle(directory) as bundle:
        (entry,) = bundle.manifest.journal
        assert re.fullmatch(r"raw/[\w.-]+/stacks/read-[\w.-]+", entry.path or "")


def test_a_bundle_is_not_written_into_a_directory_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="is not empty"):
        BundleWriter(tmp_path, [])


def test_a_place_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for place in (file, file / "below"):
        with pytest.raises(UsageError, match="cannot be written"):
            BundleWriter(place, [])
    with pytest.raises(UsageError, match="cannot be written"):
        pack(written(tmp_path / "b"), tmp_path / "no" / "such" / "directory.tar.zst")
    assert file.read_text() == "precious"


def test_packing_and_unpacking_changes_no_byte(tmp_path: Path) -> None:
    before = unpacked("skipped-all-reduce", tmp_path)
    pack(before, tmp_path / "again.tar.zst")
    with Bundle(tmp_path / "again.tar.zst") as bundle:
        after = {f.relative_to(bundle.directory): f.read_bytes() for f in bundle.directory.rglob("*") if f.is_file()}
    assert after == {f.relative_to(before): f.read_bytes() for f in before.rglob("*") if f.is_file()}


def test_a_packed_bundle_names_nobody(tmp_path: Path) -> None:
    pack(written(tmp_path / "b", (HostCall("read", "x"), Reply(b"x"))), tmp_path / "b.tar.zst")
    plain = zstandard.ZstdDecompressor().stream_reader((tmp_path / "b.tar.zst").read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        assert {(m.uid, m.gid, m.uname, m.gname) for m in tar} == {(0, 0, "", "")}


def test_what_was_unpacked_is_removed_again() -> None:
    with Bundle(packed("healthy")) as bundle:
        directory = bundle.directory
        assert directory.is_dir()
    assert not directory.exists()


def test_bundles_are_told_from_directories_that_have_another_manifest(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"name": "a data set"}')
    (tmp_path / "train.log").write_text("step 1\n")
    assert not is_bundle(tmp_path)
    assert is_bundle(written(tmp_path / "empty"))
    assert is_bundle(unpacked("healthy", tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_tells_nothing_of_where_it_was_made(name: str) -> None:
    """The repository's own check cannot look into what is packed."""
    foreign = re.compile(
        rb"/wor[k]/|pyenv|/hom[e]/|/build[s]/|pyp[i]|[A-Za-z0-9_]@[A-Za-z0-9]|(?:API|TOKEN|SECRET)_?KEY"
    )
    with Bundle(packed(name)) as bundle:
        assert bundle.manifest.hosts == ["node1"]
        for file in filter(Path.is_file, bundle.directory.rglob("*")):
            assert not (found := foreign.search(file.read_bytes())), f"{file.name}: {found[0]!r}"


def test_recordings_are_small() -> None:
    assert max(file.stat().st_size for file in FIXTURES.glob("*.tar.zst")) < 150_000


# --- bundles that are damaged, or were made to do harm


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "/etc/passwd", "raw/../../outside", "raw/link", "raw/loop", "a\0b", "x" * 5000, "raw", "."],
)
def test_the_journal_leads_to_files_of_the_bundle_only(tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").write_text("secret")
    raw = tmp_path / "b" / "raw"
    raw.mkdir(parents=True)
    (raw / "link").symlink_to(tmp_path / "outside")
    (raw / "loop").symlink_to(raw / "loop")
    with Bundle(with_journal(tmp_path / "b", path)) as bundle, pytest.raises(UnreadableInput):
        bundle.read(path)


@pytest.mark.needs("linux")
def test_a_pipe_in_the_place_of_an_answer_keeps_nobody_waiting(tmp_path: Path) -> None:
    import os

    os.mkfifo(with_journal(tmp_path / "b", "pipe") / "pipe")
    with Bundle(tmp_path / "b") as bundle, pytest.raises(UnreadableInput, match="lacks a file"):
        bundle.read("pipe")


@pytest.mark.parametrize(
    "bad",
    [
        member("../escaped"),
        member("/tmp/ddx-escaped"),
        member("raw/../../escaped"),
        member("raw/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("raw/hard", tarfile.LNKTYPE, "../../../../etc/passwd"),
        member("raw/device", tarfile.CHRTYPE),
        member("raw/pipe", tarfile.FIFOTYPE),
        member("raw/" + "x" * 3000),
        member(MANIFEST, tarfile.DIRTYPE),
    ],
    ids=lambda m: f"{m.name[:20]} {m.type!r}",
)
def test_an_archive_writes_into_its_directory_only(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    """Refused, or what is no plain file is left out; either way nothing appears outside."""
    file = archive(tmp_path / "b.tar.zst", bad)
    try:
        with Bundle(file) as bundle:
            kinds = {p for p in bundle.directory.rglob("*") if p.is_symlink() or not (p.is_file() or p.is_dir())}
            assert not kinds
    except UnreadableInput as error:
        assert "not a readable bundle" in error.message
    assert not [*tmp_path.glob("escaped"), *tmp_path.parent.glob("escaped")]
    assert not Path("/tmp/ddx-escaped").exists()


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_bundle, "_UNPACKED_LIMIT_BYTES", 1 << 20)
    bomb = archive(tmp_path / "b.tar.zst", member("raw/zeros", size=8 << 20), data=bytes(8 << 20))
    assert bomb.stat().st_size < 2_000
    with pytest.raises(UnreadableInput, match="unpacks to more than"):
        Bundle(bomb)
    monkeypatch.setattr(packed_bundle, "_UNPACKED_LIMIT_FILES", 10)
    with pytest.raises(UnreadableInput, match="unpacks to more than"):
        Bundle(archive(tmp_path / "many.tar.zst", *(member(f"raw/{number}") for number in range(20))))


def test_a_size_of_four_gibibytes_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """The header promises what the archive does not hold."""
    header = member("raw/huge", size=5 << 30).tobuf(tarfile.GNU_FORMAT)
    file = tmp_path / "b.tar.zst"
    file.write_bytes(zstandard.compress(header + bytes(1024)))
    with pytest.raises(UnreadableInput, match="more than 4 GiB"):
        Bundle(file)


@pytest.mark.parametrize("lacking", [1, 10, 500, 3_000, 6_000, 10**6])
def test_an_archive_that_was_cut_off_is_said(tmp_path: Path, lacking: int) -> None:
    """One byte less can cost whole files: a block that is not complete is not unpacked, and nobody complains."""
    whole = packed("skipped-all-reduce").read_bytes()
    file = tmp_path / "cut.tar.zst"
    file.write_bytes(whole[: max(0, len(whole) - lacking)])
    with pytest.raises(UnreadableInput) as refused:
        Bundle(file)
    assert "cut.tar.zst" in refused.value.message


def test_an_archive_that_was_cut_between_two_files_is_said(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(PLAIN)) as tar:
        second = tar.getmembers()[-1]
    file = tmp_path / "cut.tar.zst"
    file.write_bytes(zstandard.compress(PLAIN[: second.offset]))
    with pytest.raises(UnreadableInput, match="cut off"):
        Bundle(file)


@given(data=st.binary(max_size=400))
def test_random_bytes_are_no_bundle(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("b") / "b.tar.zst"
    for content in (data, zstandard.compress(data)):
        file.write_bytes(content)
        with pytest.raises(UnreadableInput):
            Bundle(file)


@given(data=st.data())
def test_a_damaged_archive_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes of a real archive overwritten behind the compression, where no checksum of zstd notices."""
    plain = bytearray(PLAIN)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, 20_000))
        plain[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    file = tmp_path_factory.mktemp("b") / "b.tar.zst"
    file.write_bytes(zstandard.compress(bytes(plain), level=1))
    try:
        Bundle(file).close()
    except UnreadableInput as error:
        assert error.message


PLAIN = zstandard.ZstdDecompressor().stream_reader(packed("healthy").read_bytes()).read()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\x00\xff\xfe random", "invalid json"),
        (b"", "invalid json"),
        (b"[]", "the data"),
        (b"{}", "created"),
        (b"[" * 100_000, "invalid json"),
        (json.dumps(EMPTY | {"schema": "ddx.bundle/3"}).encode(), "another version of ddx"),
        (json.dumps(EMPTY | {"surprise": 1}).encode(), "surprise"),
        (json.dumps(EMPTY | {"journal": [{"host": 1}]}).encode(), "journal.0"),
        (json.dumps(EMPTY | {"journal": "x" * 100_000}).encode(), "journal"),
        (json.dumps(EMPTY).replace("{", '{"x": 1' + "0" * 5000 + ", ").encode(), "damaged"),
    ],
    ids=range(10),
)
def test_a_damaged_manifest_is_said_in_a_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(UnreadableInput) as refused:
        Bundle(tmp_path)
    assert complaint in refused.value.message
    assert len(refused.value.message) < 600
    assert "\n" not in refused.value.message


def test_a_directory_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"has no manifest\.json"):
        Bundle(tmp_path)


def test_a_refused_archive_leaves_nothing_behind(tmp_path: Path) -> None:
    """In a process of its own: a temporary directory that is only collected warns when it is."""
    file, temporary = tmp_path / "b.tar.zst", tmp_path / "tmp"
    file.write_bytes(zstandard.compress(b"no tar"))
    temporary.mkdir()
    program = (
        "import sys, gc; from pathlib import Path; from ddx_tools.sources.bundle import Bundle\n"
        "try: Bundle(Path(sys.argv[1]))\nexcept Exception as error: print(type(error).__name__)\ngc.collect()"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program, str(file)],
        capture_output=True,
        text=True,
        env={"TMPDIR": str(temporary)},
        check=True,
    )
    assert done.stdout == "UnreadableInput\n"
    assert done.stderr == ""
    assert list(temporary.iterdir()) == []


def test_numbers_of_any_size_are_read(tmp_path: Path) -> None:
    directory = unpacked("healthy", tmp_path)
    content = manifest(directory)
    content["journal"][0] |= {"occurrence": 10**400, "rc": -(10**300), "at": 1e308}
    write_manifest(directory, content)
    with Bundle(directory) as bundle:
        assert bundle.manifest.journal[0].occurrence == 10**400


def test_a_packed_archive_of_something_else_is_no_bundle(tmp_path: Path) -> None:
    packed = tmp_path / "dumps.tar.zst"
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "nccl_trace_rank_0").write_bytes(b"\x80\x02}.")
    pack(tmp_path / "dumps", packed)
    assert not is_bundle(packed)
    packed.write_bytes(packed.read_bytes()[:9])
    assert is_bundle(packed), "what is cut off there may have been one, and is named as damaged"


@pytest.mark.parametrize("text", ["plain", "größer", "tr\udcffain.log", "\ud800 out of a JSON file"])
def test_any_text_can_be_kept_in_a_manifest(text: str) -> None:
    kept = valid_text(text)
    assert kept.encode() and valid_text(kept) == kept
    assert (kept == text) == ("\ud800" not in text and "\udcff" not in text)
