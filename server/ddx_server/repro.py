"""`ddx repro`: writes a minimal script that reproduces a collective fault found in a bundle, flight records or logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ddx_server.render.output import (
    EXIT_DIAGNOSED,
    EXIT_UNDECIDED,
    JSON_OPTION,
    TARGET,
    console,
    print_json,
    progress_line,
)
from ddx_server.render.safe_text import safe

if TYPE_CHECKING:
    from ddx_tools.repro.run import ReproRun

_MOST_BYTES = 4 << 30


def repro(
    target: TARGET = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The script to write; an existing file is replaced.")] = Path(
        "repro.py"
    ),
    tiny: Annotated[bool, typer.Option("--tiny", help="Use small tensors, in the same order of size.")] = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Run the script and its healthy twin here, to prove that it reproduces the fault. This starts "
            "processes; without --run, ddx only writes the file.",
        ),
    ] = False,
    backend: Annotated[
        Literal["gloo", "nccl"], typer.Option(help="With --run: the backend; nccl needs one GPU per rank.")
    ] = ("gloo"),
    deadline: Annotated[
        float, typer.Option(min=1, help="With --run: it counts as hung after this many seconds without progress.")
    ] = 20.0,
    as_json: JSON_OPTION = False,
) -> None:
    """Write the smallest script that repeats what the ranks did: same groups, operations, sizes, types and order.

    `python repro.py` then hangs or fails like the job; `python repro.py --healthy` runs to completion. The exit code
    with --run is 1 if it reproduces, 3 if not.
    """
    from ddx_tools.evidence.store import Store
    from ddx_tools.investigation.exports import write_file
    from ddx_tools.investigation.run import investigate
    from ddx_tools.model.errors import UsageError
    from ddx_tools.repro.run import run_script
    from ddx_tools.repro.script import reproduce

    with progress_line(quiet=as_json) as progress, Store() as store:
        diagnosis = investigate(target or [], progress=progress, store=store).diagnose()
        made = reproduce(store, diagnosis, tiny=tiny)
        write_file(out, made.text)
        ran: list[ReproRun] = []
        if run:
            if made.bytes_a_rank > _MOST_BYTES:
                raise UsageError(f"{out} needs {made.bytes_a_rank >> 30} GiB per call", "Add --tiny.")
            for healthy in (False, True):
                progress(f"running {out}{' --healthy' if healthy else ''}")
                ran.append(run_script(out, healthy=healthy, backend=backend, deadline_s=deadline))
    reproduces = [each.through for each in ran] == [False, True]
    if as_json:
        told = {"script": str(out), "ranks": made.ranks, "left_out": made.left_out}
        runs = {"reproduces": reproduces, "fault": ran[0].lines, "healthy": ran[1].lines} if ran else {}
        print_json(json.dumps(told | runs, indent=2))
    else:
        console().print(safe(f"{out}: {len(made.ranks)} ranks    run it: python {out}    its twin: --healthy"))
        for title, each in zip(("as recorded:", "healthy twin:"), ran, strict=False):
            console().print(safe(title))
            console().print(safe("\n".join(f"  {line}" for line in each.lines), limit=4000))
        if ran:
            console().print(safe("it reproduces" if reproduces else "it does not reproduce"))
        console().print(safe("left out: " + "; ".join(made.left_out), "dim", limit=4000))
    if ran:
        raise typer.Exit(EXIT_DIAGNOSED if reproduces else EXIT_UNDECIDED)
