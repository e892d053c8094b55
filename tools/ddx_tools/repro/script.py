"""Writes a reproduction as one Python file: its groups and calls, followed by the player (repro_script.py)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Diagnosis, Verdict, rank_list
from ddx_tools.model.errors import UsageError
from ddx_tools.model.files.names import shown
from ddx_tools.payloads import SITE_DIRECTORY
from ddx_tools.repro.model import Program, Recording, ReproCall
from ddx_tools.repro.recording import recording_of

_PLAYER = SITE_DIRECTORY.parent / "repro_script.py"
_MOST_RANKS_TOLD = 8


@dataclass(frozen=True)
class Reproduction:
    """A script, with the facts that its reader needs."""

    text: str
    ranks: dict[int, int]
    """For each rank of the script, its rank in the job."""
    left_out: list[str]
    bytes_a_rank: int
    """The size of the largest call."""


def reproduce(store: Store, diagnosis: Diagnosis, *, tiny: bool) -> Reproduction:
    """Write the script for the fault in an investigation's store. Raises UsageError if the calls show no fault."""
    whole, ranks = recording_of(store, diagnosis), list[int]()
    if diagnosis.verdict is not Verdict.HEALTHY and not (ranks := smallest(whole)):
        whole = whole.in_turn()
        ranks = smallest(whole)
    if not ranks:
        raise UsageError(
            "no rank differs from its peers in the recorded calls: a script of them would run to completion",
            "Name flight records, stacks or a bundle of the hang. For faults of the machine, run `ddx preflight`.",
        )
    small = _renumbered(whole.of(ranks), ranks)
    small = replace(small, suspects=frozenset(ranks.index(rank) for rank in whole.suspects if rank in ranks))
    left_out = list(whole.left_out)
    if absent := sorted(whole.programs.keys() - set(ranks)):
        left_out.append(f"{rank_list(absent)}: the fault needs only {rank_list(ranks)}")
    left_out.append("the program's computation between the calls")
    twin = healthy_twin(small)
    if tiny:
        small, twin = _tiny(small, twin)
        left_out.append("the real sizes: here they are small, in the same order")
    text = _text(small, twin, diagnosis, ranks, left_out)
    largest = max((call.elements for call in [*twin, *_all_calls(small)]), default=1)
    return Reproduction(text, dict(enumerate(ranks)), left_out, largest * 8 * len(ranks))


def _all_calls(recording: Recording) -> Iterable[ReproCall]:
    return (call for program in recording.programs.values() for call in program.calls)


def _renumbered(recording: Recording, ranks: Sequence[int]) -> Recording:
    def renumbered(call: ReproCall) -> ReproCall:
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


def _tiny(recording: Recording, twin: Sequence[ReproCall]) -> tuple[Recording, list[ReproCall]]:
    """Replace the recorded sizes with small ones in the same order."""
    sizes = {size for call in [*twin, *_all_calls(recording)] for size in (call.elements, *call.sends, *call.receives)}
    small = {size: number for number, size in enumerate(sorted(sizes - {0}), 1)} | {0: 0}

    def tiny(call: ReproCall) -> ReproCall:
        sends, receives = (tuple(small[size] for size in splits) for splits in (call.sends, call.receives))
        return replace(call, elements=small[call.elements], sends=sends, receives=receives)

    programs = {
        rank: replace(program, calls=tuple(map(tiny, program.calls))) for rank, program in recording.programs.items()
    }
    return replace(recording, programs=programs), [tiny(call) for call in twin]


def _text(
    recording: Recording, twin: Sequence[ReproCall], diagnosis: Diagnosis, ranks: Sequence[int], left_out: Sequence[str]
) -> str:
    player = _PLAYER.read_text("utf-8")
    head, _, rest = player.partition("# DESCRIPTION\n")[2].partition("# PROGRAM\n")
    body = rest.partition("# PLAYER\n")[2]
    told = f"rank n is rank {', '.join(map(str, ranks[:_MOST_RANKS_TOLD]))} of the job, for n = 0, 1, …"
    description = [
        f"A reproduction with {len(ranks)} ranks, written by ddx {version('debug-distributed')}.",
        "",
        shown(diagnosis.headline, 300),
        "",
        "    python THIS             fails or hangs like the job and shows where each rank is: exit code 1",
        "    python THIS --healthy   makes the calls that all ranks should make: exit code 0",
        "",
        *([] if list(ranks) == list(range(len(ranks))) else [f"Here {told}", ""]),
        "Left out:",
        *(f"- {line}" for line in left_out),
    ]
    quoted = "\n".join(description).replace("\\", "/").replace('"""', "'''")
    groups = "\n".join(f"    {name!r}: {list(members)}," for name, members in recording.groups.items())
    calls = [replace(call, op="transfer") if call.transfer else call for call in twin]
    return (
        f'"""{quoted}\n"""\n\n{head}GROUPS = {{\n{groups}\n}}\n\n\n{_recorded(recording.programs)}\n\n\n'
        f"{_function('healthy', [f'    {_line(call)}' for call in calls])}\n\n\n{body}"
    )


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
    docs = {"recorded": "Make the calls that the ranks made.", "healthy": "Make the calls that all ranks should make."}
    return f'def {name}(rank: int) -> None:\n    """{docs[name]}"""\n' + "\n".join(lines)


