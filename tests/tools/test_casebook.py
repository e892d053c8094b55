"""Known cases beside an answer: found by what is rare in them, never evidence, never the incident that is scored."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from serve_session import ask

from ddx_evals.agents.arm import Tools
from ddx_evals.agents.server import build
from ddx_evals.baselines import Case
from ddx_evals.incidents import View, load_incident, named_incidents
from ddx_evals.incidents.truth import Truth
from ddx_evals.scoring.harmful import harmful_advice
from ddx_evals.sealed.program import program
from ddx_server.serve.config import ServeConfig
from ddx_tools.diagnosis.casebook import Present, casebook, similar, similar_to, threads
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.investigation.run import investigate
from ddx_tools.knowledge.load import load_yaml
from ddx_tools.knowledge.resources import incidents_dir
from ddx_tools.model.diagnosis import Diagnosis, Verdict
from ddx_tools.model.versions import Version

pytestmark = pytest.mark.slow

PUBLIC = incidents_dir() / "public"
OWN = PUBLIC / "lws-pair-crashloop-after-iface-edit"
HANG_ON_ARM = "GB200 aarch64: a thread of NCCL spins for ever in a hang with no error, the proxy thread sleeps, gcc 9"


def test_it_holds_every_public_incident_and_names_causes_that_there_are() -> None:
    assert {incident.truth.url for incident in named_incidents(["public"])} <= threads()
    assert {case.cause for case in casebook()} <= {*load_playbooks().causes, "healthy"}


def test_no_fix_of_a_case_does_harm() -> None:
    said = {
        case.name: harmful_advice(
            Diagnosis(verdict=Verdict.UNDECIDED, headline="", fix=[case.fix]),
            Truth(cause=case.cause, deciding_fact="?"),
        )
        for case in casebook()
    }
    assert {name: harm for name, harm in said.items() if harm} == {}


@pytest.mark.parametrize("link", sorted(threads())[::6])
def test_a_case_is_most_like_itself(link: str) -> None:
    told = next(case for case in casebook() if case.link == link)
    assert similar_to(told.text, 1)[0].link == link
    assert all(one.link != link for one in similar(Present(told.text), 5, {link}))


def test_a_bug_is_told_of_the_versions_that_have_it() -> None:
    fixed = "https://github.com/NVIDIA/nccl/releases/tag/v2.29.3-1"

    def told(version: str) -> list[str]:
        versions = {"nccl": Version.of(version)} if version else {}
        return [one.link for one in similar(Present(HANG_ON_ARM, ["known-bug"], (), versions), 5) if one.strong]

    assert told("2.28.9") == [fixed]
    assert told("2.29.3") == []
    assert told("") == [], "nobody knows which version runs"
    (open_,) = [one for one in similar(Present(HANG_ON_ARM, ["known-bug"]), 5) if one.link == fixed]
    assert "the version here is not known" in open_.line()


def test_what_differs_is_said_and_keeps_a_case_from_being_strong() -> None:
    case = next(case for case in casebook() if case.name == "NVIDIA/nccl#2079")
    here = Present(case.text, [case.cause], (), {"nccl": Version.of("2.21.5")})
    (like,) = similar(here, 1)
    assert like.strong
    assert like.differs == ["nccl 2.25.1 there, 2.21.5 here"]
    (unlike,) = similar(replace(here, text=case.seen.replace("all-reduce", "broadcast") + case.fix), 1)
    assert unlike.differs[0] == "operation all_reduce there, broadcast here"
    assert not unlike.strong
    assert not similar(replace(here, causes=["packet-loss"]), 1)[0].strong


def test_an_incident_that_is_scored_never_meets_itself(tmp_path: Path) -> None:
    incident = load_incident(OWN)
    material = shutil.copytree(OWN / "artifacts", tmp_path / "material")
    alone = investigate([str(material)])
    own = next(case.name for case in casebook() if case.link == incident.truth.url)
    answer = alone.diagnose()
    assert own in answer.similar[0], "who meets it for the first time is told of it"
    scored = Case(incident, View.FULL, material).found
    assert all(one.link != incident.truth.url for one in scored.similar(scored.judge(), 20))
    assert own not in str(scored.diagnose().similar)


def test_an_agent_that_is_scored_is_told_of_no_thread(tmp_path: Path) -> None:
    config = ServeConfig.at([OWN], incidents=tmp_path / "reports", recorded=OWN / "artifacts")
    assert any(one["link"] in threads() for one in ask(config, "similar_cases")["similar"])

    async def told(tool: str) -> Any:
        async with Client(build(config, Tools.SERVER)) as client:
            return (await client.call_tool(tool)).structured_content

    assert all(one["link"] not in threads() for one in anyio.run(told, "similar_cases").get("similar", []))
    assert "similar" not in anyio.run(told, "diagnose")
    program(tmp_path)
    sealed = load_yaml((tmp_path / "packages/ddx_tools/knowledge/casebook.yaml").read_text())
    assert sealed
    assert all(case["affects"] for case in sealed)
