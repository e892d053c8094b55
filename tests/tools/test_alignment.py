"""What the flight records of real jobs show: each fault is named, and its healthy twin is left in peace."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from ddx_tools.analysis.collectives.records.analyse import analyse
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.flight_recorder.files import read_paths
from ddx_tools.probes.flight_recorder.live import ranks_whose_frames_decide
from ddx_tools.probes.flight_recorder.material import record_rows
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Batches, Raw

pytestmark = pytest.mark.slow

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"
TRAIN = (RECORDS / "recorder" / "train.py").read_text(encoding="utf-8").splitlines()
HEALTHY = sorted(path.name for path in RECORDS.glob("*-ok"))
BLAMING = (
    "collective.operation_mismatch",
    "collective.shape_mismatch",
    "collective.dtype_mismatch",
    "collective.call_site_shift",
    "collective.missing_ranks",
    "collective.all_entered",
    "p2p.circular_wait",
    "p2p.unmatched",
)


def rows_of_files(*paths: Path) -> Batches:
    raw = Raw("node")
    read_paths(LocalHost("node"), raw, [str(path) for path in paths])
    return record_rows(raw)


def findings_of(rows: Batches) -> list[Finding]:
    with Store() as store:
        store.insert(rows)
        found = analyse(store)
    assert all(is_registered(finding.code) for finding in found)
    assert all(finding.evidence for finding in found)
    return found


def of(findings: list[Finding], code: str) -> Finding:
    fitting = [finding for finding in findings if finding.code == code]
    assert len(fitting) == 1, [finding.summary for finding in findings]
    return fitting[0]


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def source_lines(finding: Finding) -> list[str]:
    """The text of the lines that a finding names, as they stand in the recorded program."""
    assert {place.file for place in finding.locations} == {"/srv/recorded/train.py"}
    return [TRAIN[(place.line or 0) - 1].strip() for place in finding.locations]


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_job_is_blamed_for_nothing(case: str) -> None:
    found = findings_of(rows_of_files(RECORDS / case))
    assert not codes(found) & {*BLAMING, "collective.peers_wait"}, [finding.summary for finding in found]


@pytest.mark.parametrize("case", [case for case in HEALTHY if case != "moments-ok"])
def test_records_of_one_moment_of_a_healthy_job_agree(case: str) -> None:
    assert codes(findings_of(rows_of_files(RECORDS / case))) == {"records.consistent"}


def test_records_of_different_moments_are_told_from_a_fault() -> None:
    found = findings_of(rows_of_files(RECORDS / "moments-ok"))
    assert codes(found) == {"records.not_simultaneous", "records.consistent"}
    assert of(found, "records.not_simultaneous").attributes["stale"] == [0, 1, 2]


def test_the_rank_with_another_operation_is_named_with_its_line() -> None:
    finding = of(findings_of(rows_of_files(RECORDS / "wrong_operation-fault")), "collective.operation_mismatch")
    assert finding.ranks == [2] and finding.group == "default_pg"
    assert finding.attributes["operations"] == {"all_reduce": [0, 1, 3], "broadcast": [2]}
    assert finding.attributes["minority"] and not finding.attributes["tie"]
    assert source_lines(finding) == ["dist.broadcast(value, src=0)"]
    assert finding.evidence[0].quote.startswith("rank 2 seq 10 broadcast [[16]]")


def test_no_sync_on_one_rank_shows_as_barrier_against_all_reduce() -> None:
    finding = of(findings_of(rows_of_files(RECORDS / "no_sync-fault")), "collective.operation_mismatch")
    assert finding.ranks == [1]
    assert finding.attributes["operations"] == {"all_reduce": [0, 2, 3], "barrier": [1]}
    assert source_lines(finding) == ["dist.barrier()"]


def test_rank_zero_evaluating_alone_is_the_one_that_deviates() -> None:
    finding = of(findings_of(rows_of_files(RECORDS / "evaluation-fault")), "collective.operation_mismatch")
    assert finding.ranks == [0]
    assert source_lines(finding) == ["ddp(torch.randn(4, 16))"]


def test_another_data_type_is_found_though_nothing_hangs() -> None:
    found = findings_of(rows_of_files(RECORDS / "dtype-fault"))
    finding = of(found, "collective.dtype_mismatch")
    assert codes(found) == {"collective.dtype_mismatch"}
    assert finding.ranks == [2] and finding.attributes["finished"] is True
    assert finding.attributes["dtypes"] == {'["BFloat16"]': [0, 1, 3], '["Half"]': [2]}
    assert finding.attributes["collectives"] == 8
    assert source_lines(finding) == ["dist.all_reduce(grad)"]


def test_a_smaller_tensor_is_found() -> None:
    finding = of(findings_of(rows_of_files(RECORDS / "shape-fault")), "collective.shape_mismatch")
    assert finding.ranks == [1]
    assert finding.attributes["sizes"] == {"[[8]]": [0, 2, 3], "[[4]]": [1]}


def test_an_extra_call_that_pairs_with_the_peers_next_one_is_found_by_its_call_site() -> None:
    found = findings_of(rows_of_files(RECORDS / "extra_all_reduce-fault"))
    finding = of(found, "collective.call_site_shift")
    assert finding.ranks == [0]
    assert (finding.attributes["kind"], finding.attributes["shift"], finding.attributes["seq"]) == ("extra_call", 1, 7)
    assert finding.attributes["call"].endswith("log_extra")
    assert finding.locations[0].function == "log_extra" and finding.locations[1].function == "sync_grads"
    assert "collective.missing_ranks" not in codes(found), "the peers are right not to come"


def test_a_different_operation_at_the_end_points_back_to_the_extra_call() -> None:
    found = findings_of(rows_of_files(RECORDS / "extra_pending-fault"))
    origin = of(found, "collective.operation_mismatch").attributes["first_site_divergence"]
    assert (origin["ranks"], origin["seq"], origin["kind"]) == ([0], 7, "extra_call")


def test_a_skipped_fsdp_module_is_traced_to_its_forward_call() -> None:
    found = findings_of(rows_of_files(RECORDS / "fsdp_skip-fault"))
    mismatch = of(found, "collective.operation_mismatch")
    assert mismatch.ranks == [1] and mismatch.attributes["seq"] == 42
    shift = of(found, "collective.call_site_shift")
    assert shift.ranks == [1] and shift.attributes["kind"] == "left_out"
    assert shift.attributes["seq"] < 42, "the calls part before the operations do"
    assert source_lines(shift)[0] == "x = layer(x)"
    assert mismatch.attributes["first_site_divergence"]["call"] == shift.attributes["call"]


def test_a_rank_behind_its_loop_is_missing_and_its_peers_wait() -> None:
    found = findings_of(rows_of_files(RECORDS / "uneven-fault"))
    missing = of(found, "collective.missing_ranks")
    assert missing.ranks == [3] and missing.attributes["waiting"] == [0, 1, 2]
    assert missing.attributes["minority"] and missing.attributes["simultaneous"] == "yes"
    waiting = of(found, "collective.peers_wait")
    assert waiting.ranks == [0, 1, 2] and waiting.attributes["wait_s"] >= 2


def test_waiting_in_two_meshes_leads_back_to_one_rank() -> None:
    found = findings_of(rows_of_files(RECORDS / "dp_tp_stall-fault"))
    chain = of(found, "rank.waited_for")
    assert chain.ranks == [3] and chain.attributes["waiting"] == 3
    assert chain.attributes["chain"][-1] == "Rank 0 waits in all_reduce (collective 4 of mesh_dp) for rank 2."
    blamed = {rank for finding in found if finding.code == "collective.missing_ranks" for rank in finding.ranks}
    assert blamed == {3}, "rank 2 is missing in mesh_dp, but it waits itself"


def test_a_healthy_broadcast_from_other_lines_by_rank_is_no_shift() -> None:
    found = findings_of(rows_of_files(RECORDS / "broadcast_lines-fault"))
    assert codes(found) == {"collective.peers_wait", "collective.missing_ranks", "rank.waited_for"}
    assert of(found, "collective.missing_ranks").ranks == [3]


@pytest.mark.parametrize("kind", ["rank_{}.json", "rank_{}.bare.pkl", "rank_{}.pkl"])
def test_the_chain_is_the_same_from_every_encoding(tmp_path: Path, kind: str) -> None:
    for rank in range(4):
        source = RECORDS / "dp_tp_stall-fault"
        shutil.copy(source / kind.format(rank), tmp_path)
        shutil.copy(source / f"rank_{rank}.header.json", tmp_path)
    found = findings_of(rows_of_files(tmp_path))
    assert of(found, "rank.waited_for").ranks == [3]


def test_without_headers_the_records_alone_do_not_date_the_absence(tmp_path: Path) -> None:
    for rank in range(4):
        shutil.copy(RECORDS / "uneven-fault" / f"rank_{rank}.pkl", tmp_path)
    missing = of(findings_of(rows_of_files(tmp_path)), "collective.missing_ranks")
    assert missing.ranks == [3] and missing.attributes["simultaneous"] == "unknown"
    assert missing.severity == "warning"


def test_two_of_four_records_name_nobody_but_the_unread_ranks() -> None:
    files = [RECORDS / "uneven-fault" / f"rank_{rank}{end}" for rank in (0, 1) for end in (".pkl", ".header.json")]
    found = findings_of(rows_of_files(*files))
    assert codes(found) == {"collective.peers_wait", "rank.waited_for", "records.rank_missing"}
    assert of(found, "records.rank_missing").ranks == [2, 3]
    assert of(found, "rank.waited_for").attributes["tie"], "either of the two may be the one"


def test_two_against_two_names_no_side() -> None:
    files = [RECORDS / "no_sync-fault" / f"rank_{rank}{end}" for rank in (0, 1) for end in (".pkl", ".header.json")]
    finding = of(findings_of(rows_of_files(*files)), "collective.operation_mismatch")
    assert finding.attributes["tie"] and not finding.attributes["minority"]
    assert finding.ranks == [0, 1]


def frames_decide(rows: Batches) -> set[int]:
    with Store() as store:
        store.insert(rows)
        return ranks_whose_frames_decide(store)


def without_frames(case: str, ranks: set[int], directory: Path) -> Batches:
    """The rows as a first look without frames gives them, for some of the ranks."""
    shutil.copytree(RECORDS / case, directory, dirs_exist_ok=True)
    for rank in ranks:
        dump = pickle.loads((RECORDS / case / f"rank_{rank}.pkl").read_bytes())
        for entry in dump["entries"]:
            del entry["frames"]
        (directory / f"rank_{rank}.pkl").write_bytes(pickle.dumps(dump, 2))
    return rows_of_files(directory)


def test_frames_are_asked_of_the_deviating_rank_and_two_witnesses() -> None:
    assert frames_decide(rows_of_files(RECORDS / "no_sync-fault")) == {0, 1, 2}
    assert frames_decide(rows_of_files(RECORDS / "uneven-fault")) == {0, 1, 3}


def test_frames_are_asked_of_all_ranks_if_metadata_agree(tmp_path: Path) -> None:
    assert frames_decide(without_frames("extra_all_reduce-ok", {0, 1, 2, 3}, tmp_path)) == {0, 1, 2, 3}


@pytest.mark.parametrize("case", ["fsdp_skip-fault", "extra_pending-fault"])
def test_the_frames_that_are_asked_for_suffice(case: str, tmp_path: Path) -> None:
    every = {0, 1, 2, 3}
    asked = frames_decide(without_frames(case, every, tmp_path / "none"))
    assert asked < every
    full = of(findings_of(rows_of_files(RECORDS / case)), "collective.call_site_shift")
    partly = of(findings_of(without_frames(case, every - asked, tmp_path / "some")), "collective.call_site_shift")
    assert (partly.ranks, partly.attributes["call"]) == (full.ranks, full.attributes["call"])
