"""Ranks that wait in different calls: what the program text between them tells of who left out what (constructed)."""

from __future__ import annotations

from typing import Any

import pytest
from constructed_programs import Program
from made_findings import first, judged, seen, told

from ddx_tools.analysis.collectives.odd_ranks import missing_from_group
from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Finding, Verdict

LOOP = """\
def train(job):
    for number, batch in enumerate(job.batches):
        exchange(batch)
        {guarded}
        publish(job)
def statistics(job):
    if len(job.parts) < 2:
        return None
    dist.all_reduce(job.sums)
def exchange(batch):
    dist.all_gather(batch.parts, batch.own)
def publish(job):
    dist.broadcast(job.figures, src=0)
"""


def guarded(text: str) -> Program:
    """The loop with a call of `statistics` that only some come to."""
    return Program(LOOP.format(guarded=text.replace("\n", "\n        ")))


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("if len(batch) == 8:\n    statistics(job)", "len(batch) == 8"),
        ("try:\n    job.check()\n    statistics(job)\nexcept OSError:\n    pass", "except OSError"),
        ("try:\n    job.check()\nexcept OSError:\n    continue\nstatistics(job)", "except OSError"),
        ("if batch.empty:\n    continue\nstatistics(job)", "batch.empty"),
        ("statistics(job)", "len(job.parts) < 2"),  # by a return in the function that is called
    ],
)
def test_who_is_in_a_call_that_nobody_can_pass_by_left_out_one_that_can_be(text: str, way: str) -> None:
    program = guarded(text)
    for rank in (0, 1, 3):
        program.rank(rank, "all_reduce", "statistics(job)", "dist.all_reduce")
    found = program.rank(2, "all_gather", "exchange(batch)", "dist.all_gather").mismatch()
    assert (found.ranks, found.attributes["left_out"], found.attributes.get("way_around")) == ([2], True, way)
    said = program.diagnosis()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (
        Verdict.DIAGNOSED,
        "rank-skipped-collective",
        [2],
    )


@pytest.mark.parametrize(
    "text",
    [
        "if len(batch) == 8:\n    dist.barrier()",
        "try:\n    dist.barrier()\nexcept OSError:\n    pass",
    ],
)
def test_a_rank_in_a_call_that_can_be_passed_by_has_left_nothing_out(text: str) -> None:
    """Its peers may have had no such call, or be on the way to it: the text does not tell."""
    program = guarded(text)
    for rank in (0, 1, 3):
        program.rank(rank, "all_gather", "exchange(batch)", "dist.all_gather")
    program.rank(2, "barrier", "dist.barrier")
    assert program.mismatch().attributes["left_out"] is False
    assert program.diagnosis().causes[0].id == "collective-order-mismatch"


@pytest.mark.parametrize(
    "text",
    [
        "if job.fast:\n    dist.all_reduce(job.a)\nelse:\n    dist.broadcast(job.a, 0)",
        "dist.all_reduce(job.a)\ndist.broadcast(job.a, 0)",
    ],
)
def test_two_branches_of_one_condition_and_two_plain_calls_leave_nothing_out(text: str) -> None:
    program = guarded(text)
    for rank in (0, 1, 3):
        program.rank(rank, "all_reduce", "dist.all_reduce(job.a)")
    found = program.rank(2, "broadcast", "dist.broadcast(job.a, 0)").mismatch()
    assert (found.ranks, found.attributes["left_out"]) == ([2], False)
    assert program.diagnosis().causes[0].id == "collective-order-mismatch"


def test_an_exception_that_is_raised_again_is_no_way_around() -> None:
    program = guarded("try:\n    dist.barrier()\nexcept OSError:\n    raise")
    for rank in (0, 1, 3):
        program.rank(rank, "barrier", "dist.barrier")
    found = program.rank(2, "broadcast", "publish(job)", "dist.broadcast(job.figures").mismatch()
    assert found.attributes["left_out"] is False


