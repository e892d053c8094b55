"""The probe `mesh`: from files, commands, flight records and typed dimensions to findings and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mesh_texts import ACCELERATE, AREAL, MEGATRON, MODEL, TORCHTITAN
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.analysis.mesh.groups import axis_names
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.model.diagnosis import Finding, ProbeStatus, Severity
from ddx_tools.model.errors import NotFound, UsageError
from ddx_tools.probes.mesh.probe import PROBE, MeshArgs
from ddx_tools.sources.host import Host, HostCall, Reply, error_reply
from ddx_tools.sources.hosts.local import LocalHost

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"
LOUD = (Severity.WARNING, Severity.FAILURE)


def looked(host: Host, target: list[str], **args: Any) -> tuple[list[Finding], list[dict[str, Any]]]:
    """Findings and table of one capture."""
    with Store() as store:
        store.insert(PROBE.parse(PROBE.capture(host, MeshArgs(target=target, **args))))
        findings = PROBE.analyse(store)
        assert callable(PROBE.table)
        assert all(is_registered(finding.code) for finding in findings)
        return findings, PROBE.table(store)


def findings_of(*files: Path, **args: Any) -> list[Finding]:
    return looked(LocalHost("unknown"), [str(file) for file in files], **args)[0]


def typed(dims: str, **args: Any) -> list[Finding]:
    return findings_of(dims=dims, **args)


def loud(findings: list[Finding]) -> dict[str, str]:
    return {finding.code: finding.summary for finding in findings if finding.severity in LOUD}


def only(findings: list[Finding], code: str) -> Finding:
    found = [finding for finding in findings if finding.code == code]
    assert len(found) == 1, [finding.summary for finding in findings]
    return found[0]


def written(directory: Path, name: str, text: str) -> Path:
    file = directory / name
    file.write_text(text, encoding="utf-8")
    return file


# --- the world


def test_a_mesh_that_fits_is_described_and_nothing_is_wrong(tmp_path: Path) -> None:
    findings = findings_of(written(tmp_path, "train.toml", TORCHTITAN), world_size=64)
    assert not loud(findings)
    layout = only(findings, "mesh.layout")
    assert layout.summary.startswith("dp_replicate 2 × dp_shard 4 × tp 8 = 64 ranks; neighbouring ranks differ in tp")
    assert layout.attributes["framework"] == "torchtitan"
    assert {e.quote: e.line for e in layout.evidence}["tensor_parallel_degree = 8"] == 7


def test_a_mesh_that_does_not_fit_gets_the_arithmetic_and_the_lines(tmp_path: Path) -> None:
    config = written(tmp_path, "train.toml", TORCHTITAN.replace("= -1", "= 4"))
    wrong = only(findings_of(config, world_size=48), "mesh.size_mismatch")
    assert wrong.severity is Severity.FAILURE
    assert wrong.summary == (
        "dp_replicate 2 × dp_shard 4 × tp 8 = 64, but the world size is 48. dp_shard = -1 would be 48 / 16 = 3."
    )
    assert {evidence.quote for evidence in wrong.evidence} >= {"tensor_parallel_degree = 8", "--world-size 48"}
    assert wrong.attributes["dims"] == {"dp_replicate": 2, "dp_shard": 4, "tp": 8}


def test_the_world_of_a_launch_script_beside_a_configuration_counts(tmp_path: Path) -> None:
    config = written(tmp_path, "train.toml", TORCHTITAN)
    script = written(tmp_path, "run.sh", "torchrun --nnodes 6 --nproc-per-node 8 -m torchtitan.train\n")
    assert only(findings_of(config, script), "mesh.layout").attributes["dims"]["dp_shard"] == 3
    script.write_text("torchrun --nnodes 5 --nproc-per-node 8 -m torchtitan.train\n", encoding="utf-8")
    assert "would be 40 / 16 = 2.5" in loud(findings_of(config, script))["mesh.size_mismatch"]


def test_options_of_the_command_come_on_top_of_the_file(tmp_path: Path) -> None:
    config = written(tmp_path, "train.toml", TORCHTITAN)
    command = "torchrun --nproc-per-node 8 -m torchtitan.train --parallelism.tensor_parallel_degree=2\n"
    script = written(tmp_path, "run.sh", command)
    assert only(findings_of(config, script), "mesh.layout").attributes["dims"] == {
        "pp": 1, "dp_replicate": 2, "dp_shard": 2, "cp": 1, "tp": 2, "ep": 1, "etp": 1,
    }  # fmt: skip


def test_a_typed_world_overrules_the_file_s(tmp_path: Path) -> None:
    config = written(tmp_path, "accelerate.yaml", ACCELERATE)
    assert not loud(findings_of(config))
    assert "but the world size is 32" in loud(findings_of(config, world_size=32))["mesh.size_mismatch"]


def test_an_unknown_world_or_order_is_asked_for_and_no_fault(tmp_path: Path) -> None:
    assert "--world-size" in only(typed("dp=-1,tp=8"), "mesh.layout").summary
    script = written(tmp_path, "run.sh", "torchrun --nproc-per-node 8 train.py --tp 4 --pp 2\n")
    findings = findings_of(script)
    assert "--framework" in only(findings, "mesh.layout").summary and not loud(findings)
    assert only(findings_of(script, framework="megatron"), "mesh.layout").attributes["dims"]["pp"] == 2


def test_each_engine_of_areal_has_a_mesh_of_its_own(tmp_path: Path) -> None:
    findings = findings_of(written(tmp_path, "grpo.yaml", AREAL))
    shapes = [finding.summary.partition(" =")[0] for finding in findings if finding.code == "mesh.layout"]
    assert shapes == ["dp 4 × tp 2", "actor: pp 2 × dp 4 × cp 2 × tp 2"]


# --- the model


def test_heads_and_experts_that_divide_are_silent_and_others_are_named(tmp_path: Path) -> None:
    config, model = written(tmp_path, "train.toml", TORCHTITAN), written(tmp_path, "config.json", MODEL)
    assert not loud(findings_of(config, model, world_size=64))
    model.write_text(MODEL.replace("32", "36"), encoding="utf-8")
    said = loud(findings_of(config, model, world_size=64))["mesh.not_divisible"]
    assert said.startswith("36 attention heads cannot be divided evenly by tp 8 (36 / 8 = 4.5)")


def test_few_key_value_heads_are_repeated_by_megatron_and_refused_by_torchtitan(tmp_path: Path) -> None:
    model = written(tmp_path, "config.json", MODEL.replace('"num_key_value_heads": 8', '"num_key_value_heads": 4'))
    script = written(tmp_path, "run.sh", "torchrun --nproc-per-node 8 x.py --tensor-model-parallel-size 8\n")
    assert not loud(findings_of(script, model))
    config = written(tmp_path, "train.toml", TORCHTITAN)
    assert "4 key-value heads" in loud(findings_of(config, model, world_size=16))["mesh.not_divisible"]


def test_layers_that_do_not_divide_are_a_warning_for_there_are_uneven_stages(tmp_path: Path) -> None:
    assert not loud(findings_of(written(tmp_path, "run.sh", MEGATRON)))
    script = written(tmp_path, "run.sh", MEGATRON.replace("48", "47"))
    uneven = only(findings_of(script), "mesh.not_divisible")
    assert uneven.severity is Severity.WARNING and uneven.attributes["by"] == {"pp": 2}
    assert {evidence.line for evidence in uneven.evidence} == {3, 5}


def test_a_sequence_has_to_be_divided_twice_by_context_parallelism(tmp_path: Path) -> None:
    config = TORCHTITAN + "context_parallel_degree = 2\n"
    assert not loud(findings_of(written(tmp_path, "a.toml", config), world_size=64))
    odd = written(tmp_path, "a.toml", config.replace("8192", "8208"))
    assert "tp 8 × 2 × cp 2 = 32" in loud(findings_of(odd, world_size=64))["mesh.not_divisible"]


# --- hosts


@pytest.mark.parametrize(
    ("dims", "crossing", "larger"),
    [("dp=2,tp=8", 2, True), ("tp=4,dp=4", 4, False), ("dp=5,tp=3", 2, False)],
)
def test_an_axis_with_much_traffic_that_spans_hosts_is_named(dims: str, crossing: int, larger: bool) -> None:
    found = only(typed(dims, gpus_per_host=4), "mesh.crosses_hosts")
    assert (found.attributes["crossing"], found.attributes["larger_than_host"]) == (crossing, larger)
    assert found.attributes["axis"] == "tp"


def test_tensor_parallelism_inside_hosts_is_well_whatever_spans_them_else() -> None:
    assert not loud(typed("pp=2,dp=4,tp=8", gpus_per_host=8))
    assert not loud(typed("dp=2,tp=8", gpus_per_host=16))


CYCLIC = """#SBATCH -N 8
#SBATCH --ntasks-per-node=8
#SBATCH --distribution=cyclic
srun python pretrain_gpt.py --tensor-model-parallel-size 8
"""


def test_ranks_dealt_to_hosts_in_turn_tear_groups_of_neighbours_apart(tmp_path: Path) -> None:
    findings = findings_of(written(tmp_path, "job.sbatch", CYCLIC), rank=3)
    found = only(findings, "mesh.crosses_hosts")
    assert "8 of 8 groups of the axis tp span up to 8 hosts: ranks are assigned" in found.summary
    assert found.attributes["dealt"] and "#SBATCH --distribution=cyclic" in {e.quote for e in found.evidence}
    assert "Its host has ranks 3-59 step 8." in only(findings, "mesh.rank").summary


def test_ranks_numbered_host_by_host_keep_them_together(tmp_path: Path) -> None:
    assert not loud(findings_of(written(tmp_path, "job.sbatch", CYCLIC.replace("cyclic", "block"))))


def test_an_unknown_number_of_gpus_says_nothing_of_hosts() -> None:
    findings = typed("dp=2,tp=8", rank=3)
    assert not loud(findings) and only(findings, "mesh.rank").attributes["host_index"] is None


# --- answers


def test_a_rank_has_its_place_its_groups_and_those_who_wait_for_it() -> None:
    found = only(typed("pp=2,dp=4,tp=8", rank=37, gpus_per_host=8), "mesh.rank")
    assert found.attributes["coordinates"] == {"pp": 1, "dp": 0, "tp": 5}
    assert found.attributes["groups"] == {"tp": "32-39", "pp": "5, 37", "dp": "37-61 step 8"}
    assert found.attributes["host_index"] == 4
    assert "If it stops, 32-39 except 37 wait in the same layer" in found.summary
    assert "Its host has ranks 32-39." in found.summary


def test_a_rank_that_is_not_there_is_said_to_be_none() -> None:
    found = only(typed("dp=2,tp=2", rank=4), "mesh.rank")
    assert found.summary == "There is no rank 4: the mesh dp 2 × tp 2 has ranks 0-3."


@pytest.mark.parametrize(
    ("members", "axis", "said"),
    [
        ("8-15", "tp", "are a group of the axis tp, at pp 0, dp 1"),
        ("5-29 step 8", "dp", "are a group of the axis dp"),
        ("5, 37", "pp", "are a group of the axis pp"),
        ("8-11", None, "are only part of a group: 8-15, of the axis tp"),
        ("0, 9", None, "are neither a group of this mesh"),
        ("60-70", None, "only has ranks 0-63"),
    ],
)
def test_a_stuck_group_is_told_by_its_members(members: str, axis: str | None, said: str) -> None:
    found = only(typed("pp=2,dp=4,tp=8", members=members), "mesh.group_axis")
    assert found.attributes["axis"] == axis and said in found.summary


def test_a_stuck_group_is_told_by_its_name(tmp_path: Path) -> None:
    script = written(tmp_path, "run.sh", MEGATRON)
    found = only(findings_of(script, group="PIPELINE_MODEL_PARALLEL_GROUP"), "mesh.group_axis")
    assert found.summary.endswith("is the axis pp: 16 groups of 2 ranks, the first is 0, 16.")
    assert only(findings_of(script, group="mesh_cp"), "mesh.group_axis").attributes["axes"] == []


def test_lines_of_a_rank_s_groups_come_first_and_long_ones_are_cut() -> None:
    _, rows = looked(LocalHost("unknown"), [], dims="pp=4,dp=64,tp=8", rank=517, gpus_per_host=8)
    assert (rows[0]["at"], rows[0]["hosts"], rows[0]["ranks"]) == ("pp 1, dp 0", "64", list(range(512, 520)))
    assert {row["at"].split(",")[0] for row in rows[1:64]} == {"pp 1"} | {"pp 0"}
    assert len(rows) == 256
    _, rows = looked(LocalHost("unknown"), [], dims="dp=100")
    assert [(len(row["ranks"]), row["more"]) for row in rows] == [(16, 84)]


def test_the_store_knows_where_every_rank_stands() -> None:
    with Store() as store:
        capture = PROBE.capture(LocalHost("unknown"), MeshArgs(dims="dp=2,tp=3", gpus_per_host=3))
        store.insert(PROBE.parse(capture))
        query = "SELECT rank, host_index FROM mesh WHERE dimension = 'tp' AND coordinate = 2 ORDER BY rank"
        assert store.query(query) == [{"rank": 2, "host_index": 0}, {"rank": 5, "host_index": 1}]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"dims": "tp=x"}, "not NAME=SIZE"),
        ({"dims": "tp=2,sp=2", "framework": "torchtitan"}, "torchtitan has no dimension sp"),
        ({"dims": "tp=2", "framework": "horovod"}, "the dimension order of 'horovod' is unknown"),
        ({"dims": "tp=2", "members": "3-1"}, "is not a range of ranks"),
        ({"dims": "sglang:d4t2"}, "no engine that trains"),
    ],
)
def test_questions_that_make_no_sense_are_refused_with_help(args: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        PROBE.capture(LocalHost("unknown"), MeshArgs(**args))
    assert refused.value.help


# --- flight records


def test_named_groups_of_records_show_the_mesh_by_themselves() -> None:
    findings = findings_of(RECORDS / "dp_tp_stall-ok")
    assert only(findings, "mesh.layout").summary.startswith("recorded: dp 2 × tp 2 = 4 ranks")
    assert [f.attributes["axis"] for f in findings if f.code == "mesh.group_axis"] == ["tp", "dp"]
    assert not loud(findings)


def test_records_that_contradict_the_typed_order_are_a_warning() -> None:
    findings = findings_of(RECORDS / "dp_tp_stall-ok", dims="tp=2,dp=2")
    assert "mesh_tp are groups of the axis dp" in " ".join(finding.summary for finding in findings)
    assert "mesh.group_axis" in loud(findings)


def test_the_world_of_records_counts_where_nothing_else_says_it(tmp_path: Path) -> None:
    config = written(tmp_path, "train.toml", "[parallelism]\ntensor_parallel_degree = 2\n")
    findings = findings_of(config, RECORDS / "dp_tp_stall-ok")
    assert only(findings, "mesh.layout").attributes["world_size"] == 4
    assert {f.attributes["axis"] for f in findings if f.code == "mesh.group_axis"} >= {"tp"}


# --- a live job, and a bundle of it


class JobHost(LocalHost):
    """A host whose process table is given."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__("node-a")
        self._snapshot = json.dumps(snapshot(*rows)).encode()

    def answer(self, call: HostCall) -> Reply:
        if call.op != "processes":  # no file of a watchdog, and no agent
            return error_reply(NotFound(f"{call.key}: no such file"))
        return Reply(self._snapshot, source="processes.json")


