"""Arithmetic on numbers that somebody printed: ratios to sizes of groups, lists of ranks laid side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isclose, sqrt
from statistics import median

from ddx_tools.texts.said import Said, matches, seen

_GOT = re.compile(r"\b(?:reported|got|actual|measured|printed|found)\b\W{0,4}(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.I)
_WANTED = re.compile(r"\b(?:expected|reference|wanted|should be|correct)\b\W{0,4}(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.I)
_SIZE = re.compile(r"[a-z_]\w*[ =:]+(\d{1,5})\b(?!\.\d)", re.I)
_SIZES = (
    re.compile(r"size of tensor a \((?P<one>\d+)\) must match the size of tensor b \((?P<other>\d+)\)"),
    re.compile(r"shape torch\.Size\(\[(?P<one>\d+)[\d, ]*\]\) from checkpoint.{0,60}torch\.Size\(\[(?P<other>\d+)"),
    re.compile(r"shape mismatch.{0,80}?\(?\[?(?P<one>\d{3,})\D{1,30}?(?P<other>\d{3,})", re.I),
)
_RESTORED = re.compile(r"\b(?:restor\w+|resum\w+|load\w* .{0,40}checkpoint|load_state_dict|ckpt_path)\b", re.I)
_ID_LIST = re.compile(r"^\s*\[?rank[ =:]*(?P<rank>\d{1,5})\]?\s*[:|]?\s*\[?(?P<ids>\d+(?:[ ,]+\d+){2,})\]?\s*$", re.I)
_OF_SAMPLES = re.compile(r"\b(?:samples?|indices|index|ids?)\b", re.I)
_OF_RANK = re.compile(r"^\W*rank[ =:]*(?P<rank>\d{1,5})\b(?P<rest>.*)$", re.I)
_PARAMETER = re.compile(
    r"\b(?P<name>(?:\w+[._])?(?:weight|bias|param|parameter|buffer|running_mean|running_var))"
    r"[ =:]+(?P<value>-?\d+\.\d+(?:e[-+]?\d+)?)",
    re.I,
)
_RNG = re.compile(
    r"\b(?:\w*rng\w*|generator|random state)\b.*?(?:equal|same) on +(?P<same>\d+) ranks?\W+"
    r"(?:different|differs?) on +(?P<different>\d+)",
    re.I,
)
_TIMING = re.compile(r"\b(?:local_?)?rank[ =:]*(?P<rank>\d{1,5})\b.{0,60}?(?P<s>\d+\.\d+) ?s(?:ec(?:onds)?)?\s*$", re.I)
_SLOWER = 1.3
_COPIED = re.compile(r"^>>> (?P<name>\w+)(?:\.to\(['\"]?(?:cuda:)?(?P<to>\d+)['\"]?\)|\.cuda\((?P<to_>\d+)\))?\s*$")
_TENSOR = re.compile(r"^tensor\((?P<values>\[.*?\]), device='cuda:(?P<device>\d+)'")
_ORDER = re.compile(
    r"\brank (?P<rank>\d{1,5})\W+.{0,20}?\b(?:\w*?(?P<send>[Ss]end)|\w*?(?P<recv>[Rr]ecv))\w*\b.{0,30}?"
    r"(?:->|<-|\bto\b|\bfrom\b|dst ?=|src ?=) ?(?:rank )?(?P<peer>\d{1,5})"
)
_CLOCKED = re.compile(
    r"^\W*(?P<h>\d{1,2}):(?P<m>\d\d):(?P<s>\d\d)\S* +.*?\branks? (?P<first>\d{1,5})"
    r"(?:\.\.(?P<last>\d{1,5}))?\W+(?P<what>.+)$"
)
_GAVE_UP = re.compile(r"[Tt]imeout|[Tt]imed out")
_THREADS = re.compile(r"get_num_threads\(\)[^\n]*\n\s*(\d+)\s*$", re.M)
_CPUS = re.compile(r"\bnproc\s*\n\s*(\d+)\s*$", re.M)
_AT_BARRIER = re.compile(
    r"(?P<here>\d+)/(?P<all>\d+) (?P<who>\w+) (?:at|in) .{0,12}barrier.{0,40}?, "
    r"(?P<late>\d+)/(?P=all) in (?P<phase>\w+)(?:: (?P<which>.{1,40}))?$"
)
_OF_FILES = re.compile(r"restore|read|load|save|write|checkpoint", re.I)


def read_values(lines: Sequence[str]) -> Iterator[Said]:
    """What the numbers of a text say."""
    yield from _ratios(lines)
    yield from _sizes(lines)
    yield from _overlaps(lines)
    yield from _partly_equal(lines)
    yield from _timings(lines)
    yield from _copies(lines)
    yield from _crossing(lines)
    yield from _late(lines)
    yield from _behind(lines)
    for number, found in matches(_RNG, lines):
        yield seen(
            "numerics.rng_differs", number, found.string,
            f"The state of a random generator is another one on {found['different']} ranks after it was loaded",
            same=int(found["same"]), different=int(found["different"]), severity="warning",
        )  # fmt: skip
    text = "\n".join(lines)
    threads, cpus = _THREADS.search(text), _CPUS.search(text)
    if threads and cpus and int(threads[1]) >= int(cpus[1]) >= 4:
        number = text.count("\n", 0, threads.end(1)) + 1
        yield seen(
            "host.threads_per_process", number, lines[number - 1],
            f"One process alone uses {threads[1]} threads on {cpus[1]} CPUs",
            threads=int(threads[1]), cpus=int(cpus[1]), severity="warning",
        )  # fmt: skip


def _ratios(lines: Sequence[str]) -> Iterator[Said]:
    """A number is not the expected one, by a factor that is a size in the same line, its inverse or its root."""
    for number, line in enumerate(lines, 1):
        got, wanted = _GOT.search(line), _WANTED.search(line)
        if not got or not wanted or float(wanted[1]) == 0:
            continue
        ratio = float(got[1]) / float(wanted[1])
        sizes = {int(size) for size in _SIZE.findall(line[: min(got.start(), wanted.start())])} - {0, 1}
        for size in sorted(sizes):
            for how, value in (
                ("size", size),
                ("inverse", 1 / size),
                ("root", sqrt(size)),
                ("inverse_root", 1 / sqrt(size)),
            ):
                if isclose(ratio, value, rel_tol=2e-3):
                    yield seen(
                        "numerics.ratio_to_group", number, line,
                        f"This is {ratio:.4g} times the expected value: the {how.replace('_', ' ')} of {size}",
                        ratio=round(ratio, 5), size=size, how=how, severity="warning",
                    )  # fmt: skip


def _sizes(lines: Sequence[str]) -> Iterator[Said]:
    """Sizes that do not fit, of which one is a whole multiple of the other, in a job that loaded a checkpoint."""
    restored = any(_RESTORED.search(line) for line in lines)
    for pattern in _SIZES:
        for number, found in matches(pattern, lines):
            small, large = sorted((int(found["one"]), int(found["other"])))
            times = round(large / small) if small else 0
            # Shards are padded to one length: the multiple may be a few elements short.
            if times >= 2 and abs(large - times * small) <= 2 * times:
                yield seen(
                    "checkpoint.size_ratio", number, found.string,
                    f"A size is {times} times the one that it has to fit, as if sharded over another number of ranks",
                    ratio=times, restored=restored, severity="warning",
                )  # fmt: skip
                return


def _overlaps(lines: Sequence[str]) -> Iterator[Said]:
    lists: dict[int, set[int]] = defaultdict(set)
    first: tuple[int, str] | None = None
    for number, found in matches(_ID_LIST, lines):
        lists[int(found["rank"])] |= {int(value) for value in re.findall(r"\d+", found["ids"])}
        first = first or (number, found.string)
    if first is None or len(lists) < 2 or not any(_OF_SAMPLES.search(line) for line in lines):
        return
    shared = {
        value
        for rank, own in lists.items()
        for value in own
        for other, its in lists.items()
        if other != rank and value in its
    }
    if shared:
        yield seen(
            "data.samples_overlap", *first, f"{len(shared)} samples are read by more than one rank",
            shared=len(shared), severity="warning", ranks=sorted(lists),
        )  # fmt: skip


def _partly_equal(lines: Sequence[str]) -> Iterator[Said]:
    """Parameters that ranks print: some are equal on all, some are not, so what makes them equal leaves these out."""
    values: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    place: dict[str, tuple[int, str]] = {}
    for number, found in matches(_OF_RANK, lines):
        where = _PARAMETER.sub("", found["rest"])
        for value in _PARAMETER.finditer(found["rest"]):
            values[where, value["name"]].setdefault(int(found["rank"]), value["value"])
            place.setdefault(value["name"], (number, found.string))
    told = {key: by_rank for key, by_rank in values.items() if len(by_rank) > 1}
    equal = {name for (_, name), by_rank in told.items() if len(set(by_rank.values())) == 1}
    differing = {name for (_, name), by_rank in told.items() if len(set(by_rank.values())) > 1} - equal
    for name in sorted(differing if equal else ()):
        yield seen(
            "numerics.partly_equal", *place[name],
            f"On all ranks {', '.join(sorted(equal))} is equal, and {name} is not",
            equal_names=sorted(equal), differing=name, severity="warning",
        )  # fmt: skip


def _timings(lines: Sequence[str]) -> Iterator[Said]:
    times: dict[int, list[float]] = defaultdict(list)
    place: dict[int, tuple[int, str]] = {}
    for number, found in matches(_TIMING, lines):
        times[int(found["rank"])].append(float(found["s"]))
        place.setdefault(int(found["rank"]), (number, found.string))
    if len(times) < 4:
        return
    typical = median(value for own in times.values() for value in own)
    slow = sorted(rank for rank, own in times.items() if min(own) > _SLOWER * typical)
    if slow and 3 * len(slow) <= len(times):
        yield seen(
            "numerics.timings_differ", *place[slow[0]],
            f"Some ranks take {median(times[slow[0]]) / typical:.2f} times as long as others, in every line",
            ratio=round(median(times[slow[0]]) / typical, 2), ranks=slow, severity="warning",
        )  # fmt: skip


def _copies(lines: Sequence[str]) -> Iterator[Said]:
    """A tensor shows other values on the GPU that it was moved to, in a session of the interpreter."""
    shown: dict[str, tuple[str, str]] = {}
    asked: re.Match[str] | None = None
    for number, line in enumerate(lines, 1):
        if found := _TENSOR.match(line):
            if asked and not (asked["to"] or asked["to_"]):
                shown[asked["name"]] = (found["values"], found["device"])
            elif asked and asked["name"] in shown:
                values, device = shown[asked["name"]]
                if found["device"] != device and found["values"] != values:
                    yield seen(
                        "gpu.copy_differs",
                        number,
                        line,
                        f"{values} on GPU {device} is {found['values']} on GPU {found['device']}",
                        severity="failure",
                    )
        asked = _COPIED.match(line)


def _crossing(lines: Sequence[str]) -> Iterator[Said]:
    """The first transfer of each of some ranks is a send to the next, around a circle: listed rank by rank."""
    for number, found in matches(_ORDER, lines):
        yield seen(
            "_transfer",
            number,
            found.string,
            "",
            rank=int(found["rank"]),
            peer=int(found["peer"]),
            send=bool(found["send"]),
        )


def _late(lines: Sequence[str]) -> Iterator[Said]:
    """A rank comes to what its peers had come to before, after one of them has given up waiting."""
    arrived: dict[str, set[int]] = defaultdict(set)
    gave_up: set[int] = set()
    for number, found in matches(_CLOCKED, lines):
        ranks = set(range(int(found["first"]), int(found["last"] or found["first"]) + 1))
        if _GAVE_UP.search(found["what"]):
            gave_up |= ranks
            continue
        parts = [part.strip() for part in found["what"].split(",")]
        late = {part for part in parts if gave_up and arrived[part] and not ranks & arrived[part]}
        for part in parts:
            arrived[part] |= ranks
        if late:
            yield seen(
                "rank.came_late",
                number,
                found.string,
                f"It comes to {min(late)!r} after a peer that waited there has given up",
                ranks=sorted(ranks),
                severity="warning",
            )


def _behind(lines: Sequence[str]) -> Iterator[Said]:
    """All but a few are at a barrier, line after line, and the same few are somewhere else."""
    last: dict[str, tuple[int, str, re.Match[str]]] = {}
    for number, found in matches(_AT_BARRIER, lines):
        if int(found["here"]) + int(found["late"]) != int(found["all"]):
            continue
        key = f"{found['late']} {found['phase']} {found['which']}"
        if key in last:
            yield seen(
                "rank.outside_barrier", number, found.string,
                f"{found['late']} of {found['all']} stay in {found['phase']} while the others are at a barrier",
                phase=found["phase"], files=bool(_OF_FILES.search(found["phase"])), which=found["which"],
                severity="warning",
            )  # fmt: skip
            return
        last[key] = (number, found.string, found)
