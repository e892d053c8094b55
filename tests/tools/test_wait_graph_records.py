"""Whom simulated records of 512 ranks lead to; each beside its twin, in which the same ranks wait for nothing."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddx_tools.investigation.lookup import look
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, SuspectEvent, Verdict

pytestmark = pytest.mark.slow

RECORDS = Path(__file__).parents[1] / "fixtures/wait_graph/records"
Unpack = Callable[[str], Path]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Unpack:
    def unpack(name: str) -> Path:
        directory = tmp_path_factory.mktemp(Path(name).name)
        with tarfile.open(RECORDS / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
        return directory

    return unpack


def records_in(directory: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The records that can be read."""
    for file in sorted(directory.glob("*/*trace_rank_*")):
        try:
            yield file, pickle.loads(file.read_bytes())  # our own files
        except (EOFError, pickle.UnpicklingError):
            file.unlink()


def nothing_pending(directory: Path) -> Path:
    """The same records as they would be, had nobody waited: without what is not finished, without logs."""
    for file, record in records_in(directory):
        record["entries"] = [entry for entry in record["entries"] if entry["state"] == "completed"]
        for counters in (record.get("pg_status") or {}).values():
            counters["last_enqueued_collective"] = counters["last_completed_collective"]
            counters["last_started_collective"] = counters["last_completed_collective"]
        file.write_bytes(pickle.dumps(record, protocol=2))
    for file in directory.glob("*/*.log"):
        file.unlink()
    for file in directory.glob("*/notes.txt"):
        file.unlink()
    return directory


def ranks_of(said: Diagnosis) -> list[int]:
    return sorted(rank for suspect in said.suspects for rank in suspect.ranks)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("wrong-peer", [2]),
        ("wrong-peer-timed", [0]),
        ("never-sent", [0]),
        ("transfer-type", [0]),
        ("order-given-up", [26]),
        ("stuck-given-up", [3]),
        ("two-gone", [13, 14]),
        ("healthy-late-once", []),
        ("slow-by-turns", []),
        ("two-orders", [1, 2, 4, 6]),
        ("barrier-for-a-moment", []),
        ("checkpoint-writer", []),
        ("stale-record", [6]),
        ("stale-record-of-a-peer", [5]),
    ],
)
def test_jobs_of_a_second_generator_lead_to_their_ranks(name: str, ranks: list[int], unpacked: Unpack) -> None:
    said = investigate([str(unpacked(f"../second_generator/{name}"))]).diagnose()
    assert ranks_of(said) == ranks
    assert (said.verdict is Verdict.HEALTHY) <= (not ranks)


def test_ranks_of_a_host_without_records_are_told_as_the_host(unpacked: Unpack) -> None:
    """That of rank 340 is damaged: that is no sign of its death."""
    said = investigate([str(unpacked("killed-host"))]).diagnose()
    (suspect,) = said.suspects
    assert suspect.ranks == [*range(320, 328)] and suspect.hosts == ["node-40"]
    assert suspect.event is SuspectEvent.SILENT
    assert said.verdict is Verdict.UNDECIDED and "node-40" in said.headline
    assert not set(suspect.ranks) & set(said.victims.ranks)


def test_who_called_and_whose_gpu_never_started_is_told_by_records_against_the_logs(unpacked: Unpack) -> None:
    said = investigate([str(unpacked("gpu-never-started"))]).diagnose()
    (suspect,) = said.suspects
    assert suspect.ranks == [143] and suspect.hosts == ["node-17"]
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (Verdict.DIAGNOSED, "gpu-hung", [143])


def test_a_size_that_no_peer_brought_names_its_rank_whatever_the_operation_is_called(unpacked: Unpack) -> None:
    said = investigate([str(unpacked("all-to-all-size"))]).diagnose()
    assert ranks_of(said) == [225]
    assert (said.verdict, said.causes[0].id) == (Verdict.DIAGNOSED, "collective-shape-mismatch")


@pytest.mark.parametrize("name", ["killed-host", "gpu-never-started", "all-to-all-size"])
def test_nobody_is_suspected_where_nobody_waits(name: str, unpacked: Unpack) -> None:
    said = investigate([str(nothing_pending(unpacked(name)))]).diagnose()
    assert said.suspects == [] and said.verdict is not Verdict.DIAGNOSED


def test_the_waits_of_512_ranks_are_shown_on_one_page_from_the_root_on(unpacked: Unpack) -> None:
    target = [str(unpacked("killed-host"))]
    lines = look(["waits"], target).text.splitlines()
    assert lines[0] == "all waits lead to: ranks 320-327 (unknown)" and len(lines) < 20
    assert "ranks 192-199 wait in send (mesh_pp) (8 times) for one of ranks 320-327" in "\n".join(lines[:5])
    of_one = look(["waits", "64"], target).text
    assert "rank 64 waits in send" in of_one and "rank 384" not in of_one
