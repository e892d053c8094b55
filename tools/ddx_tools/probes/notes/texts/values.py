"""Facts from printed numbers: ratios to group sizes, and values of ranks side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import isclose, sqrt

from ddx_tools.probes.notes.texts.text_fact import Lines, TextFact, matches, seen

_GOT = re.compile(r"\b(?:reported|got|actual|measured|printed|found)\b\W{0,4}(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.I)
_WANTED = re.compile(r"\b(?:expected|reference|wanted|should be|correct)\b\W{0,4}(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.I)
_SIZE = re.compile(r"[a-z_]\w*[ =:]+(\d{1,5})\b(?!\.\d)", re.I)
_OF_COUNT = re.compile(
    r"^\W*(?:on |with |world[_ ]size[ =:]*)?(?P<count>\d{1,5})[ x]*"
    r"(?:(?:gpus?|ranks?|procs|process(?:es)?|nodes?|cards?)\b|卡)(?P<rest>.*)$",
    re.I,
)
_OF_TOTAL = re.compile(r"\b\d{1,9} ?(?:of|/) ?(?P<total>\d{2,9})\b", re.I)
_VALUE = re.compile(r"(?P<name>[a-z][\w@]*(?:[ _]\w+)?)[ =:]+(?P<value>-?\d+\.\d+(?:e[-+]?\d+)?)(?!\w)", re.I)
_IS_TIME = re.compile(r"time|sec|per_s|/s|speed|throughput|through|samples|tok|lr|epoch|mem|gib", re.I)
_IS_METRIC = re.compile(r"acc|top-?\d|f1|auc|\bmap\b|miou|bleu|rouge|score|precision|recall|metric|ppl|[rp]@\d", re.I)
_SIZES = (
    re.compile(r"size of tensor a \((?P<one>\d+)\) must match the size of tensor b \((?P<other>\d+)\)"),
    re.compile(r"shape torch\.Size\(\[(?P<one>\d+)[\d, ]*\]\) from checkpoint.{0,60}torch\.Size\(\[(?P<other>\d+)"),
    re.compile(r"shape mismatch.{0,80}?\(?\[?(?P<one>\d{3,})\D{1,30}?(?P<other>\d{3,})", re.I),
)
_RESTORED = re.compile(r"\b(?:restor\w+|resum\w+|load\w* .{0,40}checkpoint|load_state_dict|ckpt_path)\b", re.I)
_ID_LIST = re.compile(
    r"\brank[ =:]*(?P<rank>\d{1,5})\b\]?"
    r"(?P<between>[^\[\d]{0,12}(?:(?:step|iter|batch|epoch)[ =:]*\d+[^\[\d]{0,24})*)\[?(?P<ids>\d+(?:[ ,]+\d+){2,})\]?",
    re.I,
)
_OF_SAMPLES = re.compile(r"\b(?:samples?|indices|index|idx|ids?)\b", re.I)
_BUS_BANDWIDTH = re.compile(r"^# Avg bus bandwidth\s*:\s*(?P<gb>\d+(?:\.\d+)?)")
_RANK_OF_ONE = re.compile(
    r"\brank\W{0,4}0\b.{0,40}\b(?:world(?:[_ ]?size)?|nranks|size)\W{0,4}1\b(?!\.)|"
    r"\b0 ?/ ?1\b.{0,20}\branks?\b|\brank 0 of 1\b|"
    r"^# +Rank +0 (?:Group +\d+ )?Pid +\d+ on ",
    re.I,
)
_SIDE_BY_SIDE = 8
_LOAD = re.compile(r"\bload average: (?P<load>\d+(?:\.\d+)?)")
_CPUS = re.compile(r"(?:\bnproc\s*\n\s*|^CPU\(s\):\s+)(?P<cpus>\d+)\s*$", re.M)
_THREADS = re.compile(r"get_num_threads\(\)[^\n]*\n\s*(?P<threads>\d+)\s*$", re.M)
_BUSY = 2


def read_values(lines: Lines) -> Iterator[TextFact]:
    """Yield the facts that the numbers in a text show."""
    yield from _ratios(lines)
    yield from _by_count(lines)
    yield from _sizes(lines)
    yield from _overlaps(lines)
    yield from _alone(lines)
    for number, found in matches(_BUS_BANDWIDTH, lines):
        yield seen(
            "preflight.bandwidth", number, found.string, f"nccl-tests measured {found['gb']} GB/s of bus bandwidth",
            busbw_gb_per_s=float(found["gb"]), severity="warning",
        )  # fmt: skip
    yield from _threads(lines)


def _alone(lines: Lines) -> Iterator[TextFact]:
    """Several processes print, close together, that they are rank 0 of 1; far apart, they belong to separate runs."""
    said = [(number, found.string) for number, found in matches(_RANK_OF_ONE, lines)]
    told = [one for one, following in pairwise(said) if following[0] - one[0] <= _SIDE_BY_SIDE]
    told += said[-1:] if told else []
    if told:
        yield seen(
            "launch.several_rank_zero", *told[0], f"{len(told)} processes print that they are rank 0 of 1",
            processes=len(told), severity="warning",
        )  # fmt: skip


def _threads(lines: Lines) -> Iterator[TextFact]:
    """More runnable threads than CPUs: by a host's load, or because one process may use as many as there are CPUs."""
    text = "\n".join(lines)
    cpus = _CPUS.search(text)
    if cpus is None or int(cpus["cpus"]) < 4:
        return
    many = int(cpus["cpus"])
    for pattern, least, says in (
        (_THREADS, many, "Each process of the program uses {} threads, and the host has {} CPUs"),
        (_LOAD, _BUSY * many, "{} runnable threads share {} CPUs"),
    ):
        if (found := pattern.search(text)) and float(found[1]) >= least:
            number = text.count("\n", 0, found.end(1)) + 1
            yield seen(
                "host.threads_per_process", number, lines[number - 1],
                says.format(found[1], many),
                threads=round(float(found[1])), cpus=many, severity="warning",
            )  # fmt: skip


