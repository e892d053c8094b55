"""Reads printed progress: steps, epochs, losses, and progress bars of work beside training.

{'loss': 1.84, 'grad_norm': 2.1, 'epoch': 0.4}                                    transformers, trainer_callback.py
Running map:  9%|9   | 280/2969 [29:55<4:48:08, 155.6 examples/s]                 tqdm, std.py (format_meter)
Epoch 3:  40%|4   | 40/100 [00:20<00:30, 2.0it/s, v_num=0, train_loss=0.5]        Lightning's bar, which is tqdm
 iteration       10/     500 | elapsed time per iteration (ms): 812.3 | lm loss: 8.1E+00 |   Megatron, training.py
step: 10  loss: 8.1213  grad_norm: 1.2  memory: 3.1GiB                            torchtitan, metrics.py
[Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.999)]                       DeepSpeed, engine.py
rank 0 epoch 3 batch 17/200 loss 3.4                                              anybody's print
tokenized 1200 of 88000 documents                                                 anybody's print of other work
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ddx_tools.model.evaluation_words import evaluates
from ddx_tools.model.quantities import size_bytes

_TEXT_LIMIT = 2_000
_SHAPE_LIMIT = 80
_BANDWIDTH_TEST = "# nThread "
"""The settings line of nccl-tests, which contains a size step and a repetition count."""
_WORDS = ("step", "iter", "epoch", "batch", "loss", "%|", "it ")

_NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,30})?(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?)(?![\w.]*\w)"
_NAME = r"['\"]?(?: {0,3}[:=]| is)? {0,12}"
_NOT_OF = r"(?! {0,2}(?:gpus?|ranks?|nodes?|hosts?|cards?|workers?|processes)\b)"
_COUNT = r"[#(\[]?(\d{1,12})(?! ?,\d{3})(?: {0,8}(?:/|of) {0,8}(\d{1,12}))?(?!\.?\w|\.\d)" + _NOT_OF
_STEP = re.compile(
    r"(?<![\w.])(?:global[_ ]?|train(?:ing)?[_ /]?)?(?:step|iter(?:ation)?|update)s?" + _NAME + _COUNT, re.I
)
_BATCH = re.compile(
    r"(?<![\w.])(?:train(?:ing)?[_ ])?batch(?:es)?(?:[_ ](?:idx|index|number|no\.?|id))?" + _NAME + _COUNT, re.I
)
_EPOCH = re.compile(r"(?<![\w.])epochs?" + _NAME + r"[#(\[]?(\d{1,9}(?:\.\d{1,30})?)(?![\w,]*\d{3}\b)", re.I)
# "Epoch: [3][ 17/200]" of torchvision's and the ImageNet example's meters, "Epoch(train) [3][ 17/200]" of mmengine's.
_IN_EPOCH = re.compile(
    r"(?<![\w.])(?:epoch(?:\(\w{1,8}\))?:? {0,2}\[\d{1,9}\]|iter\(\w{1,8}\)) {0,2}"
    r"\[ {0,8}(\d{1,12})/ {0,8}(\d{1,12})\]",
    re.I,
)
# "epoch 3 it 50/626", from programs' own prints.
_IT_OF_EPOCH = re.compile(r"(?<![\w.])epoch:? {0,2}\d{1,9},? {1,3}it:? {1,8}(\d{1,12})/ {0,8}(\d{1,12})(?!\.?\w)", re.I)
# "it 21000 ctc 1.28", from programs' own prints: a decimal number with a name follows, unlike in prose.
_IT = re.compile(
    r"(?<![\w.])it[ =:]{1,3}(\d{1,12})(?:/(\d{1,12}))?"
    r"(?= {1,3}[^\W\d]\w{1,30} {0,2}[:= ] {0,2}[-+]?\d{1,12}(?:\.\d|e))",
    re.I,
)
_LOSS = re.compile(r"(?<![a-z])loss['\"]?(?: {0,3}[:=]| is)? {0,12}(?:tensor\()?(" + _NUMBER + ")", re.I)
_NORM = re.compile(
    r"(?<![a-z])grad(?:ient)?[_ ]?norm['\"]?(?: {0,3}[:=]| is)? {0,12}(?:tensor\()?(" + _NUMBER + ")", re.I
)
_STATED_RANK = re.compile(r"(?<![\w.])(?:local_|local )?rank ?[:=#]? ?(\d{1,6})(?![\w.]*\d)", re.I)
# A job's settings also name steps and batches ("Total optimization steps = 500").
_SETTING = re.compile(
    r"(?:total|num(?:ber)?(?: of)?|max(?:imum)?|min|warm-?up|every|per|each|optimi[sz]ation|accumulation|at most"
    r"|after|of|nan|skipped|global|micro|mini|effective|local)[ _:-]{0,3}$",
    re.I,
)

_BAR = re.compile(
    r"(\d{1,3})%\|[^|]{0,200}\| *([\d.]{1,15})([kKMGTP]?)i?B?/([\d.]{1,15})([kKMGTP]?)i?B? "
    r"\[(?:(\d{1,4}):)?(\d{1,3}):(\d\d)<[^,\]]{1,40}, *([\d.]{1,15}|\?)? *([^,\]]{0,40})"
)
# Current allocation, not its peak ("max_alloc", "peak memory"), which can only rise.
_ALLOCATED = re.compile(
    r"(?<![a-z])(?:(?:cuda|gpu|mem(?:ory)?)[_ /.])*(?:alloc(?:ated)?)(?:[_ ]mem(?:ory)?)?[_ ]?\(?(bytes|[kmgt]i?b)?\)?"
    r"['\"]?(?: {0,3}[:=]| is)? {0,8}(\d{1,15}(?:\.\d{0,9})?) ?(bytes|[KMGT]i?B)?(?![\w.]*\w)",
    re.I,
)
_PEAK = re.compile(r"(?:max|peak|highest)(?:imum)?[\W_]{1,3}(?:\w{1,10}[\W_]{1,3}){0,3}$", re.I)
_TIME = re.compile(
    r"(?<![\w.])(?:(?:iter(?:ation)?|batch|step|total)[_ ]?)?time['\"]?(?: {0,3}[:=])? {0,8}"
    r"(\d{1,9}\.\d{1,12}) ?(ms|s)?(?![\w.]*\w)",
    re.I,
)
_DATA_TIME = re.compile(
    r"(?<![\w.])(?:data(?:[_ ]?load(?:er|ing)?)?(?:[_ ]?(?:wait|time))?|load(?:er|ing)[_ ]?(?:wait|time))"
    r"['\"]?(?: {0,3}[:=])? {0,8}"
    r"(\d{1,9}\.\d{1,12}) ?(ms|s)?(?![\w.]*\w)",
    re.I,
)
# The same with its unit, in a program's own print: "read 0.44 s, train 0.03 s".
_INPUT_TIME = re.compile(
    r"(?<![\w.])(?:data|load|read|fetch|input)(?:[_ ]?load)?(?:er|ing)?(?:[_ ]?(?:wait|time))?"
    r"['\"]?(?: {0,3}[:=])? {0,8}(\d{1,9}(?:\.\d{1,12})?) ?(ms|s)(?![\w.]*\w|/)",
    re.I,
)
_SECONDS = re.compile(
    r"(?:elapsed time per (?:iteration|step)|(?:step|iter(?:ation)?|batch)[_ ]time"
    r"|time[_ /]?per[_ /]?(?:step|iteration))[ _]{0,2}(\(?m?s\)?)?['\"]?(?: {0,3}[:=])? {0,12}"
    r"(\d{1,12}(?:\.\d{0,12})?) ?(ms|s)?(?![\w.]*\d)",
    re.I,
)
# Work that a rank does by itself, before or beside the steps that all ranks make together.
_OWN_WORK = re.compile(
    r"token|mapp?(?:ing)?\b|filter|process|pars(?:e|ing)|pack|load|read|download|upload|fetch|cach|sav|writ|shard"
    r"|convert|extract|index|build|prepar|merg|copy|hash|compress|scan|resiz|encod|concat|group(?:ing)? texts"
    r"|generating \w+ split",
    re.I,
)
# The rest of the step in the same form: a part, whereas the meters above print the whole.
_COMPUTE_TIME = re.compile(
    r"(?<![\w.])(?:train(?:ing)?|comput(?:e|ing|ation))(?:[_ ]?time)?"
    r"['\"]?(?: {0,3}[:=])? {0,8}(\d{1,9}(?:\.\d{1,12})?) ?(ms|s)(?![\w.]*\w|/)",
    re.I,
)
_COUNT_OF = r"\d{1,3}(?:,\d{3}){1,3}|\d{1,9}"
_MAYBE_COUNT = re.compile(r"\d ?(?:of|/) ?\d")
_COUNTED_WORK = re.compile(
    r"(?P<what>[A-Za-z][\w-]{2,30})(?: #?\d{1,9})?:? {1,3}"
    rf"(?P<done>{_COUNT_OF}) ?(?P<of>of|/) ?(?P<total>{_COUNT_OF})"
    r"(?![\w%/]|[.,]\d)(?: (?P<unit>[A-Za-z][\w-]{2,30}))?(?![\w%])"
)
_DONE = re.compile(r"(?<![\w.])(?:[a-z]{3,20}(?:ed|ing)|written|built|sent|read|done)(?![\w.])", re.I)
_WORDS_BEFORE = 60
"""How many characters before a count may name what it counts."""
# "rank 3 of 8", "attempt 1 of 3", "epoch 2 of 10": these do not count work of this rank only.
_NO_WORK = re.compile(
    r"ranks?|nodes?|hosts?|workers?|gpus?|devices?|process|processes|replicas?|stages?|members?|attempts?|tr(?:y|ies)"
    r"|retry|retries|restarts?|epochs?|steps?|iter\w*|batch\w*|updates?|used?|free|uses|using|out|size|layers?|folds?"
    r"|[kmgt]i?b|consumed|seen|trained|skipped|accumulated|loss|score|ratio|speed|train(?:ing)?|version|torch|python|cuda",
    re.I,
)
_OWN_UNITS = ("examples/s", "B/s", "files/s", "rows/s", "docs/s")
_DIGITS = re.compile(r"[-+]?\d[\d.,:]*(?:e[-+]?\d{1,3})?|\b(?:nan|inf(?:inity)?)\b", re.I)
_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(frozen=True)
class StepFacts:
    """The progress facts in one line."""

    shape: str
    """The line without its numbers: lines from one print statement share it, on any rank."""
    step: int | None = None
    """The step, iteration or update; for a bar, how many are done."""
    batch: int | None = None
    total: int | None = None
    epoch: float | None = None
    loss: float | None = None
    """The loss: finite, infinite or NaN."""
    grad_norm: float | None = None
    step_s: float | None = None
    """The seconds that a step takes, if the line says so."""
    data_share: float | None = None
    """The share of the printed iteration time spent waiting for data; 0 to 1."""
    input_s: float | None = None
    """The printed seconds for reading or waiting for data."""
    allocated_bytes: int | None = None
    """The currently allocated GPU memory, not the peak."""
    rank: int | None = None
    """The rank that the words themselves name."""
    bar: str | None = None
    """What a progress bar or similar count says it counts; "" if it does not say."""
    own_work: bool = False
    """Whether it is a bar or count of a rank's own work: tokenizing, loading, saving."""
    elapsed_s: float | None = None
    """How long a bar has been running."""


