"""`ddx capture`, `ddx collect` and `ddx bundle`: evidence in one file, and what is in it; `ddx show`: the lines that
evidence refers to."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ddx_server.bundle_place import name_of_bundle, place_of_bundle
from ddx_server.host_options import (
    DEADLINE_OPTION,
    GATEWAYS_OPTION,
    HOSTS_OPTION,
    K8S_OPTION,
    SLURM_OPTION,
    VIA_OPTION,
    reach,
)
from ddx_server.render.output import FORCE_OPTION, JSON_OPTION, TARGET, console, print_json, progress_line
from ddx_server.render.safe_text import safe
from ddx_tools.model.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Inspect bundles.")


@app.callback()
def _bundle() -> None: ...


@app.command()
def inspect(
    bundle: Annotated[Path, typer.Argument(help="A bundle: a directory, or a .tar.zst.", show_default=False)],
    as_json: JSON_OPTION = False,
) -> None:
    """List every answer in a bundle, with its size, so that you can look through it before you share it.

    Known kinds of secrets were replaced when the bundle was made; names of hosts, users, files and people were not.
    """
    found = _found(bundle)
    if as_json:
        print_json(json.dumps(found, indent=1))
        return
    from rich.table import Table

    made = f"{found['schema']}, made {found['created']} by ddx {found['ddx_version']}"
    table = Table(title=made, title_justify="left")
    for name in ("host", "asked by", "what", "bytes", "file"):
        table.add_column(name, justify="right" if name == "bytes" else "left", overflow="fold")
    for answer in found["answers"]:
        row = (answer["host"], answer["section"], answer["asked"], str(answer["size_bytes"]), answer["file"])
        table.add_row(*(safe(text, limit=300) for text in row))
    console().print(table)
    sizes = f"{len(found['answers'])} answers in {found['files']} files, {found['size_bytes']} bytes"
    unanswered = ", ".join(f"{count} {error}" for error, count in found["unanswered"].items())
    console().print(safe(f"{sizes}; unanswered: {unanswered or 'none'}", "dim"))


def show(
    words: Annotated[
        list[str],
        typer.Argument(
            help="ranks; rank 77; waits; waits 77; group mesh_dp; collective mesh_dp 350; record PATH#15; "
            "material rank3.log:41",
            show_default=False,
        ),
    ],
    of: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="The diagnosed target: a bundle, files, a pid. Default: the job on this host.",
            metavar="TARGET",
        ),
    ] = None,
    dot: Annotated[
        bool, typer.Option("--dot", help="For waits: print the graph in Graphviz's language, for dot -Tsvg.")
    ] = False,
    as_json: JSON_OPTION = False,
) -> None:
    """Show a source that an answer names: a rank, waits, a group, a collective, a record, lines around a place."""
    from ddx_tools.investigation.lookup import look

    with progress_line(quiet=as_json) as progress:
        shown = look(words, of or [], progress, dot=dot)
    if as_json:
        print_json(json.dumps({"show": " ".join(words), "lines": [text for _, text in shown.lines]}))
        return
    for number, text in shown.lines:
        label = "" if number is None else f"{number:>7}  "
        console().print(safe(label + text, "bold" if number == shown.what.number else "", limit=4000), soft_wrap=True)


def capture(
    target: TARGET = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="New directory, or a file name ending in .tar.zst. Default: incident-<time>-<job>.tar.zst.",
            show_default=False,
        ),
    ] = None,
    force: FORCE_OPTION = False,
    hosts: HOSTS_OPTION = "",
    slurm: SLURM_OPTION = "",
    k8s: K8S_OPTION = "",
    via: VIA_OPTION = "",
    gateways: GATEWAYS_OPTION = "",
    deadline: DEADLINE_OPTION = 60.0,
    as_json: JSON_OPTION = False,
) -> None:
    """Save all evidence as a bundle, to diagnose later or elsewhere."""
    from ddx_tools.investigation.run import investigate

    out = out or name_of_bundle(target or [])
    with progress_line(quiet=as_json) as progress, place_of_bundle(out, force=force) as place:
        found = investigate(target or [], place, progress, reach=reach(hosts, slurm, k8s, via, gateways, deadline))
    if as_json:
        print_json(json.dumps({"bundle": str(out), "missing": [m.model_dump() for m in found.missing]}, indent=2))
    else:
        console().print(safe(f"captured: {out}    diagnose: ddx why {out}"))


def collect(
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.", metavar="FILE")] = Path(
        "ddx-collect.pyz"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file of that name.")] = False,
) -> None:
    """Write a program that copies a job's evidence into one file, on hosts that have no ddx and that ddx cannot reach.

    It needs Python 3.8 or later there, no package and no network. Copy it to every host of the job, run it, and bring
    the files back.
    """
    from ddx_tools.investigation.exports import write_file
    from ddx_tools.sources.remote.archive import COLLECTOR, archive

    if out.exists() and not force:
        raise UsageError(f"{out} already exists", "Use another name, or replace it: --force")
    write_file(out, archive(COLLECTOR))
    console().print(safe(f"written: {out}    on each host of the job: python3 {out.name}    then: ddx why *.tar.gz"))


def _found(path: Path) -> dict[str, Any]:
    from ddx_tools.sources.bundle import Bundle

    with Bundle(path) as bundle:
        manifest = bundle.manifest
        kept = {entry.path: bundle.names[entry.path] for entry in manifest.journal if entry.path}
        sizes = {file: bundle.file(file).stat().st_size for file in set(kept.values())}
        answers = [
            {
                "host": entry.host,
                "section": entry.section or entry.path.split("/")[2],
                "asked": f"{entry.op} {entry.key}",
                "size_bytes": sizes[kept[entry.path]],
                "file": kept[entry.path],
            }
            for entry in manifest.journal
            if entry.path
        ]
        return {
            "schema": manifest.schema_,
            "created": manifest.created,
            "ddx_version": manifest.ddx_version,
            "target": manifest.target,
            "hosts": manifest.hosts,
            "answers": answers,
            "files": len(sizes),
            "size_bytes": sum(sizes.values()),
            "unanswered": dict(Counter(entry.error for entry in manifest.journal if entry.error)),
        }