def job(world_size: int) -> JobHost:
    arguments = "-m torchtitan.train --parallelism.tensor_parallel_degree 4"
    torchrun = f"/usr/bin/python3 /usr/bin/torchrun --nnodes 2 --nproc-per-node 8 {arguments}"
    ranks = [
        row(200 + rank, 100, f"/usr/bin/python3 -u {arguments}", env=torchrun_env(rank, world_size, 8))
        for rank in range(8)
    ]
    return JobHost([row(100, 1, torchrun), *ranks])


def test_a_live_job_s_commands_say_its_mesh() -> None:
    findings, _ = looked(job(16), [], rank=5)
    layout = only(findings, "mesh.layout")
    assert (layout.attributes["dims"]["dp_shard"], layout.attributes["dims"]["tp"]) == (4, 4)
    assert only(findings, "mesh.rank").attributes["host_index"] == 0


def test_what_the_ranks_were_told_of_the_world_overrules_the_launcher() -> None:
    findings, _ = looked(job(14), ["203"])
    assert "would be 14 / 4 = 3.5" in loud(findings)["mesh.size_mismatch"]


def test_a_bundle_answers_other_questions_later(tmp_path: Path) -> None:
    config = written(tmp_path, "train.toml", TORCHTITAN)
    kept = tmp_path / "kept"
    run_probe(Step(PROBE, {"target": [str(config)], "world_size": 64}), save=kept)
    result, _ = run_probe(Step(PROBE, {"target": [str(kept)], "world_size": 32, "rank": 9}))
    assert result.status is ProbeStatus.OK
    assert next(f for f in result.findings if f.code == "mesh.rank").attributes["coordinates"] == {
        "dp_replicate": 0, "dp_shard": 1, "tp": 1,
    }  # fmt: skip


