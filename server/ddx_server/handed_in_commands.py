"""`ddx facts` and `ddx add-finding`: facts and findings that a person or an agent submits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ddx_server.render.output import JSON_OPTION, TARGET, console, exit_with, print_json, progress_line
from ddx_server.render.safe_text import safe
from ddx_tools.model.diagnosis import Finding
from ddx_tools.model.errors import UsageError

FACTS = Annotated[
    list[str] | None,
    typer.Option(
        "--fact", help="A fact that you know, from the list that ddx facts prints: works_on_one_node=no. Repeatable."
    ),
]
FINDINGS = Annotated[
    Path | None, typer.Option(help="File of findings written by `ddx add-finding --keep FILE`.", metavar="FILE")
]


def handed_in(facts: Sequence[str], file: Path | None) -> list[Finding]:
    """The submitted facts and findings, as findings. Raises UsageError and UnreadableInput."""
    from ddx_tools.diagnosis.submitted import fact_finding, read_handed_in

    told = [fact_finding(fact) for fact in facts]
    if file is None:
        return told
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}", "ddx add-finding --keep FILE writes it.") from error
    return told + [one.finding() for one in read_handed_in(data)]


_FEW_CODES = 12
"""Up to this many codes are listed with their attributes."""


def facts(
    codes: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="List the finding codes that contain this word instead ('' for all)."),
    ] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """List the facts that can be reported: `ddx why --fact NAME=yes|no`. With --codes, search the finding codes."""
    from ddx_tools.knowledge.facts import known_facts

    if codes is not None:
        _print_codes(codes, as_json)
        return
    listed = {name: fact.so for name, fact in known_facts().items()}
    if as_json:
        print_json(json.dumps(listed))
        return
    for name, says in listed.items():
        console().print(safe(f"{name:34}{says}"), soft_wrap=True)


def _print_codes(word: str, as_json: bool) -> None:
    from ddx_tools.knowledge.finding_attributes import attributes_of, common_attributes
    from ddx_tools.knowledge.finding_codes import codes_with

    listed = codes_with(word)
    if not listed:
        raise UsageError(
            f"no finding code has {word!r}", "ddx facts --codes '' lists all. Search for one word at a time."
        )
    types = {code: {name: kind.words for name, kind in sorted(attributes_of(code).items())} for code in listed}
    if as_json:
        print_json(json.dumps({code: {"says": says, "attributes": types[code]} for code, says in listed.items()}))
        return
    for code, says in listed.items():
        console().print(safe(f"{code:34}{says}"), soft_wrap=True)
        if len(listed) <= _FEW_CODES:
            for name, kind in types[code].items():
                if name not in common_attributes():
                    console().print(safe(f"    {name}: {kind}", "dim"), soft_wrap=True)
    if len(listed) <= _FEW_CODES:
        console().print(safe(f"Any finding may also have: {', '.join(common_attributes())}", "dim"))


def add_finding(
    code: Annotated[str, typer.Argument(help="A finding code from ddx facts --codes: rank.raised", show_default=False)],
    target: TARGET = None,
    quote: Annotated[str, typer.Option(help="The quote, verbatim from the source.")] = "",
    source: Annotated[str, typer.Option(help="The source of the quote: material rank3.log:41, rank 3, …")] = "",
    ranks: Annotated[str, typer.Option(help="Ranks that the finding is about: 3, or 0-7,9.")] = "",
    attribute: Annotated[
        list[str] | None, typer.Option(help="An attribute, NAME=VALUE, as ddx facts --codes lists it. Repeatable.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Append the finding to this file, for ddx why --findings FILE.")
    ] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Submit something that you read and ddx did not recognise: ddx checks the quote and diagnoses again."""
    from ddx_server.render.diagnosis import render_diagnosis, show_command
    from ddx_server.serve.diagnosis_payload import diagnosis_json
    from ddx_tools.diagnosis.submitted import HandedIn, read_handed_in
    from ddx_tools.investigation.submission import with_checked
    from ddx_tools.model.rank_ranges import parse_ranks

    attributes = {name: _value(value) for name, _, value in (text.partition("=") for text in attribute or ())}
    about = parse_ranks(ranks) if ranks else []
    if not (quote and source):
        raise UsageError("a finding needs a quote and its source", "--quote TEXT --source 'material F:41'")
    one = HandedIn(code=code, ranks=about, quote=quote, source=source, attributes=attributes)
    kept = read_handed_in(keep.read_bytes()) if keep and keep.exists() else []
    with progress_line(quiet=as_json) as progress:
        found = with_checked(one, [known.finding() for known in kept], target or [], progress)
    if keep:
        keep.write_text(json.dumps([each.model_dump() for each in [*kept, one]], indent=1), encoding="utf-8")
    diagnosis = found.diagnose().model_copy(update={"shown_by": show_command(target or [])})
    if as_json:
        print_json(diagnosis_json(diagnosis))
    else:
        render_diagnosis(diagnosis, console())
    exit_with(diagnosis)


def _value(text: str) -> str | int | float | bool | None:
    try:
        value: str | int | float | bool | None = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool | None) else text
