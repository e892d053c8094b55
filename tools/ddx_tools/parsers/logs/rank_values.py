"""Reads values that programs print on every rank for comparison: checksums, norms, sample ids.

rank 2 step 0 sha(params)=9c1f04ab sha(buffers)=51d0e77a          anybody's print
[rank3]: step 10 param_norm 812.25 grad_norm=1.873
3: it 40 loss 5.91 |g|=2.30455                                    srun --label before it
rank 1 | first keys ['a00192/0007713', 'a00192/0001120']
rank 0 batch 0 sample ids: tensor([17, 4, 23])
[rank 2] step 30: own loss 2.31, gradient norm 1.70412, weights 312.55081, samples [812, 6417, 93]
[rank 5] step 30: shard 1 of 4, weights 127.10466                with the piece of the model
process 1: wiki-03, first sentence [88, 2, 417]
rank 0 step 10 local grad norm 0.9377, mean grad norm 0.7105
step 100: rank0 gnorm 2.2011  rank1 gnorm 2.1987                  all ranks in one line, in the same form
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT_LIMIT = 2_000
_VALUE_LIMIT = 200

WAKING = (
    r"param|weight|buffer|state_?dict|model.{0,8}(?:sum|norm)|grad|[\W_]g?norm(?:[^a-z]|$)|\|(?:g|w|theta)|checksum|hash|digest"
    r"|fingerprint|md\d|crc|(?:^|[^a-z])sha\d{0,3}(?:[^a-z]|$)|sample|sentence|example|first[_ -]"
    r"|(?:data|image|img|shard|dataset|train)[_ -]?(?:key|id|ind|name)"
)
"""RE2 expressions; every line that `rank_values` reads matches one of them, even with all digits replaced by 0."""

_HEX = r"(?:0x)?[0-9a-f]{6,64}"
_DECIMAL = r"[-+]?\d{1,20}(?:\.\d{1,30})?(?:e[-+]?\d{1,3})?"
_BEHIND = r"(?: ?\([^()]{0,40}\))?['\"]?(?: {0,3}[:=]| is)? {0,4}(?:tensor\()?['\"]?"
_END = r"(?![\w.]*\w)"
_CHECKSUM = r"(?:sha\d{0,3}|md5|crc\d{0,2}|hash|checksum|digest|fingerprint)"
_PARAMETERS = r"(?:param(?:eter)?s?|weights?|model|state_?dict)"
_BUFFERS = r"buffers?"
# A bare "weights 279.845" is a norm or a sum: a parameter count has no decimals and often a unit. After another word,
# "weights" are those of classes, loss terms or a router.
_MEASURED = r"[-+]?\d{1,20}\.\d{3,30}(?:e[-+]?\d{1,3})?"
_BARE = (
    r"(?:^|(?<=[^a-z_\s-])|(?<=[^a-z_\s] )|(?<=\bmodel )|(?<=\ball )|(?<=\bthe )"
    r"|(?<=\bwhole )|(?<=\bfull )|(?<=\breplicated )|(?<=\bunsharded ))"
)
_NO_COUNT = r"(?! ?(?:[kmbgt]i?b?|million|billion)\b)"
_SUM = rf"(?:{_CHECKSUM}|norm|sum)"
_OF = r"[ _.-]?"
_IDS = (
    r"(?:sample|data|batch|example|first|image|img|shard|dataset|train)[_ -]?"
    r"(?:keys?|ids?|ind(?:ices|exes)|idxs?|names?)"
)
_FIRST = r"first[_ -](?:sentence|sample|example|document|record|row|line|tokens?)s?"
_DRAWN = r"(?:samples|examples)"


def _sum_of(thing: str) -> str:
    """An expression for `sha(params)`, `hash of params` or `param_norm`."""
    named = rf"(?:{_SUM}(?:\({thing}\)|(?: of |[_ .-]){thing})|{thing}{_OF}{_SUM})"
    return rf"(?<![a-z]){named}{_BEHIND}({_HEX}|{_DECIMAL}){_END}"


_GRADIENT_NORM = (
    rf"(?:(?<![a-z])(?:grads?|gradients?){_OF}norm|(?<![a-z])gnorm|\|{{1,2}}(?:g|grad|gradients?)\|{{1,2}})"
)
_NOT_SAID_WHICH = r"(?<!own[ _-])(?<!local[ _-])(?<!mean[ _-])(?<!average[ _-])(?<!averaged[ _-])"
_GRADIENT = r"grad(?:ient)?s?(?:[_ .-]?norm)?"
_BATCH_SUM = rf"(?<![a-z])(?:batch|data|inputs?|samples?|input_ids){_OF}{_CHECKSUM}"
_EXPRESSIONS = {
    name: re.compile(expression, re.I)
    for name, expression in {
        "parameters": rf"{_sum_of(_PARAMETERS)}"
        rf"|\|{{1,2}}(?:w|theta|{_PARAMETERS})\|{{1,2}}{_BEHIND}({_MEASURED}){_END}"
        rf"|{_BARE}(?:parameters|params|weights){_BEHIND}({_MEASURED}){_END}{_NO_COUNT}",
        "buffers": _sum_of(_BUFFERS),
        "grad_norm": rf"{_NOT_SAID_WHICH}{_GRADIENT_NORM}{_BEHIND}({_DECIMAL}){_END}",
        "own_grad_norm": rf"(?<![a-z])(?:own|local)[ _-]{_GRADIENT}{_BEHIND}({_DECIMAL}|nan){_END}",
        "mean_grad_norm": rf"(?<![a-z])(?:mean|averaged?)[ _-]{_GRADIENT}{_BEHIND}({_DECIMAL}){_END}",
        "samples": rf"(?<![a-z])(?:{_IDS}|{_FIRST}){_BEHIND}([\[(][^\])]{{3,2000}}[\])])",
        "drawn": rf"(?<![a-z]){_DRAWN}{_BEHIND}(\[[^\]]{{3,2000}}\])",
        "batch": rf"{_BATCH_SUM}{_BEHIND}({_HEX}|{_DECIMAL}){_END}",
    }.items()
}
_NEEDED = {
    "parameters": ("param", "weight", "model", "state", "|w|", "|theta|"),
    "buffers": ("buffer",),
    "grad_norm": ("norm", "|g"),
    "own_grad_norm": ("own", "local"),
    "mean_grad_norm": ("mean", "averag"),
    "samples": ("[", "("),
    "drawn": ("[",),
    "batch": ("batch", "data", "input", "sample"),
}
"""Every match of an expression contains one of these in lower case."""
_WORDS = (
    "norm", "|g", "|w|", "|theta|", "sha", "md5", "crc", "hash", "sum", "digest", "fingerprint", "key", "id", "ind",
    "name", "weights", "param", "sample", "example", "first", "grad",
)  # fmt: skip
_RANK = re.compile(r"(?<![\w.])(?:global_)?rank ?[:=#]? ?(\d{1,6})(?![\w.]*\d)", re.I)
_PIECE = re.compile(
    r"(?<![\w.])((?:expert|shard|stage|partition|slice|chunk|(?:tp|pp|ep|cp|(?:tensor|pipeline|expert|model)"
    r"(?:[ _-]parallel)?)[ _-]rank)) ?[:=#]? ?(\d{1,6})(?![\w.]*\d)",
    re.I,
)
_WHOLE = re.compile(rf"(?<![a-z])(?:whole|full|replicated|unsharded)[ _-]{_PARAMETERS}", re.I)
_OF_THE_MODEL = ("parameters", "buffers")
_LABEL = re.compile(r" {0,5}(?:(\d{1,5})[:|]|\[(\d{1,5})\]:?|<(\d{1,5})>) ")
_STEP = re.compile(
    r"(?<![\w.])(?:global_)?(?:step|iter(?:ation)?|it|batch)['\"]?(?: ?[:=])? {0,12}#?(\d{1,12})(?![\w.]*\d)", re.I
)


@dataclass(frozen=True, slots=True)
class RankValue:
    """One value in a line that ranks can be compared by."""

    what: str
    """parameters, buffers, samples, batch or grad_norm; own_grad_norm (of this rank only) and mean_grad_norm (of the
    mean over ranks) if the line distinguishes them; drawn (a list after the bare word "samples", which need not be
    sample ids)."""
    value: str
    """The printed value, bounded; a long list is cut."""
    step: int | None
    """The step, iteration or batch, if the line names it."""
    rank: int | None
    """The rank that the text itself names."""
    label: int | None
    """A number before the text ("3: "), which is a rank if all ranks' lines have one."""
    of: str | None = None
    """For parameters or buffers, the part of the model, if the line names it: "expert 1", or "whole"."""


