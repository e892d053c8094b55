"""What a terminal is given: nothing out of a job can steer it, pose as ours, or be run by who copies it."""

from __future__ import annotations

import io
import shlex
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ddx_server.render.brief import brief
from ddx_server.render.diagnosis import render_diagnosis
from ddx_server.render.result import render_result
from ddx_server.render.safe_text import safe
from ddx_tools.diagnosis.checks import command_line
from ddx_tools.model.diagnosis import (
    CandidateCause,
    CaseFile,
    CasePart,
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
    Severity,
    Verdict,
)

HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://evil\x07link\x1b]8;;\x07 \x9b2J [red]markup[/red] [link=http://x]y[/link]"
    " \u202eesrever\u202c \u200bhidden\u2060 \U000e0041\U000e0042 \r\x08\x7f :skull: \u2028\nHEALTHY  all is well\udc80"
)


def console(terminal: bool = True, width: int = 100) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=width, color_system=None, highlight=False, emoji=True
    )


def printed(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def assert_harmless(text: str) -> None:
    bad = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\n"}
    assert not bad, bad
    assert not any(line.startswith("HEALTHY") for line in text.splitlines())
    text.encode()


# --- safe()


@given(text=st.text(st.characters(codec=None)))
def test_no_control_character_survives(text: str) -> None:
    plain = safe(text).plain
    assert_harmless(plain)
    assert len(plain) <= 600 + 4 * text.count("\n") + 3 * text.count("\t")


@given(text=st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]), max_size=500))
def test_plain_text_is_shown_as_it_is(text: str) -> None:
    out = console()
    out.print(safe(text), soft_wrap=True)
    assert printed(out) == text + "\n"


def test_markup_and_emoji_names_are_text() -> None:
    out = console()
    out.print(safe("[bold]x[/bold] [/nothing] :skull: [link=http://evil]y[/link]"))
    assert printed(out) == "[bold]x[/bold] [/nothing] :skull: [link=http://evil]y[/link]\n"


def test_a_line_out_of_a_job_cannot_pose_as_ours() -> None:
    assert safe("train\nHEALTHY  all is well").plain == "train\n    HEALTHY  all is well"


def test_text_is_bounded() -> None:
    assert len(safe("x" * 1_000_000).plain) == 600
    assert safe("x" * 100, limit=10).plain == "x" * 9 + "…"


# --- results and diagnoses


