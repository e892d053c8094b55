"""`ddx mesh PID`: the mesh of a live job from its own records; a job without agents from its command lines."""

from __future__ import annotations

from test_fr_probe import JobOfRecords

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.mesh.probe import PROBE, MeshArgs
from ddx_tools.sources.raw import Raw


def looked(host: JobOfRecords, **args: object) -> tuple[Raw, list[Finding]]:
    raw = PROBE.capture(host, MeshArgs.model_validate({"target": ["100"], **args}))
    with Store() as store:
        store.insert(PROBE.parse(raw))
        return raw, PROBE.analyse(store)


def test_the_groups_of_a_live_job_are_those_that_its_ranks_recorded() -> None:
    host = JobOfRecords("dp_tp_stall-fault")
    raw, findings = looked(host)
    axes = [finding.attributes["axis"] for finding in findings if finding.code == "mesh.group_axis"]
    assert axes == ["tp", "dp"]
    assert any("recorded: dp 2 × tp 2 = 4 ranks" in finding.summary for finding in findings)
    assert {rank for rank, _ in host.asked} == {0, 1, 2, 3}
    assert not any(stacks for _, stacks in host.asked), "frames tell nothing of a mesh"
    assert "the process groups of 4 flight records of its ranks" in raw.searched


def test_a_job_without_agents_is_read_from_its_command_lines_as_before() -> None:
    raw, findings = looked(JobOfRecords("dp_tp_stall-fault", run_dir=None))
    assert not [finding for finding in findings if finding.code == "mesh.group_axis"]
    assert not raw.problems and not raw.missing


def test_a_rank_that_does_not_answer_costs_itself_alone() -> None:
    raw, findings = looked(JobOfRecords("dp_tp_stall-fault", silent=(3,)))
    assert any(finding.code == "mesh.group_axis" for finding in findings)
    assert len(raw.missing) == 1 and "rank 3" in raw.missing[0].what


def test_nobody_is_asked_where_the_records_are_read_elsewhere() -> None:
    host = JobOfRecords("dp_tp_stall-fault")
    looked(host, records=False)
    assert not host.asked
