"""The tools as a client sees them: all probes are among them, described in few words, with strict arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from pydantic import Field
from serve_session import MISMATCH, ask, call, content, in_session, refusal

from ddx_server.render.playbook import page_markdown
from ddx_server.serve.config import ServeConfig
from ddx_server.serve.probe_tools import probe_tool
from ddx_server.serve.workspace import Workspace
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.errors import UsageError
from ddx_tools.probes.declaration import Probe, ProbeArgs
from ddx_tools.probes.registry import PROBES
from ddx_tools.sources.raw import Raw

OWN = {
    "diagnose",
    "capture_incident",
    "open_incident",
    "query_evidence",
    "show",
    "add_finding",
    "similar_cases",
    "read_playbook",
    "report_diagnosis",
}
WRITES = {"add_finding", "capture_incident", "open_incident", "report_diagnosis"}
MOST_LIST_BYTES = 24_000


@pytest.fixture(scope="module")
def listed() -> dict[str, dict[str, Any]]:
    async def talk(client: Client) -> list[dict[str, Any]]:
        return [
            tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in (await client.list_tools()).tools
        ]

    return {tool["name"]: tool for tool in in_session(ServeConfig.at(), talk)}


def test_every_probe_is_a_tool(listed: dict[str, dict[str, Any]]) -> None:
    assert set(listed) == OWN | {probe.id for probe in PROBES}
    assert next(iter(listed)) == "diagnose"


def test_the_list_of_tools_costs_a_model_eight_thousand_tokens_at_most(listed: dict[str, dict[str, Any]]) -> None:
    listing = json.dumps(list(listed.values()), ensure_ascii=False, separators=(",", ":"))
    assert len(listing.encode()) <= MOST_LIST_BYTES


def test_what_is_not_read_only_says_so(listed: dict[str, dict[str, Any]]) -> None:
    not_read_only = {name for name, tool in listed.items() if not tool["annotations"]["readOnlyHint"]}
    assert not_read_only == WRITES | {probe.id for probe in PROBES if not probe.read_only}
    assert not any(tool["annotations"]["destructiveHint"] for name, tool in listed.items() if name in not_read_only)


def test_every_tool_publishes_what_it_takes_and_returns(listed: dict[str, dict[str, Any]]) -> None:
    for tool in listed.values():
        assert tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object"
        assert tool["outputSchema"]["properties"]
    for probe in PROBES:
        assert set(listed[probe.id]["inputSchema"]["properties"]) == set(probe.args.model_fields) - probe.shell_only


def test_tools_say_whether_they_act_and_whether_they_reach_other_hosts(listed: dict[str, dict[str, Any]]) -> None:
    hints = {name: tool["annotations"] for name, tool in listed.items()}
    assert {name for name, hint in hints.items() if hint["openWorldHint"]} == {"network", "preflight"}
    assert all(hints[probe.id]["readOnlyHint"] is probe.read_only for probe in PROBES)


def test_a_tool_takes_no_program_to_start_and_no_place_to_write_to(listed: dict[str, dict[str, Any]]) -> None:
    assert not {"launcher", "directory"} & set(listed["preflight"]["inputSchema"]["properties"])


class NewArgs(ProbeArgs):
    """Arguments of a probe that nobody has heard of."""

    depth: int = Field(3, ge=2, le=9, description="How deep.")


def test_a_new_probe_is_a_tool_without_further_code(tmp_path: Path) -> None:
    probe = Probe(
        id="new_thing",
        title="A new thing",
        description="Looks at a new thing.",
        args=NewArgs,
        capture=lambda host, _: Raw(host.name),
        parse=lambda _: {},
        analyse=lambda _: [],
    )
    tool = probe_tool(probe, Workspace(ServeConfig.at([tmp_path])))
    assert tool.name == "new_thing" and tool.description == "Looks at a new thing."
    assert tool.parameters["properties"]["depth"] == {
        "type": "integer", "description": "How deep.", "minimum": 2, "maximum": 9, "default": 3,
    }  # fmt: skip


def test_an_argument_that_does_not_exist_is_an_error_and_not_passed_over() -> None:
    told = refusal(ServeConfig.at(), "stacks", {"rank": 3})
    assert "rank" in told and "not permitted" in told


def test_a_value_out_of_range_is_explained() -> None:
    assert "less than or equal to 2" in refusal(ServeConfig.at(), "stacks", {"looks": 7})


def test_an_unexpected_error_is_logged_and_told_without_its_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr("ddx_tools.investigation.single_probe.run_probe", broken)

    async def talk(client: Client) -> tuple[Any, Any]:
        failed = await client.call_tool("jobs", {})
        monkeypatch.undo()
        return failed, await client.call_tool("read_playbook", {"page": "hang"})

    failed, after = in_session(ServeConfig.at([tmp_path]), talk)
    assert failed.is_error
    assert "a bug in ddx (RuntimeError)" in failed.content[0].text
    assert "secret" not in failed.content[0].text
    assert "the secret inside" in caplog.text
    assert content(after)["id"] == "hang"


def test_an_expected_error_comes_with_its_help(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: object, **__: object) -> None:
        raise UsageError("there is no such thing", "Type this instead.")

    monkeypatch.setattr("ddx_tools.investigation.single_probe.run_probe", missing)
    told = refusal(ServeConfig.at([tmp_path]), "jobs")
    assert "there is no such thing" in told and "Type this instead." in told


def test_a_probe_names_the_next_call_about_the_same_target() -> None:
    found = ask(ServeConfig.at([MISMATCH]), "job_log", {"target": ["."]})
    assert found["status"] == "ok"
    assert found["findings"][0]["code"] == "collective.operation_mismatch"
    assert found["findings"][0]["ranks"] == "0"
    assert all(step["args"]["target"] == ["."] for step in found.get("next", []))


def test_evidence_of_files_is_named_by_their_own_paths() -> None:
    found = ask(ServeConfig.at([MISMATCH]), "job_log", {"target": ["train.log"]})
    (evidence,) = found["findings"][0]["evidence"]
    assert evidence["source"] == str(MISMATCH / "train.log")
    assert evidence["untrusted_quote"] in (MISMATCH / "train.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["hang", "collective-order-mismatch"])
def test_a_playbook_can_be_read_to_its_end(page: str) -> None:
    async def talk(client: Client) -> list[str]:
        paragraphs: list[str] = []
        while True:
            part = content(await client.call_tool("read_playbook", {"page": page, "start": len(paragraphs)}))
            paragraphs += part["text"]
            if not any(cut["what"] == "text" for cut in part.get("truncated", [])):
                return paragraphs

    text = "\n\n".join(in_session(ServeConfig.at(), talk))
    assert text == page_markdown(load_playbooks().page(page))


def test_without_a_page_the_playbooks_are_listed() -> None:
    listing = ask(ServeConfig.at(), "read_playbook")
    assert {"hang", "crash"} <= {symptom["id"] for symptom in listing["symptoms"]}
    assert "straggler" in listing["causes"]["rank-absent"]


def test_a_misspelt_page_is_answered_with_the_nearest() -> None:
    assert "straggler" in refusal(ServeConfig.at(), "read_playbook", {"page": "stragler"})
    assert not call(ServeConfig.at(), "read_playbook", {"page": "straggler"}).is_error