def _in_the_branch(program: Program, *ranks: int) -> Program:
    for rank in ranks:
        program.rank(rank, "all_reduce", "statistics(job)", "dist.all_reduce")
    return program


def _beyond(program: Program, *ranks: int) -> Program:
    for rank in ranks:
        program.rank(rank, "broadcast", "publish(job)", "dist.broadcast(job.figures")
    return program


@pytest.mark.parametrize("peers", [(1,), (1, 2, 3)])
def test_rank_0_alone_in_a_branch_that_asks_for_the_rank_is_named_also_of_two(peers: tuple[int, ...]) -> None:
    text = "if number % 10 == 0:\n    if trainer.is_global_zero:\n        statistics(job)"
    program = _beyond(_in_the_branch(guarded(text), 0), *peers)
    found = program.mismatch()
    assert (found.ranks, found.attributes["guard_side"], found.attributes["guard_on_rank"]) == ([0], "rank", True)
    said = program.diagnosis()
    assert (said.causes[0].id, said.culprits.ranks) == ("rank0-only-work-with-collective", [0])
    assert said.causes[0].probability > 0.8


def test_of_two_ranks_in_different_calls_nobody_is_named_where_no_condition_asks_for_the_rank() -> None:
    program = _beyond(_in_the_branch(guarded("if number % 10 == 0:\n    statistics(job)"), 0), 1)
    found = program.mismatch()
    assert (found.ranks, found.attributes["tie"], found.attributes["left_out"]) == ([0, 1], True, False)
    assert program.diagnosis().culprits.ranks == []


@pytest.mark.parametrize(("text", "cause"), [("rank in job.members", "new-group-not-collective"), ("True", None)])
def test_a_rank_that_goes_around_the_making_of_a_group_is_named(text: str, cause: str | None) -> None:
    """Also where it waits in its next collective instead of idling; the twin's call has no way around it."""
    lines = f"if {text}:\n    dist.new_group()" if cause else "dist.new_group()"
    program = guarded(lines)
    for rank in (0, 1, 3):
        program.rank(rank, "new_group", "dist.new_group()")
    _beyond(program, 2)
    assert (program.diagnosis().causes[0].id == "new-group-not-collective") is (cause is not None)


def test_the_quote_of_a_stack_shows_what_the_rank_does_there() -> None:
    program = _beyond(_in_the_branch(guarded("statistics(job)"), 0, 1), 2)
    quotes = {f.evidence[0].quote for f in program.findings() if f.code == "collective.peers_wait"}
    assert "/srv/job/job.py:9 statistics, all_reduce: dist.all_reduce(job.sums)" in quotes


def test_a_shifted_gather_supports_the_module_that_was_left_out_and_not_any_shift() -> None:
    def judged(kind: str) -> float:
        odd: dict[str, Any] = {"minority": True, "basis": "stacks", "complete": True, "contexts": ["fsdp"]}
        findings = [
            seen("collective.peers_wait", 0, 2, operation="all_gather", kind="collective", wait_s=60.0),
            seen("collective.operation_mismatch", 1, operation="all_reduce", **odd),
            seen("collective.call_site_shift", 1, kind=kind, minority=True, operation="all_gather"),
        ]
        causes = diagnose(findings, load_playbooks()).causes
        return next(cause.probability for cause in causes if cause.id == "module-skipped-on-rank")

    assert judged("left_out") > judged("extra_call")


def sharded(own: list[str], **facts: Any) -> list[Finding]:
    """Rank 1 in a gather of a sharded module, its peers in an all_reduce; `own`: of what they are not in with it."""
    odd: dict[str, Any] = {"minority": True, "complete": True, "contexts": ["fsdp"], "own_contexts": own}
    odd |= {
        "operation": "all_gather",
        "peer_operation": "all_reduce",
        "way_around": "n % 8 == 0",
        "peer_place": "t.py:9 f",
    }
    return [
        seen("collective.peers_wait", 0, 2, operation="all_reduce", kind="collective", wait_s=60.0),
        seen("collective.operation_mismatch", 1, **{"basis": "stacks", "in_turns": False, **odd, **facts}),
    ]


