"""`ddx evals scores`: measures our own rules over whole splits of incidents and over simulated jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddx_evals.gate.command import gate
from ddx_evals.terminal.options import INCIDENTS, MARKDOWN, VIEWS, help_of
from ddx_server.render.output import JSON_OPTION, console, error_console, print_json
from ddx_tools.model.errors import UsageError

if TYPE_CHECKING:
    from ddx_evals.terminal.tables import ScoreTable

app = typer.Typer(
    no_args_is_help=True,
    help="Measure our own rules: causes, suspects, flight records, generalisation, hardness of the incidents.",
)

JOBS = Annotated[int, typer.Option(min=1, help="Number of simulated jobs, cycling through all kinds of fault.")]
FIRST_SEED = Annotated[int, typer.Option(help="First seed; the same seeds give the same jobs.")]
LARGEST = Annotated[int | None, typer.Option(metavar="RANKS", help="Skip larger jobs, which take most of the time.")]
PROCESSES = Annotated[int, typer.Option(min=1, help="Number of jobs simulated and judged in parallel.")]


def _print(
    tables: Sequence[ScoreTable], lines: Sequence[str], data: object, *, as_json: bool, markdown: Path | None = None
) -> None:
    """Print tables and the lines below them, or `data` as JSON; write the tables as Markdown to a file."""
    from ddx_evals.terminal import tables as printer

    if markdown:
        markdown.write_text("\n\n".join(map(printer.markdown, tables)) + "\n", encoding="utf-8")
    if as_json:
        print_json(json.dumps(data, indent=1))
        return
    for table in tables:
        if table.rows:
            printer.show(table, console())
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)


def causes(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Splits (dev), incidents (dev/0f3a) or directories. Default: public.",
            metavar="[INCIDENT]…",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show the next check of each incident.")] = False,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Score the causes that ddx why names: a quick check while writing playbooks.

    Only causes and next checks count, for the full view; `ddx evals run` scores the whole answer. First: the right
    cause is in first place. WRONG: diagnosed, and the first cause is wrong. Well asked: undecided, and the next check
    is the one that settled the incident. The exit code is 1 if any is confidently wrong.

    ddx evals scores causes public --verbose
    """
    from dataclasses import asdict

    from ddx_evals.incidents import named_incidents
    from ddx_evals.scores.causes import score, summary, table

    scores = [score(incident) for incident in named_incidents(names or ["public"])]
    counts = summary(scores)
    line = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
    data = {"summary": counts, "incidents": [asdict(each) for each in scores]}
    _print([table(scores, with_checks=verbose)], [line], data, as_json=as_json, markdown=markdown)
    raise typer.Exit(int(any(each.confidently_wrong for each in scores)))


def suspects(
    names: INCIDENTS = None, views: VIEWS = None, markdown: MARKDOWN = None, as_json: JSON_OPTION = False
) -> None:
    """Score the suspects apart from the causes: no cause page is used.

    The suspects of a view are exact if they are one of the sets of ranks that the truth blames. For healthy jobs, it
    counts those where no rank is named as seen. Each view with wrong suspects is a row.

    ddx evals scores suspects dev --view full
    """
    from dataclasses import asdict
    from functools import partial

    from ddx_evals.incidents import chosen_views, in_parallel, named_incidents
    from ddx_evals.scores.suspects import score, shares, table

    work = partial(score, views=chosen_views(views))
    scores = [each for some in in_parallel(work, named_incidents(names or [])) for each in some]
    counted = shares(scores)
    lines = [f"{name}: {right} of {every}" for name, (right, every) in counted.items()]
    data = {"shares": counted, "views": [asdict(each) for each in scores]}
    _print([table(scores)], lines, data, as_json=as_json, markdown=markdown)


