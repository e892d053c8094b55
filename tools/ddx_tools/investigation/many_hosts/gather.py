"""Captures many hosts: their rows, and for the others the reason why they did not answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.many_hosts.fan_out import (
    INSTALL,
    FanOutLimits,
    HostReplies,
    ask_all,
    command_line,
    programs_at_once,
)
from ddx_tools.investigation.many_hosts.host_results import Made, decoded, joined, renamed
from ddx_tools.investigation.many_hosts.looked_from_here import looked_from_here
from ddx_tools.investigation.many_hosts.merge import BundlePart
from ddx_tools.investigation.many_hosts.node import encoded
from ddx_tools.investigation.session.plan import Step
from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.model.version import __version__
from ddx_tools.sources.asked_host import AskedHost
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.cluster.targets import Reach, reasons
from ddx_tools.sources.packed_bundle import unpack

_LEAD_S = 1.0
_LEAD_A_HOST_S = 0.008
"""Programs start one after another, here and there, before all can capture at the same moment."""
_GATEWAYS_S = 2.0
"""Time to log in to a gateway and start it, and for its reports about hosts that do not answer."""
_JUDGING_S = 4.0
_JUDGING_A_HOST_S = 0.006
"""The part of the time for the answer that is reserved for our own start and for the judgement after the last host."""
_MOST_SHOWN = 8
_AT_ONCE = 50
"""The rows of this many hosts are held before they go into the store."""


@dataclass
class HostsGathered:
    """The result of asking many hosts; their rows are in the store."""

    asked: list[AskedHost] = field(default_factory=list)
    said: Made = field(default_factory=Made)
    """The merged results of all hosts, without the rows."""
    parts: list[BundlePart] = field(default_factory=list)
    """Their bundles, if the material was requested."""


def gather(
    reach: Reach,
    plan: Sequence[Step],
    store: Store,
    scratch: Path,
    progress: Callable[[str], None],
    *,
    raw: bool = False,
) -> HostsGathered:
    """Run a plan on all hosts and put their rows into the store; with `raw`, also fetch their bundles into `scratch`.

    Raises UsageError if no host answers.
    """
    by_gateways_s = _GATEWAYS_S if reach.gateways else 0.0
    lead_s = _LEAD_S + _LEAD_A_HOST_S * len(reach.hosts) + by_gateways_s
    waiting_s = reach.total_s - min(_JUDGING_S + _JUDGING_A_HOST_S * len(reach.hosts), reach.total_s / 2)
    # A gateway that still answers first reports which of its hosts do not.
    host_s = min(FanOutLimits.host_s + lead_s, waiting_s - min(by_gateways_s, waiting_s / 2))
    limits = FanOutLimits(total_s=waiting_s, host_s=host_s, at_once=programs_at_once())
    began_s = time.monotonic()
    progress(f"asking {len(reach.hosts)} hosts")
    asked = ask_all(reach, _words(reach, plan, limits, time.time() + lead_s, raw=raw), scratch, limits, progress)
    judged = [one.judged(limits) for one in asked]
    looked = looked_from_here(reach, plan, judged, scratch, began_s + waiting_s, progress)
    judged = [looked[one.target].asked if one.target in looked else one for one in judged]
    names = Counter(said.host for said in judged if said.host)
    progress(f"reading the answers of {len(names)} hosts")
    gathered, waiting = HostsGathered(), list[Made]()
    for one, said in zip(asked, judged, strict=True):
        own = said.host if said.host and names[said.host] == 1 else said.target
        try:
            if from_here := looked.get(said.target):
                made, parts = from_here.made, _parts(from_here.directories if raw else [], own, said.host)
            else:
                made = [decoded(file.read_bytes(), said.host or "") for file in one.inbox.rows]
                parts = _parts(_checked(one, said.host), own, said.host)
            gathered.parts += parts
            waiting += made if own == said.host else [renamed(each, said.host or "", own) for each in made]
        except UnreadableInput as error:
            there = (one.inbox.hello or {}).get("ddx", __version__)
            other = {
                "state": "no_ddx",
                "reason": f"it has ddx {str(there)[:20]}, this machine {__version__}",
                "remedy": INSTALL,
            }
            damaged = {"state": "garbled", "reason": f"its answer is damaged: {error.message}"}
            said = said.model_copy(update=damaged if there == __version__ else other)
        gathered.asked.append(said.model_copy(update={"host": own if said.host else None}))
        if len(waiting) >= _AT_ONCE:
            _take_in(waiting, store, gathered.said)
    _take_in(waiting, store, gathered.said)
    if not gathered.said.results:
        raise _nobody(gathered.asked)
    return gathered


def _take_in(waiting: list[Made], store: Store, all_said: Made) -> None:
    store.insert(joined(waiting))
    for made in waiting:
        all_said.results += made.results
        all_said.missing += made.missing
        all_said.opens |= made.opens
        all_said.origins |= made.origins
    waiting.clear()


def _words(reach: Reach, plan: Sequence[Step], limits: FanOutLimits, at_s: float, *, raw: bool) -> str:
    """The command for each host; it ends there by itself, even if nobody waits for it any more."""
    words = ["node", "--plan", encoded(plan), "--most-bytes", str(limits.host_bytes)]
    if len(reach.hosts) <= limits.at_once:
        words += ["--at", f"{at_s:.2f}"]
    if raw:
        words.append("--raw")
    if reach.job:
        words += ["--job", reach.job]
    return command_line(reach, *words, before=("timeout", "-k", "2", f"{max(1.0, limits.host_s - 1.0):g}"))


def _parts(directories: Sequence[Path], own: str, calls_itself: str | None) -> list[BundlePart]:
    return [BundlePart(directory, host=own if own != calls_itself else None) for directory in directories]


def _checked(one: HostReplies, calls_itself: str | None) -> list[Path]:
    """Unpack a host's bundles and check that they are about that host only. Raises UnreadableInput."""
    directories = []
    for packed in one.inbox.parts:
        directory = packed.with_suffix(".unpacked")
        unpack(packed, directory)
        packed.unlink()
        there = {str(file.relative_to(directory)) for file in directory.rglob("*")}
        with Bundle(directory) as bundle:
            for entry in bundle.manifest.journal:
                if entry.path and (entry.content or entry.path) not in there:
                    raise UnreadableInput(f"{entry.path[:120]!r} is missing from it")
            strangers = {entry.host for entry in bundle.manifest.journal} - {calls_itself}
        if strangers:
            raise UnreadableInput(f"it answers for another host: {min(strangers)[:60]!r}")
        directories.append(directory)
    return directories


def _nobody(asked: Sequence[AskedHost]) -> UsageError:
    lines = [f"  {line}" for line in reasons(asked)]
    return UsageError(f"none of {len(asked)} hosts answered", "\n".join(lines[:_MOST_SHOWN]))