@pytest.mark.parametrize(
    ("own", "facts", "cause"),
    [
        ([], {"left_out": False}, "module-skipped-on-rank"),
        ([], {"basis": "flight_records"}, "module-skipped-on-rank"),
        ([], {"left_out": True, "parted_in": "forward"}, "module-skipped-on-rank"),
        ([], {"left_out": True, "parted_in": "main"}, "rank-skipped-collective"),
        (["fsdp"], {"left_out": True, "parted_in": "main"}, "rank-skipped-collective"),
        (["fsdp"], {"left_out": False}, "collective-order-mismatch"),
        (["fsdp"], {"basis": "flight_records"}, "collective-order-mismatch"),
    ],
)
def test_a_module_was_skipped_only_if_both_sides_are_in_collectives_of_sharded_modules(
    own: list[str], facts: dict[str, Any], cause: str
) -> None:
    """Who is in its next forward pass, while its peers are in a sum of the program, went around that sum."""
    said = judged(*sharded(own, **facts))
    assert (said.verdict, first(said)) == (Verdict.DIAGNOSED, cause)


def reducing(**facts: Any) -> Finding:
    """Rank 2 in a broadcast, its peers in the reduction of a backward pass, all below one line of the program."""
    odd: dict[str, Any] = {
        "minority": True,
        "complete": True,
        "contexts": ["trainer"],
        "own_contexts": [],
        "relation": "same_line",
    }
    odd |= {"operation": "broadcast", "peer_operation": "gradient_reduction", "basis": "stacks", "left_out": False}
    return seen("collective.operation_mismatch", 2, **odd | facts)


def test_a_missing_reduction_below_one_line_of_a_trainer_is_no_other_order_yet() -> None:
    waits = seen("collective.peers_wait", 0, 1, operation="gradient_reduction", kind="collective", wait_s=60.0)
    said = judged(waits, reducing())
    assert said.verdict is Verdict.UNDECIDED
    assert {"collective-order-mismatch", "rank-skipped-collective"} <= {cause.id for cause in said.causes}
    own_line = judged(waits, reducing(relation="after"))
    assert (own_line.verdict, first(own_line)) == (Verdict.DIAGNOSED, "collective-order-mismatch")


@pytest.mark.parametrize(("phase", "cause"), [("validation", "rank-skipped-collective"), ("logging", None)])
def test_who_validates_while_its_peers_are_in_a_step_has_left_the_steps(phase: str, cause: str | None) -> None:
    """As a flag to stop does that one rank alone has set; a metric is logged in the middle of a step, too."""
    waits = seen("collective.peers_wait", 0, 1, operation="gradient_reduction", kind="collective", wait_s=60.0)
    alive = seen("collective.peers_wait", 2, operation="barrier", kind="collective", wait_s=60.0, basis="stacks")
    said = judged(waits, alive, reducing(operation="barrier", phase=phase, peer_phase="backward"))
    assert (first(said) if said.verdict is Verdict.DIAGNOSED else None) == cause


def test_a_missing_reduction_where_a_module_takes_part_now_and_then_is_an_unused_parameter() -> None:
    waits = seen("collective.peers_wait", 0, 1, operation="gradient_reduction", kind="collective", wait_s=60.0)
    said = judged(waits, reducing(), told("conditional_modules"))
    assert (said.verdict, first(said), said.culprits.ranks) == (Verdict.DIAGNOSED, "ddp-unused-parameter", [2])