def left_out(
    names: INCIDENTS = None,
    clauses: Annotated[
        bool, typer.Option("--clauses", help="Measure instead what each clause of the pages is worth.")
    ] = False,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Measure how well the rules generalise: judge each family of incidents as if it had never been seen.

    A family is a thread, a written case or a lab scenario. It is judged without the clauses that no other family meets,
    and without findings that occur only in it. Exact: the first cause is right, or a healthy job is called healthy.
    Node: a cause above the right one. Open: otherwise undecided. The exit code is 1 if any is confidently wrong.

    ddx evals scores left-out public written
    """
    from ddx_evals.incidents import in_parallel, named_incidents
    from ddx_evals.scores.left_out import calibration, grade, grades, left_out_answers, look_at, worth

    seen = list(in_parallel(look_at, named_incidents(names or [])))
    if clauses:
        table = worth(seen)
        _print([table], [], {"clauses": _records([table])}, as_json=as_json, markdown=markdown)
        return
    sides = {"as they are": [(one, one.found.diagnose()) for one in seen]}
    sides["each family left out"] = list(left_out_answers(seen))
    tables = [make(title, answers) for title, answers in sides.items() for make in (grades, calibration)]
    wrong = [one.family for one, said in sides["each family left out"] if grade(one.truth, said) == "wrong"]
    data = {"tables": _records(tables), "confidently_wrong": wrong}
    _print(tables, [f"confidently wrong: {', '.join(wrong) or 'none'}"], data, as_json=as_json, markdown=markdown)
    raise typer.Exit(int(bool(wrong)))


def _records(tables: Sequence[ScoreTable]) -> list[dict[str, Any]]:
    """The rows of tables as dicts, with column names and the title of their table."""
    titled = [({"table": table.title} if table.title else {}, table) for table in tables]
    return [{**title, **dict(zip(table.columns, row, strict=True))} for title, table in titled for row in table.rows]


def records(
    jobs: JOBS = 230,
    first_seed: FIRST_SEED = 0,
    kind: Annotated[str | None, typer.Option(help="Simulate only this kind of fault.")] = None,
    lost: Annotated[
        float | None, typer.Option(min=0, max=1, help="Fraction of dumps to lose, in addition to those of dead ranks.")
    ] = None,
    ring: Annotated[int | None, typer.Option(min=1, help="Number of entries that each recorder keeps.")] = None,
    active: Annotated[bool, typer.Option("--active", help="Dumps contain only active work (NCCL).")] = False,
    largest: LARGEST = None,
    processes: PROCESSES = 2,
    incumbent: Annotated[bool, typer.Option("--incumbent", help="Score torchfrtrace instead.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Print each wrong answer as it occurs.")] = False,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Score the flight record analysis on simulated jobs, whose culprits are known by construction.

    Right: the truth accepts the verdict and the culprits. Exact: it names exactly the culprits. Accuses: it blames an
    innocent rank. Plain: the dumps can show the culprits, and "undecided" is not a fair answer.

    ddx evals scores records --jobs 46 --largest 32 --wrong
    """
    from dataclasses import asdict

    from ddx_evals.scores.records import by_kind, cases, scores, shares, table
    from ddx_evals.simulator import KINDS

    if kind and kind not in KINDS:
        raise UsageError(f"there is no kind of fault {kind!r}", f"Kinds: {', '.join(KINDS)}")
    kinds = [kind] if kind else KINDS
    wanted = cases(jobs, first_seed, kinds=kinds, lost=lost, ring=ring, active=active, largest=largest)
    found = []
    for each in scores(wanted, processes, incumbent=incumbent):
        found.append(each)
        if wrong and not each.right:
            error_console().print(f"{each.case} {each.answer}", markup=False, soft_wrap=True)
    counts = by_kind(found)
    data = {name: asdict(count) for name, count in counts.items()}
    _print([table(counts)], [shares(counts["all"])], data, as_json=as_json, markdown=markdown)


def degradation(
    jobs: JOBS = 92,
    first_seed: FIRST_SEED = 0,
    largest: LARGEST = 64,
    processes: PROCESSES = 2,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Score the same simulated jobs at increasing damage: more dumps lost, smaller rings.

    Right: exactly the culprits, or the best verdict if no rank is to blame. Undecided: no rank is blamed although one
    is to blame, or a healthy job is doubted. The bar shows # right, . undecided and ! wrong.

    ddx evals scores degradation --jobs 23 --largest 16
    """
    from dataclasses import asdict

    from ddx_evals.scores.degradation import point, settings, table
    from ddx_evals.scores.records import cases, scores

    points = []
    for name, each in settings(cases(jobs, first_seed, largest=largest)).items():
        points.append(point(name, scores(each, processes)))
        error_console().print(str(points[-1]), markup=False, soft_wrap=True)
    _print([table(points)], [], [asdict(each) for each in points], as_json=as_json, markdown=markdown)


def hardness(
    names: INCIDENTS = None,
    write: Annotated[bool, typer.Option("--write", help="Write the tags into the truths.")] = False,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Measure how hard incidents are: what grep and a few pages reveal, and how much there is to read.

    Easy: a line or a few pages settle it. Hard: neither does, it exceeds a context window, and the key fact is a
    needle, or there are misleading lines, or the outcome is open. Medium: the rest.

    ddx evals scores hardness dev/3b9f60 dev/c05e12
    """
    from collections import Counter

    from ddx_evals.incidents import named_incidents
    from ddx_evals.scores.hardness import measured, table, tagged

    tags = {}
    for each in named_incidents(names or []):
        tag = tags[f"{each.split}/{each.id}"] = measured(each).hardness
        if write and each.truth.provenance:
            tagged(each, tag)
    counts = Counter(tag.tag for tag in tags.values())
    line = ", ".join(f"{tag} {count}" for tag, count in sorted(counts.items()))
    data = [{"incident": name, **tag.model_dump(mode="json")} for name, tag in tags.items()]
    _print([table(tags)], [line], data, as_json=as_json, markdown=markdown)


def messages(
    library: Annotated[str, typer.Argument(help="Library, named as in the catalogue: nccl, gloo, torch, …")],
    release: Annotated[str, typer.Argument(help="Release of the sources: 2.31.1")],
    tree: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Directory of the sources.")],
    update: Annotated[bool, typer.Option("--update", help="Add the strings to the catalogue.")] = False,
    unknown: Annotated[bool, typer.Option("--unknown", help="Also show the strings that are not recognised.")] = False,
    as_json: JSON_OPTION = False,
) -> None:
    """Count how many of a library's error strings are recognised, and add a new release to the catalogue.

    A new entry is classified by its words, as a proposal for a person to check; an update never changes the class of an
    existing entry.

    ddx evals scores messages nccl 2.31.1 ~/src/nccl --unknown
    """
    from ddx_evals.messages.catalogue import recognised, take_in
    from ddx_evals.messages.printed_strings import printed_strings
    from ddx_evals.terminal.tables import ScoreTable

    strings = printed_strings(library, tree)
    known, others = recognised(library, strings)
    if update:
        take_in(library, release, strings)
    share = 100 * len(known) / max(1, len(strings))
    line = f"{library} {release}: {len(known)} of {len(strings)} error strings recognised ({share:.1f} %)"
    rows = [[one.file, one.function, one.template] for one in others] if unknown else []
    table = ScoreTable(["file", "function", "not recognised"], rows, text=3)
    data = {"library": library, "release": release, "recognised": len(known), "strings": len(strings)}
    _print([table], [line], {**data, **({"unknown": _records([table])} if unknown else {})}, as_json=as_json)


def sufficiency(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Splits, incidents or directories. Default: public.", metavar="[INCIDENT]…", show_default=False
        ),
    ] = None,
    more_mb: Annotated[float, typer.Option("--more-mb", min=0, help="Lengthen each log by this many MB.")] = 0,
    grower: Annotated[
        str,
        typer.Option(
            "--with", help="Lines to lengthen logs with: chatter (from libraries) or own (the log's ordinary lines)."
        ),
    ] = "chatter",
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same logs.")] = 0,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Count the deciding lines that answers of at most 6,000 bytes contain.

    Incidents without deciding lines in their truth are left out. Each missing line is a row.

    ddx evals scores sufficiency public --more-mb 5 --with own
    """
    from dataclasses import asdict
    from functools import partial

    from ddx_evals.incidents import in_parallel, named_incidents
    from ddx_evals.metamorphic.growth import Grower
    from ddx_evals.scores.sufficiency import score, summary, table

    if grower not in list(Grower):
        raise UsageError(f"--with {grower!r} is unknown", f"Choose one of: {', '.join(Grower)}")
    work = partial(score, more_bytes=int(more_mb * 1e6), grower=Grower(grower), seed=seed)
    wanted = [one for one in named_incidents(names or ["public"]) if one.truth.deciding_lines]
    scores = list(in_parallel(work, wanted))
    counts = summary(scores)
    line = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
    data = {"summary": counts, "incidents": [asdict(each) for each in scores]}
    _print([table(scores)], [line], data, as_json=as_json, markdown=markdown)


def invariance(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Splits, incidents or directories. Default: public.", metavar="[INCIDENT]…", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same changes.")] = 0,
    markdown: MARKDOWN = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Change material in meaningless ways and count the answers that stay the same.

    The changes are neutral lines, renamed files, hosts and users, permuted ranks, split and interleaved logs, shifted
    clocks, other line ends, colours, no notes. Each changed answer is a row.

    ddx evals scores invariance public
    """
    from dataclasses import asdict
    from functools import partial
    from itertools import chain

    from ddx_evals.incidents import in_parallel, named_incidents
    from ddx_evals.scores.invariance import score, shares, table

    scores = list(chain(*in_parallel(partial(score, seed=seed), named_incidents(names or ["public"]))))
    counts = shares(scores)
    misleads = sum(each.misleads for each in scores)
    lines = [f"{name}: {same} of {every}" for name, (same, every) in counts.items()]
    data = {"same": {name: list(pair) for name, pair in counts.items()}, "misleads": misleads}
    data |= {"answers": [asdict(each) for each in scores if not each.same]}
    _print(
        [table(scores)],
        [*lines, f"confidently wrong by a change: {misleads}"],
        data,
        as_json=as_json,
        markdown=markdown,
    )


for _command in (causes, suspects, sufficiency, invariance, left_out, records, degradation, hardness, messages, gate):
    app.command(_command.__name__.replace("_", "-"), help=help_of(_command))(_command)
