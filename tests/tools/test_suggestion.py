"""A suggested change of the program, and where it makes its groups: of real text, and only where it is certain."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.records import made_at
from ddx_tools.investigation.show.suspect_comparison import beside
from ddx_tools.investigation.show.suspect_view import suggested
from ddx_tools.model.diagnosis import CandidateCause, Diagnosis, Level, Location, Party, Verdict

FILE = "/job/train.py"
MESH = "m = init_device_mesh('cuda', (2, 2), mesh_dim_names=('dp', 'tp'))"
ALONE = "rank0-only-work-with-collective"


def changed(text: str, cause: str, line: int = 1, inside: str = "", frameworks: tuple[str, ...] = ("PyTorch",)) -> str:
    """The text as the suggestion would make it; the same text without one."""
    named = CandidateCause(id=cause, title="", category="rank-absent", probability=0.9, level=Level.ESTABLISHED)
    culprits = Party(ranks=[0], locations=[Location(file=FILE, line=line)])
    said = Diagnosis(verdict=Verdict.DIAGNOSED, headline="", causes=[named], culprits=culprits)
    at: dict[str, Any] = {"host": "n", "pid": 1, "snapshot": 0, "tid": 1}
    with Store() as store:
        store.insert(
            {
                "sources": [{"host": "n", "file": FILE, "text": text}],
                "stack_frames": [
                    {**at, "depth": 1, "file": FILE, "line": line, "function": "main", "is_user": True},
                    {**at, "depth": 0, "file": "/lib/x.py", "line": 9, "function": inside, "is_user": False},
                ],
            }
        )
        diff = suggested(store, said, frameworks)
    if not diff:
        return text
    assert diff[:2] == [f"--- {FILE}", f"+++ {FILE}"]
    lines = text.split("\n")
    for line_ in diff[3:]:
        if line_.startswith("-"):
            lines.remove(line_[1:])
    added = [one[1:] for one in diff[3:] if one.startswith("+")]
    return "\n".join([*lines, *added])


def test_a_call_that_one_rank_makes_alone_comes_out_of_the_condition() -> None:
    lone = "def main():\n    if rank == 0:\n        save_checkpoint(model)\n    dist.barrier()\n"
    assert "if rank" not in changed(lone, ALONE, 3, "save_checkpoint")
    both = "def main():\n    if step % 10 == 0 and is_main_process():\n        trainer.save(out)\n"
    assert "if step % 10 == 0:" in changed(both, ALONE, 3, "Trainer.save")
    value = "def main():\n    if rank == 0:\n        torch.save(model.state_dict(), out)\n"
    told = changed(value, ALONE, 3, "state_dict")
    assert "    state_dict_of_all_ranks = model.state_dict()" in told
    assert "        torch.save(state_dict_of_all_ranks, out)" in told


def test_a_barrier_after_a_save_stays_after_it() -> None:
    text = "def main():\n    if rank == 0:\n        torch.save(model, out)\n        dist.barrier()\n    load(out)\n"
    with Store() as store:
        named = CandidateCause(id=ALONE, title="", category="", probability=0.9, level=Level.ESTABLISHED)
        culprits = Party(ranks=[0], locations=[Location(file=FILE, line=4)])
        said = Diagnosis(verdict=Verdict.DIAGNOSED, headline="", causes=[named], culprits=culprits)
        at: dict[str, Any] = {"host": "n", "pid": 1, "snapshot": 0, "tid": 1}
        frame = {**at, "depth": 1, "file": FILE, "line": 4, "function": "main", "is_user": True}
        inner = {**at, "depth": 0, "file": "/lib/x.py", "line": 9, "function": "barrier", "is_user": False}
        sources = [{"host": "n", "file": FILE, "text": text}]
        store.insert({"sources": sources, "stack_frames": [frame, inner]})
        diff = [line for line in suggested(store, said, ("PyTorch",)) if line[:1] in "+- "]
    after = diff.index("+    dist.barrier()")
    assert diff.index("         torch.save(model, out)") < after < diff.index("     load(out)")
    assert "-        dist.barrier()" in diff
    between = text.replace("barrier()\n", "barrier()\n        report()\n")
    assert changed(between, ALONE, 4, "barrier") == between, "neither before the save nor after the report"
    for guard, before in (("rank == 0 and dirty", "dirty = False"), ("rank == 0", "if late: return")):
        left = text.replace("rank == 0", guard).replace("torch.save(model, out)", before)
        assert changed(left, ALONE, 4, "barrier") == left
    assert changed(between.replace("torch.save(model, out)", "print(out)"), ALONE, 4, "barrier") != between


@pytest.mark.parametrize(
    "text",
    [
        "def main():\n    if step == 3:\n        save(model)\n",
        "def main():\n    if rank == 0:\n        save(model)\n    else:\n        wait()\n",
        "def main():\n    if rank == 0 and loss < best:\n        save(model)\n",
        "def main():\n    if rank == 0 or late:\n        save(model)\n",
        "def main():\n    if rank == 0:\n        model = whole(); save(model)\n",
        "def main(:\n    if rank == 0:\n        save(model)\n",
        "def main():\r    pass\r\n    if rank == 0:\n        save(model)\n",
        "def main():\n    if rank == 0 and " + "a." * 3000 + "b:\n        save(model)\n",
        "def main():\n    if rank == 0:\n        save(model)\ndef save(model):\n    torch.save(model.full(), 'x.pt')\n",
    ],
    ids=[
        "no rank asked",
        "others do something else",
        "a value of each rank's own",
        "another reason",
        "needs what one rank made",
        "no Python",
        "other line ends",
        "without end",
        "the function also writes, which all ranks would do to one file",
    ],
)
def test_nothing_is_suggested_where_it_is_not_certain(text: str) -> None:
    assert changed(text, ALONE, 3, "save") == text


def test_a_framework_takes_a_keyword_where_exactly_one_call_lacks_it() -> None:
    text = "model = DDP(\n    net,\n    device_ids=[0],\n)\n"
    told = changed(text, "ddp-unused-parameter")
    ast.parse("model = DDP(\n" + told.partition("net,\n")[0].partition("DDP(\n")[2] + ")")
    assert "find_unused_parameters=True" in told
    assert changed("model = DDP(net)", "ddp-unused-parameter").endswith("model = DDP(net, find_unused_parameters=True)")
    for same in ("DDP(net, find_unused_parameters=False)", "a, b = DDP(x), DDP(y)", "DDP(net, **options)"):
        assert changed(same, "ddp-unused-parameter") == same
    assert changed("model = DDP(net)", "uneven-data") == "model = DDP(net)"


@pytest.mark.parametrize(
    ("label", "text", "made"),
    [
        ("mesh_tp", MESH, "axis tp of init_device_mesh at train.py:1"),
        ("evaluators", "\ng = dist.new_group([0, 1], group_desc='evaluators')", "new_group at train.py:2"),
        ("1", "g = dist.new_group([0, 1])", "new_group at train.py:1"),
        ("1", "g = dist.new_group([0, 1]); h = dist.new_group([2])", ""),
        ("mesh_pp", MESH, ""),
        ("default_pg", "g = dist.new_group([0, 1])", ""),
    ],
)  # fmt: skip
def test_the_line_that_makes_a_group(label: str, text: str, made: str) -> None:
    with Store() as store:
        store.insert({"sources": [{"host": "n", "file": FILE, "text": text}]})
        assert made_at(store, label) == made


def test_logs_alone_set_a_suspect_beside_its_peers() -> None:
    def row(rank: int, kind: str, line: int, code: str | None = None, **details: object) -> dict[str, object]:
        place = {"file": FILE, "line": 7, "function": "step"} if kind == "traceback" else {}
        said = {"rank": rank, "kind": kind, "code": code, "details": json.dumps(details), "source_line": line}
        return {**said, **place, "source": "a.log"}

    with Store() as store:
        rows = [row(rank, "step", 1, step=4, total=9) for rank in (0, 1, 2)]
        rows += [row(rank, "step", 2, step=5, total=9) for rank in (0, 1)]
        rows += [row(2, "watchdog", 3, operation="ALLGATHER", seq=7), row(2, "watchdog", 4)]
        rows += [row(rank, "watchdog", 5, operation="ALLREDUCE", seq=7) for rank in (0, 1)]
        store.insert(
            {"log_events": [*rows, row(0, "traceback", 3, "RuntimeError"), row(1, "traceback", 4, "RuntimeError")]}
        )
        told = beside(store, [2], [0, 1])
        assert told is not None
        assert [(one.what, one.suspect, one.peers) for one in told.aspects] == [
            ("last step", "4 of 9", "5 of 9"),
            ("watchdog", "ALLGATHER, seq 7", "ALLREDUCE, seq 7"),
            ("raised", "none", "RuntimeError at train.py:7 step"),
        ]
