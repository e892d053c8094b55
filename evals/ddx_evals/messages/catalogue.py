"""The catalogue of messages that libraries can print: which ones of a release are recognised, and adding a release.

It stores facts: the words of a message with `{}` for values, the file and function that print it, and the releases that
do. A new entry is classified by its words (`message_classes.yaml`), as a proposal for a person to check; an update
never changes the class of an existing entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from ddx_evals.messages.printed_strings import Printed
from ddx_tools.knowledge.known_messages import match_signatures, signatures
from ddx_tools.knowledge.library_messages import (
    HOLE,
    NEEDS_VALUES,
    LibraryMessage,
    message_id,
    read_catalogue,
    recognise,
    written,
)
from ddx_tools.knowledge.load import load_yaml

_TRANSPORTS = ("nccl", "rccl", "gloo", "ofi")
_FORKS = {"rccl": "nccl"}
"""Libraries that print most messages of another one; their tables hold only the others."""


def updated(
    known: Iterable[LibraryMessage], library: str, release: str, strings: Iterable[Printed]
) -> list[LibraryMessage]:
    """Merge the strings of a release into the entries."""
    entries = {entry.id: entry for entry in known}
    for one in strings:
        name = message_id(library, one.template)
        before = entries.get(name)
        if before:
            first, _, last = before.versions.partition("..")
            ends = sorted((first, last or first, release), key=_by_version)
            versions = ends[0] if ends[0] == ends[-1] else f"{ends[0]}..{ends[-1]}"
            entries[name] = replace(before, versions=versions)
        else:
            place = (one.file, one.function)
            entries[name] = LibraryMessage(
                name, one.level, speaks_of(library, one), _signature(one.template), release, *place, one.template
            )
    return sorted(entries.values(), key=lambda entry: (entry.file, entry.template, entry.id))


def _by_version(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


@cache
def _classes() -> dict[str, dict[str, list[str]]]:
    rules: dict[str, dict[str, list[str]]] = load_yaml(
        Path(__file__).with_name("message_classes.yaml").read_text(encoding="utf-8")
    )
    return rules


def speaks_of(library: str, one: Printed) -> str:
    """The proposed class of a message, from its words."""
    is_transport = library in _TRANSPORTS
    words = one.template.lower()
    rules = _classes()["transports" if is_transport else "others"]
    guess = next((name for name, patterns in rules.items() if any(re.search(each, words) for each in patterns)), None)
    return guess or ("own_failure" if is_transport or "INTERNAL" in one.template else "program")


def _signature(template: str) -> str:
    """The known message that matches a template without its values, if any."""
    matches = [match.signature for sample in _samples(template) for match in match_signatures(sample)]
    by_words = (known for known in signatures() if any(_is_telling(part) and part in template for part in known.needle))
    found = (known for known in (*matches, *by_words) if not NEEDS_VALUES.match(known.id) and known.role != "context")
    return next((known.id for known in found), "")


def _is_telling(needle: str) -> bool:
    return len(written(needle)) >= 3


def _samples(template: str) -> Iterator[str]:
    """Yield the message with sample values filled in."""
    for value in ("4711", "node-01", "1, 2"):
        yield template.replace(HOLE, value)
        yield f"RuntimeError: {template.replace(HOLE, value)}"


def recognised(library: str, strings: Iterable[Printed]) -> tuple[list[Printed], list[Printed]]:
    """Split strings into recognised and unrecognised ones, tested as a log line or an exception shows them."""
    told: tuple[list[Printed], list[Printed]] = ([], [])
    for one in strings:
        text = _shown(library, one)
        told[0 if match_signatures(text) or recognise(text) else 1].append(one)
    return told


def _shown(library: str, one: Printed) -> str:
    said = one.template.replace(HOLE, "4711")
    match library:
        case "nccl" | "rccl" | "ofi":
            return f"node-01:4711:4712 [0] {Path(one.file).name}:1 NCCL WARN {'NET/OFI ' * (library == 'ofi')}{said}"
        case "gloo":
            return f"RuntimeError: [../third_party/gloo/{one.file}:1] {said}"
        case "torch" if "csrc/distributed" in one.file:
            return f"RuntimeError: {said}\n@ torch/distributed/distributed_c10d.py:1 {one.function}"
    return f"RuntimeError: {said}\n@ {one.file}:1 {one.function}"


def table_file(library: str) -> Path:
    """The path of a library's catalogue."""
    import ddx_tools

    return Path(ddx_tools.__file__).parent / "knowledge" / "messages" / f"{library}.tsv"


def take_in(library: str, release: str, strings: Iterable[Printed]) -> None:
    """Add the strings of a release to the catalogue of its library, without those of the library it is a fork of."""
    file = table_file(library)
    if origin := _FORKS.get(library):
        known = {entry.id for entry in read_catalogue(table_file(origin))}
        strings = [one for one in strings if message_id(origin, one.template) not in known]
    entries = updated(read_catalogue(file) if file.exists() else [], library, release, strings)
    file.write_text("".join(entry.line() for entry in entries), encoding="utf-8")