def step_facts(text: str) -> StepFacts | None:
    """Return the progress facts in a line; None if there are none."""
    text = text[:_TEXT_LIMIT]
    if text.startswith(_BANDWIDTH_TEST):
        return None
    lower = text.lower()
    if not any(word in lower for word in _WORDS):
        return _counter_facts(text)
    facts = _bar_facts(text) or _line_facts(text)
    return facts if facts and not _only_says_when(facts) else _counter_facts(text) or facts


def _only_says_when(facts: StepFacts) -> bool:
    """Whether a line names a step but has no facts about it, such as a line about other work at that step."""
    return facts.bar is None and (facts.total, facts.loss, facts.grad_norm, facts.step_s) == (None, None, None, None)


def counted_work(facts: StepFacts) -> tuple[int, int] | None:
    """Return (done, total) for a line that counts a rank's own work or an evaluation; None for other lines."""
    done = facts.step if facts.batch is None else facts.batch
    if done is None or not facts.total or not (facts.own_work or evaluates(facts.shape)):
        return None
    return done, facts.total


def _line_facts(text: str) -> StepFacts | None:
    # Most patterns ignore case, which makes searching slow: only those are tried whose word is in the line.
    lower = text.lower()
    in_epoch = "epoch" in lower
    step = _counted(_STEP, text) if any(word in lower for word in ("step", "iter", "update")) else None
    batch = _counted(_BATCH, text) if "batch" in lower else None
    batch = batch or (_IN_EPOCH.search(text) if in_epoch or "iter(" in lower else None)
    batch = batch or (_IT_OF_EPOCH.search(text) if in_epoch else None)
    step = step or (_IT.search(text) if not batch and "it " in lower else None)
    epoch = _counted(_EPOCH, text) if in_epoch else None
    loss = _LOSS.search(text) if "loss" in lower else None
    norm = _NORM.search(text) if "norm" in lower else None
    is_progress = step or batch or (epoch and (loss or norm)) or (loss and not math.isfinite(float(loss[1])))
    if not is_progress:
        return None
    counted = step or batch
    rank = _STATED_RANK.search(text) if "rank" in lower else None
    timed = any(word in lower for word in ("time", "data", "load", "read", "fetch", "input"))
    return StepFacts(
        shape=_shape(text),
        step=int(step[1]) if step else None,
        batch=int(batch[1]) if batch else None,
        total=int(counted[2]) if counted and counted[2] else None,
        epoch=float(epoch[1]) if epoch else None,
        loss=float(loss[1]) if loss else None,
        grad_norm=float(norm[1]) if norm else None,
        step_s=_seconds(text) if "time" in lower else None,
        data_share=_data_share(text) if timed else None,
        input_s=_input_s(text) if timed else None,
        allocated_bytes=_allocated(text) if "alloc" in lower else None,
        rank=int(rank[1]) if rank and not rank[0].lower().startswith("local") else None,
    )


