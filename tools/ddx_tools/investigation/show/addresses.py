"""The words that name what to show, the same in `ddx show`, in the MCP tool and in the source of evidence.

ranks                      all ranks, folded
rank 77                    one rank: state, exit, stack, last collectives, last lines
waits                      who waits for whom, and the roots; waits 77: from rank 77 on
group mesh_dp              one process group
collective mesh_dp 350     what all ranks recorded under one sequence number of a group
record PATH#15             one flight record
material rank3.log:41      the lines around a place in a file
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.origins import origins
from ddx_tools.model.diagnosis import Claim, Diagnosis, Finding
from ddx_tools.model.errors import UsageError
from ddx_tools.sources.bundle import JournalEntry
from ddx_tools.sources.hosts.written import NOTE_PATH

_HELP = (
    "Name one of: ranks; rank 77; waits; group mesh_dp; collective mesh_dp 350; record PATH#15; material rank3.log:41"
)
_PLACE = re.compile(r"(?P<path>.+?)(?::(?P<line>[0-9]{1,12}))?", re.S)
_RECORD = re.compile(r"(?P<path>.+)#(?:record_id=)?(?P<record>[0-9]{1,18})", re.S)
_NUMBER = re.compile(r"[0-9]{1,9}")


class Thing(StrEnum):
    """The kinds of things that can be shown."""

    RANKS = "ranks"
    RANK = "rank"
    WAITS = "waits"
    GROUP = "group"
    COLLECTIVE = "collective"
    RECORD = "record"
    MATERIAL = "material"


@dataclass(frozen=True)
class Words:
    """One thing to show."""

    thing: Thing
    name: str = ""
    """The description, name or key of a group, or the path of a record or material."""
    number: int | None = None
    """The rank, the sequence number, the record's id or the line (1-based)."""


def parse_words(words: Sequence[str]) -> Words:
    """Parse words into what they name; a path by itself is a material. Raises UsageError if they name nothing."""
    said = " ".join(words).strip()
    first, _, rest = said.partition(" ")
    rest = rest.strip()
    if said == Thing.RANKS:
        return Words(Thing.RANKS)
    if first == Thing.RANK and _NUMBER.fullmatch(rest):
        return Words(Thing.RANK, number=int(rest))
    if first == Thing.WAITS and (not rest or _NUMBER.fullmatch(rest)):
        return Words(Thing.WAITS, number=int(rest) if rest else None)
    if first == Thing.GROUP and rest:
        return Words(Thing.GROUP, rest)
    if first == Thing.COLLECTIVE:
        name, _, number = rest.rpartition(" ")
        if name and _NUMBER.fullmatch(number):
            return Words(Thing.COLLECTIVE, name.strip(), int(number))
    if first == Thing.RECORD and (record := _RECORD.fullmatch(rest)):
        return Words(Thing.RECORD, record["path"], int(record["record"]))
    path = rest if first == Thing.MATERIAL else said if first not in set(Thing) else ""
    if found := _PLACE.fullmatch(path):
        return Words(Thing.MATERIAL, found["path"], int(found["line"]) if found["line"] else None)
    raise UsageError(f"{said[:200]!r} names nothing that can be shown" if said else "nothing was named", _HELP)


# --- the names of sources in evidence: words that `ddx show` opens, wherever the answer is read

NOTE = "note"
"""The source of statements beside the material; it cannot be opened."""
_RECORD_MARK = "#record_id="
_SHOWN_OTHERWISE = re.compile(r"[\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff\ud800-\udfff]+")
_OF_RANKS = """
SELECT source, min(rank) AS rank FROM (
    SELECT source, rank FROM stack_threads UNION ALL SELECT source, rank FROM ranks
) WHERE rank IS NOT NULL AND source IS NOT NULL GROUP BY source HAVING count(DISTINCT rank) = 1
"""
_OF_ALL = "SELECT DISTINCT source FROM ranks WHERE source IS NOT NULL"