def _line(call: ReproCall) -> str:
    words = [repr(call.op), repr(call.group), str(call.elements), repr(call.dtype)]
    if call.transfer:
        words += [f"source={call.transfer[0]}", f"target={call.transfer[1]}"]
    if call.sends:
        words += [f"sends={list(call.sends)}", f"receives={list(call.receives)}"]
    words += ["later=True"] if call.later else []
    return f"do({', '.join(words)})" + (f"  # {shown(call.where, 120)}" if call.where else "")


# --- the smallest set of ranks that keeps a fault: ranks are removed while the members of a group are left in the same
# calls


def smallest(recording: Recording) -> list[int]:
    """Return the ranks of a reduced job that still hangs in the same way, at least two.

    Ranks are dropped as long as the group at fault stops at the same calls. Empty if the recording runs to completion.
    """
    whole = Rehearsal(recording)
    fronts = whole.fronts()
    if not whole.stuck or not healthy_twin(recording):
        return []
    group = _group_of_fault(recording, fronts)

    def keeps(ranks: Sequence[int]) -> bool:
        return len(ranks) > 1 and Rehearsal(recording.of(ranks)).fronts().get(group) == fronts[group]

    kept = sorted(recording.programs)
    size = len(kept) // 2
    while size:
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            if keeps(fewer):
                kept = fewer
                break
        else:
            size //= 2
    return kept


def _group_of_fault(recording: Recording, fronts: dict[str, frozenset[tuple[object, ...]]]) -> str:
    """The smallest group whose members are in different calls, preferably with a suspect among them."""

    def rank_of(name: str) -> tuple[bool, bool, int, str]:
        members = recording.groups[name]
        return len(fronts[name]) < 2, recording.suspects.isdisjoint(members), len(members), name

    return min(fronts, key=rank_of)


# --- replays a recording without processes: which ranks finish, and which calls the others are left in A collective
# completes when every member has entered it and all agree. Members' calls are matched by their order in the group,
# transfers by their order in one direction. NCCL and Gloo do the same, except for how they fail.

_Key = tuple[Hashable, ...]
"""The key by which calls are matched: (group) for a collective, (group, from, to) for a transfer."""


