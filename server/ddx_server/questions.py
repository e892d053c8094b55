"""The questions of an undecided `ddx why` at a terminal: up to three facts that best separate the open causes."""

from __future__ import annotations

import shlex
import sys

from rich.prompt import Prompt

from ddx_server.render.output import console
from ddx_server.render.safe_text import safe
from ddx_tools.investigation.result import Investigation
from ddx_tools.model.diagnosis import Diagnosis, Verdict

MOST_QUESTIONS = 3
_VALUES = {"y": "yes", "n": "no"}


def with_answers(found: Investigation, diagnosis: Diagnosis) -> Diagnosis:
    """Ask the person at the terminal for facts; print and return the new diagnosis, or return the given one."""
    from ddx_server.render.diagnosis import render_diagnosis

    if diagnosis.verdict is not Verdict.UNDECIDED or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return diagnosis
    told = ask_for_facts(found)
    if not told:
        return diagnosis
    now = found.diagnose().model_copy(update={"shown_by": diagnosis.shown_by})
    render_diagnosis(now, console())
    words = [*sys.argv[1:], *(word for fact in told for word in ("--fact", fact)), "--no-ask"]
    console().print(safe(f"to get this answer without questions: {shlex.join(['ddx', *words])}", "dim"), soft_wrap=True)
    return now


def ask_for_facts(found: Investigation) -> list[str]:
    """Ask for facts and add the answers to the investigation; return them as `NAME=yes|no`, in order."""
    from ddx_tools.diagnosis.playbook import load_playbooks
    from ddx_tools.diagnosis.questions import separating_fact
    from ddx_tools.diagnosis.submitted import fact_finding

    asked: list[str] = []
    told: list[str] = []
    while len(asked) < MOST_QUESTIONS and found.judge().verdict is Verdict.UNDECIDED:
        name = separating_fact(found.findings, load_playbooks(), found.missing, asked)
        if name is None:
            break
        if not asked:
            console().print(
                safe("Up to three questions would narrow it down (y, n, ? for unknown; Enter stops):", "bold")
            )
        asked.append(name)
        answer = _answer(name)
        if not answer:
            break
        if value := _VALUES.get(answer):
            told.append(f"{name}={value}")
            fact = fact_finding(told[-1])
            found.findings.append(fact)
            found.told.append(fact)
    return told


def _answer(name: str) -> str:
    """Ask one question and return `y`, `n` or `?`, or "" to stop asking."""
    from ddx_tools.knowledge.facts import known_facts

    try:
        return Prompt.ask(
            safe(f"{known_facts()[name].question} [y/n/?]"),
            console=console(),
            choices=["y", "n", "?", ""],
            case_sensitive=False,
            show_choices=False,
            default="",
            show_default=False,
        )
    except EOFError:
        return ""
