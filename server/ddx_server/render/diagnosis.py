"""A diagnosis for a tired person: the answer first, then why, then what to do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddx_server.render.safe_text import safe
from ddx_tools.analysis.suspects import seated
from ddx_tools.model import Certainty, Claim, Diagnosis, Location, Party, Verdict, rank_list
from ddx_tools.origins import origin_of

_STYLES = {Verdict.DIAGNOSED: "bold red", Verdict.UNDECIDED: "bold yellow", Verdict.HEALTHY: "bold green"}
_SHOWN_CAUSES, _SHOWN_CLAIMS, _SHOWN_PLACES, _SHOWN_MISSING, _SHOWN_SEPARATED = 4, 6, 4, 6, 8
_SHOWN_SUSPECTS = 3


def render_diagnosis(diagnosis: Diagnosis, console: Console, origins: Mapping[str, str]) -> None:
    """Print a diagnosis. `origins` says for each raw file what it was on the host."""
    console.print()
    console.print(Text(f"{diagnosis.verdict.upper()}  ", _STYLES[diagnosis.verdict]) + safe(diagnosis.headline, "bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for title, body in _sections(diagnosis, origins):
        table.add_row("", "")
        table.add_row(title, body)
    console.print(table)
    console.print()


def _sections(diagnosis: Diagnosis, origins: Mapping[str, str]) -> list[tuple[str, RenderableType]]:
    sections: list[tuple[str, RenderableType]] = []
    if diagnosis.suspects:
        sections.append(("who", _suspects(diagnosis)))
    if diagnosis.culprits.ranks or diagnosis.culprits.hosts:
        sections.append(("culprits", _party(diagnosis.culprits, "bold red")))
    if diagnosis.victims.ranks:
        sections.append(("victims", _party(diagnosis.victims, "")))
    if diagnosis.causes:
        sections.append(("causes", _causes(diagnosis)))
    if diagnosis.chain:
        sections.append(("chain", _numbered(diagnosis.chain)))
    if diagnosis.evidence:
        sections.append(("evidence", _evidence(diagnosis.evidence, origins)))
    if diagnosis.ruled_out:
        sections.append(("ruled out", _lines([f"{item.id}: {item.why}" for item in diagnosis.ruled_out])))
    if diagnosis.fix:
        sections.append(("fix", _lines(diagnosis.fix)))
    if diagnosis.verify:
        sections.append(("verify", _lines(diagnosis.verify)))
    if diagnosis.next_check:
        check = diagnosis.next_check
        shown = [check.question] if check.probe == "ask" else [check.question, command_line(check.probe, check.args)]
        told_apart = (
            [f"It tells apart: {', '.join(check.separates[:_SHOWN_SEPARATED])}."] if len(check.separates) > 1 else []
        )
        sections.append(("next check", _lines([*shown, *told_apart])))
    if diagnosis.looked_at:
        sections.append(("looked at", _lines(diagnosis.looked_at)))
    if diagnosis.missing:
        shown = [f"{item.what} — {item.why_it_matters}" for item in diagnosis.missing[:_SHOWN_MISSING]]
        rest = len(diagnosis.missing) - len(shown)
        sections.append(("not seen", _lines([*shown, *([f"… and {rest} more (--json has all)"] if rest else [])])))
    return sections


def _suspects(diagnosis: Diagnosis) -> RenderableType:
    """Who, apart from why; their places stand with the culprits, if these are the same ranks."""
    lines: list[RenderableType] = []
    for suspect in diagnosis.suspects[:_SHOWN_SUSPECTS]:
        certainty = f" {suspect.event}" if suspect.certainty is Certainty.SEEN else f" probably {suspect.event}"
        lines.append(safe(seated(suspect), "bold red") + safe(certainty) + safe(f"\n{suspect.says}", "dim"))
        if suspect.ranks != diagnosis.culprits.ranks:
            lines += [Padding(_place(place), (0, 0, 0, 2)) for place in suspect.locations[:_SHOWN_PLACES]]
        if suspect.unless:
            lines.append(safe(f"unless {suspect.unless}", "dim"))
        lines += [safe(f"but {other}", "dim") for other in suspect.otherwise]
    return Group(*lines)


def command_line(probe: str, args: Mapping[str, object]) -> str:
    """A probe call as one types it; a value may come out of a job, and is quoted for the shell."""
    words = ["ddx", probe.replace("_", "-")]
    for name, value in args.items():
        option = f"--{name.replace('_', '-')}"
        values = [str(item) for item in value] if isinstance(value, list) else [str(value)]
        if name == "target":
            words += values
        elif value is True:
            words.append(option)
        elif value is not False:
            words += [word for item in values for word in (option, item)]
    return shlex.join(words)


def _party(party: Party, style: str) -> RenderableType:
    who = rank_list(party.ranks) if party.ranks else ", ".join(party.hosts)
    lines: list[RenderableType] = [safe(who, style)]
    lines += [Padding(_place(place), (0, 0, 0, 2)) for place in party.locations[:_SHOWN_PLACES]]
    return Group(*lines)


def _place(place: Location) -> Text:
    where = place.file if place.line is None else f"{place.file}:{place.line}"
    text = safe(where)
    if place.function:
        text += safe(f" {place.function}", "dim")
    if place.source:
        text += safe(f"\n{place.source}", "cyan")
    return text


def _causes(diagnosis: Diagnosis) -> RenderableType:
    lines = []
    for cause in diagnosis.causes[:_SHOWN_CAUSES]:
        line = safe(f"{cause.probability:>4.0%}  ", "bold") + safe(cause.id) + safe(f"  {cause.level}", "dim")
        if cause.culprits.ranks != diagnosis.culprits.ranks:
            line += safe(f", would be {rank_list(cause.culprits.ranks)}", "dim")
        lines.append(line)
    return Group(*lines)


def _evidence(claims: Sequence[Claim], origins: Mapping[str, str]) -> RenderableType:
    lines: list[RenderableType] = []
    for claim in claims[:_SHOWN_CLAIMS]:
        lines.append(safe(claim.claim))
        where = origin_of(claim.source, origins) or claim.source
        if where:
            line = f":{claim.line}" if claim.line else ""
            lines.append(safe(f"  {where}{line}  {claim.quote[:120]}", "dim"))
    if len(claims) > _SHOWN_CLAIMS:
        lines.append(safe(f"… and {len(claims) - _SHOWN_CLAIMS} more (--json has all)", "dim"))
    return Group(*lines)


def _numbered(sentences: Sequence[str]) -> RenderableType:
    return Group(*(safe(f"{number}. {sentence}") for number, sentence in enumerate(sentences, 1)))


def _lines(sentences: Sequence[str]) -> RenderableType:
    return Group(*(safe(sentence) for sentence in sentences))
