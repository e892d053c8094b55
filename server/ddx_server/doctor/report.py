"""The answer of `ddx doctor`, and how it looks on a terminal."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field
from rich.console import Console
from rich.text import Text

from ddx_server.render.safe_text import safe
from ddx_tools.model.diagnosis import Contract


class State(StrEnum):
    """How one check came out."""

    OK = "ok"
    GAP = "gap"
    UNKNOWN = "unknown"


class DoctorCheck(Contract):
    """One thing that ddx needs, or would make use of."""

    name: str
    state: State
    detail: str = Field(description="What was seen, in words.")
    remedy: str = Field("", description="What to type or to do about a gap.")


class DoctorReport(Contract):
    """What `ddx doctor --json` prints."""

    host: str
    checks: list[DoctorCheck]

    @property
    def gaps(self) -> list[DoctorCheck]:
        """The checks that need something done."""
        return [check for check in self.checks if check.state is State.GAP]


_MARKS = {State.OK: ("✓", "green"), State.GAP: ("✗", "red"), State.UNKNOWN: ("?", "yellow")}


def render(report: DoctorReport, console: Console) -> None:
    """One line a check, and below a gap what to do about it."""
    width = max((len(check.name) for check in report.checks), default=0)
    for check in report.checks:
        mark, style = _MARKS[check.state]
        line = Text(f"{mark} ", style=style)
        line.append(f"{check.name:<{width}}  ", style="bold")
        line.append_text(safe(check.detail))
        console.print(line)
        if check.remedy:
            console.print(Text(" " * (width + 4) + "→ ", style="dim") + safe(check.remedy, style="cyan"))
    gaps = len(report.gaps)
    verdict = "nothing to do" if not gaps else f"{gaps} gap{'s' * (gaps > 1)}, each with what to do about it"
    console.print(f"{report.host}: {verdict}.", style="bold")
