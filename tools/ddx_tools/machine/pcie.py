"""Findings about PCIe links that came up with fewer lanes than they could."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.machine.seen import Seen, by_host, devices_text, finding, of_topic
from ddx_tools.model import Finding, Severity


def link_width_findings(facts: list[Seen]) -> Iterator[Finding]:
    """Accelerators and network devices on narrowed links. The speed of an idle link falls to save power: no fault."""
    for links in by_host(of_topic(facts, "pcie_link")).values():
        last = {link.subject: link for link in links}
        narrow = [link for link in last.values() if link.values["narrowed"]]
        if not narrow:
            continue
        widths = sorted({link.values["width"] for link in narrow})
        whole = max((link.values["width"] for link in last.values() if link not in narrow), default=None)
        possible = max((link.values["possible"] for link in narrow if "possible" in link.values), default=whole)
        names = devices_text(str(link.subject) for link in narrow)
        among = f" ({len(narrow)} of {len(last)} devices)" if len(last) > 1 else ""
        yield finding(
            "host.pcie_link_narrow",
            Severity.WARNING,
            narrow,
            f"The PCIe link of {names} runs with {widths[0]} lanes"
            + (f" instead of {possible}" if possible else ", fewer than it could")
            + f"{among}.",
            devices=[str(link.subject) for link in narrow][:64],
            kinds=sorted({link.values["kind"] for link in narrow if "kind" in link.values}),
            width=widths[0],
            possible=possible,
        )
