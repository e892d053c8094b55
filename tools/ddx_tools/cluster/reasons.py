"""Why hosts did not answer, for a person: those with the same reason in one line."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.cluster.asked_host import AskedHost
from ddx_tools.cluster.targets import folded


def reasons(asked: Sequence[AskedHost]) -> list[str]:
    """`node[3,7]: Connection refused. No sshd listens there …`"""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for one in asked:
        if one.state != "answered":
            by_reason.setdefault((one.reason, one.remedy), []).append(one.target)
    return [f"{folded(hosts)}: {reason}. {remedy}".strip() for (reason, remedy), hosts in by_reason.items()]