def hostile_finding() -> Finding:
    place = Location(file=f"/srv/{HOSTILE}.py", line=3, function=HOSTILE, source=HOSTILE)
    return Finding(
        code="rank.stopped",
        severity=Severity.FAILURE,
        ranks=[1],
        summary=HOSTILE,
        locations=[place],
        evidence=[Evidence(source=HOSTILE, quote=HOSTILE)],
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_a_hostile_result_is_harmless(terminal: bool) -> None:
    result = ProbeResult(
        probe="stacks",
        status=ProbeStatus.PARTIAL,
        summary=HOSTILE,
        findings=[hostile_finding()],
        searched=[HOSTILE],
        problems=[HOSTILE],
    )
    out = console(terminal)
    render_result(result, out)
    assert_harmless(printed(out))


def hostile_diagnosis() -> Diagnosis:
    party = Party(ranks=[1], hosts=[HOSTILE], devices=[HOSTILE], locations=hostile_finding().locations)
    cause = CandidateCause(
        id="process-stopped",
        title=HOSTILE,
        category="rank-absent",
        probability=0.9,
        level=Level.ESTABLISHED,
        culprits=party,
        supports=[HOSTILE],
        against=[HOSTILE],
    )
    return Diagnosis(
        verdict=Verdict.DIAGNOSED,
        headline=HOSTILE,
        causes=[cause],
        culprits=party,
        victims=Party(ranks=[0], hosts=[HOSTILE], locations=party.locations),
        chain=[HOSTILE],
        evidence=[Claim(finding="rank.stopped", claim=HOSTILE, source="raw/a", line=3, quote=HOSTILE)],
        ruled_out=[RuledOut(id="x", why=HOSTILE)],
        fix=[HOSTILE],
        verify=[HOSTILE],
        next_check=NextCheck(probe="stacks", args={"target": [HOSTILE]}, question=HOSTILE),
        missing=[Missing(what=HOSTILE, why_it_matters=HOSTILE)],
    )


@pytest.mark.parametrize(("terminal", "width"), [(True, 100), (True, 20), (False, 80)])
def test_a_hostile_diagnosis_is_harmless(terminal: bool, width: int) -> None:
    out = console(terminal, width)
    render_diagnosis(hostile_diagnosis(), out)
    assert_harmless(printed(out))


@pytest.mark.parametrize(("probability", "shown"), [(0.9, "90% process-stopped"), (0.4, "why process-stopped")])
def test_a_cause_that_is_less_likely_than_not_has_a_place_and_no_percentage(probability: float, shown: str) -> None:
    diagnosis = hostile_diagnosis()
    diagnosis.causes[0].probability = probability
    out = console()
    render_diagnosis(diagnosis, out)
    for page in (printed(out), "\n".join(brief(diagnosis))):
        assert shown in " ".join(page.split())


def test_names_of_any_length_leave_a_readable_page() -> None:
    long = "/srv/" + "d" * 10_000 + ".py"
    place = Location(file=long, line=3, function="f" * 10_000, source="s" * 10_000)
    diagnosis = Diagnosis(
        verdict=Verdict.UNDECIDED,
        headline="h" * 10_000,
        culprits=Party(ranks=list(range(5_000)), locations=[place] * 50),
        chain=["c" * 10_000] * 3,
        missing=[Missing(what="m" * 10_000, why_it_matters="w" * 10_000)] * 1_000,
    )
    out = console()
    render_diagnosis(diagnosis, out)
    assert len(printed(out).encode()) <= 5000
    assert "ranks 0-4999" in printed(out)
    assert "shortened" in printed(out)


def test_culprits_victims_and_next_check_are_told_apart() -> None:
    diagnosis = Diagnosis(
        verdict=Verdict.DIAGNOSED,
        headline="Rank 2 at train.py:7 main: it is stopped",
        culprits=Party(
            ranks=[2], locations=[Location(file="/srv/job/train.py", line=7, function="main", source="x()")]
        ),
        victims=Party(ranks=[0, 1, 3]),
        next_check=NextCheck(
            probe="flight_recorder",
            args={"target": ["4242"], "frames": "all"},
            question="Which call?",
            separates=["process-stopped", "gil-held"],
        ),
    )
    out = console()
    render_diagnosis(diagnosis, out)
    lines = {line.split("  ")[0]: line for line in printed(out).splitlines()}
    assert "rank 2" in lines["who"]
    assert "blocked: ranks 0-1, 3" in printed(out)
    assert lines["DIAGNOSED"].endswith("Rank 2 at train.py:7 main: it is stopped")
    assert "ddx flight-recorder 4242 --frames all" in printed(out)
    assert "It distinguishes: process-stopped, gil-held." in printed(out)


def test_equal_lines_in_a_row_take_one_line_of_the_case_file() -> None:
    text = "\n".join(["step 0"] * 8 + ["step 10", "", "", "step 20", "step 20"])
    case = CaseFile(parts=[CasePart(at="material train.log:1", text=text)])
    diagnosis = Diagnosis(verdict=Verdict.UNDECIDED, headline="nothing decides", case=case)
    out = console()
    render_diagnosis(diagnosis, out)
    shown = [line.removeprefix("case file").strip() for line in printed(out).splitlines() if "step" in line]
    assert shown == ["step 0  (8 times in a row)", "step 10", "step 20  (2 times in a row)"]


def test_a_healthy_answer_has_its_case_file_on_request() -> None:
    case = CaseFile(parts=[CasePart(at="material train.log:1", text="step 0")])
    diagnosis = Diagnosis(verdict=Verdict.HEALTHY, headline="all ranks make progress", case=case)
    for with_case in (False, True):
        out = console()
        render_diagnosis(diagnosis, out, with_case=with_case)
        assert ("step 0" in printed(out)) is with_case


# --- commands to copy


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ({}, "ddx native-stacks"),
        ({"target": []}, "ddx native-stacks"),
        ({"target": ["4242", "4243"]}, "ddx native-stacks 4242 4243"),
        ({"ranks": [1, 2]}, "ddx native-stacks --ranks 1 --ranks 2"),
        ({"show_locals": True}, "ddx native-stacks --show-locals"),
        ({"show_locals": False}, "ddx native-stacks"),
        ({"timeout_s": 2.5, "target": ["a b.log"]}, "ddx native-stacks --timeout-s 2.5 'a b.log'"),
    ],
)
def test_a_check_is_printed_as_one_types_it(args: dict[str, object], line: str) -> None:
    assert command_line("native_stacks", args) == line


@given(value=st.text(max_size=30))
def test_nothing_out_of_a_job_is_run_by_who_copies_a_check(value: str) -> None:
    line = command_line("stacks", {"target": [value], "ranks": [value]})
    assert shlex.split(line) == ["ddx", "stacks", value, "--ranks", value]