def test_a_call_under_a_condition_beside_the_reduction_of_every_step_is_one_too_many() -> None:
    program = Program(FIT + "def training_step(job):\n    if job.hard > 8:\n        dist.barrier()\n")
    engine = "/v/lib/python3.11/site-packages/torch/autograd/graph.py"
    for rank in (0, 1, 3):
        program.rank(rank, "gradient_reduction", "trainer.fit", inside=[("backward", engine)])
    found = program.rank(2, "barrier", "trainer.fit", "dist.barrier").mismatch()
    assert (found.ranks, found.attributes.get("extra_by")) == ([2], "job.hard > 8")


def test_whoever_is_inside_of_a_statement_has_passed_its_first_line() -> None:
    program = Program(
        "def train(job):\n    if stops(job):\n        dist.barrier()\n"
        "def stops(job):\n    if job.alone:\n        return True\n    dist.all_reduce(job.flag)\n"
    )
    for rank in (0, 1, 3):
        program.rank(rank, "all_reduce", "if stops(job)", "dist.all_reduce")
    found = program.rank(2, "barrier", "dist.barrier").mismatch()
    assert (found.ranks, found.attributes["left_out"]) == ([2], False)


def test_who_sends_a_broadcast_may_be_past_it() -> None:
    """The source does not wait for those who receive: that it is in a later call says nothing against it."""
    program = Program(
        "def train(job):\n    if job.saves:\n        dist.broadcast(job.weights, src=0)\n    dist.barrier()\n"
    )
    for rank in (1, 2, 3):
        program.rank(rank, "broadcast", "dist.broadcast")
    program.rank(0, "barrier", "dist.barrier")
    assert "rank-skipped-collective" not in {
        cause.id for cause in program.diagnosis().causes if cause.level == "established"
    }


def test_a_rank_whose_peers_are_under_a_condition_on_the_rank_too_is_not_alone() -> None:
    """First rank 0 loads, then the others, as libraries do it: two barriers, each under its own condition."""
    program = Program(
        "def load(job):\n    if job.local_rank not in [-1, 0]:\n        dist.barrier()\n    job.load()\n"
        "    if job.local_rank == 0:\n        dist.all_reduce(job.ready)\n"
    )
    for rank in (1, 2, 3):
        program.rank(rank, "barrier", "dist.barrier")
    found = program.rank(0, "all_reduce", "dist.all_reduce").mismatch()
    assert found.attributes["alone_by_rank"] is False


TAIL = """\
def train(job):
    for batch in job.batches:
        step(batch)
    finish(job)
def step(batch):
    dist.all_reduce(batch.sums)
def finish(job):
    dist.barrier()
"""


def test_of_two_ranks_the_one_that_has_left_the_loop_is_named() -> None:
    program = Program(TAIL).rank(0, "all_reduce", "step(batch)", "dist.all_reduce")
    found = program.rank(1, "barrier", "finish(job)", "dist.barrier").mismatch()
    assert (found.ranks, found.attributes["tie"], found.attributes.get("told_by")) == ([1], False, "loop")
    again = Program(
        "def main(job):\n    for _ in job.epochs:\n" + "".join(f"        {n}\n" for n in ("step()", "end()"))
    )
    found = again.rank(0, "all_reduce", "step()").rank(1, "barrier", "end()").mismatch()
    assert found.attributes["tie"], "an outer loop holds both: who is a round behind is not told"


FIT = """\
def main(trainer):
    trainer.fit()
"""


@pytest.mark.parametrize(("function", "odd"), [("log", [1]), ("forward", [0, 1])])
def test_of_two_ranks_in_one_line_of_the_program_the_one_beside_the_step_is_named(
    function: str, odd: list[int]
) -> None:
    """Library frames tell the phase: rank 0 is in the backward pass."""
    program = Program(FIT)
    engine = "/v/lib/python3.11/site-packages/deepspeed/runtime/engine.py"
    logger = "/v/lib/python3.11/site-packages/transformers/trainer.py"
    forward = "/v/lib/python3.11/site-packages/torch/nn/modules/module.py"
    program.rank(0, "all_reduce", "trainer.fit", inside=[("backward", engine)])
    program.rank(1, "barrier", "trainer.fit", inside=[(function, forward if function == "forward" else logger)])
    found = program.mismatch()
    assert (found.ranks, found.attributes["tie"]) == (odd, len(odd) == 2)
    assert found.attributes.get("told_by") == (None if len(odd) == 2 else "phase")


