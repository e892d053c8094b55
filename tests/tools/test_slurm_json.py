"""`sacct --json`, `scontrol show --json`, `squeue --json` and `sinfo --json` give what the texts give."""

from __future__ import annotations

import json
from typing import Any

import pytest
from host_reading import CONSTRUCTED, RECORDED, codes, facts_in, findings_in, one
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.model.diagnosis import Finding


def read(name: str) -> list[Finding]:
    return findings_in((CONSTRUCTED / name).read_text())


def plain(findings: list[Finding]) -> list[tuple[Any, ...]]:
    """What findings say, without where they were read."""
    return [(one.code, one.severity, one.hosts, one.summary, one.attributes) for one in findings]


@pytest.mark.parametrize(
    ("name", "of_text"), [("squeue_jobs.json", "scontrol_jobs.txt"), ("sinfo_nodes.json", "scontrol_nodes.txt")]
)
def test_recorded_jobs_and_nodes_give_the_findings_of_the_text_of_that_moment(name: str, of_text: str) -> None:
    found = findings_in((RECORDED / name).read_text())
    assert found
    assert plain(found) == plain(findings_in((RECORDED / of_text).read_text()))


@pytest.mark.parametrize("name", ["sacct_22_05.json", "scontrol_jobs_24_05.json"])
def test_jobs_give_the_findings_of_the_text(name: str) -> None:
    assert plain(read(name)) == plain(read("sacct_one_bad_node.txt"))


def test_accounted_jobs_also_list_the_steps_that_ended_differently() -> None:
    found, of_text = read("sacct_24_05.json"), read("sacct_one_bad_node.txt")
    assert one(found, "host.jobs_failed").attributes == one(of_text, "host.jobs_failed").attributes
    assert one(found, "host.oom_kill").hosts == ["gpu-34"]
    failed = next(finding for finding in found if finding.attributes.get("state") == "FAILED")
    assert failed.attributes["jobs"] == ["8101", "8101.0", "8103", "8105"]
    assert (failed.attributes["signals"], failed.attributes["exit_codes"]["8101"]) == ([9], 1)


def test_nodes_give_the_findings_of_the_text() -> None:
    assert plain(read("scontrol_node_24_05.json")) == plain(read("scontrol_node_down.txt"))


def test_jobs_that_run_or_ended_well_raise_nothing() -> None:
    assert read("sacct_24_05_healthy.json") == []
    jobs = facts_in((CONSTRUCTED / "sacct_24_05_healthy.json").read_text(), "job_state")
    assert [job["subject"] for job in jobs] == ["8102", "8103"]


def test_a_task_of_an_array_has_the_name_that_sacct_prints() -> None:
    text = (CONSTRUCTED / "sacct_24_05.json").read_text()
    document = json.loads(text)
    document["jobs"][0]["array"] = {"job_id": 8100, "task_id": {"set": True, "infinite": False, "number": 3}}
    assert facts_in(json.dumps(document), "job_state")[0]["subject"] == "8100_3"


def test_an_exit_code_of_zero_of_a_failed_job_is_unknown() -> None:
    text = (CONSTRUCTED / "sacct_22_05.json").read_text().replace('"return_code": 1', '"return_code": 0')
    failed = next(one for one in findings_in(text) if one.attributes.get("state") == "FAILED")
    assert "exit_codes" not in failed.attributes


def test_a_wait_status_holds_code_and_signal() -> None:
    for status, code, signal in ((256, 1, 0), (9, 0, 9), (35072, 137, 0)):
        job = {"job_id": 7, "job_state": "FAILED", "exit_code": status, "nodes": "n1", "state_reason": "None"}
        (row,) = facts_in(json.dumps({"jobs": [job]}), "job_state")
        facts = json.loads(row["facts"])
        assert (facts["exit_code"], facts["signal"]) == (code, signal)


def test_a_list_that_was_cut_off_keeps_its_whole_jobs() -> None:
    text = (CONSTRUCTED / "sacct_24_05.json").read_text()
    assert "host.jobs_failed" in codes(findings_in(text[: text.index('"job_id": 8106')]))


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.integers(), max_size=2)


@given(st.sampled_from(["sacct_24_05.json", "scontrol_node_24_05.json"]), st.integers(0, 400), VALUES)
def test_a_value_of_any_type_in_any_place_is_read_or_passed_over(name: str, place: int, value: Any) -> None:
    document = json.loads((CONSTRUCTED / name).read_text())
    holders = [holder for holder in _objects(document) if holder]
    holder = holders[place % len(holders)]
    holder[list(holder)[place % len(holder)]] = value
    findings_in(json.dumps(document))


def _objects(value: Any) -> list[dict[str, Any]]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ([value] if isinstance(value, dict) else []) + [found for one in inner for found in _objects(one)]
