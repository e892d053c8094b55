"""Messages of libraries are known whatever people do to logs, and unknown ones are not taken for a program's."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from ddx_tools.knowledge.known_messages import match_signatures, signature, signatures
from ddx_tools.knowledge.library_messages import (
    UNKNOWN,
    catalogue,
    exception_messages,
    library_of,
    line_messages,
    message_id,
    recognise,
)
from ddx_tools.knowledge.resources import incidents_dir

CLASSES = {
    "own_failure", "peer", "network", "device", "memory", "limit", "setting", "launcher", "program", "data",
}  # fmt: skip
SPLITS = ("public", "written")


def test_every_entry_says_what_it_speaks_of_and_who_reads_it() -> None:
    for entry in catalogue():
        assert entry.speaks_of in CLASSES, entry
        assert entry.level in ("error", "warning"), entry
        assert entry.id == message_id(entry.library, entry.template), entry
        assert signature(entry.signature or f"library_{entry.speaks_of}"), entry
    assert len({entry.id for entry in catalogue()}) == len(catalogue())


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting xxxx ms for "
         "recv operation to complete", "collective.timeout_reported"),
        ("RuntimeError: DataLoader worker (pid ****) is killed by signal: Killed.", "data.worker_died"),
        ("RuntimeError: NCCL Error 2: unhandled system error", "log.signature"),
        ("host-01:N:N [5] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to <redacted> failed : Software "
         "caused connection abort", "library.error"),
        ("torch.distributed.DistNetworkError: The client socket has timed out after XXX while trying to connect to "
         "(<master>, <port>).", "startup.endpoint_unreachable"),
        ("[rank3]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank N. Original reason for "
         "failure was: watchdog", "log.signature"),
    ],
)  # fmt: skip
def test_a_message_is_known_without_its_values(text: str, finding: str) -> None:
    found = match_signatures(text) or line_messages(text)
    assert finding in [code for match in found for code in match.signature.findings], found


def test_a_cut_message_is_known_and_so_is_one_with_other_words_before_it() -> None:
    whole = "Expected to have finished reduction in the prior iteration before starting a new one."
    for text in (f"{whole} This error", whole[:70], f"(worker pid=12, ip=10.0.0.1) RuntimeError: {whole}"):
        known = recognise(text)
        assert known and known.library == "torch", text


@pytest.mark.parametrize(
    ("text", "library"),
    [
        ("RuntimeError: HcclReduce failed\n@ torch/distributed/distributed_c10d.py:3001 reduce", "hccl"),
        ("RuntimeError: quantum flux inverted\n@ torch/distributed/distributed_c10d.py:3001 reduce", "c10d"),
        ("torch.distributed.DistBackendError: quantum flux inverted\n@ train.py:3 main", "c10d"),
        ("RuntimeError: NCCL error: quantum flux inverted\n@ train.py:3 main", "nccl"),
        ("RuntimeError: bad reply\n@ deepspeed/comm/torch.py:77 all_reduce", "deepspeed"),
    ],
)
def test_an_error_of_a_library_that_nobody_knows_is_called_so(text: str, library: str) -> None:
    assert library_of(text) == library
    assert [match.signature.id for match in exception_messages(text)] == [UNKNOWN]
    assert signature(UNKNOWN).findings == ["library.unknown_error"]


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: shard 3: the length filter left no validation documents\n@ train.py:25 evaluate",
        "RuntimeError: quantum flux inverted\n@ train.py:25 evaluate",
        "KeyError: 'loss'\n@ train.py:25 evaluate torch/nn/modules/module.py:1500 _call_impl",
        "NotImplementedError: Not implemented\n@ model.py:3 forward",
        "AssertionError: Not power of two\n@ data.py:9 pack",
        "RuntimeError: boom\n@ train.py:3 main torch/distributed/elastic/multiprocessing/errors/__init__.py:3 wrap",
    ],
)
def test_an_exception_of_the_program_stays_its_own(text: str) -> None:
    assert exception_messages(text) == ()


# --- what people do to logs


def _numbers_hidden(line: str, _: random.Random) -> str:
    return re.sub(r"(?<![A-Za-z_])\d+", lambda number: "x" * len(number[0]), line)


def _numbers_changed(line: str, dice: random.Random) -> str:
    return re.sub(r"(?<![A-Za-z_])\d+", lambda _: str(dice.randrange(1, 99_999)), line)


def _addresses_hidden(line: str, _: random.Random) -> str:
    return re.sub(r"\d+\.\d+\.\d+\.\d+", "<host>", re.sub(r"\bnode-\w+", "***", line))


def _paths_shortened(line: str, _: random.Random) -> str:
    return re.sub(r"/(?:[\w.-]+/){2,}", ".../", line)


def _labelled(line: str, dice: random.Random) -> str:
    return (
        dice.choice(("[rank3]: ", "[default0]:", "[host-a rank0] ", "2024-05-06 07:08:09,123 - ERROR - ", "| ", "3: "))
        + line
    )


def _cut(line: str, _: random.Random) -> str:
    return line[: max(100, len(line) * 3 // 4)]


def _cut_with_dots(line: str, _: random.Random) -> str:
    return line if len(line) < 120 else f"{line[: len(line) * 4 // 5]} ..."


def _quotes_changed(line: str, _: random.Random) -> str:
    return line.replace("'", "`").replace('"', "'")


def _spaced(line: str, _: random.Random) -> str:
    return f"    {re.sub(' +', ' ', line)}\r"


MUTATIONS = (
    _numbers_hidden, _numbers_changed, _addresses_hidden, _paths_shortened, _labelled, _cut, _cut_with_dots,
    _quotes_changed, _spaced,
)  # fmt: skip


def _is_known(line: str) -> bool:
    found = [match.signature for match in match_signatures(line) or line_messages(line)]
    return any(known.id != UNKNOWN and (known.role != "context" or known.id.startswith("library_")) for known in found)


def _real_lines() -> list[str]:
    folders = [*(incidents_dir() / split for split in SPLITS), Path(__file__).parents[1] / "fixtures" / "logs"]
    files = (path for folder in folders for path in sorted(folder.rglob("*.log")))
    lines = {line.strip()[:600]: None for path in files for line in _lines(path)}
    lines |= {known.examples[0]: None for known in signatures() if known.role != "context"}
    return [line for line in lines if _is_known(line)]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def test_lines_are_known_after_what_people_do_to_them() -> None:
    lines = _real_lines()
    assert len(lines) > 200
    missed: dict[str, list[str]] = {}
    for mutate in MUTATIONS:
        dice = random.Random(7)
        missed[mutate.__name__] = [line for line in lines if not _is_known(mutate(line, dice))]
    count = sum(len(of) for of in missed.values())
    assert count <= 0.05 * len(lines) * len(MUTATIONS), {name: (len(of), of[:5]) for name, of in missed.items()}


def test_what_training_prints_is_no_error_of_a_library() -> None:
    healthy = [
        path
        for truth in sorted(incidents_dir().glob("*/*/truth.yaml"))
        if "cause: healthy" in truth.read_text() or "best_verdict: healthy" in truth.read_text()
        for path in (truth.parent / "artifacts").rglob("*.log")
    ]
    assert healthy
    told = [line for path in healthy for line in _lines(path) if not match_signatures(line) and line_messages(line)]
    assert told == []


def test_what_rccl_warns_of_at_every_start_is_no_error() -> None:
    """rccl src/init.cc, initEnv: it goes on."""
    for text in (
        'Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!',
        "NUMA auto balancing enabled which can lead to variability in the RCCL performance! Disable by "
        '"sudo sysctl kernel.numa_balancing=0"',
    ):
        assert line_messages(f"node1:411:433 [0] /rccl/build/hipify/src/init.cc:163 NCCL WARN {text}") == []


def test_an_error_that_only_rccl_prints_is_known() -> None:
    (found,) = line_messages("node1:411:433 [0] src/misc/rocm_smi_wrap.cc:57 NCCL WARN ROCm SMI init failure 8")
    assert found.groups["library"] == "rccl"
