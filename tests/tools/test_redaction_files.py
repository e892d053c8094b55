"""What a bundle keeps of compressed logs, of UTF-16 and of files left in place holds no secrets either."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from packed_records import DUMPS, tar, tar_gz, tar_zst, zipped

from ddx_tools.bundle import Bundle, BundleWriter
from ddx_tools.errors import UnreadableInput
from ddx_tools.hosts.local import LocalHost
from ddx_tools.hosts.recorded import RecordingHost
from ddx_tools.investigate import investigate
from ddx_tools.logs.packed import opened
from ddx_tools.sources.redaction.archives import redact_archive
from ddx_tools.sources.redaction.files import copy_redacted, redact_packed_log
from ddx_tools.sources.redaction.text import MARK, redact_bytes

SECRET = "hf_" + "a1B2c3D4" * 4
LOG = f"step 1 loss 0.5\nlogging in with {SECRET}\nKeyError: 'x'\n".encode()
CLEAN = LOG.replace(SECRET.encode(), MARK.encode())


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


PACKED = pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])


def content(packed: bytes) -> tuple[bytes, str | None]:
    stream, data = opened(packed), bytearray()
    assert stream is not None
    try:
        while piece := stream.read(1 << 20):
            data += piece
    except UnreadableInput as error:
        return bytes(data), error.message
    return bytes(data), None


@PACKED
def test_a_compressed_log_is_packed_again_without_its_secrets(pack: Callable[[bytes], bytes]) -> None:
    assert content(redact_packed_log(pack(LOG))) == (CLEAN, None)


@PACKED
def test_a_compressed_log_without_secrets_stays_as_it_is(pack: Callable[[bytes], bytes]) -> None:
    assert redact_packed_log(pack(CLEAN)) == pack(CLEAN)


@PACKED
def test_a_compressed_log_that_is_cut_off_is_still_cut_off(pack: Callable[[bytes], bytes]) -> None:
    noise = bytes(range(33, 126)) * 9_000
    read, problem = content(redact_packed_log(pack(LOG + noise)[:-5]))
    assert SECRET.encode() not in read
    assert problem is not None and "cut off" in problem


@PACKED
def test_what_is_packed_and_no_text_stays_as_it_is(pack: Callable[[bytes], bytes]) -> None:
    data = pack(b"\x80\x02\x00" * 100 + SECRET.encode())
    assert redact_packed_log(data) == data


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_text_of_two_bytes_a_letter_loses_its_secrets(encoding: str) -> None:
    text = LOG.decode()
    clean = redact_bytes(text.encode(encoding))
    assert clean.decode(encoding) == CLEAN.decode()
    assert redact_bytes(clean + b"x") == clean + b"x"


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    redact_bytes(data)
    redact_packed_log(b"\x1f\x8b\x08" + data)
    redact_packed_log(b"\x28\xb5\x2f\xfd" + data)


def test_a_large_file_is_copied_without_its_secrets(tmp_path: Path) -> None:
    source, target = tmp_path / "nccl.log", tmp_path / "kept.log"
    source.write_bytes(b"node1:42:42 [0] NCCL INFO ring\n" * 200_000 + LOG)
    copy_redacted(source, target)
    assert target.read_bytes() == b"node1:42:42 [0] NCCL INFO ring\n" * 200_000 + CLEAN


def test_what_is_read_in_place_and_kept_holds_no_secrets(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_bytes(LOG)
    writer = BundleWriter(tmp_path / "bundle", [])
    reply = RecordingHost(LocalHost("node1"), writer, "import").locate(
        str(tmp_path / "nccl.log"), max_bytes=1 << 20, suffix="log"
    )
    assert reply.file is not None and Path(reply.file).read_bytes() == CLEAN


def test_a_saved_bundle_of_such_logs_holds_no_secrets(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.log.gz").write_bytes(gzip.compress(LOG))
    (logs / "b.log").write_bytes(LOG.decode().encode("utf-16"))
    (logs / "nccl.log").write_bytes(
        b"node1:42:42 [0] NCCL INFO cudaDriverVersion 12040\n" * 50
        + f"node1:42:42 [0] NCCL INFO PROXY_PLUGIN set by environment to HF_TOKEN={SECRET}\n".encode()
    )
    investigate([str(logs)], save=tmp_path / "bundle")
    with Bundle(tmp_path / "bundle") as bundle:
        kept = {entry.path: bundle.read(entry.path) for entry in bundle.manifest.journal if entry.path}
    read = [content(data)[0] if data.startswith(b"\x1f\x8b") else data.replace(b"\0", b"") for data in kept.values()]
    assert len(read) > 5
    assert not any(SECRET.encode() in data for data in read)


# --- archives

DUMP = DUMPS["rank_0.pkl"]
FILES = {"rank_0": DUMP, "logs/rank_0.log": LOG, "logs/rank_1.log.gz": gzip.compress(LOG)}
PACK: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "tar": tar,
    "tar.gz": tar_gz,
    "tar.zst": tar_zst,
    "zip": zipped,
}


def files_in(archive: bytes, pack: str) -> dict[str, bytes]:
    if pack == "zip":
        with zipfile.ZipFile(io.BytesIO(archive)) as zipped:
            return {name: zipped.read(name) for name in zipped.namelist()}
    unpack: dict[str, Callable[[bytes], bytes]] = {"tar": bytes, "tar.gz": gzip.decompress, "tar.zst": unzstd}
    plain = unpack[pack](archive)
    with tarfile.open(fileobj=io.BytesIO(plain)) as opened:
        return {member.name: file.read() for member in opened if (file := opened.extractfile(member))}


def unzstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


PACKS = pytest.mark.parametrize("pack", PACK)


@PACKS
def test_logs_in_an_archive_lose_their_secrets_and_records_stay(pack: str) -> None:
    kept = files_in(redact_archive(PACK[pack](FILES)), pack)
    assert (kept["rank_0"], kept["logs/rank_0.log"]) == (DUMP, CLEAN)
    assert gzip.decompress(kept["logs/rank_1.log.gz"]) == CLEAN


@PACKS
def test_an_archive_without_secrets_stays_as_it_is(pack: str) -> None:
    archive = PACK[pack]({"rank_0": DUMP, "rank_0.log": CLEAN})
    assert redact_archive(archive) == archive
    assert redact_archive(LOG) == LOG


def test_an_archive_in_an_archive_is_cleaned_as_deep_as_archives_are_read() -> None:
    inner = tar_gz({"rank_0.log": LOG})
    outer = redact_archive(zipped({"node-3.tar.gz": inner, "rank_0": DUMP}))
    assert files_in(files_in(outer, "zip")["node-3.tar.gz"], "tar.gz") == {"rank_0.log": CLEAN}


@pytest.mark.parametrize("length", [1_300, 2_400, 5_000])
def test_an_archive_that_is_cut_off_is_still_cut_off(length: int) -> None:
    whole = tar({"rank_0.log": LOG * 12, "rank_1.log": LOG * 300})[:length]
    clean = redact_archive(whole)
    assert SECRET.encode() not in clean and SECRET.encode() in whole
    with pytest.raises(tarfile.ReadError), tarfile.open(fileobj=io.BytesIO(clean), mode="r|") as opened:
        for member in opened:
            file = opened.extractfile(member)
            assert file is not None and file.read()


def test_a_bundle_keeps_an_archive_of_records_without_the_secrets_of_the_logs_in_it(tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps/all.tar.gz").write_bytes(tar_gz(FILES))
    investigate([str(tmp_path / "dumps")], save=tmp_path / "bundle")
    kept = [path.read_bytes() for path in (tmp_path / "bundle").rglob("*") if path.is_file()]
    archives = [data for data in kept if data[:2] == b"\x1f\x8b"]
    assert archives and all(b"hf_" not in gzip.decompress(data) for data in archives)


@given(st.binary(max_size=2_000))
def test_any_bytes_may_be_an_archive(data: bytes) -> None:
    redact_archive(data)
    redact_archive(tar({"x": data})[: 600 + len(data)])
