"""Findings about `text_facts`: from one text, or from several together."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Location, Severity
from ddx_tools.model.grouping import gathered

_MOST_EVIDENCE = 6
Row = dict[str, Any]


def text_findings(store: Store) -> list[Finding]:
    """Return the findings about the facts in the user's notes and texts.

    Equal facts from several lines become one finding that covers all these lines.
    """
    rows = store.query("SELECT * FROM text_facts ORDER BY source, source_line")
    for row in rows:
        row["attributes"], row["ranks"] = json.loads(row["attributes"]), json.loads(row["ranks"])
    parts = gathered((row["code"], row) for row in rows if row["code"].startswith("_"))
    plain = gathered(
        ((row["code"], json.dumps(row["attributes"], sort_keys=True)), row) for row in rows if row["code"] not in parts
    )
    return [_finding(same[0]["code"], same) for same in plain.values()] + list(_together(parts))


def _finding(code: str, rows: Sequence[Row], **changes: Any) -> Finding:
    first = rows[0]
    places = [Location(file=row["source"], line=row["source_line"], source=row["quote"]) for row in rows]
    summary = changes.pop("summary", first["summary"])
    severity = changes.pop("severity", first["severity"])
    ranks = changes.pop("ranks", sorted({rank for row in rows for rank in row["ranks"]}))
    return Finding(
        code=code,
        severity=Severity(severity),
        ranks=ranks,
        summary=f"{summary} ({places[0].short()}).",
        evidence=[
            Evidence(source=row["source"], line=row["source_line"], quote=row["quote"]) for row in rows[:_MOST_EVIDENCE]
        ],
        locations=places[:_MOST_EVIDENCE] if code.startswith("program.") else [],
        attributes={**first["attributes"], **changes, "basis": "text"},
    )


def _together(parts: dict[str, list[Row]]) -> Iterator[Finding]:
    yield from _names(parts.get("_address", []))


def _names(addresses: Sequence[Row]) -> Iterator[Finding]:
    told: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in addresses:
        where = row["attributes"]
        told[where["name"], where["interface"]].setdefault(where["address"], row)
    for (name, interface), by_address in told.items():
        if len(by_address) > 1:
            yield _finding(
                "host.name_ambiguous", list(by_address.values()), how="addresses",
                summary=f"{interface} of the host {name} has several addresses: several hosts may share this name",
            )  # fmt: skip
