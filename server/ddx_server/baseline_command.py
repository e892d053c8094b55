"""`ddx baseline`: the figures of a healthy run, and how a job differs from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddx_server.render.output import JSON_OPTION, console, print_json, progress_line
from ddx_server.render.safe_text import safe

if TYPE_CHECKING:
    from ddx_tools.evidence.store import Store
    from ddx_tools.investigation.result import Investigation
    from ddx_tools.model.baseline import Baseline
    from ddx_tools.model.diagnosis import Differs

GOOD_OPTION = Annotated[
    Path | None,
    typer.Option(
        "--good",
        metavar="RUN",
        show_default=False,
        help="A healthy run (bundle, logs, records, or a file from ddx baseline): say how this run differs.",
    ),
]
_MOST_ASPECTS = 12


def baseline(
    run: Annotated[Path, typer.Argument(help="The bundle of a healthy run, or a file or directory of it.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; an existing one is replaced.")] = Path(
        "baseline.json"
    ),
    as_json: JSON_OPTION = False,
) -> None:
    """Save the figures of a healthy run, to compare later runs with.

    They are versions, variables, mesh, connections and rings, step time, printed rates, collectives per step and peak
    memory, as far as the run's material shows them. `ddx why --good` and `ddx post-mortem --baseline` read the file.
    """
    from ddx_tools.investigation.baseline import read_baseline
    from ddx_tools.investigation.exports import refuse_unwritable, write_file
    from ddx_tools.redaction.structures import redact_json

    refuse_unwritable(out)
    with progress_line(quiet=as_json) as progress:
        kept = read_baseline(run, progress)
    text = redact_json(kept.model_dump_json(by_alias=True, indent=2)) + "\n"
    write_file(out, text)
    if as_json:
        print_json(text)
        return
    for line in _told(kept):
        console().print(safe(line))
    console().print(safe(f"written: {out}    compare with it: ddx why JOB --good {out}", "dim"))


def beside_good_run(good: Path, store: Store, found: Investigation, progress: Callable[[str], None]) -> Differs:
    """How a job differs from a healthy run. Raises UsageError if `good` is not a run."""
    from ddx_tools.investigation.baseline import baseline_differences, baseline_of, read_baseline
    from ddx_tools.model.diagnosis import Aspect, Differs

    other = read_baseline(good, progress)
    differences = list(baseline_differences(baseline_of(store, found, good), other))
    aspects = [Aspect(what=one.what, suspect=one.here, peers=one.there) for one in differences[:_MOST_ASPECTS]]
    if not other.is_well:
        aspects.insert(0, Aspect(what="was it healthy?", suspect="-", peers=f"nothing shows that it was: {other.says}"))
    if len(differences) > _MOST_ASPECTS:
        aspects.append(Aspect(what="more", suspect=f"{len(differences) - _MOST_ASPECTS} more differ", peers=""))
    return Differs(suspect="this run", peers=str(good), aspects=aspects)


def _told(kept: Baseline) -> list[str]:
    """The lines that a person checks before the run becomes the reference for others."""
    from ddx_tools.investigation.baseline import figure

    step = f"{figure(kept.step_s.median)} s (median of {kept.step_s.count})" if kept.step_s else "unknown"
    peak = f"{kept.memory_peak_bytes / 2**30:.2f} GiB" if kept.memory_peak_bytes else "unknown"
    rates = ", ".join(f"{name} {figure(spread.median)}" for name, spread in kept.rates.items()) or "none printed"
    mesh = ", ".join(f"{name} {size}" for name, size in kept.mesh.items()) or "unknown"
    versions = ", ".join(f"{name} {version}" for name, version in kept.versions.items()) or "unknown"
    return [
        f"the run    {kept.says}" if kept.is_well else f"the run    nothing shows that it was healthy: {kept.says}",
        f"ranks      {kept.world_size or 'unknown'}; mesh {mesh}",
        f"versions   {versions}; {len(kept.settings)} variables",
        f"step time  {step}; rates: {rates}",
        f"memory     peak {peak}",
    ]
