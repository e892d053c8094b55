"""An incident that is served answers as a live job would, keeps what is reported, and leads nowhere near its truth."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from answers_given import diagnosis
from made_incidents import ddx_evals, recorded
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from ddx_evals.agents.answer_files import answer_of, new_try, tries
from ddx_evals.agents.replay import served
from ddx_evals.incidents import CANARY, Incident, View, named_incidents
from ddx_tools.knowledge.finding_codes import finding_codes
from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.redaction.published import published_json

T = TypeVar("T")
HUNG = recorded("fewer-batches")
(BROUGHT,) = named_incidents(["public/21-bind-29500-second-job"])


def in_replay(incident: Incident, view: View, reports: Path, talk: Callable[[Client], Awaitable[T]]) -> T:
    """What comes out of one session with a served incident."""

    async def session() -> T:
        with served(incident, view, reports) as server:
            async with Client(server) as connected:
                return await talk(connected)

    return anyio.run(session)


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    reply = await client.call_tool(tool, arguments)
    assert not reply.is_error, reply.content
    assert reply.structured_content is not None
    told: dict[str, Any] = reply.structured_content
    return told


def test_tools_answer_in_any_order_as_they_do_about_a_live_job(tmp_path: Path) -> None:
    async def talk(client: Client) -> tuple[list[int], list[int], str]:
        stacks = await called(client, "stacks", target=[])
        whole = await called(client, "diagnose")
        again = await called(client, "diagnose")
        return whole["culprits"]["ranks"], again["culprits"]["ranks"], stacks["status"]

    assert in_replay(HUNG, View.FULL, tmp_path, talk) == ([2], [2], "ok")


def test_what_was_not_recorded_is_said_to_be_so_and_is_no_sign_of_health(tmp_path: Path) -> None:
    async def talk(client: Client) -> tuple[str, str]:
        native = await called(client, "native_stacks", target=[])
        return (await called(client, "preflight", target=[]))["status"], "\n".join(native["untrusted_problems"])

    status, problems = in_replay(HUNG, View.FULL, tmp_path, talk)
    assert status == "not_recorded"
    assert "says nothing about the job" in problems


@pytest.mark.parametrize(("incident", "view"), [(HUNG, View.FULL), (HUNG, View.LOG_ONLY), (BROUGHT, View.FULL)])
def test_no_tool_path_query_or_resource_leads_to_the_truth(incident: Incident, view: View, tmp_path: Path) -> None:
    told = [CANARY, incident.truth.deciding_fact, incident.truth.deciding_words]
    paths = [str(incident.directory), str(incident.directory / "truth.yaml"), "/", ".", "../truth.yaml"]
    queries = [
        f"SELECT * FROM read_text('{incident.directory}/truth.yaml')",
        "SELECT * FROM glob('/**/truth.yaml')",
        "SELECT * FROM information_schema.tables",
    ]

    async def talk(client: Client) -> tuple[str, str]:
        refused = [await client.call_tool("diagnose", {"target": [path]}) for path in paths]
        assert all(reply.is_error for reply in refused)
        asked = [await client.call_tool("query_evidence", {"sql": query}) for query in queries]
        for address in ("truth.yaml", "../truth.yaml", "files/../../truth.yaml", "..%2Ftruth.yaml"):
            with pytest.raises(MCPError):
                await client.read_resource(f"incident://inc-recorded/raw/{address}")
        listed = await client.read_resource("incident://inc-recorded")
        answered = f"{await called(client, 'diagnose')}\n{listed.contents}"
        return answered, "\n".join(str(reply.content) for reply in [*refused, *asked])

    answered, refused = in_replay(incident, view, tmp_path, talk)
    assert [words for words in told if words in answered + refused] == []
    assert str(incident.directory) not in answered


def test_what_an_agent_reports_is_collected_and_scored(tmp_path: Path) -> None:
    reports = new_try(tmp_path, HUNG, View.FULL)
    told = diagnosis(quotes=["train.py:49 write_summary"])
    for claim in told.evidence:
        claim.finding = next(iter(finding_codes()))

    async def talk(client: Client) -> None:
        wrong = told.model_copy(update={"causes": [told.causes[0].model_copy(update={"id": "python-deadlock"})]})
        for answer in (wrong, told):
            given = json.loads(published_json(answer))
            given["causes"][0]["category"] = "rank-absent" if answer is wrong else "collective-mismatch"
            await called(client, "report_diagnosis", diagnosis=given)

    in_replay(HUNG, View.FULL, reports, talk)
    new_try(tmp_path, HUNG, View.FULL)  # in which nothing was reported
    assert answer_of(reports).diagnosis.causes[0].id == "uneven-data"  # the last one counts
    code, shown = ddx_evals("score", tmp_path, "--system", "somebody", "--json")
    scored, failed = json.loads(shown)["results"]
    assert code == 0
    assert (scored["system"], scored["score"]["passed"], scored["epoch"]) == ("somebody", True, 1)
    assert (failed["score"], failed["error"]) == (None, "no diagnosis was reported")


def test_one_diagnosis_in_a_file_is_scored(tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    file.write_text(published_json(diagnosis(quotes=["never printed"])))
    code, shown = ddx_evals("score", file, "--incident", f"dev/{HUNG.id}", "--json")
    (result,) = json.loads(shown)["results"]
    assert code == 0
    assert (result["score"]["invented"], result["score"]["score"]) == (["never printed"], 0.0)


def test_a_transcript_lets_an_answer_quote_what_only_a_tool_said(tmp_path: Path) -> None:
    reports = new_try(tmp_path, HUNG, View.FULL)
    told = diagnosis(quotes=["train.py:49 write_summary", "rows: 4 of 4"])
    (reports / "diagnosis-1.json").write_text(published_json(told))
    without = json.loads(ddx_evals("score", tmp_path, "--json")[1])["results"][0]
    call = {"tool": "query_evidence", "arguments": {"sql": "…"}, "output": "rows: 4 of 4"}
    (reports / "transcript.json").write_text(json.dumps({"calls": [call, call], "tokens": 900}))
    with_it = json.loads(ddx_evals("score", tmp_path, "--json")[1])["results"][0]
    assert (without["score"]["passed"], with_it["score"]["passed"]) == (False, True)
    took = with_it["efficiency"]
    assert (took["calls"], took["repeated"], took["over_minimal"], took["tokens"]) == (2, 1, 1, 900)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema": "ddx.diagnosis/1", "verdict": "maybe"}', "\x00\xff"])
def test_a_file_that_is_no_diagnosis_is_a_failed_try(text: str, tmp_path: Path) -> None:
    reports = new_try(tmp_path, HUNG, View.FULL)
    (reports / "diagnosis-1.json").write_text(text)
    with pytest.raises(UnreadableInput, match="is not a diagnosis"):
        answer_of(reports)
    (result,) = json.loads(ddx_evals("score", tmp_path, "--json")[1])["results"]
    assert result["score"] is None


@pytest.mark.parametrize("name", ["diagnosis.json", "diagnosis_1.json"])
def test_a_diagnosis_under_another_name_is_said_to_be_so(name: str, tmp_path: Path) -> None:
    reports = new_try(tmp_path, HUNG, View.FULL)
    (reports / name).write_text(published_json(diagnosis()))
    with pytest.raises(UnreadableInput, match=f"{name} is ignored: its name must be diagnosis-1.json"):
        answer_of(reports)
    (reports / name).rename(reports / "diagnosis-1.json")
    assert answer_of(reports).diagnosis == diagnosis()


@pytest.mark.parametrize("name", ["dev/nosuch", HUNG.id])
def test_an_incident_that_is_not_named_with_its_split_is_told_how(name: str) -> None:
    with pytest.raises(UsageError, match=r"ddx evals list.* with its split, as in dev/"):
        named_incidents([name])


def test_a_directory_without_answers_and_a_view_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no answers"):
        tries(tmp_path)
    with pytest.raises(UsageError, match="has no view partial"), served(BROUGHT, View.PARTIAL, tmp_path):
        pass
    with pytest.raises(UsageError, match="no view 'all'"):
        ddx_evals("run", "dev", "--view", "all")


def test_the_command_serves_over_standard_input_and_output(tmp_path: Path) -> None:
    arguments = ["-m", "ddx_evals", "serve", f"dev/{HUNG.id}", "--view", "log-only", "--answers", str(tmp_path)]

    async def session() -> str:
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
            return str((await called(client, "diagnose"))["verdict"])

    assert anyio.run(session) == "undecided"
    (one,) = tries(tmp_path)
    assert (one.incident, one.view, one.number) == (HUNG.id, View.LOG_ONLY, 1)
