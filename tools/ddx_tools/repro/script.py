"""Writes a reproduction as one Python file: groups and calls at its head, what plays them (repro_script.py) below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from ddx_tools.errors import UsageError
from ddx_tools.model import Diagnosis, Verdict, rank_list
from ddx_tools.parsers.names import shown
from ddx_tools.payloads import SITE_DIRECTORY
from ddx_tools.repro.model import Call, Program, Recording
from ddx_tools.repro.recording import recording_of
from ddx_tools.repro.smaller import smallest
from ddx_tools.repro.twin import healthy_twin
from ddx_tools.store import Store

_PLAYER = SITE_DIRECTORY.parent / "repro_script.py"
_MOST_RANKS_TOLD = 8


@dataclass(frozen=True)
class Reproduction:
    """A script, and what its reader has to know."""

    text: str
    ranks: dict[int, int]
    """Rank of the script to rank of the job."""
    left_out: list[str]
    bytes_a_rank: int
    """Of the largest call."""


def reproduce(store: Store, diagnosis: Diagnosis, *, tiny: bool) -> Reproduction:
    """The script of the fault in a store that an investigation filled. Raises UsageError if the calls show none."""
    whole, ranks = recording_of(store, diagnosis), list[int]()
    if diagnosis.verdict is not Verdict.HEALTHY and not (ranks := smallest(whole)):
        whole = whole.in_turn()
        ranks = smallest(whole)
    if not ranks:
        raise UsageError(
            "no rank differs from its peers in the calls that were recorded: a script of them would run through",
            "Name flight records, stacks or a bundle of the hang. What the machine does wrong shows `ddx preflight`.",
        )
    small = _renumbered(whole.of(ranks), ranks)
    small = replace(small, suspects=frozenset(ranks.index(rank) for rank in whole.suspects if rank in ranks))
    left_out = list(whole.left_out)
    if absent := sorted(whole.programs.keys() - set(ranks)):
        left_out.append(f"{rank_list(absent)}: the fault needs only {rank_list(ranks)}")
    left_out.append("what the program computes between the calls")
    twin = healthy_twin(small)
    if tiny:
        small, twin = _tiny(small, twin)
        left_out.append("the sizes: equal ones are equal here, larger ones larger")
    text = _text(small, twin, diagnosis, ranks, left_out)
    largest = max((call.elements for call in [*twin, *_all_calls(small)]), default=1)
    return Reproduction(text, dict(enumerate(ranks)), left_out, largest * 8 * len(ranks))


def _all_calls(recording: Recording) -> Iterable[Call]:
    return (call for program in recording.programs.values() for call in program.calls)


def _renumbered(recording: Recording, ranks: Sequence[int]) -> Recording:
    def renumbered(call: Call) -> Call:
        ends = call.transfer and (ranks.index(call.transfer[0]), ranks.index(call.transfer[1]))
        return replace(call, transfer=ends)

    programs = {
        ranks.index(rank): replace(program, calls=tuple(map(renumbered, program.calls)))
        for rank, program in recording.programs.items()
    }
    used = {call.group for call in _all_calls(recording)} | {"world"}
    groups = {
        name: tuple(ranks.index(rank) for rank in members) for name, members in recording.groups.items() if name in used
    }
    return replace(recording, programs=programs, groups=groups)


def _tiny(recording: Recording, twin: Sequence[Call]) -> tuple[Recording, list[Call]]:
    """Small sizes that keep the order of the recorded ones."""
    sizes = {size for call in [*twin, *_all_calls(recording)] for size in (call.elements, *call.sends, *call.receives)}
    small = {size: number for number, size in enumerate(sorted(sizes - {0}), 1)} | {0: 0}

    def tiny(call: Call) -> Call:
        sends, receives = (tuple(small[size] for size in splits) for splits in (call.sends, call.receives))
        return replace(call, elements=small[call.elements], sends=sends, receives=receives)

    programs = {
        rank: replace(program, calls=tuple(map(tiny, program.calls))) for rank, program in recording.programs.items()
    }
    return replace(recording, programs=programs), [tiny(call) for call in twin]


def _text(
    recording: Recording, twin: Sequence[Call], diagnosis: Diagnosis, ranks: Sequence[int], left_out: Sequence[str]
) -> str:
    player = _PLAYER.read_text("utf-8")
    head, _, rest = player.partition("# DESCRIPTION\n")[2].partition("# PROGRAM\n")
    body = rest.partition("# PLAYER\n")[2]
    told = f"rank n is rank {', '.join(map(str, ranks[:_MOST_RANKS_TOLD]))} of the job for n = 0, 1, …"
    description = [
        f"A reproduction in {len(ranks)} ranks, written by ddx {version('debug-distributed')}.",
        "",
        shown(diagnosis.headline, 300),
        "",
        "    python THIS             fails or hangs as the job did, and says where each rank is: exit code 1",
        "    python THIS --healthy   the same calls as they should be: exit code 0",
        "",
        *([] if list(ranks) == list(range(len(ranks))) else [f"Here {told}", ""]),
        "Left out:",
        *(f"- {line}" for line in left_out),
    ]
    quoted = "\n".join(description).replace("\\", "/").replace('"""', "'''")
    groups = "\n".join(f"    {name!r}: {list(members)}," for name, members in recording.groups.items())
    return (
        f'"""{quoted}\n"""\n\n{head}GROUPS = {{\n{groups}\n}}\n\n\n{_recorded(recording.programs)}\n\n\n'
        f"{_function('healthy', [f'    {_line(_either_end(call))}' for call in twin])}\n\n\n{body}"
    )


def _either_end(call: Call) -> Call:
    return replace(call, op="transfer") if call.transfer else call


def _recorded(programs: Mapping[int, Program]) -> str:
    alike: dict[Program, list[int]] = {}
    shown_as: dict[Program, Program] = {}
    for rank, program in programs.items():
        bare = replace(program, calls=tuple(replace(call, where="") for call in program.calls))
        alike.setdefault(bare, []).append(rank)
        shown_as.setdefault(bare, program)
    lines = []
    for bare, ranks in alike.items():
        program = shown_as[bare]
        lines.append(f"    if rank {f'== {ranks[0]}' if len(ranks) == 1 else f'in {tuple(ranks)}'}:")
        lines += [f"        {_line(call)}" for call in program.calls]
        if any(call.later for call in program.calls) and not program.end:
            lines.append("        wait()")
        lines += [f"        {program.end}()"] if program.end else []
    return _function("recorded", lines)


def _function(name: str, lines: Sequence[str]) -> str:
    docs = {"recorded": "What the ranks called.", "healthy": "What all of them have to call."}
    return f'def {name}(rank: int) -> None:\n    """{docs[name]}"""\n' + "\n".join(lines)


def _line(call: Call) -> str:
    words = [repr(call.op), repr(call.group), str(call.elements), repr(call.dtype)]
    if call.transfer:
        words += [f"source={call.transfer[0]}", f"target={call.transfer[1]}"]
    if call.sends:
        words += [f"sends={list(call.sends)}", f"receives={list(call.receives)}"]
    words += ["later=True"] if call.later else []
    return f"do({', '.join(words)})" + (f"  # {shown(call.where, 120)}" if call.where else "")
