"""A diagnosis for a tired person, on one screen: the answer, then why, then what to do. Nothing appears twice."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from ddx_server.render.safe_text import safe
from ddx_tools.diagnosis.checks import command_line
from ddx_tools.diagnosis.suspects import seated
from ddx_tools.model.diagnosis import (
    HOST_NOT_LOOKED_AT,
    CaseFile,
    Certainty,
    Claim,
    Diagnosis,
    Differs,
    Location,
    SourceLines,
    SuspectEvent,
    Verdict,
    rank_list,
)

MOST_BYTES = 4900
"""Limit on the printed output, however large the job is;"""
_MOST_WITH_CASE = 6900
"""and the limit with the case file."""
_STYLES = {Verdict.DIAGNOSED: "bold red", Verdict.UNDECIDED: "bold yellow", Verdict.HEALTHY: "bold green"}
_SHOWN_CAUSES, _SHOWN_CLAIMS, _SHOWN_PLACES, _SHOWN_MISSING, _SHOWN_SEPARATED = 4, 6, 3, 4, 8
_SHOWN_SUSPECTS, _SHOWN_RULED_OUT, _SHOWN_SENTENCES = 3, 3, 4
_INDENT = 11
_LONGEST, _LONGEST_CELL, _LONGEST_QUESTION, _LONGEST_LINE = 400, 70, 640, 1200
_SHOWN_SILENT = 4


@dataclass(frozen=True)
class Section:
    """Lines under a title. If the sections do not fit, those of least weight are shortened first, from the end."""

    title: str
    lines: list[Text]
    weight: int


def render_diagnosis(diagnosis: Diagnosis, console: Console, *, with_case: bool = False) -> None:
    """Print a diagnosis. With `with_case`, print the case file even if a cause is diagnosed, or if the job is well."""
    if diagnosis.verdict in (Verdict.DIAGNOSED, Verdict.HEALTHY) and not with_case:
        diagnosis = diagnosis.model_copy(update={"case": CaseFile()})
    told = f"{diagnosis.verdict.upper()}  "
    headline = Text(told, _STYLES[diagnosis.verdict]) + safe(diagnosis.headline, "bold", limit=_LONGEST)
    for row in _wrapped(headline, console.width, console):
        console.print(row, soft_wrap=True)
    width = max(console.width - _INDENT, 20)
    laid_out = [
        Section(s.title, [row for line in s.lines for row in _wrapped(line, width, console)], s.weight)
        for s in _sections(diagnosis)
        if s.lines
    ]
    most = _MOST_WITH_CASE if diagnosis.case.parts else MOST_BYTES
    for section in _fitting(laid_out, most - len(headline.plain.encode()) - 1):
        for number, line in enumerate(section.lines):
            title = section.title if number == 0 else ""
            console.print(Text(f"{title:{_INDENT}}", "dim") + line, soft_wrap=True)


def _wrapped(line: Text, width: int, console: Console) -> list[Text]:
    """Wrap a line into rows without padding; a command stays on one row, so that it can be copied."""
    if line.no_wrap:
        return [line]
    rows = line.wrap(console, width, overflow="fold")
    for row in rows:
        row.rstrip()
    return list(rows)


def _cost(section: Section) -> int:
    return sum(len(line.plain.encode()) + _INDENT + 1 for line in section.lines)


def _fitting(sections: list[Section], most_bytes: int) -> list[Section]:
    """Shorten the sections to fit `most_bytes`, and add a section that names the shortened ones."""
    over = sum(map(_cost, sections)) - most_bytes
    cut: list[str] = []
    for section in sorted(sections, key=lambda section: section.weight):
        if over <= 0:
            break
        if not cut:
            over += 100  # for the line that says so
        before = _cost(section)
        while section.lines and over > before - _cost(section):
            section.lines.pop()
        over -= before - _cost(section)
        cut.append(section.title)
    left = [section for section in sections if section.lines]
    if cut:
        left.append(Section("shortened", [safe(f"{', '.join(cut)}; for all of it: --json", "dim")], 0))
    return left


def _sections(diagnosis: Diagnosis) -> Iterator[Section]:
    said = {claim.claim for claim in diagnosis.evidence[:_SHOWN_CLAIMS]} | {diagnosis.headline}
    yield Section("no answer", list(_hosts_without_answer(diagnosis)), 99)
    yield Section("changed", [safe(line, "bold") for line in diagnosis.changed], 96)
    yield Section("who", list(_who(diagnosis, said)), 100)
    yield Section("differs", list(_differs(diagnosis.differs)), 80)
    yield Section("good run", list(_differs(diagnosis.good_run)), 78)
    yield Section("source", list(_source(diagnosis.source_lines)), 70)
    yield Section("its peers", list(_source(diagnosis.peer_lines)), 65)
    yield Section("why", list(_causes(diagnosis)), 85)
    chain = [sentence for sentence in diagnosis.chain if not _repeats(sentence, said)][:_SHOWN_SENTENCES]
    yield Section("chain", [safe(sentence, limit=_LONGEST) for sentence in chain], 30)
    yield Section("evidence", list(_evidence(diagnosis.evidence)), 75)
    ruled_out = [f"{item.id}: {item.why}" for item in diagnosis.ruled_out[:_SHOWN_RULED_OUT]]
    yield Section("ruled out", [safe(line, limit=_LONGEST) for line in ruled_out], 10)
    yield Section("fix", [safe(line, limit=_LONGEST) for line in diagnosis.fix], 60)
    yield Section("suggestion", list(_diff(diagnosis.suggestion)), 35)
    yield Section("verify", [safe(line, limit=_LONGEST) for line in diagnosis.verify], 40)
    yield Section("next check", list(_next(diagnosis)), 90)
    yield Section("case file", list(_case(diagnosis.case)), 45)
    yield Section("noted", [safe(line, "dim", limit=_LONGEST) for line in diagnosis.noted], 50)
    yield Section("similar", [safe(line, "dim", limit=_LONGEST) for line in diagnosis.similar], 15)
    yield Section("looked at", [safe(line) for line in diagnosis.looked_at], 20)
    yield Section("not seen", list(_missing(diagnosis)), 50)
    if diagnosis.shown_by and any(claim.source for claim in diagnosis.evidence):
        yield Section("open it", [_command(f"{diagnosis.shown_by}    # WORDS: the source in [ ]", "dim")], 65)


def _command(line: str, style: str) -> Text:
    text = safe(line, style, limit=_LONGEST)
    text.no_wrap = True
    return text


def _repeats(sentence: str, said: set[str]) -> bool:
    return any(other.rstrip(".") in sentence or sentence in other for other in said if other)


def _who(diagnosis: Diagnosis, said: set[str]) -> Iterator[Text]:
    """Suspects with their hosts and devices, other ranks or hosts that the cause blames, and who is blocked."""
    named = [rank for suspect in diagnosis.suspects for rank in suspect.ranks]
    for suspect in diagnosis.suspects[:_SHOWN_SUSPECTS]:
        certainty = "" if suspect.certainty is Certainty.SEEN else "perhaps to blame, "
        says = "" if _repeats(suspect.says, said) else f": {suspect.says}"
        yield safe(seated(suspect), "bold red") + safe(f", {certainty}{_EVENTS[suspect.event]}{says}", limit=_LONGEST)
        if suspect.unless:
            yield safe(f"unless {suspect.unless}", "dim")
        yield from (safe(f"but {other}", "dim", limit=_LONGEST) for other in suspect.otherwise[:1])
    culprits = diagnosis.culprits
    blamed = rank_list(culprits.ranks) if culprits.ranks else ", ".join(culprits.hosts[:8])
    if blamed and sorted(named) != culprits.ranks:
        yield safe(blamed, "bold red") + safe(f", blamed by {diagnosis.causes[0].id}" if diagnosis.causes else "")
    places = culprits.locations or [place for suspect in diagnosis.suspects for place in suspect.locations]
    for place in places[:_SHOWN_PLACES]:
        shown = diagnosis.source_lines and (place.file, place.line) == _of(diagnosis.source_lines)
        yield safe("at ", "dim") + _place(place, with_source=not shown)
    if culprits.devices:
        yield safe(f"device {', '.join(culprits.devices[:4])}")
    if diagnosis.victims.ranks:
        yield safe(f"blocked: {rank_list(diagnosis.victims.ranks)}", "dim")


_EVENTS = {
    SuspectEvent.ENDED: "ended",
    SuspectEvent.ABSENT: "never entered the collective",
    SuspectEvent.OUTSIDE: "outside the collective",
    SuspectEvent.MISMATCHED: "differs from its peers",
    SuspectEvent.LATE: "late",
    SuspectEvent.SILENT: "no report",
}


def _of(lines: SourceLines) -> tuple[str, int]:
    return lines.file, lines.line


def _place(place: Location, *, with_source: bool) -> Text:
    where = place.file if place.line is None else f"{place.file}:{place.line}"
    text = safe(where) + safe(f" {place.function}" if place.function else "", "dim")
    return text + safe(f": {place.source.strip()}", "cyan", limit=160) if with_source and place.source else text


def _differs(differs: Differs | None) -> Iterator[Text]:
    """The comparison in two columns; a value that both share is printed once."""
    if differs is None:
        return
    rows = [("", differs.suspect, differs.peers), *((a.what, a.suspect, a.peers) for a in differs.aspects)]
    first = max(len(what) for what, _, _ in rows)
    if len(rows) == 1:
        rows.append(("", "nothing that both report differs", ""))
    second = min(max(len(safe(own).plain) for _, own, other in rows if own != other), _LONGEST_CELL)
    for what, own, other in rows:
        start = safe(f"{what:{first}}  ", "dim")
        left, right = (safe(told, limit=_LONGEST_CELL).plain for told in (own, other))
        yield start + (safe(own) if own == other else safe(f"{left:{second}} | {right}"))


def _source(lines: SourceLines | None) -> Iterator[Text]:
    for line in lines.lines if lines else ():
        number = line.partition(":")[0]
        mark = {str(lines.line): "→ ", str(lines.guard): "? "}.get(number, "  ") if lines else ""
        yield safe(mark + line, "cyan")


def _diff(lines: Sequence[str]) -> Iterator[Text]:
    if lines:
        yield safe("untested, not applied", "dim")
        yield from (safe(line, {"+": "green", "-": "red"}.get(line[:1], "dim"), limit=200) for line in lines)


def _causes(diagnosis: Diagnosis) -> Iterator[Text]:
    for cause in diagnosis.causes[:_SHOWN_CAUSES]:
        line = safe(cause.percent, "bold") + safe(cause.id) + safe(f", {cause.level}", "dim")
        if cause.title not in diagnosis.headline:
            line += safe(f": {cause.title}")
        if cause.culprits.ranks and cause.culprits.ranks != diagnosis.culprits.ranks:
            line += safe(f"; suspected: {rank_list(cause.culprits.ranks)}", "dim")
        yield line


def _evidence(claims: Sequence[Claim]) -> Iterator[Text]:
    shown = claims[:_SHOWN_CLAIMS]
    for claim in shown:
        yield safe(claim.claim, limit=_LONGEST)
        if claim.source:
            yield safe(f"  [{claim.source}] ", "dim", limit=200) + safe(claim.quote, "cyan", limit=240)
    if len(claims) > len(shown):
        yield safe(f"… and {len(claims) - len(shown)} more: --json", "dim")


def _next(diagnosis: Diagnosis) -> Iterator[Text]:
    check = diagnosis.next_check
    if check is None:
        return
    yield safe(check.question, limit=_LONGEST_QUESTION)
    if check.probe != "ask":
        yield _command(command_line(check.probe, check.args), "bold")
    if len(check.separates) > 1:
        yield safe(f"It distinguishes: {', '.join(check.separates[:_SHOWN_SEPARATED])}.", "dim")


def _case(case: CaseFile) -> Iterator[Text]:
    """Lines of the material; above each excerpt, the source of its first line. Equal lines in a row become one."""
    for part in case.parts:
        yield safe(f"[{part.at}]", "dim", limit=200) + safe(f" {part.says}" if part.says else "", "dim")
        for line, alike in groupby(part.text.split("\n")):
            times = sum(1 for _ in alike)
            shown = safe(f"  {line}", "cyan", limit=_LONGEST_LINE)
            yield shown + safe(f"  ({times} times in a row)", "dim") if line and times > 1 else shown
    if case.left_out:
        yield safe(f"shown: {'; '.join(case.left_out)}", "dim", limit=_LONGEST)


def _hosts_without_answer(diagnosis: Diagnosis) -> Iterator[Text]:
    """Hosts that were not captured; those with the same reason share a line."""
    silent = [item.what for item in diagnosis.missing if item.why_it_matters == HOST_NOT_LOOKED_AT]
    for line in silent[:_SHOWN_SILENT]:
        yield safe(line, "bold", limit=600)
    if rest := [line.partition(": ")[0] for line in silent[_SHOWN_SILENT:]]:
        yield safe(f"… for other reasons: {', '.join(rest)}", "bold", limit=300)


def _missing(diagnosis: Diagnosis) -> Iterator[Text]:
    others = [item for item in diagnosis.missing if item.why_it_matters != HOST_NOT_LOOKED_AT]
    for item in others[:_SHOWN_MISSING]:
        yield safe(f"{item.what}: {item.why_it_matters}", limit=300)
    if (rest := len(others) - _SHOWN_MISSING) > 0:
        yield safe(f"… and {rest} more: --json", "dim")


def show_command(target: Sequence[str], saved: object = None) -> str:
    """The command that opens the sources of an answer about a target: `ddx show … --from logs`."""
    places = [str(saved)] if saved else [item for item in target if item != "-"]
    return shlex.join(["ddx", "show", *(word for place in places for word in ("--from", place))]) + " WORDS"
