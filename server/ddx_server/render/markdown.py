"""An answer as Markdown for a ticket or a chat: at most 40 lines; text from a job never acts as markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddx_server.render.answer_words import places_of, who_of
from ddx_server.render.safe_text import safe
from ddx_tools.diagnosis.checks import command_line
from ddx_tools.model.diagnosis import Claim, Diagnosis, Location, Verdict, rank_list

MOST_LINES = 40
_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~@^$&]|://|www\.")
"""Characters that a renderer may take for markup, a link or a mention."""
CODE_SPAN = re.compile(r"(?<![`\w])`([^`]+)`(?![`\w])")
"""Code spans in our own prose."""
_SHOWN_CLAIMS, _SHOWN_STEPS, _SHOWN_PLACES, _SHOWN_RIVALS, _SHOWN_GAPS = 4, 3, 2, 4, 3
_LONGEST = 300


def markdown(said: Diagnosis) -> str:
    """Format an answer: verdict and headline, who, where, why, evidence, fix or next check, gaps."""
    lines = list(_lines(said))
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"… {len(lines) - MOST_LINES + 1} more lines: `ddx why --json`"]
    return "\n".join(lines) + "\n"


def plain(text: str, limit: int = _LONGEST) -> str:
    """One line of text with every word that could be markup put into a code span; existing code spans stay."""
    line = " ".join(safe(text, limit=limit).plain.split())
    # Every second piece is a match of the pattern.
    pieces = CODE_SPAN.split(line)
    return "".join(code(piece) if number % 2 else _words(piece) for number, piece in enumerate(pieces))


def _words(text: str) -> str:
    return " ".join(_word(word) if _MARKUP.search(word) else word for word in text.split(" "))


def _word(word: str) -> str:
    bare = word.rstrip(".,;:!?" if "(" in word else ".,;:!?)")
    return code(bare) + word[len(bare) :] if bare else word


def code(text: str, limit: int = _LONGEST) -> str:
    """One line of text as a code span, even if it contains backticks."""
    line = " ".join(safe(text, limit=limit).plain.split())
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    edge = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{edge}{line}{edge}{fence}"


def place(at: Location) -> str:
    """A program location as Markdown, with its source line."""
    where = code(at.file if at.line is None else f"{at.file}:{at.line}")
    function = f" in {code(at.function)}" if at.function else ""
    return where + function + (f": {code(at.source.strip())}" if at.source and at.source.strip() else "")


def claim_lines(claim: Claim) -> Iterator[str]:
    """A claim as a list item, with its quote and source below."""
    yield f"- {plain(claim.claim)}"
    if claim.quote:
        source = f" ({code(claim.source)})" if claim.source else ""
        yield f"  - {code(claim.quote, 200)}{source}"


def _lines(said: Diagnosis) -> Iterator[str]:
    yield f"**{said.verdict.upper()}** {plain(said.headline, 500)}"
    yield ""
    if who := who_of(said):
        waiting = f"; blocked: {rank_list(said.victims.ranks)}" if said.victims.ranks else ""
        yield f"- **Who:** {plain(who)}{waiting}"
    for at in places_of(said)[:_SHOWN_PLACES]:
        yield f"- **Where:** {place(at)}"
    if said.causes:
        first = said.causes[0]
        title = "Why" if said.verdict is Verdict.DIAGNOSED else "Perhaps"
        yield f"- **{title}:** {first.percent}{code(first.id)}, {first.level}: {plain(first.title)}"
    if rivals := said.causes[1:]:
        yield f"- **Not excluded:** {', '.join(code(cause.id) for cause in rivals[:_SHOWN_RIVALS])}"
    if said.evidence:
        yield from ("", "**Evidence**", "")
        for claim in said.evidence[:_SHOWN_CLAIMS]:
            yield from claim_lines(claim)
    if said.fix:
        yield from ("", "**Fix**", "")
        yield from (f"{number}. {plain(step)}" for number, step in enumerate(said.fix[:_SHOWN_STEPS], 1))
    check = said.next_check
    if check and said.verdict is not Verdict.DIAGNOSED:
        yield from ("", f"**Next check:** {plain(check.question)}")
        if check.probe != "ask":
            yield f"{code(command_line(check.probe, check.args))}"
    if said.missing:
        yield from ("", "**Not seen**", "")
        yield from (f"- {plain(gap.what)}" for gap in said.missing[:_SHOWN_GAPS])
        if len(said.missing) > _SHOWN_GAPS:
            yield f"- and {len(said.missing) - _SHOWN_GAPS} more"
    if said.shown_by and any(claim.source for claim in said.evidence):
        yield from ("", f"To open a source: {code(said.shown_by)}")
