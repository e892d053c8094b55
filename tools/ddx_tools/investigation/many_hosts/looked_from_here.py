"""Captures hosts without ddx from here: the program that answers host calls is sent there, the probes run here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddx_tools.investigation.many_hosts.host_results import Made, made_of
from ddx_tools.investigation.many_hosts.node import captured_on, steps_on
from ddx_tools.investigation.session.plan import Step
from ddx_tools.model.errors import DdxError
from ddx_tools.sources.asked_host import AskedHost
from ddx_tools.sources.cluster.targets import Reach
from ddx_tools.sources.remote.archive import archive
from ddx_tools.sources.remote.remote_host import PYTHON_THERE, NoAgent, RemoteHost

_CONNECT_S = 5
_AT_ONCE = 32
"""The probes for a host run here: more at a time would use up this machine's memory."""
_LEAST_S = 3.0


@dataclass
class LookedFromHere:
    """The result of capturing one host from here."""

    asked: AskedHost
    made: list[Made] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    """The host's bundles."""


def looked_from_here(
    reach: Reach,
    plan: Sequence[Step],
    asked: Sequence[AskedHost],
    scratch: Path,
    until_s: float,
    progress: Callable[[str], None],
) -> dict[str, LookedFromHere]:
    """Run a plan on the hosts without ddx, until `until_s` on the monotonic clock; return the results by target."""
    without = [one for one in asked if one.state == "no_ddx"]
    if not without or reach.gateways or until_s - time.monotonic() < _LEAST_S:
        return {}
    progress(f"{len(without)} hosts have no ddx: capturing them from here")
    try:
        archive()  # built once, before several threads need it
    except DdxError as error:
        return {one.target: LookedFromHere(_not_looked_at(one, error)) for one in without}

    def one_host(number: int, one: AskedHost) -> LookedFromHere:
        return _from_here(reach, plan, one, scratch / f"from-here-{number}", until_s)

    with ThreadPoolExecutor(min(_AT_ONCE, len(without))) as pool:
        return {found.asked.target: found for found in pool.map(one_host, range(len(without)), without)}


def _from_here(reach: Reach, plan: Sequence[Step], one: AskedHost, scratch: Path, until_s: float) -> LookedFromHere:
    seconds = until_s - time.monotonic()
    began, began_s = time.time(), time.monotonic()
    # It ends there by itself, even if nobody waits for it any more.
    words = ["timeout", "-k", "2", f"{max(1.0, seconds):.0f}", *PYTHON_THERE]
    looked, done = LookedFromHere(one), dict[str, Any]()
    try:
        with RemoteHost([*reach.typed_to(one.target, _CONNECT_S), *words], max(0.1, seconds)) as host:
            heard = time.time()
            looked.asked = one.model_copy(
                update={
                    "host": host.name,
                    "clock_low_s": round(host.clock_s - heard, 3),
                    "clock_high_s": round(host.clock_s - began, 3),
                }
            )
            state, reason = "answered", ""
            try:
                jobs, steps = steps_on(host, plan, reach.job)
                scratch.mkdir()
                for directory, captured in captured_on(host, steps, scratch):
                    looked.made.append(made_of(captured))
                    looked.directories.append(directory)
            except DdxError as error:
                jobs, state, reason = None, "in_part", error.message[:500]
            done = {"state": state, "reason": reason, "remedy": "", "jobs": jobs, "size_bytes": host.size_bytes}
    except NoAgent as error:
        looked.asked = _not_looked_at(one, error)
    done["seconds"] = round(time.monotonic() - began_s, 2)
    looked.asked = looked.asked.model_copy(update=done)
    return looked


def _not_looked_at(one: AskedHost, error: DdxError) -> AskedHost:
    return one.model_copy(update={"reason": f"{one.reason}; {error.message}"[:500]})
