"""What an agent reports is saved if it is a diagnosis, and explained if it is not one yet."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from serve_session import MISMATCH, ask, content, in_session, refusal

from ddx_server.serve.config import ServeConfig
from ddx_server.serve.report_tool import OTHER, checked_diagnosis
from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.model.errors import UsageError

REPORT: dict[str, Any] = {
    "schema": "ddx.diagnosis/1",
    "verdict": "diagnosed",
    "headline": "Rank 2 stands at a breakpoint",
    "causes": [
        {
            "id": "process-stopped",
            "title": "the process is stopped",
            "category": "rank-absent",
            "probability": 0.9,
            "level": "established",
            "culprits": {"ranks": [2]},
        }
    ],
    "culprits": {"ranks": [2]},
    "victims": {"ranks": [0, 1, 3]},
    "evidence": [
        {"finding": "rank.outside_collective", "claim": "rank 2 is outside the collective", "quote": "train.py:73 main"}
    ],
}


def changed(**fields: Any) -> dict[str, Any]:
    return copy.deepcopy(REPORT) | fields


def test_a_diagnosis_is_saved_as_it_was_said(tmp_path: Path) -> None:
    told = ask(ServeConfig.at([tmp_path]), "report_diagnosis", {"diagnosis": REPORT})
    saved = Path(told["saved"])
    assert saved.is_relative_to(tmp_path / ".ddx/incidents")
    assert Diagnosis.model_validate_json(saved.read_text(encoding="utf-8")) == Diagnosis.model_validate(REPORT)


def test_marks_of_untrusted_text_may_come_back_and_are_not_saved(tmp_path: Path) -> None:
    claim = {
        "finding": "rank.outside_collective",
        "untrusted_claim": "rank 2 is outside the collective",
        "untrusted_quote": "main",
    }
    told = ask(ServeConfig.at([tmp_path]), "report_diagnosis", {"diagnosis": changed(evidence=[claim])})
    saved = json.loads(Path(told["saved"]).read_text(encoding="utf-8"))
    assert saved["evidence"][0]["claim"] == "rank 2 is outside the collective" and "untrusted" not in json.dumps(saved)


def test_what_diagnose_says_can_be_reported_as_it_is_and_lies_beside_the_bundle(tmp_path: Path) -> None:
    shutil.copy(MISMATCH / "train.log", tmp_path)

    async def talk(client: Client) -> tuple[str, list[str]]:
        incident = content(await client.call_tool("open_incident", {"path": "train.log"}))["incident"]
        told = content(await client.call_tool("diagnose", {"target": [incident]}))
        told["truncated"] = [{"what": "chain", "shown": 1, "total": 2, "how": ""}]
        reports = [await client.call_tool("report_diagnosis", {"diagnosis": told, "incident": incident}) for _ in "ab"]
        return incident, [content(report)["saved"] for report in reports]

    incident, saved = in_session(ServeConfig.at([tmp_path]), talk)
    beside = tmp_path / ".ddx/incidents" / incident
    assert saved == [str(beside / "diagnosis-1.json"), str(beside / "diagnosis-2.json")]
    assert (beside / "bundle/manifest.json").is_file()


def test_json_as_a_string_is_understood(tmp_path: Path) -> None:
    assert ask(ServeConfig.at([tmp_path]), "report_diagnosis", {"diagnosis": json.dumps(REPORT)})["saved"]


CAUSE = REPORT["causes"][0]


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (changed(verdict="sure"), ["verdict: ", "'diagnosed', 'undecided' or 'healthy'", "'sure'"]),
        (changed(blame=[2]), ["blame: there is no such field; known here: schema, verdict, headline"]),
        (changed(culprits={"rank": [2]}), ["culprits.rank: there is no such field; known here: ranks, hosts"]),
        (changed(culprits={"ranks": ["two"]}), ["culprits.ranks.0: ", "'two'"]),
        (changed(causes=[{"id": "process-stopped"}]), ["causes.0.title: required", "causes.0.level: required"]),
        (changed(causes=[CAUSE | {"id": "proces-stoped"}]), ["causes.0.id: 'proces-stoped'", "process-stopped"]),
        (
            changed(causes=[CAUSE | {"category": "hang"}]),
            ["causes.0.category: the category of process-stopped is 'rank-absent'"],
        ),
        (changed(causes=[CAUSE | {"probability": 1.5}]), ["causes.0.probability: ", "less than or equal to 1"]),
        (
            changed(evidence=[{"finding": "rank.outside", "claim": "x"}]),
            ["evidence.0.finding: 'rank.outside'", "rank.outside_collective"],
        ),
        (changed(next_check={"probe": "stack", "question": "?"}), ["next_check.probe: 'stack'", "stacks"]),
        (changed(causes=[]), ["causes: empty", "undecided"]),
        (changed(evidence=[]), ["evidence: empty", "undecided"]),
        (changed(verdict="healthy"), ["'healthy' has neither causes nor culprits"]),
        (
            {"verdict": "healthy", "headline": "?", "culprits": {"hosts": ["node1"]}},
            ["'healthy' has neither causes nor culprits"],
        ),
        (changed(victims={"ranks": [1, 2]}), ["victims.ranks: [2] are also culprits"]),
        (changed(causes=[CAUSE | {"probability": 0.1}, CAUSE | {"id": OTHER}]), ["causes: best first"]),
    ],
)
def test_every_mistake_is_told_by_place_and_remedy(report: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        checked_diagnosis(report)
    for words in expected:
        assert words in str(refused.value)


@pytest.mark.parametrize(
    "report",
    [
        changed(),
        changed(causes=[CAUSE | {"id": OTHER, "category": "operator"}]),
        changed(evidence=[{"finding": "", "claim": "the log ends there"}]),
        {"verdict": "undecided", "headline": "not enough"},
        {"verdict": "healthy", "headline": "all is well"},
    ],
)
def test_an_honest_answer_of_any_kind_is_taken(report: dict[str, Any]) -> None:
    assert checked_diagnosis(report).headline == report["headline"]


def test_a_wrong_report_is_not_saved(tmp_path: Path) -> None:
    told = refusal(ServeConfig.at([tmp_path]), "report_diagnosis", {"diagnosis": changed(verdict="sure")})
    assert "was not saved" in told and "call report_diagnosis again" in told
    assert not list(tmp_path.rglob("diagnosis*.json"))


@pytest.mark.parametrize(
    "report",
    [
        changed(**{f"field{number}": 1 for number in range(30_000)}),
        changed(evidence=[{"finding": f"rank.outsid{number}", "claim": "x"} for number in range(20_000)]),
    ],
    ids=["fields", "evidence"],
)
def test_of_very_many_mistakes_only_the_first_are_looked_into(report: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        checked_diagnosis(report)
    assert refused.value.help.count("- ") == 9 and refused.value.help.endswith("\n- and more")


def test_a_report_about_no_known_incident_is_refused(tmp_path: Path) -> None:
    arguments = {"diagnosis": REPORT, "incident": "inc-../../etc"}
    assert "there is no incident" in refusal(ServeConfig.at([tmp_path]), "report_diagnosis", arguments)


def test_an_enormous_report_is_refused() -> None:
    with pytest.raises(UsageError, match="1 MiB"):
        checked_diagnosis(changed(chain=["x" * (1 << 20)]))
