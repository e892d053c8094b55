"""No reply is larger than its budget, whatever a job holds; what was left out is said, and the culprit is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client import Client
from serve_session import content, in_session

from ddx_evals.simulator import write_benchmark
from ddx_server.ask.conclusion import diagnosis_in
from ddx_server.serve.budget import LIMIT_BYTES, Payload, Rest, json_bytes, quoted
from ddx_server.serve.config import ServeConfig
from ddx_server.serve.diagnosis_payload import diagnosis_payload
from ddx_server.serve.probe_payload import probe_payload
from ddx_server.serve.report_tool import checked_diagnosis
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import (
    CandidateCause,
    Claim,
    Diagnosis,
    Evidence,
    Finding,
    Level,
    Location,
    Missing,
    NextCheck,
    Party,
    ProbeResult,
    ProbeStatus,
    RuledOut,
    Truncation,
    Verdict,
)

WORLD = 4096
HOSTILE = st.text(st.characters(codec="utf-8"), max_size=400) | st.sampled_from(
    ["😀" * 500, "\x00" * 400, '"\\' * 300, ""]
)
TEXTS = st.lists(HOSTILE, max_size=12)
RANKS = st.lists(st.integers(0, WORLD - 1), max_size=60) | st.sampled_from(
    [list(range(WORLD)), list(range(1, WORLD, 3))]
)
NUMBERS = st.integers() | st.floats() | st.none() | st.booleans()
PLACES = st.lists(
    st.builds(Location, file=HOSTILE, line=st.integers(0, 9999), function=HOSTILE, source=HOSTILE), max_size=6
)
PARTIES = st.builds(Party, ranks=RANKS, hosts=TEXTS, devices=TEXTS, locations=PLACES)
CAUSES = st.builds(
    CandidateCause, id=st.just("straggler"), title=HOSTILE, category=st.just("rank-absent"),
    probability=st.floats(0, 1), level=st.sampled_from(Level), culprits=PARTIES, supports=TEXTS, against=TEXTS,
)  # fmt: skip
DIAGNOSES = st.builds(
    Diagnosis, verdict=st.sampled_from(Verdict), headline=HOSTILE, causes=st.lists(CAUSES, max_size=5),
    culprits=PARTIES, victims=PARTIES, chain=TEXTS, fix=TEXTS, verify=TEXTS,
    evidence=st.lists(st.builds(Claim, finding=st.just("rank.raised"), claim=HOSTILE, quote=HOSTILE), max_size=12),
    ruled_out=st.lists(st.builds(RuledOut, id=st.just("gil-held"), why=HOSTILE), max_size=12),
    missing=st.lists(st.builds(Missing, what=HOSTILE, why_it_matters=HOSTILE), max_size=12), next_check=st.none(),
)  # fmt: skip
FINDINGS = st.builds(
    Finding, code=st.just("rank.raised"), ranks=RANKS, hosts=TEXTS, group=HOSTILE, summary=HOSTILE, locations=PLACES,
    evidence=st.lists(st.builds(Evidence, source=HOSTILE, quote=HOSTILE), max_size=3),
    attributes=st.dictionaries(st.text("abc_", max_size=20), HOSTILE | NUMBERS, max_size=12),
)  # fmt: skip
ROWS = st.dictionaries(st.text("abc_", min_size=1, max_size=9), HOSTILE | NUMBERS | RANKS, max_size=9)


def test_no_question_of_a_playbook_is_cut() -> None:
    pages = load_playbooks()
    checks = [check for symptom in pages.symptoms.values() for check in symptom.next_check]
    checks += [check for cause in pages.causes.values() for check in cause.next_check]
    for check in checks:
        asked = NextCheck(probe=check.probe, question=check.question)
        undecided = Diagnosis(verdict=Verdict.UNDECIDED, headline="?", next_check=asked)
        told = diagnosis_payload(undecided)
        assert told["next_check"]["question"] == check.question


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@given(DIAGNOSES)
def test_a_diagnosis_stays_within_the_budget_and_says_what_is_missing(diagnosis: Diagnosis) -> None:
    told = diagnosis_payload(diagnosis)
    assert json_bytes(told) <= LIMIT_BYTES
    assert told["verdict"] == diagnosis.verdict
    cut = {note["what"]: note for note in told.get("truncated", [])}
    for name in ("causes", "evidence", "fix", "verify", "missing", "ruled_out"):
        shown, total = len(told.get(name, [])), len(getattr(diagnosis, name))
        assert shown == total or (cut[name]["shown"], cut[name]["total"]) == (shown, total)
    ranks = told.get("culprits", {}).get("ranks", []) or told.get("rank_ranges", {}).get("culprits")
    assert bool(ranks) == bool(diagnosis.culprits.ranks)


@given(
    st.builds(
        ProbeResult, probe=st.just("stacks"), status=st.sampled_from(ProbeStatus), summary=HOSTILE,
        findings=st.lists(FINDINGS, max_size=8), searched=TEXTS, problems=TEXTS, table=st.lists(ROWS, max_size=30),
        truncated=st.lists(st.just(Truncation(shown=100, total=4000, how="fewer")), max_size=1),
    )
)  # fmt: skip
def test_a_probes_reply_stays_within_the_budget_and_says_what_is_missing(found: ProbeResult) -> None:
    told = probe_payload(found, ["inc-1"], lambda source: source)
    assert json_bytes(told) <= LIMIT_BYTES
    assert told["status"] == found.status
    cut = {note["what"]: note["total"] for note in told.get("truncated", [])}
    for name, total in {"findings": len(found.findings), "untrusted_problems": len(found.problems)}.items():
        assert len(told.get(name, [])) == total or cut[name] == total
    if found.truncated:
        assert cut["untrusted_rows"] == len(found.table) + 3900


def test_of_thousands_of_victims_the_ranges_are_told_and_the_culprit_by_number() -> None:
    victims = [rank for rank in range(WORLD) if rank != 517]
    diagnosis = Diagnosis(
        verdict=Verdict.DIAGNOSED, headline="Rank 517 waits", culprits=Party(ranks=[517]), victims=Party(ranks=victims)
    )
    told = diagnosis_payload(diagnosis)
    assert told["culprits"] == {"ranks": [517]}
    assert told["rank_ranges"] == {"victims": "0-4095 except 517"}
    assert "victims" not in told


@pytest.mark.parametrize(
    "culprits", [[517], list(range(64)), list(range(0, WORLD, 8)), [rank for rank in range(WORLD) if rank != 517]]
)
def test_a_diagnosis_handed_on_as_it_was_told_names_all_its_ranks(culprits: list[int]) -> None:
    victims = sorted(set(range(WORLD)) - set(culprits))
    parties = {"culprits": Party(ranks=culprits), "victims": Party(ranks=victims)}
    told = diagnosis_payload(Diagnosis(verdict=Verdict.UNDECIDED, headline="?", **parties))
    again = checked_diagnosis(told)
    assert again == diagnosis_in(told)
    assert again.culprits.ranks == culprits
    assert again.victims.ranks == victims or "in all" in told["rank_ranges"]["victims"]


def test_a_list_is_cut_where_it_ends_to_fit_and_the_rest_is_counted() -> None:
    payload = Payload(lines=Rest(1000, "ask for fewer"), words=Rest(2, "never cut"))
    payload.extend("words", ["a", "b"])
    payload.extend("lines", [f"line {number}" for number in range(900)])
    told = payload.finished()
    assert told["words"] == ["a", "b"]
    (note,) = told["truncated"]
    assert note == {"what": "lines", "shown": len(told["lines"]), "total": 1000, "how": "ask for fewer"}
    assert LIMIT_BYTES - 40 < json_bytes(told) <= LIMIT_BYTES


def test_a_cut_quote_can_still_be_searched_for() -> None:
    line = "ProcessGroupNCCL.cpp:737] " * 30
    assert quoted(line, 100) == line[:100]


@pytest.mark.long
def test_at_4096_ranks_every_reply_fits_and_the_stalled_rank_is_named(tmp_path: Path) -> None:
    stalled = write_benchmark(tmp_path / "dumps", WORLD, 12)

    async def talk(client: Client) -> None:
        opened = content(await client.call_tool("open_incident", {"path": "dumps"}))
        target = {"target": [opened["incident"]]}
        told = content(await client.call_tool("diagnose", target))
        assert told["culprits"]["ranks"] == [stalled]
        assert content(await client.call_tool("flight_recorder", target))["findings"]
        sql = {"sql": "SELECT * FROM fr_dumps", "limit": 200}
        assert content(await client.call_tool("query_evidence", target | sql))["truncated"]

    in_session(ServeConfig.at([tmp_path]), talk)
