"""The report of `ddx doctor` and its rendering on a terminal."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field
from rich.console import Console
from rich.text import Text

from ddx_server.render.safe_text import safe
from ddx_tools.model.diagnosis import Contract


class State(StrEnum):
    """The result of one check."""

    OK = "ok"
    GAP = "gap"
    UNKNOWN = "unknown"


class DoctorCheck(Contract):
    """A check of one thing that ddx needs or can make use of."""

    name: str
    state: State
    detail: str = Field(description="What the check found, in words.")
    remedy: str = Field("", description="The command or action that closes the gap.")


class DoctorReport(Contract):
    """What `ddx doctor --json` prints."""

    host: str
    checks: list[DoctorCheck]

    @property
    def gaps(self) -> list[DoctorCheck]:
        """The checks that call for action."""
        return [check for check in self.checks if check.state is State.GAP]


_MARKS = {State.OK: ("✓", "green"), State.GAP: ("✗", "red"), State.UNKNOWN: ("?", "yellow")}


def render(report: DoctorReport, console: Console) -> None:
    """Print one line per check, and below each gap how to close it."""
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
    verdict = "nothing to do" if not gaps else f"{gaps} gap{'s' * (gaps > 1)}, each with a remedy"
    console.print(f"{report.host}: {verdict}.", style="bold")
