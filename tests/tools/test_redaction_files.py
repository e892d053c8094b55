"""What a bundle keeps of compressed logs, of UTF-16 and of files left in place holds no secrets either."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_records import DUMPS, tar, zipped

from ddx_tools.investigation.run import investigate
from ddx_tools.model.files.kinds import FileKind, kind_of
from ddx_tools.redaction.files import copy_redacted, redact_file
from ddx_tools.redaction.text import MARK, redact_bytes
from ddx_tools.sources.bundle import Bundle, BundleWriter
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.recorded import RecordingHost

SECRET = "hf_" + "a1B2c3D4" * 4
LOG = f"step 1 loss 0.5\nlogging in with {SECRET}\nKeyError: 'x'\n".encode()
CLEAN = LOG.replace(SECRET.encode(), MARK.encode())


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, lambda data: tar({"a.log": data})])
def test_what_is_packed_is_not_kept_as_nobody_looked_into_it(pack: Callable[[bytes], bytes]) -> None:
    assert redact_file(LOG) == CLEAN
    assert SECRET.encode() not in redact_file(pack(LOG))
    assert redact_file(DUMPS["rank_0.pkl"]) == DUMPS["rank_0.pkl"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_text_of_two_bytes_a_letter_loses_its_secrets(encoding: str) -> None:
    text = LOG.decode()
    clean = redact_bytes(text.encode(encoding))
    assert clean.decode(encoding) == CLEAN.decode()
    assert redact_bytes(clean + b"x") == clean + b"x"


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    redact_bytes(data)
    redact_file(data)


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
    read = [data.replace(b"\0", b"") for data in kept.values()]
    assert sum(b"KeyError" in data for data in read) >= 2
    assert not any(SECRET.encode() in data for data in read)


def test_a_bundle_keeps_the_files_of_an_archive_without_their_secrets(tmp_path: Path) -> None:
    files = {"rank_0": DUMPS["rank_0.pkl"], "logs/rank_0.log": LOG, "logs/rank_1.log.gz": gzip.compress(LOG)}
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps/all.tar.xz").write_bytes(lzma.compress(tar(files)))
    (tmp_path / "dumps/more.zip").write_bytes(zipped({**files, "in.tar.bz2": bz2.compress(tar(files))}))
    investigate([str(tmp_path / "dumps")], save=tmp_path / "bundle")
    kept = [path.read_bytes() for path in (tmp_path / "bundle").rglob("*") if path.is_file()]
    assert DUMPS["rank_0.pkl"] in kept and any(b"KeyError: 'x'" in data for data in kept)
    assert not any(SECRET.encode() in data for data in kept)
    assert not any(data.startswith((b"\x1f\x8b", b"PK", b"BZh", b"\xfd7z")) for data in kept)


RECORD = {
    "version": "2.10",
    "pg_config": {"0": {"desc": f"data {SECRET}", "ranks": "[0, 1]"}},
    "entries": [{"frames": [{"name": "step", "filename": f"/scratch/{SECRET}/train.py", "line": 33}], "seq": 2**40}]
    * 9,
    "password": "swordfish",
}
CLEAN_RECORD = json.loads(json.dumps(RECORD).replace(SECRET, MARK).replace("swordfish", MARK))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickled_record_loses_its_secrets_and_stays_a_record(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps(RECORD, protocol)
    counts: Counter[str] = Counter()
    assert pickle.loads(redact_file(data, counts)) == CLEAN_RECORD
    assert counts == {"hugging face token": 2, "value of a secret name": 1}
    (tmp_path / "rank_0").write_bytes(data)
    copy_redacted(tmp_path / "rank_0", tmp_path / "kept")
    assert pickle.loads((tmp_path / "kept").read_bytes()) == CLEAN_RECORD


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickled_record_without_secrets_stays_byte_for_byte(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({"entries": ["forward_pass", "num_tokens", "x/key.py"] * 9, "pad_token": "<pad>"}, protocol)
    assert redact_file(data) is data
    (tmp_path / "rank_0").write_bytes(data)
    copy_redacted(tmp_path / "rank_0", tmp_path / "kept")
    assert (tmp_path / "kept").read_bytes() == data
    for real in DUMPS.values():
        assert redact_file(real) == real


@given(st.data())
def test_of_a_pickle_that_is_damaged_or_cut_no_secret_is_left(chosen: st.DataObject) -> None:
    data = bytearray(pickle.dumps(RECORD, chosen.draw(st.sampled_from([2, 4]))))
    at = chosen.draw(st.integers(1, len(data) - 1))
    data[at] = chosen.draw(st.sampled_from([0, 0x2E, 0x58, 0xFF]))
    clean = redact_file(bytes(data[: chosen.draw(st.integers(at + 1, len(data)))]))
    assert SECRET.encode() not in clean


def test_behind_the_end_of_a_pickle_no_secret_is_left() -> None:
    data = bytearray(pickle.dumps(RECORD, 2))
    data[2] = ord(".")
    assert SECRET.encode() not in redact_file(bytes(data))


def test_a_record_in_json_loses_its_secrets() -> None:
    clean = json.loads(redact_file(json.dumps(RECORD).encode()))
    assert clean == CLEAN_RECORD


CUT_LETTERS = [b"\x80", b"\x94\x80", b"\x80\xe2\x94\x80 version 2 entries segments ", b"\x80 5 in cp1252 "]


@pytest.mark.parametrize("head", CUT_LETTERS)
def test_a_text_that_begins_within_a_letter_is_read_and_redacted(head: bytes, tmp_path: Path) -> None:
    log = (Path(__file__).parents[1] / "fixtures/logs/torchrun_raise.log").read_bytes()
    assert redact_file(head + b" x\n" + LOG) == head + b" x\n" + CLEAN
    (tmp_path / "job.log").write_bytes(head + b" x\n" + log + LOG)
    told = investigate([str(tmp_path)], save=tmp_path / "bundle")
    assert told.diagnose().verdict == "diagnosed"
    kept = [path.read_bytes() for path in (tmp_path / "bundle").rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in data for data in kept)


@pytest.mark.parametrize(
    "head", [b"\x80", b"\x80\x02}q\0X\x05\0\0\0ab", b"\x80\x04\x95\x20", b"\x80\xff}q\0X\7\0\0\0version"]
)
def test_a_pickle_is_one_even_damaged(head: bytes) -> None:
    assert kind_of(head) in (FileKind.PICKLE, FileKind.DUMP)


PASSWORD = "Tr0ub4dor-x9Kq"


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "value",
    [
        ["sshpass", "-p", PASSWORD, "ssh", "node1"],
        ("curl", "-u", f"bob:{PASSWORD}", "https://x"),
        ["/usr/bin/mysql", f"-p{PASSWORD}", "-h", "db"],
        ["train.py", "--api-key", "maple", "--steps", "9"],
        {"passwords": ["maple", PASSWORD]},
        {"password": ("maple",)},
        {"secret": {"value": PASSWORD}},
        {"secret": {"one": [{"two": PASSWORD}], "three": 3}},
        {"env": [{"name": "HF_TOKEN", "value": "maple"}]},
        [["db_password", "maple"]],
    ],
)
def test_secrets_in_the_lists_and_mappings_of_a_pickle_are_redacted(value: object, protocol: int) -> None:
    record = {"version": "2.10", "entries": [{"seq": 1}], "x": value, "last": [1.5, None, (2, "ok")]}
    clean = pickle.loads(redact_file(pickle.dumps(record, protocol)))
    shown = json.dumps(clean)
    assert PASSWORD not in shown and "maple" not in shown and MARK in shown
    assert {**clean, "x": 0} == {**record, "x": 0}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "value",
    [
        ["python", "-p", "train.py", "--tokenizer", "llama"],
        ["mkdir", "-p", "/data/x"],
        {"tokens": [1, 2, 3], "password": None, "secret": {"value": ""}},
        {"key": ["maple"], "token_ids": ["1", "2"]},
        [["name", "maple"], ["curl", "https://x"]],
    ],
)
def test_lists_and_mappings_without_secrets_stay(value: object, protocol: int) -> None:
    record = {"version": "2.10", "entries": [], "x": value}
    assert pickle.loads(redact_file(pickle.dumps(record, protocol))) == record


def test_a_secret_in_a_bytearray_is_redacted_by_its_place() -> None:
    record = {"api_key": ["x", bytearray(b"hunter22zz")], "note": bytearray(b"step 7")}
    clean = pickle.loads(redact_file(pickle.dumps(record, 5)))
    assert b"hunter22zz" not in clean["api_key"][1] and clean["note"] == bytearray(b"step 7")
