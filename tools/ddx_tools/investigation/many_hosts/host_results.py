"""Encodes and decodes a host's results: rows in Arrow format, and its probes' messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import zstandard

from ddx_tools.evidence.schema import arrow_table, arrow_types, columns, tables
from ddx_tools.investigation.session.capture import Captured, result_of
from ddx_tools.investigation.show.addresses import names_of
from ddx_tools.investigation.show.origins import origins
from ddx_tools.model.diagnosis import Missing, ProbeResult
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.redaction.structures import redact_value
from ddx_tools.sources.bundle import safe_name

_LEVEL = 6
_MOST_BYTES = 256 << 20
"""Maximum size of one host's unpacked results."""
_TABLE = b"table"
_OF_ITS_OWN = {"ranks", "stack_threads", "host_facts"}
"""Tables whose rows must be about the host that was asked; a log may report other hosts."""


def made_of(captured: Captured) -> Made:
    """Parse a capture on one host into rows."""
    made = Made()
    for step, raw in captured.raws:
        made.add_rows(step.probe.parse(raw))
        made.results.append(result_of(step, raw))
        made.missing += raw.missing
    for taken in [taken for host in captured.hosts for taken in host.intakes.values()]:
        made.add_rows(taken.rows())
        made.missing += taken.gaps()
    cited = made.sources()
    places = names_of(captured.manifest.journal, []).places
    made.opens = {raw: place for raw, place in places.items() if raw != place and raw in cited}
    made.origins = {raw: asked for raw, asked in origins(captured.manifest.journal).items() if raw in cited}
    return made


@dataclass
class Made:
    """One host's rows by table, and what its probes could not read."""

    rows: dict[str, Any] = field(default_factory=dict)
    """Arrow tables with the columns of `schema.sql`."""
    results: list[ProbeResult] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    opens: dict[str, str] = field(default_factory=dict)
    """For each raw file, the path on the host that opens it, if there is one."""
    origins: dict[str, str] = field(default_factory=dict)
    """For each raw file, the query that returned it."""

    def add_rows(self, parsed: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add the rows that a probe's `parse` returned."""
        for name, batch in parsed.items() if isinstance(parsed, Mapping) else parsed:
            if len(batch):
                table = _of_schema(name, arrow_table(name, batch) if isinstance(batch, list) else batch)
                self.rows[name] = _joined([self.rows[name], table]) if name in self.rows else table

    def sources(self) -> set[str]:
        """The raw files that rows come from; a source may continue after its file name."""
        found = [
            source
            for table in self.rows.values()
            if "source" in table.column_names
            for source in table["source"].unique().to_pylist()
            if source
        ]
        return {source.partition("!")[0].partition("#")[0] for source in found}

    def encoded(self, most_bytes: int) -> bytes:
        """Encode the results in at most `most_bytes`; tables that are too large are left out and named."""
        while len(packed := zstandard.ZstdCompressor(_LEVEL).compress(self._plain())) > most_bytes and self.rows:
            name = max(self.rows, key=lambda name: int(self.rows[name].nbytes))
            del self.rows[name]
            self.missing.append(
                Missing(what=f"{name} has too many rows to send", why_it_matters="query them on the host itself")
            )
        return packed

    def _plain(self) -> bytes:
        import pyarrow as pa

        words = {
            "results": [one.model_dump(mode="json") for one in self.results],
            "missing": [one.model_dump(mode="json") for one in self.missing],
            "opens": self.opens,
            "origins": self.origins,
        }
        sink = pa.BufferOutputStream()
        sink.write(json.dumps(redact_value(words)).encode() + b"\n")
        for name, table in self.rows.items():
            named = table.replace_schema_metadata({_TABLE: name.encode()})
            with pa.ipc.new_stream(sink, named.schema) as stream:
                stream.write_table(named)
        return bytes(sink.getvalue().to_pybytes())


def decoded(packed: bytes, host: str) -> Made:
    """Decode the results of a host. Raises UnreadableInput, also if they are about a host other than `host`."""
    import pyarrow as pa

    try:
        if zstandard.frame_content_size(packed) > _MOST_BYTES:
            raise ValueError("it is too large")
        plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_MOST_BYTES)
        words, _, rest = plain.partition(b"\n")
        said = json.loads(words)
        made = Made(
            results=[ProbeResult.model_validate(one) for one in said["results"]],
            missing=[Missing.model_validate(one) for one in said["missing"]],
            opens={str(raw): str(place) for raw, place in said["opens"].items()},
            origins={str(raw): str(asked) for raw, asked in said["origins"].items()},
        )
        made.rows = dict(_tables(pa.py_buffer(rest)))
    except (zstandard.ZstdError, pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise UnreadableInput(f"{type(error).__name__}: {error}"[:200]) from error
    for name in _OF_ITS_OWN & made.rows.keys():
        if strangers := set(made.rows[name]["host"].unique().to_pylist()) - {host}:
            raise UnreadableInput(f"it answers for another host: {str(min(strangers, key=str))[:60]!r}")
    return made


def renamed(made: Made, calls_itself: str, name: str) -> Made:
    """Return a copy of a host's results in which the host is called `name` instead of `calls_itself`.

    This keeps hosts apart that report the same name. `host` columns and raw file paths change accordingly.
    """
    import pyarrow.compute as pc

    was, now = (f"raw/{safe_name(one)}/" for one in (calls_itself, name))

    def path(raw: str) -> str:
        return now + raw.removeprefix(was) if raw.startswith(was) else raw

    def column(values: Any) -> Any:
        return pc.if_else(
            pc.starts_with(values, was), pc.replace_substring(values, was, now, max_replacements=1), values
        )

    rows = {}
    for of, table in made.rows.items():
        kept = {
            key: column(table[key]) if str(table[key].type) == "string" else table[key] for key in table.column_names
        }
        if "host" in kept:
            kept["host"] = pc.if_else(pc.equal(kept["host"], calls_itself), name, kept["host"])
        rows[of] = _of_schema(of, type(table).from_pydict(kept))
    opens, origins = ({path(raw): told for raw, told in known.items()} for known in (made.opens, made.origins))
    return replace(made, rows=rows, opens=opens, origins=origins)


def joined(several: Sequence[Made]) -> Iterator[tuple[str, Any]]:
    """Yield each table with the rows of several hosts together."""
    for name in tables():
        if parts := [made.rows[name] for made in several if name in made.rows]:
            yield name, _joined(parts)


def _tables(buffer: Any) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa

    stream = pa.BufferReader(buffer)
    while stream.tell() < len(buffer):
        table = pa.ipc.open_stream(stream).read_all()
        # Written by another machine: offsets and text are validated before anything relies on them.
        table.validate(full=True)
        name = table.schema.metadata[_TABLE].decode()
        if name not in tables():
            raise ValueError(f"there is no table {name[:60]!r}")
        yield name, _of_schema(name, table.replace_schema_metadata(None))


def _of_schema(name: str, table: Any) -> Any:
    """Cast a table to the schema's types. Raises ValueError if it has other columns."""
    wanted = _schema(name, tuple(table.column_names))
    return table if table.schema.equals(wanted) else table.cast(wanted)


@lru_cache(maxsize=256)
def _schema(name: str, of: tuple[str, ...]) -> Any:
    import pyarrow as pa

    types, known = arrow_types(), columns(name)
    if unknown := set(of) - set(known):
        raise ValueError(f"{name} has no column {min(unknown)[:60]!r}")
    return pa.schema([(column, types[known[column][0]]) for column in of])


def _joined(parts: Sequence[Any]) -> Any:
    import pyarrow as pa

    return pa.concat_tables(parts, promote_options="default")
