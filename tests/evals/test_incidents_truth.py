"""Truths: both kinds load, gaps are named, and nothing that is replayed gives the answer away."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
from made_incidents import copied, recorded

from ddx_evals.incidents import IncidentError, View, load_incident, named_incidents
from ddx_evals.incidents.leaks import leaks, telltale_name
from ddx_evals.incidents.validation import problems
from ddx_tools.investigation.run import investigate
from ddx_tools.knowledge.resources import incidents_dir
from ddx_tools.model.diagnosis import Verdict
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.packed_bundle import pack


def unfit(split: str, kind: str) -> dict[str, list[str]]:
    """What is wrong with the incidents of one kind in a split."""
    made = [each for each in named_incidents([split]) if each.truth.provenance and each.truth.provenance.kind == kind]
    assert made
    return {incident.id: said for incident in made if (said := problems(incident))}


def test_a_recorded_incident_may_be_used() -> None:
    assert unfit("dev", "recorded") == {}


# Of simulated ones there is more in test_large_incidents.py.
@pytest.mark.long
@pytest.mark.parametrize("split", ["test", "later", "unseen"])
def test_a_recorded_incident_of_another_split_may_be_used(split: str) -> None:
    assert unfit(split, "recorded") == {}


def test_the_incident_that_the_manual_makes_of_a_log_may_be_used(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/evals.md").read_text("utf-8").partition("## From your own incident")[2]
    (truth,) = re.findall(r"```yaml\n(.*?)```", page.partition("## The score")[0], re.DOTALL)
    own = tmp_path / "own/4c1e"
    own.mkdir(parents=True)
    (own / "truth.yaml").write_text(textwrap.dedent(f"    {truth.lstrip()}"), encoding="utf-8")
    log = shutil.copy(root / "tests/fixtures/logs/torchrun_raise.log", tmp_path / "train.log")
    found = investigate([str(log)], save=own / "bundle.tar.zst").diagnose()
    incident = load_incident(own)
    assert problems(incident) == []
    assert (found.verdict, found.causes[0].id) == (incident.truth.views[View.FULL].verdict, incident.truth.cause)
    assert tuple(found.culprits.ranks) == incident.truth.culprits.ranks


@pytest.mark.parametrize("split", ["public", "written", "blind", "kept", "fresh", "sealed"])
def test_incidents_of_files_that_people_brought_load_with_their_one_view(split: str) -> None:
    for incident in named_incidents([split]):
        assert problems(incident) == [], incident.id
        assert incident.views == [View.FULL]
        assert incident.material.name == "artifacts"


def test_without_views_the_cause_says_which_verdict_is_right() -> None:
    verdicts = {each.truth.cause: each.truth.views[View.FULL].verdict for each in named_incidents(["written"])}
    assert verdicts["healthy"] is Verdict.HEALTHY
    assert verdicts["undecided"] is Verdict.UNDECIDED
    assert verdicts["port-in-use"] is Verdict.DIAGNOSED


def test_no_file_that_was_brought_is_called_after_a_cause() -> None:
    for incident in named_incidents(["public", "written", "blind", "kept", "fresh", "sealed"]):
        names = [file.name for file in incident.material.rglob("*")]
        assert [name for name in names if telltale_name().search(name)] == []


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown cause": ({"cause": "gremlins"}, "no such cause: gremlins"),
    "a cause that is innocent, too": ({"innocent": ["uneven-data"]}, "both right and innocent"),
    "the category of another page": ({"category": "network"}, "the page of uneven-data says"),
    "no canary": ({"canary": ""}, "lacks the canary"),
    "another id": ({"id": "ffff"}, "the same 4 to 12 hex digits"),
    "no key fact": ({"evidence": []}, "needs a key fact"),
    "a fact in no file": ({"evidence": [{"artefact": "raw/*.core", "pattern": "x"}]}, "no file in the bundle"),
    "a fact that nothing shows": (
        {"evidence": [{"artefact": "raw/*", "pattern": "no such words"}]},
        "the pattern no such words matches nothing in any file",
    ),
    "facts beside the files that they name": (
        {"evidence": [{"artefact": "raw/*/stacks/*", "pattern": "LAST_BATCH = "}]},
        "views.full: a diagnosis cannot quote a key fact",
    ),
    "a fact that the log does not show": (
        {"views": {"full": {"verdict": "diagnosed"}, "log-only": {"verdict": "diagnosed"}}},
        "views.log-only: a diagnosis cannot quote a key fact",
    ),
    "nothing that settles it": ({"views": {"log-only": {"verdict": "undecided"}}}, "which check settles it"),
    "a check that is another": (
        {"views": {"log-only": {"verdict": "undecided", "check": "firewall"}}},
        "does not match the deciding fact",
    ),
    "a prompt that knows": ({"prompt": "Has the rank uneven data?"}, "names the cause"),
    "a prompt with an id": ({"prompt": "Is it uneven-data?"}, "prompt: says"),
    "no command": ({"provenance": {"kind": "recorded"}}, "records it again"),
}


@pytest.mark.parametrize(("changes", "told"), FAULTS.values(), ids=FAULTS.keys())
def test_a_truth_that_is_not_fit_says_why(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    found = problems(load_incident(copied(recorded("fewer-batches"), tmp_path, **changes)))
    assert any(told in problem for problem in found), found


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"culprit": {"ranks": [1]}}, "culprit: extra inputs"),
        ({"culprits": {"ranks": ["first"]}}, "valid integer"),
        ({"deciding_words": "("}, "deciding_words"),
        ({"views": {"half": {"verdict": "healthy"}}}, "views"),
    ],
)
def test_a_truth_with_keys_or_values_that_mean_nothing_is_refused(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(IncidentError, match=told):
        load_incident(copied(recorded("fewer-batches"), tmp_path, **changes))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("raw/vm/job_log/a.txt", "the uneven-data scenario", "uneven-data"),
        ("raw/vm/job_log/a.txt", "step 3: fault injection armed", "fault injection"),
        ("raw/vm/fewer-batches/a.txt", "", "fewer-batches"),
        ("raw/vm/job_log/straggler.log", "", "straggler"),
        ("raw/vm/job_log/truth.txt", "", "truth"),
    ],
)
def test_words_that_give_the_answer_away_are_found(name: str, text: str, told: str) -> None:
    assert any(told in found for found in leaks([(name, text)]))


def test_words_of_training_are_no_leak() -> None:
    assert list(leaks([("raw/vm/job_log/train.log", "loss is healthy; worker killed; straggler? step 3")])) == []


def test_a_leak_in_a_bundle_makes_it_unfit(tmp_path: Path) -> None:
    incident = load_incident(copied(recorded("fewer-batches"), tmp_path))
    with Bundle(incident.material) as bundle:
        opened = shutil.copytree(bundle.directory, tmp_path / "opened")
    (opened / "raw" / "note.txt").write_text("recorded with rank0-only-work-with-collective")
    material = incident.material
    material.unlink()
    pack(opened, material)
    assert any("rank0-only-work-with-collective" in problem for problem in problems(incident))


def test_a_name_that_is_no_incident_is_answered_with_the_splits() -> None:
    with pytest.raises(IncidentError, match=r"no incident or split 'tset'") as raised:
        named_incidents(["tset"])
    assert "public" in raised.value.help


def test_incidents_are_named_by_split_by_id_and_by_path() -> None:
    (by_id,) = named_incidents(["public/38-semlock-errno-28"])
    (by_path,) = named_incidents([str(incidents_dir() / "public" / "38-semlock-errno-28")])
    assert by_id == by_path
    assert len(named_incidents(["public", "public/38-semlock-errno-28"])) == len(named_incidents(["public"])) > 1
