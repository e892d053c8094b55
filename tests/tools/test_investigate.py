"""From a bundle to a diagnosis: the right one, the same one each time, and none where the evidence is gone."""

from __future__ import annotations

import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from stack_bundles import NAMES, TRUTHS, forget, lose, manifest, packed, pid_of_rank, stack_of, unpacked, write_manifest

from ddx_tools.diagnosis.suspects import doubting_silence
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate, replay
from ddx_tools.model.diagnosis import Certainty, Diagnosis, Suspect, SuspectEvent, Verdict
from ddx_tools.model.errors import DdxError, UsageError
from ddx_tools.redaction.published import published_json
from ddx_tools.sources.packed_bundle import pack

pytestmark = pytest.mark.slow

HUNG = [name for name in NAMES if "diagnosed" in TRUTHS[name]["verdicts"]]
RANKS = range(4)

# Of the others the process table says who it is, or a partner is missing (which stands in test_stack_findings).
ONE_CULPRIT = [n for n in HUNG if n not in ("raised-unreaped", "stopped", "send-to-each-other", "pipeline-schedule")]


@cache
def diagnosed(name: str) -> Diagnosis:
    return replay(packed(name)).diagnose()


def journal_entries(directory: Path, op: str) -> list[dict[str, Any]]:
    return [entry for entry in manifest(directory)["journal"] if entry["op"] == op]


