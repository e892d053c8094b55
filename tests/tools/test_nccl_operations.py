"""What ranks enqueued: where their operations part and who is behind, each beside a healthy job that looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest
from nccl_logs import VERSIONS, Log, captured, findings_of, of_code, rows_of, train, world, write

from ddx_tools.analysis.nccl.process_rows import Communicator, NcclLogs
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.probes.nccl_log.probe import PROBE
from ddx_tools.sources.bundle import Bundle

pytestmark = pytest.mark.slow

COLLECTIVE = ("collective.", "p2p.")


def about_operations(findings: list[Finding]) -> list[tuple[str, list[int]]]:
    return [(finding.code, finding.ranks) for finding in findings if finding.code.startswith(COLLECTIVE)]


@pytest.mark.parametrize("version", VERSIONS)
def test_ranks_that_enqueue_the_same_are_no_finding(version: str, tmp_path: Path) -> None:
    logs = world(8, version)
    train(logs, steps=300)
    assert about_operations(findings_of(write(tmp_path, logs))) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_another_operation_is_told_with_both_lines(version: str, tmp_path: Path) -> None:
    logs = world(8, version)
    train(logs, steps=300)
    for log in logs:
        log.op("Broadcast" if log.rank == 5 else "AllReduce", 300)
        log.op("AllReduce", 301)
    (found,) = of_code(findings_of(write(tmp_path, logs)), "collective.operation_mismatch")
    facts = found.attributes
    assert (found.ranks, found.severity, found.hosts) == ([5], Severity.FAILURE, ["node-00"])
    assert (facts["operation"], facts["peer_operation"], facts["seq"]) == ("broadcast", "all_reduce", 300)
    assert facts["operations"] == {"all_reduce": [0, 1, 2, 3, 4, 6, 7], "broadcast": [5]}
    assert (facts["minority"], facts["tie"], facts["last_common"], facts["complete"]) == (True, False, 299, True)
    lines = {evidence.source.rsplit("/", 1)[-1]: evidence for evidence in found.evidence}
    shown = {rank: next(e for name, e in lines.items() if f".{4000 + rank}." in name) for rank in (5, 0)}
    for rank, evidence in shown.items():
        assert evidence.line is not None
        assert "opCount 12c " in logs[rank].lines[evidence.line - 1]
    assert evidence_words(shown[5].quote) <= logs[5].lines[shown[5].line - 1 if shown[5].line else 0]


def evidence_words(quote: str) -> str:
    """The longest piece of a quote, between what it leaves out."""
    return max(quote.split(" … "), key=len)


CHANGES = {
    "shape": ("collective.shape_mismatch", {"count": 77}, "sizes"),
    "dtype": ("collective.dtype_mismatch", {"datatype": 6}, "dtypes"),
    "root": ("collective.root_mismatch", {"root": 2}, "roots"),
    "reduction": ("collective.operation_mismatch", {"op": 2}, "operations"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_difference_long_ago_is_found(change: str, tmp_path: Path) -> None:
    """Hundreds of launches before the end of the log: only checksums remember them."""
    code, facts, name = CHANGES[change]
    logs = world(4)
    train(logs, steps=500, nranks=4)
    for log in logs:
        log.op("AllReduce", 500, **{"count": 64, "nranks": 4, **(facts if log.rank == 2 else {})})
        for number in range(501, 1500):
            log.op("AllReduce", number, nranks=4)
    (found,) = [f for f in findings_of(write(tmp_path, logs)) if f.code.startswith("collective.")]
    assert (found.code, found.ranks, found.attributes["seq"]) == (code, [2], 500)
    assert len(found.attributes[name]) == 2
    line = next(e.line for e in found.evidence if ".4002." in e.source)
    assert line is not None and "opCount 1f4 " in logs[2].lines[line - 1]


def test_two_against_two_blames_nobody(tmp_path: Path) -> None:
    logs = world(4)
    for log in logs:
        log.op("AllReduce", 0, 10 if log.rank < 2 else 20, nranks=4)
    (found,) = of_code(findings_of(write(tmp_path, logs)), "collective.shape_mismatch")
    assert (found.ranks, found.attributes["tie"], found.attributes["minority"]) == ([0, 1, 2, 3], True, False)


def test_after_a_difference_nobody_is_called_behind(tmp_path: Path) -> None:
    logs = world(4)
    train(logs, steps=20, nranks=4)
    for log in logs:
        log.op("AllReduce" if log.rank else "Broadcast", 20, nranks=4)
        if log.rank:
            log.op("AllReduce", 21, nranks=4)
    assert about_operations(findings_of(write(tmp_path, logs))) == [("collective.operation_mismatch", [0])]


# --- behind


def behind(tmp_path: Path, *lasts: int, how: str | None = None) -> list[Finding]:
    logs = world(len(lasts))
    for log, last in zip(logs, lasts, strict=True):
        train([log], steps=last + 1, nranks=len(lasts))
        if how:
            log.ends(how, len(lasts))
    return findings_of(write(tmp_path, logs))


def test_a_rank_behind_is_told_as_enqueued_only(tmp_path: Path) -> None:
    (found,) = of_code(behind(tmp_path, 499, 499, 496, 499), "collective.missing_ranks")
    facts = found.attributes
    assert (found.ranks, facts["waiting"], facts["seq"], facts["operation"]) == ([2], [0, 1, 3], 497, "all_gather")
    assert (facts["minority"], facts["tie"], facts["simultaneous"], facts["enqueue_only"]) == (
        True,
        False,
        "unknown",
        True,
    )
    assert found.severity is Severity.WARNING
    assert "only shows enqueueing" in found.summary


def test_a_rank_behind_in_an_aborted_job_is_a_failure(tmp_path: Path) -> None:
    (found,) = of_code(behind(tmp_path, 50, 50, 47, 50, how="Abort"), "collective.missing_ranks")
    assert (found.ranks, found.severity, found.attributes["aborted"]) == ([2], Severity.FAILURE, True)


def test_ranks_of_a_busy_job_stand_at_many_launches_and_that_is_no_finding(tmp_path: Path) -> None:
    assert about_operations(behind(tmp_path, 500, 498, 499, 497)) == []


def test_a_job_that_ended_well_has_nobody_behind(tmp_path: Path) -> None:
    assert about_operations(behind(tmp_path, 50, 50, 47, 50, how="Destroy")) == []


def test_a_log_that_ends_within_a_line_accuses_nobody(tmp_path: Path) -> None:
    """Standard output in a pipe comes in blocks: what the rank wrote last is still in its buffer."""
    logs = world(4)
    train(logs, steps=30, nranks=4)
    write(tmp_path, logs)
    cut = tmp_path / f"nccl.{logs[2].node}.{logs[2].pid}.log"
    cut.write_text(logs[2].text()[:-900])
    assert about_operations(findings_of(tmp_path)) == []


def test_a_rank_that_enqueued_nothing_here_but_elsewhere_is_behind(tmp_path: Path) -> None:
    logs = world(4)
    for log in logs:
        log.start(4, "0xbeef", number=1)
        log.complete(4, "0xbeef", number=1)
        log.op("AllReduce", 0, nranks=4)
        if log.rank != 1:
            log.op("AllGather", 0, nranks=4, number=1)
    (found,) = of_code(findings_of(write(tmp_path, logs)), "collective.missing_ranks")
    assert (found.ranks, found.attributes["operation"]) == ([1], "all_gather")


def test_ranks_whose_log_is_not_there_are_not_called_behind(tmp_path: Path) -> None:
    logs = world(4)
    train(logs, steps=30, nranks=4)
    assert about_operations(findings_of(write(tmp_path, logs[:3]))) == []


def test_launches_of_one_group_share_a_number(tmp_path: Path) -> None:
    logs = world(4)
    for log in logs:
        for number in range(200):
            for bucket in range(3):
                log.op("AllReduce", number, 100 + bucket, nranks=4)
    assert about_operations(findings_of(write(tmp_path, logs))) == []


# --- identity


def test_a_new_communicator_at_the_same_address_is_another_one(tmp_path: Path) -> None:
    logs = world(4)
    for log in logs:
        train([log], steps=40, nranks=4)
        log.ends("Destroy", 4)
        log.start(4, "0xbeef")
        log.complete(4, "0xbeef")
        train([log], steps=7 if log.rank == 3 else 9, nranks=4)
    directory = write(tmp_path, logs)
    streams = rows_of(directory)["nccl_streams"]
    assert {(row["communicator"], row["operations"]) for row in streams if row["rank"] == 0} == {
        ("0xa1b2c3d4e5f60718", 40),
        ("0xbeef", 9),
    }
    (found,) = of_code(findings_of(directory), "collective.missing_ranks")
    assert (found.ranks, found.attributes["seq"]) == ([3], 7)


def test_operations_without_the_set_up_are_compared_with_nobody(tmp_path: Path) -> None:
    """The log is cut at the top: a pointer alone says nothing across processes."""
    logs = [Log(rank) for rank in range(4)]
    for log in logs:
        log.op("AllReduce" if log.rank else "AllGather", 0, nranks=4)
    directory = write(tmp_path, logs)
    assert about_operations(findings_of(directory)) == []
    assert {row.get("communicator") for row in rows_of(directory)["nccl_streams"]} == {None}


def test_the_same_log_twice_changes_nothing(tmp_path: Path) -> None:
    """Launchers keep a file for each rank and the whole output as well."""
    logs = world(4)
    train(logs, steps=200, nranks=4)
    logs[2].lines = logs[2].lines[:-3]
    once = write(tmp_path / "once", logs)
    twice = write(tmp_path / "twice", logs)
    (twice / "all.out").write_text("".join(f"{log.rank}: {line}\n" for log in logs for line in log.lines))
    told = [(finding.code, finding.ranks, finding.attributes) for finding in findings_of(once)]
    assert [(finding.code, finding.ranks, finding.attributes) for finding in findings_of(twice)] == told
    assert ("collective.missing_ranks", [2]) in [(code, ranks) for code, ranks, _ in told]


def test_hosts_that_were_captured_apart_are_compared(tmp_path: Path) -> None:
    """Checksums alone tell that the hosts differ; the operations of one rank of each host say in what."""
    logs = world(4, gpus_per_host=2)
    for log in logs:
        for number in range(1000):
            log.op("AllReduce", number, 64 if number == 400 and log.rank > 1 else 32, nranks=4)
    with Store() as store:
        for host in (0, 1):
            store.insert(PROBE.parse(captured(write(tmp_path / str(host), logs[2 * host : 2 * host + 2]))))
        (found,) = [f for f in PROBE.analyse(store) if f.code.startswith("collective.")]
    assert found.code == "collective.operation_mismatch"
    assert (found.attributes["between"], found.attributes["tie"]) == ([384, 511], True)


# --- sends and receives


def pipeline(*, lost: bool, how: str | None = "Abort") -> list[Log]:
    logs = world(2, gpus_per_host=2)
    for number in range(6):
        logs[0].op("Send", number, root=1, nranks=2)
        if not (lost and number == 5):
            logs[1].op("Recv", number, root=0, nranks=2)
    for log in logs:
        if how:
            log.ends(how, 2)
    return logs


def test_a_send_without_a_receive_is_told_once_the_job_gave_up(tmp_path: Path) -> None:
    (found,) = of_code(findings_of(write(tmp_path, pipeline(lost=True))), "p2p.unmatched")
    assert (found.ranks, found.attributes["operation"], found.attributes["peers"]) == ([0], "send", {"0": 1})


@pytest.mark.parametrize(("lost", "how"), [(False, "Abort"), (True, None), (True, "Destroy")])
def test_one_end_of_a_pipe_may_be_ahead(lost: bool, how: str | None, tmp_path: Path) -> None:
    assert about_operations(findings_of(write(tmp_path, pipeline(lost=lost, how=how)))) == []


def test_two_ranks_that_send_to_each_other_form_a_circle(tmp_path: Path) -> None:
    logs = world(2, gpus_per_host=2)
    for log in logs:
        log.op("Send", 0, root=1 - log.rank, nranks=2)
        log.ends("Abort", 2)
    (found,) = of_code(findings_of(write(tmp_path, logs)), "p2p.circular_wait")
    assert (found.ranks, found.attributes["peers"]) == ([0, 1], {"0": 1, "1": 0})


def test_sends_make_the_numbers_of_a_communicator_incomparable(tmp_path: Path) -> None:
    """They count in opCount of those ranks only that take part: rank 2 is not behind."""
    logs = world(3)
    for log in logs[:2]:
        log.op("Send" if log.rank == 0 else "Recv", 0, root=1 - log.rank, nranks=3)
    for log in logs:
        log.op("AllReduce", 1 if log.rank < 2 else 0, nranks=3)
    assert about_operations(findings_of(write(tmp_path, logs))) == []


# --- the whole


@pytest.mark.slow
def test_why_reads_it_and_a_bundle_says_the_same(tmp_path: Path) -> None:
    logs = world(4)
    train(logs, steps=300, nranks=4)
    for log in logs:
        log.op("AllReduce", 300, 9 if log.rank == 1 else 10, nranks=4)
    directory = write(tmp_path / "logs", logs)
    bundle = tmp_path / "bundle"
    live = investigate([str(directory)], save=bundle)
    again = investigate([str(bundle)])
    codes = [(finding.code, finding.ranks) for finding in live.findings]
    assert ("collective.shape_mismatch", [1]) in codes
    assert [(finding.code, finding.ranks) for finding in again.findings] == codes
    with Bundle(bundle) as kept:
        assert "nccl_log" in {run.probe for run in kept.manifest.probes}


def test_ranks_are_called_by_their_global_numbers_where_all_are_known() -> None:
    one = Communicator("0x1", 2, {0: {"host": "a", "pid": 1}, 1: {"host": "a", "pid": 2}})
    known = NcclLogs({}, {}, {("a", 1): 3, ("a", 2): 0}, [], set(), {})
    partly = NcclLogs({}, {}, {("a", 1): 3}, [], set(), {})
    assert known.names(one, [0, 1]) == {0: 3, 1: 0}
    assert partly.names(one, [0, 1]) == {0: 0, 1: 1}