def test_files_that_say_nothing_of_a_mesh_are_unusable_input(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing usable"):
        run_probe(Step(PROBE, {"target": [str(written(tmp_path, "a.txt", "hello\n"))]}))


# --- the axes of recorded groups


def axes_of(*descriptions: tuple[str, list[list[int]]]) -> dict[str, str | None]:
    """The axes that recorded groups with these descriptions and members get."""
    rows = [
        {"group_id": number, "group_key": str(number), "name": str(number), "description": text, "members": members}
        for number, (text, members) in enumerate((text, one) for text, many in descriptions for one in many)
    ]
    with Store() as store:
        store.insert({"fr_groups": rows})
        axes = axis_names(store)
    return {str(row["description"]): axes.get(int(str(row["group_id"]))) for row in rows}


WORLD = ("default_pg", [[0, 1, 2, 3]])
TP, DP = [[0, 1], [2, 3]], [[0, 2], [1, 3]]


def test_megatron_s_groups_get_their_axis() -> None:
    axes = axes_of(WORLD, ("TENSOR_MODEL_PARALLEL_GROUP", TP), ("DATA_PARALLEL_GROUP", DP))
    assert axes == {"default_pg": None, "TENSOR_MODEL_PARALLEL_GROUP": "tp", "DATA_PARALLEL_GROUP": "dp"}


def test_a_group_without_a_name_gets_the_axis_that_its_members_fit() -> None:
    axes = axes_of(WORLD, ("mesh_tp", TP), ("mesh_dp", DP), ("undefined", [[1, 3]]))
    assert axes == {"default_pg": None, "mesh_tp": "tp", "mesh_dp": "dp", "undefined": "dp"}


def test_groups_that_show_no_whole_mesh_get_no_axis() -> None:
    axes = axes_of(WORLD, ("mesh_tp", TP), ("undefined", [[1, 3]]))
    assert set(axes.values()) == {None}