@pytest.mark.parametrize(("phases", "odd"), [("forward log backward backward", [1]), ("forward log log log", [0])])
def test_peers_that_are_in_several_calls_of_their_steps_are_one_side(phases: str, odd: list[int]) -> None:
    """Rank 1 logs (or three do, in calls of their own), and the others are stopped in two places of the step."""
    program = Program(FIT)
    files = {"forward": "torch/nn/modules/module.py", "backward": "deepspeed/runtime/engine.py"}
    calls = {
        "forward": ["broadcast"] * 4,
        "backward": ["all_reduce"] * 4,
        "log": ["barrier", "barrier", "all_gather", "barrier"],
    }
    for rank, function in enumerate(phases.split()):
        file = f"/v/lib/python3.11/site-packages/{files.get(function, 'transformers/trainer.py')}"
        program.rank(rank, calls[function][rank], "trainer.fit", inside=[(function, file)])
    found = program.mismatch()
    assert (found.ranks, found.attributes["tie"]) == (odd, False)


@pytest.mark.parametrize("alike", [False, True])
def test_a_backward_pass_under_a_condition_on_data_was_left_out_by_who_is_behind_it(alike: bool) -> None:
    """A condition on the round would have been the same for all: then the rank may have a turn more."""
    turns = {"left_out": True, "in_turns": True, "way_alike": alike, "peer_operation": "gradient_reduction"}
    said = judged(*sharded([], contexts=[], relation="after", in_loop=True, **turns))
    assert (said.verdict is Verdict.DIAGNOSED) is not alike
    assert first(said) == "rank-skipped-collective" or alike


GATHERED = """\
def train(job):
    for number, batch in enumerate(job.batches):
        if job.rank == 0:
            dist.gather(batch.sums, job.parts, dst=0)
        elif batch.sums is not None:
            dist.gather(batch.sums, dst=0)
        else:
            dist.all_reduce(batch.own)
        dist.all_reduce(job.loss)
"""


@pytest.mark.parametrize("odd", [3, None])
def test_who_gathers_waits_for_the_one_among_the_others_that_differs(odd: int | None) -> None:
    program = Program(GATHERED).rank(0, "gather", "dist.gather(batch.sums, job.parts")
    for rank in (1, 2, 3):
        program.rank(rank, "all_reduce", "dist.all_reduce(batch.own)" if rank == odd else "dist.all_reduce(job.loss)")
    blamed = [rank for finding in program.findings() for rank in finding.ranks if finding.code.endswith("_mismatch")]
    assert blamed == ([odd] if odd else [0])
    assert program.diagnosis().causes[0].id != "rank0-only-work-with-collective", (
        "others gather, too, by the other branch"
    )


@pytest.mark.parametrize(
    ("call", "function", "cause"),
    [
        ("job.store.get(job.key)", "", None),
        ("job.handle.wait()", "", None),
        ("dist.new_group()", "new_group", "new-group-not-collective"),
        ("dist.barrier()", "barrier", "collective-order-mismatch"),
    ],
)
def test_only_of_operations_of_all_ranks_one_differs_in_their_order(
    call: str, function: str, cause: str | None
) -> None:
    """For what a key of the store or a handle waits, and for whom, no stack tells."""
    program = _beyond(guarded(f"if number in job.rounds:\n    {call}"), 0, 1, 2)
    said = program.rank(3, function, call).diagnosis()
    assert (said.causes[0].id if said.verdict is Verdict.DIAGNOSED else None) == cause


