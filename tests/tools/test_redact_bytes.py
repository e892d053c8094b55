"""What a bundle keeps of compressed logs, of UTF-16 and of files left in place holds no secrets either."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.bundle import Bundle, BundleWriter
from ddx_tools.hosts.local import LocalHost
from ddx_tools.hosts.recorded import RecordingHost
from ddx_tools.investigate import investigate
from ddx_tools.logs.packed import head_and_tail
from ddx_tools.redact import MARK
from ddx_tools.redact_bytes import copy_redacted, redact_bytes, redact_packed_log

SECRET = "hf_" + "a1B2c3D4" * 4
LOG = f"step 1 loss 0.5\nlogging in with {SECRET}\nKeyError: 'x'\n".encode()
CLEAN = LOG.replace(SECRET.encode(), MARK.encode())


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


PACKED = pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])


def content(packed: bytes) -> tuple[bytes, str | None]:
    (part,), problem = head_and_tail(packed, 1 << 20)
    return part.data, problem


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
