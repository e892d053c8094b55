"""One look at many hosts, which becomes one bundle: what a host sent, and of the others why they did not."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ddx_tools.captures import capture_only
from ddx_tools.cluster.asked_host import AskedHost
from ddx_tools.cluster.fan_out import Asked, Limits, ask_all
from ddx_tools.cluster.merge import Part, merge
from ddx_tools.cluster.node import encoded
from ddx_tools.cluster.reasons import reasons
from ddx_tools.cluster.targets import Reach
from ddx_tools.errors import UnreadableInput, UsageError
from ddx_tools.plan import Step, file_plan
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.packed_bundle import PACKED_SUFFIX, unpack
from ddx_tools.sources.temporary import temporary_directory

_LEAD_S = 1.0
_LEAD_A_HOST_S = 0.01
"""Programs are started one after the other, here and there, before all can look at the same moment."""
_MOST_SHOWN = 8


def gather(
    reach: Reach,
    plan: Sequence[Step],
    paths: Sequence[str],
    directory: Path,
    progress: Callable[[str], None],
) -> None:
    """Write the bundle `directory` of what all hosts answer to a plan, and of files that somebody brought besides.

    Raises UsageError if no host answers.
    """
    limits = Limits(total_s=reach.total_s, host_s=min(Limits.host_s, reach.total_s))
    with temporary_directory("hosts") as name:
        scratch = Path(name)
        progress(f"asking {len(reach.hosts)} hosts")
        asked = ask_all(reach, _words(reach, plan, limits), scratch, limits, progress)
        found = [(one, one.judged(limits)) for one in asked]
        names = Counter(said.host for one, said in found if one.inbox.parts)
        parts: list[Part] = []
        for number, (one, said) in enumerate(found):
            own = said.host if said.host and names[said.host] == 1 else said.target
            try:
                parts += _checked(one, own, said.host)
            except UnreadableInput as error:
                said = said.model_copy(update={"state": "garbled", "reason": f"its answer is damaged: {error.message}"})
            found[number] = (one, said.model_copy(update={"host": own if said.host else None}))
        if not parts:
            raise _nobody([said for _, said in found])
        if paths:
            capture_only(file_plan(paths), scratch / "brought", paths, LocalHost)
            parts.append(Part(scratch / "brought"))
        progress(f"putting together what {len(names)} hosts said")
        merge(parts, directory, [said for _, said in found])


def _words(reach: Reach, plan: Sequence[Step], limits: Limits) -> str:
    """What is started on each host: it ends there by itself, also if nobody waits for it any more."""
    ddx = reach.ddx or str(Path(sys.executable).with_name("ddx"))
    words = ["timeout", "-k", "2", f"{max(1.0, limits.host_s - 1.0):g}", ddx, "node", "--plan", encoded(plan)]
    words += ["--most-bytes", str(limits.host_bytes)]
    if len(reach.hosts) <= limits.at_once:
        words += ["--at", f"{time.time() + _LEAD_S + _LEAD_A_HOST_S * len(reach.hosts):.2f}"]
    if reach.job:
        words += ["--job", reach.job]
    if shlex.join(words) != " ".join(words):
        raise UsageError(f"{ddx}: a path that shells take apart", "Set DDX_ON_HOSTS to a plain one.")
    return " ".join(words)


def _checked(one: Asked, own: str, calls_itself: str | None) -> list[Part]:
    """The bundles of a host, each about that host alone, unpacked. Raises UnreadableInput."""
    parts = []
    for packed in one.inbox.parts:
        directory = packed.with_name(packed.name.removesuffix(PACKED_SUFFIX))
        unpack(packed, directory)
        packed.unlink()
        there = {str(file.relative_to(directory)) for file in directory.rglob("*")}
        with Bundle(directory) as bundle:
            for entry in bundle.manifest.journal:
                if entry.path and (entry.content or entry.path) not in there:
                    raise UnreadableInput(f"it lacks {entry.path[:120]!r}")
            strangers = {entry.host for entry in bundle.manifest.journal} - {calls_itself}
        if strangers:
            raise UnreadableInput(f"it speaks for {min(strangers)[:60]!r}")
        parts.append(Part(directory, host=own if own != calls_itself else None))
    return parts


def _nobody(asked: Sequence[AskedHost]) -> UsageError:
    lines = [f"  {line}" for line in reasons(asked)]
    return UsageError(f"none of {len(asked)} hosts answered", "\n".join(lines[:_MOST_SHOWN]))