EXPERTS = """\
def train(job):
    for batch in job.batches:
        layer(batch, job)
        average(job)
def layer(batch, job):
    {before}
    dist.all_to_all_single(batch.rows, batch.own{group})
def average(job):
    dist.all_reduce(job.gradients)
"""
NO_TOKENS = "if batch.empty: return batch"


def exchanging(*ranks: int, group: str = ", group=job.experts", before: str = NO_TOKENS) -> Program:
    """Eight ranks: these are in the exchange of a layer, the others in the reduction behind it."""
    program = Program(EXPERTS.format(group=group, before=before))
    for rank in range(8):
        if rank in ranks:
            program.rank(rank, "all_to_all_single", "layer(batch, job)", "dist.all_to_all_single")
        else:
            program.rank(rank, "all_reduce", "average(job)", "dist.all_reduce")
    return program


def test_few_ranks_in_a_call_of_their_group_may_wait_for_one_of_the_many() -> None:
    program = exchanging(4, 6, 7)
    assert program.mismatch().attributes["minority"] is False
    (missing,) = (f for f in program.findings() if f.code == "collective.group_member_missing")
    assert missing.ranks == [5]
    said = program.diagnosis()
    assert said.verdict is Verdict.UNDECIDED and not said.culprits.ranks


def test_the_wait_graph_agrees_and_leaves_it_open() -> None:
    waits = exchanging(4, 6, 7).waits()
    assert waits.roots.ranks == (5,) and "whom ranks 4, 6-7 wait for" in waits.roots.open
    assert not waits.suspects


@pytest.mark.parametrize("group", ["", ", group=None", ", group=dist.group.WORLD"])
def test_few_ranks_in_a_call_of_all_ranks_deviate(group: str) -> None:
    assert exchanging(4, 6, 7, group=group).mismatch().ranks == [4, 6, 7]


@pytest.mark.parametrize("ranks", [(5,), (1, 6)])
def test_ranks_that_no_group_of_a_mesh_surrounds_leave_open_whom_they_wait_for(ranks: tuple[int, ...]) -> None:
    """A single rank counts as the deviating one: more than one of its group would have had to leave it."""
    codes = {finding.code for finding in exchanging(*ranks).findings()}
    assert "collective.group_member_missing" not in codes


def test_ranks_that_alone_are_meant_to_make_a_call_deviate() -> None:
    text = EXPERTS.format(group=", group=job.experts", before="pass").replace(
        "        layer(batch, job)\n", "        if dist.get_rank() in (4, 6, 7):\n            layer(batch, job)\n"
    )
    program = Program(text)
    for rank in range(8):
        there = rank in (4, 6, 7)
        path = ("layer(batch, job)", "dist.all_to_all_single") if there else ("average(job)", "dist.all_reduce")
        program.rank(rank, "all_to_all_single" if there else "all_reduce", *path)
    assert program.mismatch().ranks == [4, 6, 7]
    roots = program.waits().roots
    assert (roots.ranks, roots.open) == ((4, 6, 7), "")


TIED = """\
def train(job):
    for batch in job.batches:
        flush(job)
        average(job)
def flush(job):
    for name in job.touched:
        {loop}
def summed(gradient, group):
    dist.all_reduce(gradient, group=group)
def average(job):
    dist.all_gather(job.parts, job.own)
"""


def tied(loop: str, *path: str) -> Program:
    """Ranks 0, 1, 3, 4 of six in a call of `flush` that passes a group, the others in the call behind it."""
    program = Program(TIED.format(loop=loop.replace("\n", "\n        ")))
    for rank in range(6):
        if rank in (2, 5):
            program.rank(rank, "all_gather", "average(job)", "dist.all_gather")
        else:
            program.rank(rank, "all_reduce", "flush(job)", *path)
    return program


