"""The probe `host`: what it reads, what it leaves alone, whose host it is, and that no bytes can hurt it."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path

import pytest
from host_reading import CONSTRUCTED, HOST_TEXTS, RECORDED, captured, codes, findings_in, findings_of, one
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.analysis.host_facts.host_fact import seen
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.parsers.machine.host_text import bus_id, size_bytes, text_lines
from ddx_tools.probes.host.findings import findings_of_facts
from ddx_tools.probes.host.probe import PROBE
from ddx_tools.probes.host.text_rows import fact_rows, recognises

LOGS = HOST_TEXTS.parent / "logs"
TEXTS = sorted(file for file in HOST_TEXTS.rglob("*") if file.is_file() and file.name != "README.md")


def test_other_files_are_left_alone_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("epoch 1 loss 2.3\nRuntimeError: boom\n")
    (tmp_path / "dump_0").write_bytes(pickle.dumps({"entries": []}))
    (tmp_path / "model.pt").write_bytes(b"tmpfs 64M 0 64M 0% /dev/shm")
    (tmp_path / "host.txt").write_text("tmpfs 64M 0 64M 0% /dev/shm\n")
    raw = captured(tmp_path)
    assert [item.facts["path"] for item in raw.items] == [str(tmp_path / "host.txt")]
    assert (raw.problems, raw.status) == ([], ProbeStatus.OK)


def test_logs_of_jobs_say_nothing_of_the_machine() -> None:
    raw = captured(LOGS)
    assert (raw.items, raw.problems, raw.status) == ([], [], ProbeStatus.NO_DATA)


def test_a_long_log_of_a_job_is_not_read_for_a_word_in_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("using /dev/shm, iommu is on, GPU0  and GPU1, out of memory\n" + "step 1 loss 2.3\n" * 20_000)
    with log.open("a") as stream:
        stream.write("tmpfs            64M     0   64M   0% /dev/shm\n")
    raw = captured(log)
    assert (raw.items, raw.problems) == ([], [])


@pytest.mark.slow
def test_of_a_long_kernel_log_head_and_tail_are_read(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    filler = "Nov 21 04:01:39 gpu-12 kernel: usb 1-1: new high-speed USB device number 2 using xhci_hcd and so on\n"
    with log.open("w") as stream:
        stream.write("Nov 21 04:01:39 gpu-12 kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=1\n")
        stream.writelines(filler for _ in range(200_000))
        stream.write("Nov 21 05:01:39 gpu-12 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n")
    raw = captured(log)
    assert [item.facts["part"] for item in raw.items] == ["head", "tail"]
    assert "first and last" in raw.problems[0]
    found = {f.attributes["xid"]: f.evidence[0].line for f in findings_of(log) if f.code == "gpu.xid"}
    assert found == {31: 1, 79: None}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("root@gpu-12:~# df -h\n{}", ["gpu-12"]),
        ("[me@gpu-12 ~]$ df -h\n{}", ["gpu-12"]),
        ("(base) me@gpu-12:/data$ df -h\n{}", ["gpu-12"]),
        ("$ ssh -o BatchMode=yes me@gpu-12 df -h\n{}", ["gpu-12"]),
        ("gpu-12: Filesystem Size Used Avail Use% Mounted on\ngpu-12: {}", ["gpu-12"]),
        ("$ df -h\n{}", []),
        ("root@gpu-12:~# ls\n```\n```\n{}", []),
    ],
)
def test_the_host_is_what_the_text_says_and_nothing_else(text: str, hosts: list[str]) -> None:
    line = "tmpfs            64M     0   64M   0% /dev/shm"
    assert one(findings_in(text.format(line)), "limits.shm_full").hosts == hosts


def test_the_name_of_a_file_can_say_the_host(tmp_path: Path) -> None:
    (tmp_path / "node7_df.txt").write_text("tmpfs            64M     0   64M   0% /dev/shm\n")
    assert one(findings_of(tmp_path), "limits.shm_full").hosts == ["node7"]


def test_what_one_text_says_is_the_same_in_the_middle_of_others() -> None:
    """Each on a host of its own: what differs between readings of one host depends on their company."""
    alone: set[str] = set()
    together = ""
    for number, file in enumerate(TEXTS):
        alone |= codes(findings_of(file))
        together += f"root@host{number}:~# cat {file.name}\n{file.read_text()}\n"
    # Some things are seen only where several hosts, or both ends of a connection, are.
    assert codes(findings_in(together)) - {"host.differs", "network.unread_bytes"} == alone


def test_rows_are_what_the_schema_says() -> None:
    with Store() as store:
        store.insert(PROBE.parse(captured(*TEXTS)))
        store.describe()
        documented = store.query(
            "SELECT comment FROM duckdb_columns() WHERE column_name = 'topic' AND comment IS NOT NULL"
        )[0]["comment"]
        topics = {row["topic"] for row in store.query("SELECT DISTINCT topic FROM host_facts")}
        assert topics - set(documented.split(" | ")) == set()
        assert PROBE.analyse(store)
        rows = store.query("SELECT facts, source_line FROM host_facts")
        assert all(json.loads(row["facts"]) is not None and row["source_line"] for row in rows)


def test_evidence_is_what_stands_on_its_line() -> None:
    for file in TEXTS:
        lines = [line.text for line in text_lines(file.read_text())]
        for found in findings_of(file):
            assert found.evidence
            for place in found.evidence:
                assert place.line is not None
                assert place.quote[:200] in lines[place.line - 1], (file.name, found.code)


def test_findings_are_registered() -> None:
    raised = {found.code for file in TEXTS for found in findings_of(file)}
    assert all(map(is_registered, raised))
    assert len(raised) > 15


# --- hostile input


def _survives(data: bytes) -> None:
    assert isinstance(findings_of_facts([seen(row) for row in fact_rows(data, "x", "x")]), list)


@given(st.binary(max_size=4000))
def test_any_bytes_are_safe(data: bytes) -> None:
    assert isinstance(recognises("", data), bool)
    assert isinstance(fact_rows(data, "x", "x"), list)


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_damaged_texts_are_safe(file: Path) -> None:
    data = file.read_bytes()[:6000]
    chance = random.Random(file.name)
    for _ in range(12):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 30)):
            at = chance.randrange(len(damaged))
            damaged[at : at + chance.choice((0, 1, 9))] = bytes(
                chance.randrange(256) for _ in range(chance.randrange(6))
            )
        _survives(bytes(damaged))
        lines = data.split(b"\n")
        chance.shuffle(lines)
        _survives(b"\n".join(lines))


@given(st.lists(st.sampled_from([line for file in TEXTS for line in file.read_text().split("\n")]), max_size=40))
def test_lines_in_any_order_are_safe(lines: list[str]) -> None:
    _survives("\n".join(lines).encode())


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "Xid (PCI:0000:3b:00): ",
        "9" * 60 + " ",
        "GPU0 ",
        "NV18\t",
        "|  0  ",
        "tmpfs /dev/shm ",
        "ssh -o x ",
        "root@a:~# ",
        "a.b-c ",
        "> ",
        "key=value ",
        "link x/1 state ",
        "mlx5_core 0000:00:00.0 ",
        "ACSCtl: SrcValid+ ",
        "\t \t",
        "[ 1.000000] ",
    ],
)
def test_long_lines_of_one_piece_do_not_explode(piece: str) -> None:
    """Every pattern is bounded: quadratic ones would take minutes here."""
    opening = "JobID State NodeList Filesystem hca_id: x GPU 00000000:18:00.0 NVIDIA-SMI NIC statistics: Link encap: "
    text = "\n".join([opening, *(piece * (4000 // len(piece) + 1) for _ in range(300))])
    assert isinstance(fact_rows(text.encode(), "x", "x"), list)


@pytest.mark.slow
def test_facts_are_bounded() -> None:
    text = "NVRM: Xid (PCI:0000:3b:00): 31, pid=1\n" * 30_000
    assert len(fact_rows(text.encode(), "x", "x")) == 20_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64M", 64 << 20),
        ("2.0G", 2 << 30),
        ("16 kB", 16 << 10),
        ("81559MiB", 81559 << 20),
        ("0", 0),
        ("x", None),
        ("", None),
    ],
)
def test_sizes(text: str, expected: int | None) -> None:
    assert size_bytes(text) == expected


def test_bus_ids_have_one_form() -> None:
    assert {bus_id(text) for text in ("00000000:3B:00.0", "0000:3b:00", "3b:00.0")} == {"0000:3b:00.0"}


def test_texts_from_windows_are_read() -> None:
    line = "tmpfs            64M     0   64M   0% /dev/shm\r\n"
    assert fact_rows(line.encode("utf-16"), "x", "x")
    assert RECORDED.is_dir()
    assert CONSTRUCTED.is_dir()