class Rehearsal:
    """The state at the end of a replayed recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._posted: dict[_Key, dict[int, list[ReproCall]]] = defaultdict(lambda: defaultdict(list))
        self._over: dict[_Key, int] = defaultdict(int)
        self._at = dict.fromkeys(recording.programs, 0)
        waiting = {rank: self._steps(rank, program) for rank, program in recording.programs.items()}
        moved = True
        while moved:
            moved = False
            for rank, steps in list(waiting.items()):
                moved |= next(steps, _DONE) is not _STUCK
                if self._at[rank] > len(recording.programs[rank].calls):
                    del waiting[rank]
        self.stuck = frozenset(waiting)

    @property
    def is_through(self) -> bool:
        """Whether every rank finished, and none stays away or leaves."""
        return not self.stuck and not any(program.end for program in self.recording.programs.values())

    def fronts(self) -> dict[str, frozenset[_Key]]:
        """Return, for each group with unfinished calls, where its members are at the end of the replay.

        Maps group name to labels of the calls that members are in. A label `elsewhere` covers members in none of its
        calls, with the reason.
        """
        found: dict[str, set[_Key]] = {}
        for key, by_rank in self._posted.items():
            group, over = str(key[0]), self._over[key]
            for calls in by_rank.values():
                if len(calls) > over:
                    found.setdefault(group, set()).add(calls[over].label)
        for group, labels in found.items():
            for rank in self.recording.groups[group]:
                if not self._is_left_in(rank, group):
                    labels.add(("elsewhere", self.recording.programs[rank].end or rank in self.stuck))
        return {group: frozenset(labels) for group, labels in found.items()}

    def _is_left_in(self, rank: int, group: str) -> bool:
        keys = [key for key in self._posted if key[0] == group]
        return any(len(self._posted[key].get(rank, ())) > self._over[key] for key in keys)

    def _steps(self, rank: int, program: Program) -> Iterator[object]:
        mine: list[tuple[_Key, int]] = []
        for call in program.calls:
            key: _Key = (call.group, *(call.transfer or ()))
            self._posted[key][rank].append(call)
            mine.append((key, len(self._posted[key][rank])))
            while not call.later and self._settle(key) < mine[-1][1]:
                yield _STUCK
            self._at[rank] += 1
            yield _DONE
        while any(self._settle(key) < number for key, number in mine):
            yield _STUCK
        self._at[rank] += 1
        yield _DONE

    def _settle(self, key: _Key) -> int:
        """Complete the calls of a key as far as possible; return the number of completed ones."""
        members: Sequence[int] = self.recording.groups[str(key[0])] if len(key) == 1 else key[1:]  # type: ignore[assignment]
        by_rank = self._posted[key]
        while all(len(by_rank[rank]) > self._over[key] for rank in members):
            calls = {rank: by_rank[rank][self._over[key]] for rank in members}
            if len(key) == 1 and not _agree(calls, members):
                break
            self._over[key] += 1
        return self._over[key]


_STUCK, _DONE = object(), object()


def _agree(calls: dict[int, ReproCall], members: Sequence[int]) -> bool:
    if len({call.label for call in calls.values()}) > 1:
        return False
    if not all(call.sends for call in calls.values()):
        return True
    return all(
        calls[one].sends[there] == calls[other].receives[here]
        for here, one in enumerate(members)
        for there, other in enumerate(members)
    )


# --- the healthy twin of a recording: in each group, all members make the calls that most of them agree on, in one
# order

_Round = tuple[Hashable, ...]
"""(group, number of earlier calls); for a transfer (group, from, to, number of earlier calls)."""


def healthy_twin(recording: Recording) -> list[ReproCall]:
    """The sequence of calls if no rank deviates; a rank that is not a member (or an end) skips a call."""
    rounds: dict[_Round, list[tuple[int, ReproCall]]] = {}
    before: dict[_Round, set[_Round]] = {}
    first: dict[_Round, int] = {}
    for rank, program in recording.programs.items():
        own = _rounds_of(program)
        for place, (key, call) in enumerate(own):
            rounds.setdefault(key, []).append((rank, call))
            before.setdefault(key, set())
            first[key] = min(first.get(key, place), place)
        if rank not in recording.suspects:
            for (one, _), (other, _) in pairwise(own):
                before[other].add(one)
    wanted = {key: calls for key, calls in rounds.items() if _is_wanted(key, calls, recording)}
    found = []
    while wanted:
        free = [key for key in wanted if not before[key] & wanted.keys()]
        # If ranks differ in the order of groups, there is a cycle: any single order is healthy.
        key = min(free or wanted, key=lambda each: (first[each], [str(part) for part in each]))
        found.append(_agreed(wanted.pop(key), recording))
    return found


def _rounds_of(program: Program) -> list[tuple[_Round, ReproCall]]:
    counted: Counter[_Round] = Counter()
    found = []
    for call in program.calls:
        where: _Round = (call.group, *(call.transfer or ()))
        found.append(((*where, counted[where]), call))
        counted[where] += 1
    return found


def _is_wanted(key: _Round, calls: list[tuple[int, ReproCall]], recording: Recording) -> bool:
    """Whether a call belongs to the twin: calls that only suspects made are extra, if the group has other members."""
    others = set(recording.groups[str(key[0])]) - recording.suspects
    return len(key) > 2 or not others or any(rank in others for rank, _ in calls)


def _agreed(calls: list[tuple[int, ReproCall]], recording: Recording) -> ReproCall:
    trusted = [call for rank, call in calls if rank not in recording.suspects] or [call for _, call in calls]
    most = Counter(call.label for call in trusted).most_common(1)[0][0]
    call = next(call for call in trusted if call.label == most)
    return replace(call, later=False, sends=(), receives=(), elements=max(call.sends, default=call.elements))