@pytest.mark.parametrize(
    ("loop", "path"),
    [
        ("group = job.groups[name]\ndist.all_reduce(job.gradients, group=group)", ["job.gradients, group"]),
        ("dist.all_reduce(job.gradients, group=job.groups[name])", ["job.gradients, group"]),
        ("summed(job.gradients, job.groups[name])", ["summed(job", "dist.all_reduce(gradient"]),
    ],
)
def test_ranks_in_a_call_of_several_groups_may_wait_for_each_other(loop: str, path: list[str]) -> None:
    """Two of them may have taken two groups in another order; the few behind the call wait for all of them."""
    program = tied(loop, *path)
    assert program.diagnosis().verdict is Verdict.UNDECIDED
    waits = program.waits()
    assert not waits.suspects and not waits.roots.ranks
    assert "nothing shows in which of their groups ranks 0-1, 3-4 wait" in waits.roots.open


@pytest.mark.parametrize(
    ("loop", "path"),
    [
        ("dist.all_reduce(job.gradients, group=job.group)", ["job.gradients, group"]),
        ("group = job.group\ndist.all_reduce(job.gradients, group=group)", ["job.gradients, group"]),
        ("summed(job.parts[name], job.group)", ["summed(job", "dist.all_reduce(gradient"]),
    ],
)
def test_ranks_that_lack_in_a_call_of_one_group_have_left_it_out(loop: str, path: list[str]) -> None:
    assert tied(loop, *path).waits().roots.ranks == (2, 5)


@pytest.mark.parametrize(
    ("ranks", "world", "missing"),
    [
        ({4, 6, 7}, 8, {5}),
        ({0, 4}, 8, set()),  # both {0, 4} and larger groups fit
        ({0, 2, 4}, 8, {6}),
        ({1, 9, 17}, 32, {25}),
        ({8, 9, 10, 11, 12, 13, 15}, 64, {14}),
        ({0, 1, 2, 3}, 8, set()),  # a whole group: most of the next larger one is missing
        ({0, 1, 2, 3, 4}, 5, set()),
    ],
)
def test_the_member_that_a_mesh_group_lacks(ranks: set[int], world: int, missing: set[int]) -> None:
    assert missing_from_group(ranks, set(range(world))) == missing


THROTTLED = """\
def train(job):
    for step in job.steps:
        if step % 40 == 0:
            save(job)
        dist.all_reduce(job.stop)
def save(job):
    {loop}
        job.file.write(job.piece)
        time.sleep(0.5)
"""


@pytest.mark.parametrize(
    ("loop", "between_looks_s", "verdict"),
    [
        ("for piece in job.pieces:", 10.0, Verdict.UNDECIDED),
        ("for piece in job.pieces:", 90.0, Verdict.DIAGNOSED),
        ("while not job.done():", 10.0, Verdict.DIAGNOSED),
    ],
)
def test_a_sleep_that_ends_by_itself_is_work_that_peers_may_wait_for(
    loop: str, between_looks_s: float, verdict: Verdict
) -> None:
    program = Program(THROTTLED.format(loop=loop), between_looks_s=between_looks_s)
    program.rank(0, "", "save(job)", "time.sleep")
    for rank in (1, 2, 3):
        program.rank(rank, "all_reduce", "dist.all_reduce")
    assert program.diagnosis().verdict is verdict


@pytest.mark.parametrize(("then", "verdict"), [("job.second", Verdict.UNDECIDED), (None, Verdict.DIAGNOSED)])
def test_a_rank_that_starts_one_child_after_another_works(then: str | None, verdict: Verdict) -> None:
    text = THROTTLED.format(loop="for piece in job.pieces:").replace("time.sleep(0.5)", "subprocess.run(job.first)")
    program = Program(text + "        subprocess.run(job.second)\n", between_looks_s=10.0)
    child = [("wait", "/usr/lib/python3.11/subprocess.py")]
    program.rank(0, "", "save(job)", "job.first", inside=child, then=then)
    for rank in (1, 2, 3):
        program.rank(rank, "all_reduce", "dist.all_reduce")
    assert program.diagnosis().verdict is verdict
