"""Commands that open what an answer names, hand in what a person read, and list what a bundle holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddx_server import cli
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.knowledge.resources import playbooks_dir
from ddx_tools.model.errors import UsageError

FIXTURES = Path(__file__).parents[1] / "fixtures"
STALL = FIXTURES / "flight_records" / "dp_tp_stall-fault"


def ddx(*words: object, code: int = 0) -> str:
    ended = CliRunner().invoke(cli.app, [str(word) for word in words])
    if isinstance(ended.exception, UsageError):
        raise ended.exception
    assert ended.exit_code == code, ended.output
    return ended.output


def show(*words: object) -> str:
    return ddx("show", *words, "--from", STALL)


def test_a_group_shows_its_members_and_how_far_they_came() -> None:
    shown = show("group", "mesh_dp")
    assert "mesh_dp: ranks 0, 2" in shown and "mesh_dp: ranks 1, 3" in shown
    assert "rank 3: enqueued 3, started 0, completed 3" in shown
    assert "ranks 0-1 have not finished 4  [collective mesh_dp 4]" in shown


def test_a_collective_shows_who_recorded_it_and_who_did_not() -> None:
    shown = show("collective", "mesh_dp", 4)
    assert 'ranks 0-1: seq 4 all_reduce [[64]] ["Float"] at train.py:179 dp_tp_stall, not finished' in shown
    assert "ranks 2-3: no record" in shown


@pytest.mark.parametrize("name", ["rank_1.pkl#13", f"{STALL}/rank_1.pkl#13", f"{STALL}/rank_1.pkl#record_id=13"])
def test_a_record_opens_by_every_name_that_is_printed_of_it(name: str) -> None:
    assert "rank 1 seq 11 all_reduce [[32]]" in show("record", name)


def test_a_record_opens_by_its_path_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)
    assert "rank 1 seq 11" in show("record", f"{STALL.relative_to(FIXTURES)}/rank_1.pkl#13")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["group", "nope"], "Recorded: mesh_tp, mesh_dp, default_pg."),
        (["collective", "nope", 4], "Recorded: mesh_tp, mesh_dp, default_pg."),
        (["collective", "mesh_dp", 99], "ddx show group mesh_dp"),
        (["record", "rank_1.pkl#999"], "ddx show rank N"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(words: list[object], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        show(*words)
    assert says in refused.value.help


def test_a_bundle_lists_what_it_keeps() -> None:
    bundle = FIXTURES / "stacks" / "healthy.tar.zst"
    listed = json.loads(ddx("bundle", "inspect", bundle, "--json"))
    assert listed["files"] <= len(listed["answers"]) and listed["schema"].startswith("ddx.bundle/")
    assert f"{len(listed['answers'])} answers in {listed['files']} files" in ddx("bundle", "inspect", bundle)


def test_the_facts_that_can_be_told_are_listed() -> None:
    facts = json.loads(ddx("facts", "--json"))
    assert facts["hangs"] and all(name in ddx("facts") for name in facts)


def test_the_finding_codes_can_be_searched() -> None:
    found = json.loads(ddx("facts", "--codes", "SHM", "--json"))
    assert "limits.shm_full" in found and len(found) < len(json.loads(ddx("facts", "--codes", "", "--json")))
    assert found["limits.shm_full"]["attributes"]["size_bytes"] == "integer"
    assert "size_bytes: integer" in ddx("facts", "--codes", "limits.shm_full")
    with pytest.raises(UsageError):
        ddx("facts", "--codes", "no such word")


def test_the_page_of_a_new_cause_loads_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(playbooks_dir(), tmp_path / "playbooks")
    monkeypatch.chdir(tmp_path)
    assert "playbooks/causes/loader-out-of-files.md" in ddx("playbook", "new", "loader-out-of-files")
    page = load_playbooks(tmp_path / "playbooks").causes["loader-out-of-files"]
    assert page.decides and len(page.text.split("## ")) == 4
    for words in (
        ["new"],
        ["new", "gil-held"],
        ["new", "No Id"],
        ["gil-held", "twice"],
        ["new", "loader-out-of-files"],
    ):
        with pytest.raises(UsageError):
            ddx("playbook", *words)


@pytest.mark.parametrize(
    ("attribute", "meant"), [("excepton=KeyError", "'exception'"), ("role=roots", "one of context, root, secondary")]
)
def test_an_attribute_that_no_finding_has_is_refused(tmp_path: Path, attribute: str, meant: str) -> None:
    (tmp_path / "x.log").write_text("step 1\nsuddenly nothing more was said\n")
    words = ["--source", "material x.log:2", "--quote", "suddenly nothing more", "--attribute", attribute]
    with pytest.raises(UsageError) as refused:
        ddx("add-finding", "rank.raised", tmp_path / "x.log", *words)
    assert meant in f"{refused.value.message} {refused.value.help}"


def test_what_a_person_read_is_checked_kept_and_counts_from_then_on(tmp_path: Path) -> None:
    log, kept = tmp_path / "x.log", tmp_path / "kept.json"
    log.write_text("step 1\nsuddenly nothing more was said\n")
    words = ["rank.raised", log, "--source", "material x.log:2", "--ranks", 3, "--attribute", "exception=KeyError"]
    first = json.loads(ddx("add-finding", *words, "--quote", "suddenly nothing", "--keep", kept, "--json", code=3))
    again = json.loads(ddx("why", log, "--findings", kept, "--json", code=3))
    assert first["suspects"][0]["ranks"] == again["suspects"][0]["ranks"] == [3]
    with pytest.raises(UsageError, match="does not show"):
        ddx("add-finding", *words, "--quote", "never written", "--keep", kept)
    assert len(json.loads(kept.read_text())) == 1, "what was refused is not kept"
