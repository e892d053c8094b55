"""The values that a group's members must agree on in a collective, and those that may legitimately differ.

Under the contracts of torch.distributed, only the root of a gather lists outputs, only the root of a scatter lists
inputs, the splits of an all_to_all differ per rank, and a barrier's tensor is an implementation detail.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING

from ddx_tools.analysis.collectives.operation_classes import class_of
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.recorded_calls import RecordedCall

if TYPE_CHECKING:
    from ddx_tools.analysis.collectives.records.records import Entry

_INNERMOST_LINE = re.compile(r"^(.*?):\d+ ")


_FACTS = ("together", "is_p2p", "closing", "rooted", "exchange")


class Rules:
    """Builds the table `rules`, which holds, as numbers, what a group must agree on for each call in the store.

    op, sizes, dtypes: equal numbers mean equal values, NULL agrees with everything. together: no rank finishes it
    before all have entered. closing: it ends a coalesced block and carries no information of its own. exchange: sizes
    may differ per rank, and no rank finishes before all have entered, unless it has nothing to receive from some. The
    table `places` holds, for each call path, the number to compare, with and without its innermost line, which often
    differs at a root.
    """

    def __init__(self, store: Store) -> None:
        self._numbers: dict[str | None, int | None] = {None: None}
        rules = []
        for row in store.query("SELECT * FROM fr_calls"):
            number = row.pop("call")
            call = RecordedCall(**row)
            values = [self._number(text) for text in (call.op, sizes_to_agree_on(call), dtypes_to_agree_on(call))]
            its = class_of(call.op)
            facts = [its.completes_together, call.is_p2p, call.op == "coalesced", its.rooted, its.exchange]
            rules.append([number, *values, *facts])
        numbers = dict.fromkeys(("call", "op", "sizes", "dtypes"), "BIGINT")
        store.replace("rules", {**numbers, **dict.fromkeys(_FACTS, "BOOLEAN")}, rules)
        places = [
            [row["site"], self._number(_INNERMOST_LINE.sub(r"\1 ", row["path"], count=1))]
            for row in store.query("SELECT site, path FROM fr_sites")
        ]
        store.replace("places", {"site": "BIGINT", "caller": "BIGINT"}, places)

    def _number(self, text: str | None) -> int | None:
        return self._numbers.setdefault(text, len(self._numbers))


def sizes_to_agree_on(call: RecordedCall | Entry) -> str | None:
    """The sizes that all members must share, as elements per tensor; None if the operation requires none.

    Shapes with equally many elements count as equal: all backends move elements, not dimensions.
    """
    where = class_of(call.op).sizes_agree
    if where == "nowhere":
        return None
    return elements(call.input_sizes if where == "input" else call.output_sizes)


def dtypes_to_agree_on(call: RecordedCall | Entry) -> str | None:
    """The data types that all members must share; None if the operation requires none or none is recorded."""
    its = class_of(call.op)
    if its.dtypes_agree == "nowhere":
        return None
    dtypes = call.input_dtypes if its.dtypes_agree == "input" else call.output_dtypes
    dtypes = _distinct(dtypes) if its.exchange else dtypes
    return None if dtypes in (None, "[]") else dtypes


def completes_together(op: str) -> bool:
    """Whether no member can finish the operation before all have entered it (unlike a broadcast at its source)."""
    return class_of(op).completes_together


def hides_disagreement(op: str) -> bool:
    """Whether members may hang in the operation because they disagree on its root, which no record shows."""
    return class_of(op).hides_root


@cache
def elements(sizes: str | None) -> str | None:
    """Convert a JSON list of shapes to a JSON list with the number of elements of each."""
    if sizes is None:
        return None
    return json.dumps([math.prod(shape) for shape in json.loads(sizes)])


@cache
def _distinct(dtypes: str | None) -> str | None:
    return None if dtypes is None else json.dumps(sorted(set(json.loads(dtypes))))