def rank_values(text: str) -> list[RankValue]:
    """Return the values in a line that ranks can be compared by, the first of each kind and rank.

    A line that names several ranks counts only if each is followed by values of the same kinds.
    """
    text = text[:_TEXT_LIMIT]
    lower = text.lower()
    if not any(word in lower for word in _WORDS):
        return []
    named = list(_RANK.finditer(text))
    if len({int(rank[1]) for rank in named}) < 2:
        return _values(text)
    ends = [*(rank.start() for rank in named[1:]), len(text)]
    parts = [
        _values(text[: named[0].start()] + text[rank.start() : end]) for rank, end in zip(named, ends, strict=True)
    ]
    alike = len({tuple(value.what for value in part) for part in parts}) == 1
    return (
        [value for part in parts for value in part] if alike and len({int(r[1]) for r in named}) == len(named) else []
    )


def _values(text: str) -> list[RankValue]:
    """The values in a text that names at most one rank."""
    lower = text.lower()
    ranks = {int(number) for number in _RANK.findall(text)}
    matches = {
        name: match
        for name, known in _EXPRESSIONS.items()
        if any(word in lower for word in _NEEDED[name]) and (match := known.search(text))
    }
    if not matches:
        return []
    step = _STEP.search(text)
    number = int(step[1]) if step else None
    rank, label = next(iter(ranks), None), _LABEL.match(text)
    mark = int(label[1] or label[2] or label[3]) if label else None
    values = {name: " ".join(match[match.lastindex or 0].split()) for name, match in matches.items()}
    of = _of(text)
    return [
        RankValue(name, value[:_VALUE_LIMIT], number, rank, mark, of if name in _OF_THE_MODEL else None)
        for name, value in values.items()
    ]


def _of(text: str) -> str | None:
    """The piece of the model that a line names, or "whole"."""
    pieces = sorted({f"{kind.lower()} {int(number)}" for kind, number in _PIECE.findall(text)})
    return ", ".join(pieces) or ("whole" if _WHOLE.search(text) else None)