def _ratios(lines: Lines) -> Iterator[TextFact]:
    """Numbers that are off from the expected ones by a factor: a size in their line, its inverse or its root.

    If any number is off by another factor, a wrongly scaled reduction does not explain the numbers.
    """
    explained: list[TextFact] = []
    for number, line in enumerate(lines, 1) if lines.may_hold(_GOT) else ():
        got, wanted = _GOT.search(line), _WANTED.search(line)
        if not got or not wanted or float(wanted[1]) == 0:
            continue
        ratio = float(got[1]) / float(wanted[1])
        sizes = {int(size) for size in _SIZE.findall(line[: min(got.start(), wanted.start())])} - {0, 1}
        factors = [
            (size, how, value)
            for size in sorted(sizes)
            for how, value in (
                ("size", size),
                ("inverse", 1 / size),
                ("root", sqrt(size)),
                ("inverse_root", 1 / sqrt(size)),
            )
            if isclose(ratio, value, rel_tol=2e-3)
        ]
        if not factors and not isclose(ratio, 1, rel_tol=2e-3):
            return
        explained += [
            seen(
                "numerics.ratio_to_group", number, line,
                f"This is {ratio:.4g} times the expected value: the {how.replace('_', ' ')} of {size}",
                ratio=round(ratio, 5), size=size, how=how, severity="warning",
            )
            for size, how, _ in factors
        ]  # fmt: skip
    yield from explained


def _by_count(lines: Lines) -> Iterator[TextFact]:
    """A number that, across runs of several sizes, grows or shrinks with the number of ranks."""
    told: dict[str, list[tuple[int, float, int, str]]] = defaultdict(list)
    for number, row in matches(_OF_COUNT, lines):
        for value in _VALUE.finditer(row["rest"]):
            name = value["name"].lower()
            if not _IS_TIME.search(name) and float(value["value"]):
                told[name].append((int(row["count"]), float(value["value"]), number, row.string))
        # A share of a whole: the whole may be one rank's or all ranks'.
        if (whole := _OF_TOTAL.search(row["rest"])) and _IS_METRIC.search(row["rest"]):
            told["score's whole"].append((int(row["count"]), float(whole["total"]), number, row.string))
    for name, rows in told.items():
        small, large = min(rows), max(rows)
        if large[0] < 2 * small[0]:
            continue
        size, ratio = large[0] / small[0], large[1] / small[1]
        for how, factor in (("size", size), ("inverse", 1 / size)):
            if isclose(ratio, factor, rel_tol=0.02):
                yield seen(
                    "numerics.ratio_to_group", large[2], large[3],
                    f"{name} is {ratio:.4g} times its value with {small[0]}, at {size:g} times as many ranks",
                    ratio=round(ratio, 5), size=round(size), how=how, what=name,
                    kind="metric" if _IS_METRIC.search(name) else "value", severity="warning",
                )  # fmt: skip


def _sizes(lines: Lines) -> Iterator[TextFact]:
    """Sizes that do not fit, where one is a whole multiple of the other, in a job that loaded a checkpoint."""
    restored = any(matches(_RESTORED, lines))
    for pattern in _SIZES:
        for number, found in matches(pattern, lines):
            small, large = sorted((int(found["one"]), int(found["other"])))
            times = round(large / small) if small else 0
            # Shards are padded to one length: the multiple may be a few elements short.
            if times >= 2 and abs(large - times * small) <= 2 * times:
                yield seen(
                    "checkpoint.size_ratio", number, found.string,
                    f"A size is {times} times the size it must match, as if sharded over a different number of ranks",
                    ratio=times, restored=restored, severity="warning",
                )  # fmt: skip
                return


def _overlaps(lines: Lines) -> Iterator[TextFact]:
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
