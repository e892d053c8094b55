"""`ddx report`: writes an answer as one HTML file, to forward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ddx_server.baseline_command import GOOD_OPTION, beside_good_run
from ddx_server.host_options import (
    DEADLINE_OPTION,
    GATEWAYS_OPTION,
    HOSTS_OPTION,
    K8S_OPTION,
    SLURM_OPTION,
    VIA_OPTION,
    reach,
)
from ddx_server.render.output import JSON_OPTION, TARGET, console, exit_with, print_json, progress_line
from ddx_server.render.safe_text import safe

REPORT_OPTION = Annotated[
    Path | None,
    typer.Option(
        "--report", help="Also write the answer as one HTML page; an existing file is replaced.", metavar="FILE"
    ),
]


def refuse_page(out: Path | None) -> None:
    """Raise UsageError if a page cannot be written to this path, before anything is captured."""
    from ddx_tools.investigation.exports import refuse_unwritable

    if out:
        refuse_unwritable(out)


def report(
    target: TARGET = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The HTML file to write; an existing one is replaced.")
    ] = Path("report.html"),
    good: GOOD_OPTION = None,
    hosts: HOSTS_OPTION = "",
    slurm: SLURM_OPTION = "",
    k8s: K8S_OPTION = "",
    via: VIA_OPTION = "",
    gateways: GATEWAYS_OPTION = "",
    deadline: DEADLINE_OPTION = 60.0,
    as_json: JSON_OPTION = False,
) -> None:
    """Write the answer as one HTML page to forward: pictures, evidence, reasons. It loads nothing from the network.

    It is for people away from this terminal, such as on a phone at night. Known kinds of secrets are replaced. The exit
    code is that of the answer, as with `ddx why`.
    """
    from ddx_server.render.diagnosis import show_command
    from ddx_server.report.page import write_report
    from ddx_server.standard_input import on_disk
    from ddx_tools.evidence.store import Store
    from ddx_tools.investigation.run import investigate

    refuse_page(out)
    with progress_line(quiet=as_json) as progress, on_disk(target or []) as readable, Store() as store:
        on = reach(hosts, slurm, k8s, via, gateways, deadline)
        found = investigate(readable, progress=progress, store=store, reach=on)
        progress("judging")
        beside = beside_good_run(good, store, found, progress) if good else None
        said = found.diagnose().model_copy(update={"shown_by": show_command(target or []), "good_run": beside})
        progress("writing the report")
        size_bytes = write_report(out, store, found, said, readable)
    if as_json:
        print_json(json.dumps({"report": str(out), "size_bytes": size_bytes, "verdict": said.verdict}))
    else:
        console().print(safe(f"{said.verdict.upper()}  {said.headline}", "bold"))
        console().print(safe(f"written: {out} ({size_bytes / 1000:.0f} kB)"))
    exit_with(said)