@dataclass
class Names:
    """The names of the sources of one investigation."""

    places: dict[str, str] = field(default_factory=dict)
    """For each raw file of the bundle, the path that opens it."""
    base: str = ""
    """The folder of the user's files; paths below it are given relative to it."""
    ranks: dict[str, int] = field(default_factory=dict)
    """For each source, the one rank whose stack or process it is."""
    processes: set[str] = field(default_factory=set)
    """Sources that list the processes of a host."""

    def of_rows(self, store: Store) -> None:
        """Fill `ranks` and `processes` from the stored stacks and process tables.

        `ranks` maps each source with evidence of exactly one rank to it; `processes` are sources that list processes.
        """
        if store.holds_any(["stack_threads", "ranks"]):
            self.ranks = {row["source"]: row["rank"] for row in store.query(_OF_RANKS)}
            self.processes = {row["source"] for row in store.query(_OF_ALL)}

    def place(self, source: str) -> str:
        """The shortest path by which a user can open a source of evidence.

        Paths below the folder of the user's files are relative to it; `source` is the name used in evidence.
        """
        if source in self.places:
            return self.places[source]
        # An answer's name may continue: a member of a saved archive.
        end = len(source)
        while (end := source.rfind("!", 0, end)) >= 0:
            if source[:end] in self.places:
                return self.places[source[:end]] + source[end:]
        return source.removeprefix(f"{self.base}/") if self.base else source

    def sources(self, place: str) -> list[str]:
        """The possible names, as used in evidence, of the file that a user opens as `place`.

        This is the inverse of the method `place`; not every returned name need exist.
        """
        return [place, f"{self.base}/{place}", *(raw for raw, told in self.places.items() if told == place)]

    def words(self, source: str, line: int | None = None, ranks: Sequence[int] = ()) -> str:
        """The words that make `ddx show` open a source of evidence: `rank 3`, `material rank3.log:41`.

        `line` is 1-based; `ranks` are those of the finding that cites the source. Returns "" without a source, and
        `note` for a person's note, which cannot be opened.
        """
        if not source or source == NOTE_PATH:
            return NOTE if source else ""
        if source.split(" ")[0] in set(Thing):
            return source  # submitted with these words
        path, is_record, record = source.partition(_RECORD_MARK)
        if is_record:
            return f"{Thing.RECORD} {self.place(path)}#{record}"
        if source in self.ranks and line is None:
            return f"{Thing.RANK} {self.ranks[source]}"
        if source in self.processes:
            return f"{Thing.RANK} {ranks[0]}" if len(ranks) == 1 else Thing.RANKS
        if "/" not in source and ("." not in source or ":" in source):
            return Thing.RANKS  # our own table: which ranks exist, and which have no evidence
        return f"{Thing.MATERIAL} {self.place(source)}" + ("" if line is None else f":{line}")


def names_of(journal: Sequence[JournalEntry], target: Iterable[str], *, kept: bool = True) -> Names:
    """Return the names by which users can open the raw files listed in a bundle's journal.

    `target` gives the user's paths, to which names are relative. If the bundle is not `kept`, answers that are not
    files are named by the command that shows the same on the host.
    """
    read = [entry for entry in journal if entry.path and entry.op in ("look", "read") and not entry.tail]
    # For a file that was read more than once, the first reading counts, whatever the order of the journal.
    read.sort(key=lambda entry: (entry.occurrence, entry.host, entry.op), reverse=True)
    whole = {entry.key: entry.path for entry in read}
    others = origins(journal)
    files = {entry.key for entry in journal if entry.op in ("look", "read", "unpack")}
    base = _base(path.rpartition("/")[0] if path in files else path for path in target if not path.isdigit())
    places: dict[str, str] = {}
    for entry in journal:
        if entry.path:
            # What is not kept is read again when it is shown, so any reading of a file has its name.
            again = not kept and entry.op in ("look", "read") and not entry.tail
            file = again or whole.get(entry.key) == entry.path
            told = entry.key if file else entry.path if kept else others[entry.path]
            places[entry.path] = told.removeprefix(f"{base}/") if base else told
    return Names(places, base)


def _base(folders: Iterable[str]) -> str:
    """The folder that holds all of the user's files."""
    absolute = [folder for folder in folders if folder.startswith("/")]
    return posixpath.commonpath(absolute).rstrip("/") if absolute else ""


def _plain(quote: str) -> str:
    """The longest piece of a quote without line ends, tabs or invisible characters: every reader sees it unchanged."""
    return max(_SHOWN_OTHERWISE.split(quote), key=len).strip() if _SHOWN_OTHERWISE.search(quote) else quote


def named(said: Diagnosis, names: Names, findings: Iterable[Finding]) -> Diagnosis:
    """Return a diagnosis whose claims cite sources in the words that `ddx show` opens.

    `names` does the translation. `findings` supply the ranks that each claim is about.
    """
    about = {(finding.code, finding.summary): finding.ranks for finding in findings}

    def in_words(claims: Iterable[Claim]) -> list[Claim]:
        return [
            claim.model_copy(
                update={
                    "source": names.words(claim.source, claim.line, about.get((claim.finding, claim.claim), ())),
                    "quote": _plain(claim.quote),
                }
            )
            for claim in claims
        ]

    suspects = [s.model_copy(update={"evidence": in_words(s.evidence)}) for s in said.suspects]
    return said.model_copy(update={"evidence": in_words(said.evidence), "suspects": suspects})
