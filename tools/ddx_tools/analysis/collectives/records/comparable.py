"""What the members of a group must agree on in one collective, and what may legitimately differ.

From the contracts of torch.distributed: the root of a gather alone lists outputs, the root of a scatter alone
lists inputs, the splits of an all_to_all differ by rank, a barrier's tensor is an implementation detail.
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
    """The table `rules`: for each call of a store, as numbers, what its group must agree on.

    op, sizes, dtypes: equal numbers are equal values, NULL agrees with everything. together: nobody finishes it
    before all entered. closing: it ends a coalesced block and says nothing of its own. exchange: sizes may differ by
    rank, and nobody gets out before all entered, except who has nothing to receive from some. And the table `places`:
    for each call path the number to compare, also without its innermost line, which often differs at a root.
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
    """The sizes that all members must share, as elements per tensor; None if the operation asks for none.

    Shapes of equal size are equal here: all backends move elements, not dimensions.
    """
    where = class_of(call.op).sizes_agree
    if where == "nowhere":
        return None
    return elements(call.input_sizes if where == "input" else call.output_sizes)


def dtypes_to_agree_on(call: RecordedCall | Entry) -> str | None:
    """The data types that all members must share; None if the operation asks for none or none is recorded."""
    its = class_of(call.op)
    if its.dtypes_agree == "nowhere":
        return None
    dtypes = call.input_dtypes if its.dtypes_agree == "input" else call.output_dtypes
    dtypes = _distinct(dtypes) if its.exchange else dtypes
    return None if dtypes in (None, "[]") else dtypes


def completes_together(op: str) -> bool:
    """Whether nobody can finish it before everybody entered (unlike a broadcast at its source)."""
    return class_of(op).completes_together


def hides_disagreement(op: str) -> bool:
    """Whether members may disagree on its root, which no record tells, and hang in it together."""
    return class_of(op).hides_root


@cache
def elements(sizes: str | None) -> str | None:
    """The number of elements of each shape of a JSON list, as such a list."""
    if sizes is None:
        return None
    return json.dumps([math.prod(shape) for shape in json.loads(sizes)])


@cache
def _distinct(dtypes: str | None) -> str | None:
    return None if dtypes is None else json.dumps(sorted(set(json.loads(dtypes))))
