"""Values that programs print on every rank so that somebody can compare them: checksums, norms, ids of samples.

rank 2 step 0 sha(params)=9c1f04ab sha(buffers)=51d0e77a          anybody's print
[rank3]: step 10 param_norm 812.25 grad_norm=1.873
3: it 40 loss 5.91 |g|=2.30455                                    srun --label before it
rank 1 | first keys ['a00192/0007713', 'a00192/0001120']
rank 0 batch 0 sample ids: tensor([17, 4, 23])
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT_LIMIT = 2_000
_VALUE_LIMIT = 200

_HEX = r"(?:0x)?[0-9a-f]{6,64}"
_DECIMAL = r"[-+]?\d{1,20}(?:\.\d{1,30})?(?:e[-+]?\d{1,3})?"
_BEHIND = r"(?: ?\([^()]{0,40}\))?['\"]?(?: {0,3}[:=]| is)? {0,4}(?:tensor\()?['\"]?"
_END = r"(?![\w.]*\w)"
_CHECKSUM = r"(?:sha\d{0,3}|md5|crc\d{0,2}|hash|checksum|digest|fingerprint)"
_PARAMETERS = r"(?:param(?:eter)?s?|weights?|model|state_?dict)"
_BUFFERS = r"buffers?"
_SUM = rf"(?:{_CHECKSUM}|norm|sum)"
_OF = r"[ _.-]?"
_IDS = (
    r"(?:sample|data|batch|example|first|image|img|shard|dataset|train)[_ -]?"
    r"(?:keys?|ids?|ind(?:ices|exes)|idxs?|names?)"
)


def _sum_of(thing: str) -> str:
    """`sha(params)`, `hash of params`, `param_norm`."""
    named = rf"(?:{_SUM}(?:\({thing}\)|(?: of |[_ .-]){thing})|{thing}{_OF}{_SUM})"
    return rf"(?<![a-z]){named}{_BEHIND}({_HEX}|{_DECIMAL}){_END}"


_GRADIENT_NORM = (
    rf"(?:(?<![a-z])(?:grads?|gradients?){_OF}norm|(?<![a-z])gnorm|\|{{1,2}}(?:g|grad|gradients?)\|{{1,2}})"
)
_BATCH_SUM = rf"(?<![a-z])(?:batch|data|inputs?|samples?|input_ids){_OF}{_CHECKSUM}"
_EXPRESSIONS = {
    name: re.compile(expression, re.I)
    for name, expression in {
        "parameters": _sum_of(_PARAMETERS),
        "buffers": _sum_of(_BUFFERS),
        "grad_norm": rf"{_GRADIENT_NORM}{_BEHIND}({_DECIMAL}){_END}",
        "samples": rf"(?<![a-z]){_IDS}{_BEHIND}([\[(][^\])]{{3,2000}}[\])])",
        "batch": rf"{_BATCH_SUM}{_BEHIND}({_HEX}|{_DECIMAL}){_END}",
    }.items()
}
_WORDS = ("norm", "|g", "sha", "md5", "crc", "hash", "sum", "digest", "fingerprint", "key", "id", "ind", "name")
_RANK = re.compile(r"(?<![\w.])(?:global_)?rank ?[:=#]? ?(\d{1,6})(?![\w.]*\d)", re.I)
_LABEL = re.compile(r" {0,5}(?:(\d{1,5})[:|]|\[(\d{1,5})\]:?|<(\d{1,5})>) ")
_STEP = re.compile(
    r"(?<![\w.])(?:global_)?(?:step|iter(?:ation)?|it|batch)['\"]?(?: ?[:=])? {0,12}#?(\d{1,12})(?![\w.]*\d)", re.I
)


@dataclass(frozen=True, slots=True)
class RankValue:
    """One value of a line."""

    what: str
    """parameters, buffers, grad_norm, samples or batch."""
    value: str
    """As printed, bounded; a long list by its beginning."""
    step: int | None
    """Step, iteration or batch, if the line says it."""
    rank: int | None
    """The rank that the words themselves name."""
    label: int | None
    """A number before the line ("3: "), which is a rank if all ranks' lines have one."""


def rank_values(text: str) -> list[RankValue]:
    """The values of a line that ranks can be compared by; of each kind the first. Lines of several ranks give none."""
    text = text[:_TEXT_LIMIT]
    lower = text.lower()
    if not any(word in lower for word in _WORDS):
        return []
    ranks = {int(number) for number in _RANK.findall(text)}
    if len(ranks) > 1:
        return []
    found = [(name, match[1]) for name, known in _EXPRESSIONS.items() if (match := known.search(text))]
    if not found:
        return []
    step = _STEP.search(text)
    number = int(step[1]) if step else None
    rank, label = next(iter(ranks), None), _LABEL.match(text)
    mark = int(label[1] or label[2] or label[3]) if label else None
    return [RankValue(name, " ".join(value.split())[:_VALUE_LIMIT], number, rank, mark) for name, value in found]
