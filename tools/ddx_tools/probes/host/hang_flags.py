"""Findings about ranks on whose GPU an operation does not end, according to xpu_timer."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, finding, of_topic
from ddx_tools.model.diagnosis import Finding, Severity, rank_list


def hang_flag_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield one finding about ranks with an overdue operation, and one about ranks without any.

    xpu_timer's metrics show this; nothing is yielded if no operation is overdue. A rank without any may be late for
    what its peers wait in. Of several pages, the last one about a rank counts.
    """
    flags = {fact.values["rank"]: fact for fact in of_topic(facts, "hang_flag")}
    overdue = {rank: flag for rank, flag in sorted(flags.items()) if flag.values["overdue"]}
    others = {rank: flag for rank, flag in sorted(flags.items()) if rank not in overdue}
    if not overdue:
        return
    yield finding(
        "rank.operation_overdue",
        Severity.WARNING,
        overdue.values(),
        "xpu_timer reports a matrix multiplication or a collective that has run longer than its limit (300 s by "
        f"default) on {rank_list(list(overdue))}.",
        ranks=overdue,
        named=True,
        everybody=not others,
    )
    if others:
        yield finding(
            "rank.no_operation_overdue",
            Severity.NOTICE,
            others.values(),
            f"xpu_timer reports an operation that does not end on {rank_list(list(overdue))}, but none on "
            f"{rank_list(list(others))}.",
            ranks=others,
            named=True,
            overdue=list(overdue)[:64],
            minority=len(others) < len(overdue),
        )
