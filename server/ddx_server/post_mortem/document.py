"""The post-mortem as Markdown: impact, timeline, walk, root cause, reproducer, fix, proof, prevention."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddx_server.post_mortem.blamed_lines import BlamedLine
from ddx_server.post_mortem.compared_run import ComparedRun
from ddx_server.post_mortem.moments import JobMoments, clock
from ddx_server.render.answer_words import places_of, sureness, who_of
from ddx_server.render.diagnosis import command_line
from ddx_server.render.markdown import claim_lines, code, place, plain
from ddx_server.render.safe_text import harmless
from ddx_tools.investigation.baseline import figure
from ddx_tools.model.baseline import Baseline
from ddx_tools.model.diagnosis import Diagnosis, SourceLines, Verdict, rank_list

_MOST_CLAIMS, _MOST_RIVALS = 8, 6


@dataclass(frozen=True)
class PostMortemFacts:
    """All that is known of an incident when its post-mortem is written."""

    said: Diagnosis
    target: Sequence[str]
    ranks: int
    hosts: int
    on_gpus: bool
    """Its collectives ran on GPUs."""
    moments: JobMoments
    blamed: Sequence[BlamedLine] = ()
    repo: Path | None = None
    repro: Path | None = None
    no_repro: str = ""
    """Why no script shows the fault again."""
    prevent: Sequence[str] = ()
    baseline: ComparedRun | None = None
    fixed: ComparedRun | None = None


@dataclass
class PostMortemSection:
    """A part of the document; what nothing says is asked in it."""

    title: str
    lines: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)


def post_mortem(facts: PostMortemFacts) -> str:
    """The document: every section has lines, questions, or both."""
    made = sections(facts)
    asked = sum(len(section.questions) for section in made)
    lines = [f"# Post-mortem: {plain(facts.said.headline, 500)}", ""]
    lines += [f"{asked} questions are open, which the evidence cannot answer: they are marked `[ ]`.", ""]
    for section in made:
        lines += [f"## {section.title}", "", *section.lines]
        if section.questions:
            lines += [""] if section.lines else []
            lines += [f"- [ ] {question}" for question in section.questions]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def sections(facts: PostMortemFacts) -> list[PostMortemSection]:
    """The parts of the document, in order."""
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
        made.questions.append("How many ranks and hosts had the job?")
    silence_s, since, last = facts.moments.silence_s, facts.moments.silent_since, facts.moments.last
    if silence_s is not None and since and last:
        made.lines.append(
            f"- No work for at least {_duration(silence_s)}: from {clock(since.time_s)} ({plain(since.says)}) to "
            f"{clock(last.time_s)} UTC ({plain(last.says)})."
        )
        if facts.ranks:
            unit = "GPU-hours" if facts.on_gpus else "rank-hours"
            basis = ", one GPU a rank" if facts.on_gpus else ""
            made.lines.append(f"- {facts.ranks * silence_s / 3600:.3g} {unit} lost meanwhile, at least{basis}.")
        made.questions.append("When was the job ended or started again? Until then the loss goes on.")
    else:
        made.questions.append("From when to when did the job do no work? Nothing in the evidence has both times.")
    made.questions.append("Was work since the last checkpoint lost, and how much?")
    return made


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _timeline(facts: PostMortemFacts) -> PostMortemSection:
    made = PostMortemSection("Timeline")
    if facts.moments.moments:
        made.lines = ["Clocks are those of the hosts, as UTC.", ""]
        for moment in facts.moments.moments:
            quote = f": {code(moment.quote)}" if moment.quote else ""
            made.lines.append(f"- {clock(moment.time_s)} {plain(moment.says)}{quote}")
    else:
        made.questions.append("What happened when? No line of the evidence has a time.")
    made.questions.append("Who noticed it, when, and by what?")
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
        made.lines += ["", "The waits, from the first on:", ""]
        made.lines += [f"{number}. {plain(sentence)}" for number, sentence in enumerate(said.chain, 1)]
    if said.ruled_out:
        made.lines += ["", "Ruled out:", ""]
        made.lines += [f"- {code(one.id)}: {plain(one.why)}" for one in said.ruled_out[:_MOST_RIVALS]]
    if said.missing:
        made.lines += ["", "Not seen:", ""]
        made.lines += [f"- {plain(gap.what)}" for gap in said.missing[:_MOST_RIVALS]]
    if not target:
        made.questions.append("Where is the evidence kept? It was read from the live job: keep a bundle (ddx capture).")
    made.questions.append("What was tried before, and what pointed the wrong way?")
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
        waiting = f"; {rank_list(said.victims.ranks)} could not go on" if said.victims.ranks else ""
        made.lines.append(f"- Who: {plain(who)}{waiting}.")
    made.lines += [f"- Where: {place(at)}." for at in places_of(said)[:3]]
    if said.verdict is Verdict.DIAGNOSED and said.causes:
        made.lines.append(f"- Why: {plain(said.causes[0].title)} ({code(said.causes[0].id)}).")
    elif said.causes:
        names = ", ".join(code(cause.id) for cause in said.causes[:_MOST_RIVALS])
        made.questions.append(f"Why? The evidence does not single out one cause; possible: {names}.")
    else:
        made.questions.append("Why? The evidence names no cause.")
    made.lines += [f"- {plain(line)}" for line in sureness(said)]
    for lines in (said.source_lines, said.peer_lines):
        made.lines += _program(lines) if lines else []
    made.lines += list(_commits(facts))
    if not facts.blamed:
        if not places_of(said):
            made.questions.append("Which line of the program, if any, brought it? Nothing names one.")
        elif facts.repo:
            made.questions.append(f"Which commit brought it? {code(str(facts.repo))} has no such file and line.")
        else:
            made.questions.append("Which commit brought it? Name the checkout that ran: --repo DIR.")
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
            yield f"{where} reads {code(one.text)} in the checkout, which is not what the job ran."
        elif one.commit:
            yield f"{where} came with {code(one.commit)} of {one.day}: {plain(one.subject)}"
        else:
            yield f"{where} is changed in the checkout and not committed."


def _reproducer(facts: PostMortemFacts) -> PostMortemSection:
    made = PostMortemSection("Reproducer")
    if facts.repro:
        script = shlex.quote(str(facts.repro))
        commands = [f"python {script}  # hangs or fails as the job did", f"python {script} --healthy  # runs through"]
        made.lines = [f"{code(str(facts.repro))} makes the calls that the ranks made:", "", *_fenced(commands)]
    else:
        why = f" (ddx repro: {plain(facts.no_repro)})" if facts.no_repro else ""
        made.questions.append(f"How is it made to happen again, and how often does it?{why}")
    return made


def _fix(facts: PostMortemFacts) -> PostMortemSection:
    said, made = facts.said, PostMortemSection("Fix")
    made.lines = [f"{number}. {plain(step)}" for number, step in enumerate(said.fix, 1)]
    if said.suggestion:
        made.lines += ["", "A suggestion, which nobody has tried:", "", *_fenced(said.suggestion)]
    made.questions.append("What was changed, and in which commit?")
    return made


def _proof(facts: PostMortemFacts) -> PostMortemSection:
    said, made, fixed = facts.said, PostMortemSection("Proof"), facts.fixed
    made.lines = [f"- To see: {plain(step)}" for step in said.verify]
    if fixed is None:
        made.questions.append("Which run shows that it holds? Name it: --fixed RUN.")
    elif fixed.run.is_well:
        made.lines += [f"- The run with the fix, {code(fixed.run.place)}: {plain(fixed.run.says)}."]
        made.lines += _otherwise(fixed, "in the run with the fix")
    else:
        made.lines += [f"- {code(fixed.run.place)} is no proof: {plain(fixed.run.says)}."]
        made.questions.append("Which run shows that it holds?")
    if facts.baseline:
        run = facts.baseline.run
        made.lines += [f"- The run to compare with, {code(run.place)}: {plain(run.says)}.", *_figures(run)]
        made.lines += _otherwise(facts.baseline, "in the run to compare with")
    else:
        made.questions.append(
            "What did it do while it was well: speed, versions, topology? Name a run: --baseline RUN."
        )
    return made


def _figures(run: Baseline) -> Iterator[str]:
    if run.step_s:
        yield f"  - A step took {figure(run.step_s.median)} s (median of {run.step_s.count})."
    for name, spread in run.rates.items():
        yield f"  - {code(name)}: {figure(spread.median)} (median of {spread.count})."
    if run.memory_peak_bytes:
        yield f"  - Tensors of one rank held {run.memory_peak_bytes / 2**30:.2f} GiB at most."


def _otherwise(run: ComparedRun, where: str) -> Iterator[str]:
    if not run.differences:
        yield f"  - Nothing that both runs tell is otherwise {where}."
    for one in run.differences:
        yield f"  - {code(one.what)}: {code(one.here)} in the failed run, {code(one.there)} {where}."
    if run.left_out:
        yield f"  - {run.left_out} more differ."


def _prevention(facts: PostMortemFacts) -> PostMortemSection:
    made = PostMortemSection("Prevention")
    made.lines = [f"- {plain(step)}" for step in facts.prevent]
    made.lines.append("- Started by `ddx run -- …`, the job says by itself who holds it up, before its limit strikes.")
    made.questions.append("Which check, assertion or alarm would have caught it, and who adds it by when?")
    return made


def _luck(facts: PostMortemFacts) -> PostMortemSection:
    return PostMortemSection("What was lucky", [], ["What went well by chance, and would not the next time?"])
