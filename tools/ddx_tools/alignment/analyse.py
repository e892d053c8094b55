"""All findings that flight records give, over the merged store of all ranks and hosts."""

from __future__ import annotations

from ddx_tools.alignment import simultaneity
from ddx_tools.alignment.matching import mismatches
from ddx_tools.alignment.p2p import point_to_point
from ddx_tools.alignment.records import Records, load
from ddx_tools.alignment.shift_findings import shifted_calls
from ddx_tools.alignment.wait_findings import waiting
from ddx_tools.alignment.waits import find_waits
from ddx_tools.model import Finding
from ddx_tools.store import Store


def analyse(store: Store) -> list[Finding]:
    """Findings, the most telling first."""
    records = load(store)
    return analyse_records(records) if records.ranks else []


def analyse_records(records: Records) -> list[Finding]:
    """Findings about records that are loaded already."""
    faults: list[Finding] = []
    deviating: dict[str, set[int]] = {}
    for key, group in sorted(records.groups.items()):
        matched = mismatches(group)
        blamed = {rank for finding in matched if not finding.attributes["tie"] for rank in finding.ranks}
        shifted = shifted_calls(group, blamed)
        deviating[key] = {
            rank
            for finding in (*matched, *shifted)
            if not finding.attributes["tie"] and finding.code != "collective.dtype_mismatch"
            for rank in finding.ranks
        }
        faults += [_with_origin(finding, shifted) for finding in matched] + shifted
    waits = find_waits(records, deviating)
    faults += waiting(records, waits)
    faults += point_to_point(records)
    about = [
        finding
        for finding in (simultaneity.missing_records(records), simultaneity.different_moments(records, waits))
        if finding is not None
    ]
    if not faults and not about and len(records.ranks) > 1 and simultaneity.overlap(records):
        about.append(simultaneity.consistent(records))
    return faults + about


def _with_origin(finding: Finding, shifted: list[Finding]) -> Finding:
    """A different operation is often only where an earlier shift of the calls comes to light."""
    earlier = [each for each in shifted if each.attributes["seq"] <= finding.attributes["seq"]]
    if not earlier or finding.code != "collective.operation_mismatch":
        return finding
    first = min(earlier, key=lambda each: int(each.attributes["seq"]))
    origin = {key: first.attributes[key] for key in ("seq", "kind", "call", "shift")}
    origin["ranks"] = first.ranks
    return finding.model_copy(update={"attributes": {**finding.attributes, "first_site_divergence": origin}})