# --- the right answer


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_job_is_diagnosed_as_it_was(name: str) -> None:
    truth, found = TRUTHS[name], diagnosed(name)
    assert found.verdict in truth["verdicts"]
    if found.verdict is not Verdict.DIAGNOSED:
        assert (found.culprits.ranks, found.causes) == ([], [])
        return
    assert found.causes[0].id in truth["causes"]
    assert found.culprits.ranks in truth["culprits"]
    assert not set(found.victims.ranks) & set(found.culprits.ranks)
    places = {f"{place.file.removeprefix('/srv/job/')}:{place.line}" for place in found.culprits.locations}
    assert places & set(truth["places"])


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_the_published_json(name: str) -> None:
    assert Diagnosis.model_validate_json(published_json(diagnosed(name))) == diagnosed(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_is_the_same_byte_for_byte(name: str) -> None:
    assert published_json(replay(packed(name)).diagnose()) == published_json(diagnosed(name))


def test_packed_and_unpacked_give_the_same_answer(tmp_path: Path) -> None:
    copy = unpacked("lock-order", tmp_path)
    pack(copy, tmp_path / "again.tar.zst")
    expected = published_json(diagnosed("lock-order"))
    assert published_json(replay(copy).diagnose()) == expected
    assert published_json(replay(tmp_path / "again.tar.zst").diagnose()) == expected


def test_the_order_of_the_journal_says_nothing(tmp_path: Path) -> None:
    """Ranks are looked at by several threads: they write in no order."""
    copy = unpacked("send-to-each-other", tmp_path)
    content = manifest(copy)
    random.Random(1).shuffle(content["journal"])
    write_manifest(copy, content)
    assert published_json(replay(copy).diagnose()) == published_json(diagnosed("send-to-each-other"))


# --- evidence that is gone


@pytest.mark.parametrize("name", ONE_CULPRIT)
def test_without_the_odd_ranks_stack_nobody_else_is_blamed(name: str, tmp_path: Path) -> None:
    (culprit,) = TRUTHS[name]["culprits"][0]
    copy = unpacked(name, tmp_path)
    pid = pid_of_rank(copy, culprit)
    damage = lose if name == "lock-order" else forget
    assert damage(copy, stack_of(pid))
    found = replay(copy).diagnose()
    assert (found.verdict, found.culprits.ranks, found.fix) == (Verdict.UNDECIDED, [], [])
    assert any(f"rank {culprit} (pid {pid})" in item.what for item in found.missing)
    assert found.next_check is not None


@pytest.mark.parametrize("name", ["raised-unreaped", "stopped", *ONE_CULPRIT])
def test_without_a_victims_stack_the_victim_is_not_blamed(name: str, tmp_path: Path) -> None:
    culprits = TRUTHS[name]["culprits"]
    victim = next(rank for rank in RANKS if not any(rank in ranks for ranks in culprits))
    copy = unpacked(name, tmp_path)
    assert forget(copy, stack_of(pid_of_rank(copy, victim)))
    found = replay(copy).diagnose()
    assert found.culprits.ranks in [[], *culprits]
    assert any(f"rank {victim} " in item.what for item in found.missing)


def test_a_stopped_rank_is_known_without_its_stack(tmp_path: Path) -> None:
    """The process table says it."""
    copy = unpacked("stopped", tmp_path)
    assert forget(copy, stack_of(pid_of_rank(copy, 3)))
    found = replay(copy).diagnose()
    assert (found.causes[0].id, found.culprits.ranks) == ("process-stopped", [3])


@pytest.mark.parametrize("name", ["healthy", "skipped-all-reduce"])
def test_without_any_stack_nothing_is_healthy(name: str, tmp_path: Path) -> None:
    copy = unpacked(name, tmp_path)
    forget(copy, lambda entry: entry["op"] == "stack")
    found = replay(copy).diagnose()
    assert (found.verdict, found.culprits.ranks) == (Verdict.UNDECIDED, [])
    assert {rank for rank in RANKS for item in found.missing if f"rank {rank} " in item.what} == set(RANKS)


def test_without_the_second_look_nothing_is_healthy(tmp_path: Path) -> None:
    """One dump of a training job looks like one of a hung job."""
    copy = unpacked("healthy", tmp_path)
    assert forget(copy, lambda entry: entry["op"] in ("stack", "threads") and entry["occurrence"] > 0)
    assert replay(copy).diagnose().verdict is Verdict.UNDECIDED


def test_a_bundle_without_a_journal_decides_nothing(tmp_path: Path) -> None:
    copy = unpacked("healthy", tmp_path)
    write_manifest(copy, manifest(copy) | {"journal": [], "probes": []})
    found = replay(copy).diagnose()
    assert (found.verdict, found.causes) == (Verdict.UNDECIDED, [])


def test_a_damaged_dump_of_the_odd_rank_blames_nobody(tmp_path: Path) -> None:
    copy = unpacked("lock-order", tmp_path)
    pid = pid_of_rank(copy, 3)
    for entry in filter(stack_of(pid), manifest(copy)["journal"]):
        file = copy / entry["path"]
        file.write_bytes(file.read_bytes()[:-40])
    found = replay(copy).diagnose()
    assert (found.verdict, found.culprits.ranks) == (Verdict.UNDECIDED, [])
    assert any(f"(pid {pid})" in item.what and "not a py-spy dump" in item.what for item in found.missing)


def test_without_the_program_texts_the_ranks_are_still_right(tmp_path: Path) -> None:
    for name in ("lock-order", "dataloader-worker", "send-to-each-other"):
        copy = unpacked(name, tmp_path)
        assert forget(copy, lambda entry: entry["op"] == "read" and entry["key"].endswith(".py"))
        found = replay(copy).diagnose()
        assert found.culprits.ranks in [[], *TRUTHS[name]["culprits"]]


@pytest.mark.parametrize(
    "op",
    [
        "processes",
        "now",
        "glob",
        "threads",
        "read",
    ],
)
def test_a_bundle_that_lacks_one_kind_of_answer_is_still_judged(op: str, tmp_path: Path) -> None:
    """A bundle of an older ddx, which did not ask it, or one that lost files."""
    copy = unpacked("lock-order", tmp_path)
    assert forget(copy, lambda entry: entry["op"] == op)
    found = replay(copy).diagnose()
    assert found.culprits.ranks in ([], [3])
    assert found.missing


# --- bundles that somebody else wrote


def spoilt(tmp_path: Path, **changes: Any) -> Path:
    copy = unpacked("lock-order", tmp_path)
    content = manifest(copy)
    for key, value in changes.items():
        content[key] = value(content[key])
    write_manifest(copy, content)
    return copy


def refused_or_judged(path: Path) -> Diagnosis | None:
    try:
        found: Investigation = replay(path)
    except DdxError as error:
        assert error.exit_code == 2
        return None
    return found.diagnose()


@pytest.mark.parametrize(
    "changes",
    [
        {"probes": lambda runs: [*runs, {"probe": "no_such_probe", "host": "node1", "args": {}, "status": "ok"}]},
        {"probes": lambda runs: [runs[1] | {"args": {"target": ["1"], "unheard_of": 1}}]},
        {"probes": lambda runs: [runs[1] | {"args": {"target": "not a list"}}]},
        {"probes": lambda runs: [runs[1] | {"args": {"looks": 10**9}}]},
        {"probes": lambda runs: [run | {"host": "node7"} for run in runs]},
        {"probes": lambda runs: runs * 50},
        {"hosts": lambda hosts: []},
        {"hosts": lambda hosts: [*hosts, "../../etc", "node1"]},
        {"target": lambda target: ["/etc/passwd"]},
        {"journal": lambda entries: [entry | {"op": "{key.__class__} {0} {"} for entry in entries]},
        {"journal": lambda entries: [entry | {"key": "\x1b[31m\udc80"} for entry in entries]},
        {"journal": lambda entries: [entry | {"path": "/etc/passwd"} for entry in entries]},
        {"journal": lambda entries: [entry | {"error": "no_such_kind", "path": None} for entry in entries]},
        {"journal": lambda entries: [entry | {"path": entries[0]["path"]} for entry in entries]},
        {"journal": lambda entries: [entry | {"occurrence": -(10**300)} for entry in entries]},
    ],
    ids=range(15),
)
def test_a_hostile_manifest_is_refused_or_blames_nobody_new(changes: dict[str, Any], tmp_path: Path) -> None:
    found = refused_or_judged(spoilt(tmp_path, **changes))
    assert found is None or found.culprits.ranks in ([], [3])


# --- targets


def test_a_target_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or directory") as refused:
        investigate([str(tmp_path / "gone.tar.zst")])
    assert "Name a pid" in refused.value.help


def test_what_was_brought_is_kept_and_judged_again(tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "fixtures/logs/torchrun_raise.log"
    live = investigate([str(log)], save=tmp_path / "kept.tar.zst")
    assert published_json(live.diagnose()) == published_json(replay(tmp_path / "kept.tar.zst").diagnose())
    assert live.diagnose().verdict is Verdict.DIAGNOSED


def test_the_published_schema_accepts_every_answer() -> None:
    schema = Diagnosis.model_json_schema(by_alias=True)
    required = set(schema["required"])
    for name in NAMES:
        assert required <= json.loads(published_json(diagnosed(name))).keys() <= schema["properties"].keys()


@pytest.mark.parametrize("item", ["x" * 300, "a log\0", "\udc80" * 90])
def test_a_target_that_can_be_no_path_is_told_to_be_none(item: str) -> None:
    with pytest.raises(UsageError, match="no such file"):
        investigate([item])


def test_a_bundle_named_with_other_files_is_judged_with_them(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 7 loss 2.0\n")
    bundle = str(Path(__file__).parents[1] / "fixtures/stacks/stopped.tar.zst")
    found = investigate([str(tmp_path / "train.log"), bundle])
    assert found.diagnose().suspects == investigate([bundle]).diagnose().suspects
    assert any(finding.code == "job.progress" for finding in found.findings)
    assert not found.is_incomplete
    with pytest.raises(UsageError, match="judged alone or with files"):
        investigate([bundle, bundle])


def test_a_silent_rank_of_a_damaged_bundle_may_only_have_lost_its_record() -> None:
    silent = Suspect(ranks=[1], event=SuspectEvent.SILENT, says="Rank 1 left no report, unlike its peers.")
    absent = Suspect(ranks=[2], event=SuspectEvent.ABSENT, says="Rank 2 never entered.")
    answer = Diagnosis(verdict=Verdict.UNDECIDED, headline="?", suspects=[silent, absent])
    doubted, seen = doubting_silence(answer).suspects
    assert doubted.certainty is Certainty.LIKELY and "record was lost" in doubted.unless
    assert seen == absent


def test_a_bundle_without_one_of_its_files_is_incomplete(tmp_path: Path) -> None:
    copy = unpacked("lock-order", tmp_path)
    assert not replay(copy).is_incomplete
    next(file for file in (copy / "raw").rglob("*") if file.is_file()).unlink()
    assert replay(copy).is_incomplete


def test_a_file_whose_name_is_no_text_is_read_and_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"tr\xffain.log")
    (tmp_path / name).write_text("[rank0]: ValueError: x\n[rank1]: RuntimeError: Connection closed by peer\n")
    live = investigate([str(tmp_path / name)], tmp_path / "kept.tar.zst").diagnose()
    again = replay(tmp_path / "kept.tar.zst").diagnose()
    assert live.suspects and (again.verdict, again.headline) == (live.verdict, live.headline)
