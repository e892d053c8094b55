"""Shows one rank, group, record or file: opens the user's files, a bundle or the live job and prints what is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.analysis.ranks.seats import read_seats
from ddx_tools.diagnosis.waits import waits_of
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import bundle_of, investigate, this_machine
from ddx_tools.investigation.session.capture import Machine
from ddx_tools.investigation.show.addresses import Names, Thing, Words, parse_words
from ddx_tools.investigation.show.material import NumberedLine, brought, lines_around, of_bundle
from ddx_tools.investigation.show.ranks import all_ranks, one_rank
from ddx_tools.investigation.show.records import one_collective, one_group, one_record
from ddx_tools.investigation.show.waits import dot_lines, wait_lines
from ddx_tools.model.errors import UsageError
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.host import UNKNOWN_HOST

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ShownLines:
    """The lines to show; lines of a file have their 1-based numbers."""

    what: Words
    lines: list[NumberedLine]

    @property
    def text(self) -> str:
        """All lines as one text, as they are quoted."""
        return "\n".join(text for _, text in self.lines)


def look(
    words: Sequence[str],
    target: Sequence[str] = (),
    progress: Progress = lambda _: None,
    *,
    machine: Machine = this_machine,
    dot: bool = False,
) -> ShownLines:
    """Show what `words` name (see `show.addresses`); `target` is as for an investigation.

    `dot`: waits as a graph in Graphviz's language. Raises UsageError if there is no such thing.
    """
    wanted = parse_words(words)
    if dot and wanted.thing is not Thing.WAITS:
        raise UsageError("only waits can be drawn", "ddx show waits --dot | dot -Tsvg > waits.svg")
    if wanted.thing is Thing.MATERIAL:
        return ShownLines(wanted, _material(wanted, target, machine))
    with Store() as store:
        found = investigate(target, progress=progress, machine=machine, store=store)
        if wanted.thing is Thing.WAITS and found.waits is not None:
            told = dot_lines(found.waits, wanted.number) if dot else wait_lines(found.waits, wanted.number)
            return ShownLines(wanted, [(None, line) for line in told])
        return shown_of(store, wanted, found.names, target, machine)


def shown_of(store: Store, wanted: Words, names: Names, target: Sequence[str], machine: Machine) -> ShownLines:
    """Show one thing from a finished investigation's rows and material. Raises UsageError if it is not there."""
    if wanted.thing is Thing.MATERIAL:
        return ShownLines(wanted, _material(wanted, target, machine))
    return ShownLines(wanted, [(None, line) for line in in_store(store, wanted, names)])


def in_store(store: Store, wanted: Words, names: Names) -> list[str]:
    """Lines about one thing from an investigation's rows. `names` are the names of its sources."""
    number = wanted.number or 0
    match wanted.thing:
        case Thing.RANKS:
            return all_ranks(store)
        case Thing.RANK:
            return one_rank(store, number, names)
        case Thing.WAITS:
            return wait_lines(waits_of(store, (), read_seats(store)), wanted.number)
        case Thing.GROUP:
            return one_group(store, wanted.name)
        case Thing.COLLECTIVE:
            return one_collective(store, wanted.name, number)
        case Thing.RECORD:
            return one_record(store, [*names.sources(wanted.name), str(Path(wanted.name).absolute())], number)
        case Thing.MATERIAL:
            raise UsageError(f"{wanted.name} is a file", "Its lines are read from the file itself.")


def _material(wanted: Words, target: Sequence[str], machine: Machine) -> list[NumberedLine]:
    bundle = bundle_of(target)
    if bundle is None:
        files = [item for item in target if not item.isdigit()]
        return lines_around(brought(machine(UNKNOWN_HOST), wanted.name, files), wanted.name, wanted.number)
    with Bundle(Path(bundle)) as opened:
        return lines_around(of_bundle(opened, wanted.name), wanted.name, wanted.number)
