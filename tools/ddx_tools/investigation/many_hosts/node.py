"""One host's part among many: capture at a given time, write the packed result to standard output, leave no files."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from ddx_tools.investigation.many_hosts.host_results import made_of
from ddx_tools.investigation.many_hosts.wire import note, parcel
from ddx_tools.investigation.session.capture import Captured, capture_here
from ddx_tools.investigation.session.plan import Step, live_plan
from ddx_tools.model.errors import DdxError, UsageError
from ddx_tools.model.version import __version__
from ddx_tools.parsers.launch.launchers import Job, find_jobs
from ddx_tools.probes.registry import probe
from ddx_tools.sources.bundle import Manifest
from ddx_tools.sources.host import Host
from ddx_tools.sources.packed_bundle import MANIFEST, pack
from ddx_tools.sources.temporary import temporary_directory

_LONGEST_WAIT_S = 15.0
_WITHOUT_JOB = ("jobs", "host")
"""The probes for a host without a job: whether one runs, and whether the machine is healthy."""
_AT_FIRST = 2
"""The results of this many probes are sent first, so that they are not lost if a later probe hangs."""


def encoded(plan: Sequence[Step]) -> str:
    """Encode a plan as one word that no shell splits."""
    return base64.urlsafe_b64encode(json.dumps([[step.probe.id, step.args] for step in plan]).encode()).decode()


def _decoded(word: str) -> list[Step]:
    try:
        steps = [Step(probe(str(id_)), dict(args)) for id_, args in json.loads(base64.urlsafe_b64decode(word))]
    except (ValueError, TypeError) as error:
        raise UsageError(f"not a plan: {word[:60]}", "`ddx why --hosts …` makes one.") from error
    if unsafe := next((step.probe.id for step in steps if not step.probe.read_only), None):
        raise UsageError(f"{unsafe} does more than read", "Start it on the host itself.")
    return steps


def answer(
    out: BinaryIO,
    host: Host,
    *,
    plan: str = "",
    at: float | None = None,
    job: str = "",
    most_bytes: int,
    raw: bool = False,
) -> None:
    """Capture this host by an encoded plan and write the results to `out` in the line protocol.

    An empty `plan` means that of `ddx why`. The capture starts at `at`, in seconds since the epoch; None means at once.
    `job` (`NAME=VALUE`) selects one of several jobs. `most_bytes` limits the results; with `raw`, the captured files
    are sent as well, not only table rows.
    """

    def say(kind: str, **facts: Any) -> None:
        out.write(note(kind, clock_s=round(time.time(), 4), **facts))
        out.flush()

    say("hello", host=host.name, ddx=__version__)
    facts: dict[str, Any] = {}
    try:
        plan_here = _decoded(plan) if plan else live_plan([])
        # A clock that is far off must not keep everybody waiting.
        time.sleep(max(0.0, min(_LONGEST_WAIT_S, (at or 0.0) - time.time())))
        facts["jobs"], steps = steps_on(host, plan_here, job)
        with temporary_directory("node") as scratch:
            for directory, captured in captured_on(host, steps, Path(scratch)):
                made = made_of(captured).encoded(most_bytes)
                most_bytes -= len(made)
                out.writelines(parcel("rows", BytesIO(made)))
                if raw:
                    facts["left_out"] = facts.get("left_out", 0) + _pack_within(directory, most_bytes)
                    packed = directory.with_suffix(".tar.zst")
                    most_bytes -= packed.stat().st_size
                    with packed.open("rb") as stream:
                        out.writelines(parcel("part", stream))
                out.flush()
    except DdxError as error:
        facts["error"] = str(error)[:500]
    say("end", **facts)


def jobs_meant(jobs: Sequence[Job], wanted: str) -> Sequence[Job]:
    """The jobs whose processes have a variable with this value (`NAME=VALUE`); all jobs if `wanted` is empty."""
    name, _, value = wanted.partition("=")
    return [j for j in jobs if not name or any(m.process and m.process.env.get(name) == value for m in j.members)]


def steps_on(host: Host, plan: Sequence[Step], wanted: str) -> tuple[int, list[Step]]:
    """The number of jobs on a host, and the steps that apply there: about the wanted job if there are several."""
    jobs = find_jobs(json.loads(host.processes().data))
    if not jobs:
        return 0, [step for step in plan if step.probe.id in _WITHOUT_JOB]
    meant = jobs_meant(jobs, wanted)
    pids = [str(meant[0].live[0].pid)] if len(jobs) > 1 and len(meant) == 1 and meant[0].live else []
    return len(jobs), [Step(step.probe, {**step.args, "target": pids}) for step in plan]


def captured_on(host: Host, steps: Sequence[Step], scratch: Path) -> Iterator[tuple[Path, Captured]]:
    """Run the steps on a host in two batches and yield (bundle directory, capture) after each.

    The first steps of the plan come first, so that their results can be sent before the rest is captured.
    """
    for number, some in enumerate((steps[:_AT_FIRST], steps[_AT_FIRST:])):
        if some:
            directory = scratch / str(number)
            with capture_here(some, directory, (), lambda _: host, patient=True) as captured:
                pass  # The bundle is complete at the end of this block.
            yield directory, captured


def _pack_within(directory: Path, most_bytes: int) -> int:
    """Write `<directory>.tar.zst`, without the largest files if necessary; return how many were left out."""
    packed, left_out = directory.with_suffix(".tar.zst"), 0
    pack(directory, packed)
    while packed.stat().st_size > most_bytes:
        files = sorted((directory / "raw").glob("*"), key=lambda file: file.stat().st_size)
        if not files:
            break
        # Half of the excess at a time, so that the rest is packed only a few times.
        for file in files[len(files) // 2 :]:
            file.unlink()
        left_out += _forget(directory, {f"raw/{file.name}" for file in files[len(files) // 2 :]})
        packed.unlink()
        pack(directory, packed)
    return left_out


def _forget(directory: Path, files: set[str]) -> int:
    """Record in the journal that these files were not sent; return their number."""
    manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    entries = [entry for entry in manifest.journal if entry.content in files]
    for entry in entries:
        entry.path = entry.content = None
        entry.error, entry.message = "failed", "too large to send: read it on the host itself"
    (directory / MANIFEST).write_text(manifest.model_dump_json(by_alias=True), encoding="utf-8")
    return len(entries)