def _counter_facts(text: str) -> StepFacts | None:
    if not _MAYBE_COUNT.search(text):
        return None
    found = next((found for found in _COUNTED_WORK.finditer(text) if _is_work(found)), None)
    done, total = (int(found[name].replace(",", "")) for name in ("done", "total")) if found else (0, 0)
    if not found or total < 2:
        return None
    rank = _STATED_RANK.search(text)
    return StepFacts(
        shape=_shape(text),
        step=done,
        total=total,
        rank=int(rank[1]) if rank and not rank[0].lower().startswith("local") else None,
        bar=" ".join(filter(None, (found["what"], found["unit"]))),
        own_work=True,
    )


def _is_work(found: re.Match[str]) -> bool:
    """Whether the count is of work; `3/8` may be anything, unless a word before it says what was done."""
    if _NO_WORK.fullmatch(found["what"]) or _NO_WORK.fullmatch(found["unit"] or ""):
        return False
    before = found.string[max(0, found.start("done") - _WORDS_BEFORE) : found.start("done")]
    return found["of"] == "of" or bool(_DONE.search(before) or _OWN_WORK.search(before))


def _counted(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next((found for found in pattern.finditer(text) if not _is_setting(text, found)), None)


def _is_setting(text: str, found: re.Match[str]) -> bool:
    return bool(_SETTING.search(text, max(0, found.start() - 30), found.start()))


def _bar_facts(text: str) -> StepFacts | None:
    found = _BAR.search(text) if "%|" in text else None
    if not found:
        return None
    label = text[: found.start()].strip(" :\t")[-_SHAPE_LIMIT:]
    done, total = _amount(found[2], found[3]), _amount(found[4], found[5])
    if done is None or total is None:
        return None
    unit = (found[10] or "").strip()
    loss, norm, epoch = _LOSS.search(text), _NORM.search(text), _EPOCH.search(label)
    return StepFacts(
        shape=f"{_DIGITS.sub('#', label)} %|",
        step=done,
        total=total,
        epoch=float(epoch[1]) if epoch else None,
        loss=float(loss[1]) if loss else None,
        grad_norm=float(norm[1]) if norm else None,
        step_s=_rate(found[9], unit),
        rank=int(rank[1]) if (rank := _STATED_RANK.search(label)) else None,
        bar=label,
        own_work=bool(_OWN_WORK.search(label)) or unit.endswith(_OWN_UNITS),
        elapsed_s=int(found[6] or 0) * 3600 + int(found[7]) * 60 + int(found[8]),
    )


def _amount(digits: str, prefix: str) -> int | None:
    try:
        return int(float(digits) * _UNITS[prefix])
    except ValueError:
        return None


def _rate(number: str | None, unit: str) -> float | None:
    """The seconds per item, from `2.1it/s` or `1.3s/it`."""
    try:
        value = float(number or "")
    except ValueError:
        return None
    if value <= 0:
        return None
    if unit == "s/it":
        return value
    return 1 / value if unit == "it/s" else None


def _seconds(text: str) -> float | None:
    found = _SECONDS.search(text)
    if not found:
        return None
    in_ms = "ms" in ((found[1] or "") + (found[3] or "")).lower()
    return float(found[2]) / (1000 if in_ms else 1)


def _data_share(text: str) -> float | None:
    """The data share of meters that print both times (mmengine, torchvision, timm, the ImageNet example); unnamed units
    are equal."""
    data, whole = _DATA_TIME.search(text), _TIME.search(text)
    if not data or not whole:
        return _input_share(text)
    waited = float(data[1]) / (1000 if (data[2] or "").lower() == "ms" else 1)
    taken = float(whole[1]) / (1000 if (whole[2] or "").lower() == "ms" else 1)
    return waited / taken if taken > 0 and waited <= taken else None


def _input_share(text: str) -> float | None:
    """The data share in a line that splits a step into reading and computing."""
    read, computed = _input_s(text), _COMPUTE_TIME.search(text)
    if read is None or not computed:
        return None
    return read / taken if (taken := read + _in_seconds(computed)) > 0 else None


def _in_seconds(found: re.Match[str]) -> float:
    return float(found[1]) / (1000 if found[2].lower() == "ms" else 1)


def _input_s(text: str) -> float | None:
    found = _INPUT_TIME.search(text)
    return _in_seconds(found) if found else None


def _allocated(text: str) -> int | None:
    found = _ALLOCATED.search(text)
    if found and _PEAK.search(text, max(0, found.start() - 40), found.start()):
        return None
    unit = (found[3] or found[1]) if found else None
    if not found or not unit:
        return None
    return size_bytes(f"{found[2]} {'bytes' if unit.lower() == 'bytes' else unit[0].upper() + 'iB'}")


def _shape(text: str) -> str:
    return " ".join(_DIGITS.sub("#", text).split())[:_SHAPE_LIMIT]
