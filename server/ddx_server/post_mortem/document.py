"""The post-mortem as Markdown: impact, timeline, diagnosis, root cause, reproducer, fix, proof, prevention."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddx_server.post_mortem.blamed_lines import BlamedLine
from ddx_server.post_mortem.compared_run import ComparedRun
from ddx_server.post_mortem.moments import JobMoments, clock
from ddx_server.render.answer_words import places_of, sureness, who_of
from ddx_server.render.markdown import claim_lines, code, place, plain
from ddx_server.render.safe_text import harmless
from ddx_tools.diagnosis.checks import command_line
from ddx_tools.investigation.baseline import figure
from ddx_tools.model.baseline import Baseline
from ddx_tools.model.diagnosis import Diagnosis, SourceLines, Verdict, rank_list

_MOST_CLAIMS, _MOST_RIVALS = 8, 6


@dataclass(frozen=True)
class PostMortemFacts:
    """All that is known about an incident when its post-mortem is written."""

    said: Diagnosis
    target: Sequence[str]
    ranks: int
    hosts: int
    on_gpus: bool
    """Whether its collectives ran on GPUs."""
    moments: JobMoments
    blamed: Sequence[BlamedLine] = ()
    under_run: bool = False
    """Whether `ddx run` started the job."""
    repo: Path | None = None
    repro: Path | None = None
    no_repro: str = ""
    """Why there is no script that reproduces the fault."""
    prevent: Sequence[str] = ()
    baseline: ComparedRun | None = None
    fixed: ComparedRun | None = None


@dataclass
class PostMortemSection:
    """A section of the document: lines from the evidence, and questions about what the evidence does not say."""

    title: str
    lines: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)


def post_mortem(facts: PostMortemFacts) -> str:
    """Write the document; every section has lines, questions, or both."""
    made = sections(facts)
    asked = sum(len(section.questions) for section in made)
    lines = [f"# Post-mortem: {plain(facts.said.headline, 500)}", ""]
    lines += [f"{asked} questions are open because the evidence does not answer them; they are marked `[ ]`.", ""]
    for section in made:
        lines += [f"## {section.title}", "", *section.lines]
        if section.questions:
            lines += [""] if section.lines else []
            lines += [f"- [ ] {question}" for question in section.questions]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def sections(facts: PostMortemFacts) -> list[PostMortemSection]:
    """The sections of the document, in order."""
    return [
        _impact(facts), _timeline(facts), _walk(facts), _root_cause(facts), _reproducer(facts), _fix(facts),
        _proof(facts), _prevention(facts), _luck(facts),
    ]  # fmt: skip


def _impact(facts: PostMortemFacts) -> PostMortemSection:
    made = PostMortemSection("Impact")
    hosts = f" on {facts.hosts} host{'s' if facts.hosts != 1 else ''}" if facts.hosts else ""
    if facts.ranks:
        made.lines.append(f"- {facts.ranks} rank{'s' if facts.ranks != 1 else ''}{hosts}.")
    else:
        made.questions.append("How many ranks and hosts did the job have?")
    silence_s, since, last = facts.moments.silence_s, facts.moments.silent_since, facts.moments.last
    if silence_s is not None and silence_s >= 1 and since and last:
        made.lines.append(
            f"- No progress for at least {_duration(silence_s)}: from {clock(since.time_s)} ({plain(since.says)}) to "
            f"{clock(last.time_s)} UTC ({plain(last.says)})."
        )
        if facts.ranks:
            unit = "GPU-hours" if facts.on_gpus else "rank-hours"
            basis = ", with one GPU per rank" if facts.on_gpus else ""
            made.lines.append(f"- {facts.ranks * silence_s / 3600:.3g} {unit} were lost in that time, at least{basis}.")
        made.questions.append("When was the job ended or restarted? The loss counts until then.")
    else:
        made.questions.append("From when to when did the job make no progress? The evidence does not have both times.")
    made.questions.append("How much work since the last checkpoint was lost?")
    return made


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _timeline(facts: PostMortemFacts) -> PostMortemSection:
    made = PostMortemSection("Timeline")
    if facts.moments.moments:
        made.lines = ["Times are from the hosts' clocks, in UTC.", ""]
        for moment in facts.moments.moments:
            quote = f": {code(moment.quote)}" if moment.quote else ""
            made.lines.append(f"- {clock(moment.time_s)} {plain(moment.says)}{quote}")
    else:
        made.questions.append("What happened when? No line of the evidence has a timestamp.")
    made.questions.append("Who noticed it, when, and how?")
    return made


def _walk(facts: PostMortemFacts) -> PostMortemSection:
    said, made = facts.said, PostMortemSection("How it was found")
    target = shlex.join(facts.target)
    commands = [shlex.join(["ddx", "why", *facts.target])]
    commands += list(dict.fromkeys(_show(claim.source, facts.target) for claim in said.evidence if claim.source))[:5]
    check = said.next_check
    if check and check.probe != "ask" and said.verdict is not Verdict.DIAGNOSED:
        commands.append(command_line(check.probe, check.args))
    made.lines = [*_fenced(commands), ""]
    for claim in said.evidence[:_MOST_CLAIMS]:
        made.lines += claim_lines(claim)
    if said.chain:
        made.lines += ["", "The chain of waits:", ""]
        made.lines += [f"{number}. {plain(sentence)}" for number, sentence in enumerate(said.chain, 1)]
    if said.ruled_out:
        made.lines += ["", "Ruled out:", ""]
        made.lines += [f"- {code(one.id)}: {plain(one.why)}" for one in said.ruled_out[:_MOST_RIVALS]]
    if said.missing:
        made.lines += ["", "Not seen:", ""]
        made.lines += [f"- {plain(gap.what)}" for gap in said.missing[:_MOST_RIVALS]]
    if not target:
        made.questions.append("Where is the evidence kept? It was read from the live job: save a bundle (ddx capture).")
    made.questions.append("What was tried before, and what was misleading?")
    return made


def _show(source: str, target: Sequence[str]) -> str:
    if source == "note":
        return ""
    return shlex.join(["ddx", "show", *source.split(" "), *(word for item in target for word in ("--from", item))])


def _fenced(lines: Sequence[str]) -> list[str]:
    shown = [harmless(line).replace("\n", " ") for line in lines if line]
    fence = "```" if not any("```" in line for line in shown) else "`" * 12
    return [fence, *shown, fence]


def _root_cause(facts: PostMortemFacts) -> PostMortemSection:
    said, made = facts.said, PostMortemSection("Root cause")
    if who := who_of(said):
        waiting = f"; {rank_list(said.victims.ranks)} waited" if said.victims.ranks else ""
        made.lines.append(f"- Who: {plain(who)}{waiting}.")
    made.lines += [f"- Where: {place(at)}." for at in places_of(said)[:3]]
    if said.verdict is Verdict.DIAGNOSED and said.causes:
        made.lines.append(f"- Why: {plain(said.causes[0].title)} ({code(said.causes[0].id)}).")
    elif said.causes:
        names = ", ".join(code(cause.id) for cause in said.causes[:_MOST_RIVALS])
        made.questions.append(f"Why did it happen? The evidence does not single out one cause; possible are {names}.")
    else:
        made.questions.append("Why did it happen? The evidence names no cause.")
    made.lines += [f"- {plain(line)}" for line in sureness(said)]
    for lines in (said.source_lines, said.peer_lines):
        made.lines += _program(lines) if lines else []
    made.lines += list(_commits(facts))
    if not facts.blamed:
        if not places_of(said):
            made.questions.append("Which line of the program, if any, caused it? The evidence names none.")
        elif facts.repo:
            made.questions.append(
                f"Which commit introduced it? {code(str(facts.repo))} does not have this file and line."
            )
        else:
            made.questions.append("Which commit introduced it? Name the checkout of the program that ran: --repo DIR.")
    return made


def _program(lines: SourceLines) -> Iterator[str]:
    yield from ("", f"{code(lines.file)}:", "")
    marked = [f"{'>' if line.partition(':')[0] == str(lines.line) else ' '} {line}" for line in lines.lines]
    yield from _fenced(marked)


def _commits(facts: PostMortemFacts) -> Iterator[str]:
    for one in facts.blamed:
        yield ""
        where = code(f"{one.path}:{one.line}")
        if not one.same:
            yield f"{where} is {code(one.text)} in the checkout, which is not what the job ran."
        elif one.commit:
            yield f"{where} was last changed by {code(one.commit)} on {one.day}: {plain(one.subject)}"
            if one.changed_by:
                yield f"After the job ran, it was changed again by {plain(one.changed_by)}"
        else:
            yield f"{where} has an uncommitted change in the checkout."


def _reproducer(facts: PostMortemFacts) -> PostMortemSection:
    made = PostMortemSection("Reproducer")
    if facts.repro:
        script = shlex.quote(str(facts.repro))
        commands = [
            f"python {script}  # hangs or fails like the job",
            f"python {script} --healthy  # runs to completion",
        ]
        made.lines = [f"{code(str(facts.repro))} repeats the calls that the ranks made:", "", *_fenced(commands)]
    else:
        why = f" (ddx repro: {plain(facts.no_repro)})" if facts.no_repro else ""
        made.questions.append(f"How can it be reproduced, and how reliably?{why}")
    return made


def _fix(facts: PostMortemFacts) -> PostMortemSection:
    said, made = facts.said, PostMortemSection("Fix")
    made.lines = [f"{number}. {plain(step)}" for number, step in enumerate(said.fix, 1)]
    if said.suggestion:
        made.lines += ["", "An untested suggestion:", "", *_fenced(said.suggestion)]
    made.questions.append("What was changed to fix it, and in which commit?")
    return made


def _proof(facts: PostMortemFacts) -> PostMortemSection:
    said, made, fixed = facts.said, PostMortemSection("Proof"), facts.fixed
    made.lines = [f"- Check: {plain(step)}" for step in said.verify]
    if fixed is None:
        made.questions.append("Which run proves the fix? Name it: --fixed RUN.")
    elif fixed.run.is_well:
        made.lines += [f"- The fixed run, {code(fixed.run.place)}: {plain(fixed.run.says)}."]
        made.lines += _otherwise(fixed, "in the fixed run")
    else:
        made.lines += [f"- {code(fixed.run.place)} does not prove the fix: {plain(fixed.run.says)}."]
        made.questions.append("Which run proves the fix?")
    if facts.baseline:
        run = facts.baseline.run
        made.lines += [f"- The baseline run, {code(run.place)}: {plain(run.says)}.", *_figures(run)]
        made.lines += _otherwise(facts.baseline, "in the baseline run")
    else:
        made.questions.append("What did a healthy run look like: speed, versions, topology? Name one: --baseline RUN.")
    return made


def _figures(run: Baseline) -> Iterator[str]:
    if run.step_s:
        yield f"  - A step took {figure(run.step_s.median)} s (median of {run.step_s.count})."
    for name, spread in run.rates.items():
        yield f"  - {code(name)}: {figure(spread.median)} (median of {spread.count})."
    if run.memory_peak_bytes:
        yield f"  - Tensors of one rank took up at most {run.memory_peak_bytes / 2**30:.2f} GiB."


def _otherwise(run: ComparedRun, where: str) -> Iterator[str]:
    if not run.compared:
        yield "  - Nothing was compared: the two runs report no figure, version or setting in common."
    elif not run.differences:
        yield f"  - Compared: {', '.join(run.compared)}. Nothing differs {where}."
    for one in run.differences:
        yield f"  - {code(one.what)}: {code(one.here)} in the failed run, {code(one.there)} {where}."
    if run.left_out:
        yield f"  - {run.left_out} more values differ."


def _prevention(facts: PostMortemFacts) -> PostMortemSection:
    made = PostMortemSection("Prevention")
    made.lines = [f"- {plain(step)}" for step in facts.prevent]
    if not facts.under_run:
        made.lines.append(
            "- Started with `ddx run -- …`, the job itself reports which rank holds it up, before its timeout expires."
        )
    made.questions.append("Which check, assertion or alarm would have caught it? Who adds it, and by when?")
    return made


def _luck(facts: PostMortemFacts) -> PostMortemSection:
    return PostMortemSection("What was lucky", [], ["What went well by chance, and might not next time?"])
