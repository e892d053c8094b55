"""NCCL's RAS asked live, and several of its answers compared: who is behind in what stands still."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from machine_load import on_this_machine
from ras_servers import TEXT, RasJob, four_stages, ras

from ddx_tools.analysis.wait_graph.build import wait_graph
from ddx_tools.analysis.wait_graph.model import Source
from ddx_tools.analysis.wait_graph.roots import find_roots
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Finding, Severity
from ddx_tools.model.errors import HostError, NotFound, TimedOut
from ddx_tools.parsers.nccl.nccl_ras import read_ras
from ddx_tools.probes.nccl_log.probe import PROBE, NcclLogArgs
from ddx_tools.sources.hosts.local import LocalHost

pytestmark = pytest.mark.slow


def of_code(findings: list[Finding], code: str) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]


def brought(tmp_path: Path, *reports: str) -> list[Finding]:
    for number, report in enumerate(reports):
        (tmp_path / f"ras_{number}.json").write_text(report)
    return investigate([str(tmp_path)]).findings


# --- the client


def test_a_report_is_json_where_ras_can_and_text_where_not() -> None:
    with ras() as address:
        assert LocalHost().nccl_ras(address, timeout_s=5).data.startswith(b"{")
    with ras(how="old") as address:
        text = LocalHost().nccl_ras(address, timeout_s=5).data.decode()
    assert text.startswith("NCCL version 2.26.2")
    assert [fact.ranks for fact in read_ras(text) if fact.many == 1] == [(37,)]


def test_where_one_process_of_the_port_is_stopped_another_is_asked() -> None:
    with ras(how=("silent", "json")) as address:
        assert LocalHost().nccl_ras(address, timeout_s=5).data.startswith(b"{")


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("silent", TimedOut, "accepts connections but does not answer"),
        ("slow", TimedOut, "did not finish its report in time"),
        ("garbage", HostError, "does not answer like NCCL's RAS"),
    ],
)
def test_whoever_does_not_answer_as_ras_does_is_told(how: str, error: type[HostError], said: str) -> None:
    with ras(how=how) as address, pytest.raises(error, match=said):
        LocalHost().nccl_ras(address, timeout_s=2)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no.such.host.invalid:28028"])
def test_nobody_there_is_told(address: str) -> None:
    with pytest.raises(NotFound):
        LocalHost().nccl_ras(address, timeout_s=5)


@pytest.mark.parametrize("address", ["", "localhost", "localhost:x", "localhost:99999999999", ":28028"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(HostError, match="is not the address"):
        LocalHost().nccl_ras(address, timeout_s=5)


# --- several answers that were brought


def test_four_frozen_answers_name_the_communicator_and_who_is_behind(tmp_path: Path) -> None:
    job = RasJob(communicators={"ff": range(64)}, counts={"ff": 6650}, lacks={("ff", 37): 1})
    found = brought(tmp_path, *(job.report(60 * minute) for minute in range(4)))
    (missing,) = of_code(found, "collective.missing_ranks")
    assert (missing.ranks, missing.group, missing.severity) == ([37], "communicator ff of 64 ranks", Severity.FAILURE)
    assert "no rank in it launched anything across 4 RAS answers within 180 s" in missing.summary
    (root,) = of_code(found, "rank.waited_for")
    assert (root.ranks, root.attributes["moving"], root.attributes["state"]) == ([37], False, "unseen")
    diagnosis = investigate([str(tmp_path)]).diagnose()
    assert diagnosis.suspects[0].ranks == [37]


def test_answers_in_which_counts_go_on_blame_nobody(tmp_path: Path) -> None:
    job = RasJob(communicators={"ff": range(64)}, counts={"ff": 6650}, lacks={("ff", 37): 1})
    later = RasJob(communicators={"ff": range(64)}, counts={"ff": 6733}, lacks={("ff", 12): 1})
    found = brought(tmp_path, job.report(0), later.report(60))
    assert not of_code(found, "collective.missing_ranks")
    (going,) = of_code(found, "job.progressing")
    assert "launched more collectives in 1 of 1 communicators" in going.summary
    assert not investigate([str(tmp_path)]).diagnose().suspects


def test_who_is_behind_in_one_communicator_and_at_work_in_another_is_no_suspect(tmp_path: Path) -> None:
    """A step is longer than the time between the answers: rank 5 comes last to the one all_reduce of a step."""
    groups: dict[str, Sequence[int]] = {
        "ff": range(16),
        **{f"a{host}": range(8 * host, 8 * host + 8) for host in range(2)},
    }
    jobs = [
        RasJob(
            communicators=groups,
            counts={"ff": 7, "a0": launched, "a1": launched},
            lacks={("ff", 5): 1, ("a0", 5): 2},
            ranks=16,
        )
        for launched in (400, 460)
    ]
    found = brought(tmp_path, jobs[0].report(0), jobs[1].report(3))
    assert not of_code(found, "collective.missing_ranks")
    assert of_code(found, "job.progressing")


def test_a_rank_that_stands_still_while_others_still_get_on_is_named_and_no_hang_claimed(tmp_path: Path) -> None:
    groups: dict[str, Sequence[int]] = {"ff": range(16), "a0": range(8), "a1": range(8, 16)}
    jobs = [
        RasJob(communicators=groups, counts={"ff": 7, "a0": 400, "a1": more}, lacks={("a0", 5): 1}, ranks=16)
        for more in (400, 460)
    ]
    found = brought(tmp_path, jobs[0].report(0), jobs[1].report(30))
    (missing,) = of_code(found, "collective.missing_ranks")
    assert (missing.ranks, missing.severity) == ([5], Severity.WARNING)
    assert not of_code(found, "job.progressing")


def test_who_is_behind_only_because_it_waits_elsewhere_is_no_root(tmp_path: Path) -> None:
    """Rank 5 does not come to its tensor-parallel group; so its partner 4 does not come to its data-parallel group."""
    groups = {"dd": [4, 12, 20, 28], "ee": [5, 13, 21, 29], "tt": [4, 5]}
    job = RasJob(
        communicators={"ff": range(32), **groups},
        counts={"ff": 7, "dd": 90, "ee": 90, "tt": 400},
        lacks={("tt", 5): 1, ("dd", 4): 1, ("ee", 5): 1},
        ranks=32,
    )
    found = brought(tmp_path, job.report(0), job.report(30))
    (root,) = of_code(found, "rank.waited_for")
    assert root.ranks == [5]
    assert {tuple(one.ranks) for one in of_code(found, "collective.missing_ranks")} == {(5,)}


def test_one_that_launched_another_operation_is_told_from_those_that_are_behind(tmp_path: Path) -> None:
    job = RasJob(communicators={"ff": range(8)}, counts={"ff": 100}, lacks={("ff", 3): 1}, ranks=8)
    reports = [_with_one_more(job.report(second), rank=3) for second in (0, 30)]
    (root,) = of_code(brought(tmp_path, *reports), "rank.waited_for")
    assert (root.ranks, root.attributes["state"]) == ([3], "elsewhere")


def _with_one_more(report: str, rank: int) -> str:
    head, mark, rest = report.partition(f'"rank": {rank},')
    return head + mark + rest.replace('"AllGather": 0', '"AllGather": 1', 1)


def test_halves_of_a_communicator_are_nobodys_fault(tmp_path: Path) -> None:
    job = RasJob(
        communicators={"ff": range(8)}, counts={"ff": 100}, lacks={("ff", rank): 1 for rank in range(4)}, ranks=8
    )
    found = brought(tmp_path, job.report(0), job.report(30))
    assert all(one.attributes["tie"] for one in of_code(found, "collective.missing_ranks"))


def test_equal_counts_that_stand_still_say_nothing(tmp_path: Path) -> None:
    job = four_stages()
    found = brought(tmp_path, job.report(0), job.report(60))
    assert not [one for one in found if one.code in ("collective.missing_ranks", "job.progressing", "rank.waited_for")]


def test_a_dead_peer_is_told_by_its_rank(tmp_path: Path) -> None:
    job = RasJob(communicators={"ff": range(64), "aa": [1, 9, 17]}, counts={"ff": 5, "aa": 5}, gone=[17])
    found = [one for one in brought(tmp_path, job.report()) if one.attributes.get("signature") == "nccl_ras_dead"]
    assert {(tuple(one.ranks), tuple(one.hosts)) for one in found} == {((17,), ("10.0.0.3",))}


def test_frozen_answers_as_text_name_whom_they_list(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"ras_{number}.txt").write_text(TEXT)
    (missing,) = of_code(investigate([str(tmp_path)]).findings, "collective.missing_ranks")
    assert (missing.ranks, missing.severity) == ([37], Severity.WARNING)
    assert "No rank in it launched anything across 3 RAS answers" in missing.summary


def test_the_wait_graph_of_a_folder_has_the_waits_of_its_reports(tmp_path: Path) -> None:
    job = RasJob(communicators={"ff": range(64)}, counts={"ff": 6650}, lacks={("ff", 37): 1})
    for number in range(2):
        (tmp_path / f"ras_{number}.json").write_text(job.report(30 * number))
    with Store() as store:
        result = investigate([str(tmp_path)], store=store)
        graph = wait_graph(store, {}, result.findings)
    roots = find_roots(graph)
    assert (list(roots.ranks), len(roots.victims), roots.clear) == ([37], 63, True)
    assert {edge.source for edge in graph.edges} == {Source.RAS}


# --- a live job


@contextmanager
def processes(ranks: range, env: Mapping[str, str]) -> Iterator[dict[int, int]]:
    """Processes of a job of 64 ranks on this host, by rank: they sleep, and NCCL is but what the environment says."""
    # What Gloo would do on a machine whose name stands for 127.0.0.1 is not the question here.
    outward = next((name for name in psutil.net_if_addrs() if name != "lo"), "eth0")
    with ExitStack() as stack:
        pids = {}
        for rank in ranks:
            of_rank = {"RANK": str(rank), "WORLD_SIZE": "64", "MASTER_ADDR": "10.0.0.1", "LOCAL_RANK": str(rank % 8)}
            program = [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"]
            process = stack.enter_context(
                subprocess.Popen(
                    program, env={**os.environ, "GLOO_SOCKET_IFNAME": outward, **of_rank, **env}, stdout=subprocess.PIPE
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            pids[rank] = process.pid
        yield pids


def why(pid: int) -> tuple[Diagnosis, list[Finding]]:
    found = investigate([str(pid)])
    return found.diagnose(), found.findings


WHY_S = 20.0
"""8 local ranks with a RAS, whatever it answers: 6 s of ddx, and the deadline of 9 s."""


@pytest.mark.needs("linux")
def test_why_names_who_is_behind_of_64_ranks_in_4_communicators() -> None:
    job = four_stages(lacks={("a2", 37): 1})
    with ras(job.report) as address, processes(range(32, 40), {"NCCL_RAS_ADDR": address}) as pids:
        job.pids = pids
        began_s = time.monotonic()
        diagnosis, findings = why(pids[32])
        took_s = time.monotonic() - began_s
    assert took_s <= on_this_machine(WHY_S)
    (missing,) = of_code(findings, "collective.missing_ranks")
    assert (missing.ranks, missing.group, missing.severity) == ([37], "communicator a2 of 16 ranks", Severity.FAILURE)
    assert diagnosis.suspects[0].ranks == [37]


@pytest.mark.needs("linux")
def test_why_names_nobody_of_64_ranks_that_launch_more_or_the_same() -> None:
    later = four_stages()
    later.counts = dict.fromkeys(later.counts, 829)
    for reports in ([four_stages(lacks={("a2", 37): 1}), later], [four_stages()]):
        with (
            ras(*(job.report for job in reports)) as address,
            processes(range(32, 40), {"NCCL_RAS_ADDR": address}) as pids,
        ):
            for job in reports:
                job.pids = pids
            diagnosis, findings = why(pids[32])
        assert not of_code(findings, "collective.missing_ranks")
        assert not [suspect for suspect in diagnosis.suspects if 37 in suspect.ranks]
        assert diagnosis.verdict != "diagnosed"


@pytest.mark.needs("linux")
@pytest.mark.parametrize("how", ["refused", "silent", "slow", "garbage"])
def test_why_answers_in_time_whatever_ras_does(how: str) -> None:
    with ras(how=how) as listens:
        address = "127.0.0.1:1" if how == "refused" else listens
        with processes(range(32, 40), {"NCCL_RAS_ADDR": address}) as pids:
            began_s = time.monotonic()
            diagnosis, _ = why(pids[32])
            took_s = time.monotonic() - began_s
    assert took_s <= on_this_machine(WHY_S)
    assert f"NCCL's RAS at {address}" in "\n".join(gap.what for gap in diagnosis.missing)
    assert diagnosis.verdict != "diagnosed"


@pytest.mark.needs("linux")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("silent", "accepts connections but does not answer"),
        ("garbage", "does not answer like NCCL's RAS"),
        ("nonsense", "does not answer like NCCL's RAS"),
    ],
)
def test_a_ras_that_does_not_answer_is_told(how: str, said: str) -> None:
    with ras(how=how) as address, processes(range(1), {"NCCL_RAS_ADDR": address}) as pids:
        raw = PROBE.capture(LocalHost(), NcclLogArgs(target=[str(pids[0])]))
    assert said in "\n".join(gap.what for gap in raw.missing)


@pytest.mark.needs("linux")
def test_an_address_of_the_environment_at_which_nobody_listens_is_told() -> None:
    with processes(range(1), {"NCCL_RAS_ADDR": "127.0.0.1:1"}) as pids:
        raw = PROBE.capture(LocalHost(), NcclLogArgs(target=[str(pids[0])]))
    assert "no process listens at 127.0.0.1:1" in "\n".join(gap.what for gap in raw.missing)


@pytest.mark.needs("linux")
@pytest.mark.parametrize("env", [{}, {"NCCL_RAS_ENABLE": "0", "NCCL_RAS_ADDR": "127.0.0.1:1"}])
def test_a_job_without_ras_costs_nothing_and_lacks_nothing(env: dict[str, str]) -> None:
    with processes(range(1), env) as pids:
        raw = PROBE.capture(LocalHost(), NcclLogArgs(target=[str(pids[0])]))
    assert not [gap for gap in raw.missing if "RAS" in gap.what]


@pytest.mark.needs("linux")
@pytest.mark.parametrize(("ranks", "asks"), [(range(1), True), (range(63, 64), True), (range(8, 9), False)])
def test_of_many_hosts_those_of_the_first_and_the_last_rank_ask(ranks: range, asks: bool) -> None:
    with ras(four_stages().report) as address, processes(ranks, {"NCCL_RAS_ADDR": address}) as pids:
        target = [str(pids[ranks[0]])]
        raw = PROBE.capture(LocalHost(), NcclLogArgs(target=target, among_others=True))
    assert bool(raw.of("ras")) is asks
