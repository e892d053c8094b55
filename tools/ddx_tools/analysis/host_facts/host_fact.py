"""Rows of `host_facts`, and findings built from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity
from ddx_tools.model.grouping import gathered

EVIDENCE_LIMIT = 8


@dataclass(frozen=True)
class HostFactRow:
    """One fact about a host, as stored in `host_facts`."""

    host: str | None
    topic: str
    subject: str | None
    values: dict[str, Any]
    evidence: Evidence

    def evidence_of(self, *names: str) -> list[Evidence]:
        """Evidence for named values that have their own lines (`nvidia-smi -q` is long); else the fact's first line."""
        places = self.values.get("lines") or {}
        found = [places[name] for name in names if name in places]
        source = self.evidence.source
        return [Evidence(source=source, line=line, quote=quote) for line, quote in found] or [self.evidence]


def read_facts(store: Store) -> list[HostFactRow]:
    """All facts in the order in which they were read: of two readings of a counter, the earlier comes first."""
    rows = store.query("SELECT host, topic, subject, facts, text, source, source_line FROM host_facts ORDER BY rowid")
    return [seen(row) for row in rows]


def seen(row: dict[str, Any]) -> HostFactRow:
    """Convert a database row of `host_facts`."""
    place = Evidence(source=row["source"], line=row["source_line"], quote=row["text"])
    return HostFactRow(row["host"], row["topic"], row["subject"], json.loads(row["facts"]), place)


def of_topic(facts: Iterable[HostFactRow], *topics: str) -> list[HostFactRow]:
    """The facts with one of these topics."""
    return [fact for fact in facts if fact.topic in topics]


def by_host(facts: Iterable[HostFactRow]) -> dict[str | None, list[HostFactRow]]:
    """Facts per host; facts without a host count as one host."""
    return gathered((fact.host, fact) for fact in facts)


def by_place(facts: Iterable[HostFactRow]) -> list[list[HostFactRow]]:
    """Facts per host; facts without a host per file, since two files may be from two hosts."""
    return list(gathered(((fact.host is not None, fact.host or fact.evidence.source), fact) for fact in facts).values())


def finding(
    code: str,
    severity: Severity,
    facts: Iterable[HostFactRow],
    summary: str,
    evidence: list[Evidence] | None = None,
    *,
    ranks: Iterable[int] = (),
    about: list[str] | None = None,
    named: bool = False,
    **attributes: Any,
) -> Finding:
    """Build a finding about the hosts of these facts, or about the hosts in `about` if it is given.

    The summary is prefixed with the hosts' names unless `named`, which means that it contains them already. Attributes
    that are None or empty lists are left out; a name that Python reserves is written with a trailing `_`.
    """
    facts = list(facts)
    hosts = sorted({fact.host for fact in facts if fact.host})
    known = {name.rstrip("_"): value for name, value in attributes.items() if value not in (None, [])}
    where = f"{', '.join(hosts[:4])}: " if hosts and not named else ""
    return Finding(
        code=code,
        severity=severity,
        ranks=list(ranks),
        hosts=hosts if about is None else about,
        summary=f"{where}{summary}",
        evidence=(evidence or [place for fact in facts for place in fact.evidence_of("state", "counters")])[
            :EVIDENCE_LIMIT
        ],
        attributes={**known, "basis": "host"},
    )


def devices_text(devices: Iterable[str]) -> str:
    """Devices as text for a sentence, at most six by name."""
    listed = list(dict.fromkeys(devices))
    more = f" and {len(listed) - 6} more" if len(listed) > 6 else ""
    return ", ".join(listed[:6]) + more


def gibibytes(size: int) -> str:
    """A number of bytes as readable text: `1.5 GiB`."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.3g} {unit}"
    return f"{size} bytes"
