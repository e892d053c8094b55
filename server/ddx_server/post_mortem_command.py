"""`ddx post-mortem`: writes an incident's post-mortem as far as the evidence goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddx_server.render.output import JSON_OPTION, console, exit_with, print_json, progress_line
from ddx_server.render.safe_text import safe

if TYPE_CHECKING:
    from ddx_server.post_mortem.document import PostMortemFacts
    from ddx_tools.evidence.store import Store
    from ddx_tools.model.diagnosis import Diagnosis


def post_mortem(
    target: Annotated[
        list[str],
        typer.Argument(help="A bundle, or files and directories of the failed job.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The document to write; an existing one is replaced.")
    ] = Path("post-mortem.md"),
    baseline: Annotated[
        Path | None, typer.Option(help="A healthy run: its bundle, logs or records.", metavar="RUN")
    ] = None,
    fixed: Annotated[
        Path | None, typer.Option(help="A run with the fix; if it is healthy, it proves the fix.", metavar="RUN")
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option(help="The checkout of the program that ran, to name the commit of each line.", metavar="DIR"),
    ] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Write a job's post-mortem: impact, timeline, diagnosis, root cause, reproducer, fix, proof, prevention.

    It is filled in from the evidence, with quotes and the commands that show them again. Questions mark what the
    evidence does not say. If the fault can be reproduced, the script of `ddx repro` is written beside the document.
    """
    from ddx_server.post_mortem.document import post_mortem as document
    from ddx_server.post_mortem.document import sections
    from ddx_tools.investigation.exports import refuse_unwritable, write_file

    refuse_unwritable(out)
    with progress_line(quiet=as_json) as progress:
        facts = _facts(target, out, baseline, fixed, repo, progress)
    write_file(out, document(facts))
    asked = sum(len(section.questions) for section in sections(facts))
    if as_json:
        script = str(facts.repro) if facts.repro else None
        print_json(json.dumps({"post_mortem": str(out), "questions": asked, "reproducer": script}))
    else:
        console().print(safe(f"{facts.said.verdict.upper()}  {facts.said.headline}", "bold"))
        beside = f", and its reproducer: {facts.repro}" if facts.repro else ""
        console().print(safe(f"written: {out}, with {asked} questions left for you to answer{beside}"))
    exit_with(facts.said)


def _facts(
    target: list[str], out: Path, baseline: Path | None, fixed: Path | None, repo: Path | None,
    progress: Callable[[str], None],
) -> PostMortemFacts:  # fmt: skip
    from ddx_server.post_mortem.blamed_lines import blamed_lines
    from ddx_server.post_mortem.compared_run import compared_run
    from ddx_server.post_mortem.document import PostMortemFacts
    from ddx_server.post_mortem.moments import job_moments
    from ddx_server.post_mortem.places import lines_to_blame, was_under_run
    from ddx_tools.diagnosis.playbook import load_playbooks
    from ddx_tools.evidence.store import Store
    from ddx_tools.investigation.baseline import baseline_of
    from ddx_tools.investigation.run import investigate

    with Store() as store:
        found = investigate(target, progress=progress, store=store)
        said = found.diagnose()
        blamed = {*said.culprits.ranks, *(rank for suspect in said.suspects for rank in suspect.ranks)}
        moments = job_moments(store, said.victims.ranks, blamed)
        script, no_repro = _reproducer(store, said, out)
        failed = baseline_of(store, found, Path(target[0]))
        to_blame = lines_to_blame(store, said)
        ranks = {*found.seats, *(found.waits.graph.ranks if found.waits else ()), *said.victims.ranks, *blamed}
        on_gpus = bool(store.query("SELECT 1 FROM fr_calls WHERE backend IN ('nccl', 'xccl', 'rccl') LIMIT 1"))
    progress("comparing runs")
    first = load_playbooks().causes.get(said.causes[0].id) if said.causes else None
    return PostMortemFacts(
        said=said,
        target=target,
        ranks=len(ranks),
        hosts=_count_of_hosts(seat.host for seat in found.seats.values()),
        on_gpus=on_gpus,
        moments=moments,
        blamed=blamed_lines(repo, to_blame) if repo else (),
        under_run=was_under_run(target),
        repo=repo,
        repro=script,
        no_repro=no_repro,
        prevent=first.prevent if first and said.verdict == "diagnosed" else (),
        baseline=compared_run(baseline, failed, progress) if baseline else None,
        fixed=compared_run(fixed, failed, progress) if fixed else None,
    )


def _count_of_hosts(names: Iterable[str | None]) -> int:
    """How many hosts the names mean: torchrun says `localhost` of a host that other sources name."""
    known = {name for name in names if name}
    return len(known - {"localhost"}) or len(known)


def _reproducer(store: Store, said: Diagnosis, out: Path) -> tuple[Path | None, str]:
    """Write the reproducer beside the document; return its path, or None and the reason."""
    from ddx_tools.investigation.exports import write_file
    from ddx_tools.model.errors import UsageError
    from ddx_tools.repro.script import reproduce

    if said.verdict == "healthy":
        return None, "the job is healthy"
    try:
        made = reproduce(store, said, tiny=False)
    except UsageError as error:
        return None, error.message
    script = out.with_name(f"{out.stem}-repro.py")
    write_file(script, made.text)
    return script, ""
