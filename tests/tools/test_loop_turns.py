"""Ranks of which one is in a loop and the other behind it: who had more turns, and where that cannot be told."""

from __future__ import annotations

import pytest
from constructed_programs import Program

from ddx_tools.model.diagnosis import Verdict

ROUNDS = """\
def train(job):
    for number, batch in enumerate(job.epochs):
        turns(job)
        if number % 2 == 0:
            evaluate(job)
def turns(job):
    for batch in job.batches:
        dist.all_reduce(job.sums)
def evaluate(job):
    dist.all_gather(job.parts, job.own)
"""


def test_one_more_turn_of_a_loop_may_look_like_a_call_that_was_left_out() -> None:
    """Its data may be longer: the loop turns as often as there are batches."""
    program = Program(ROUNDS)
    for rank in (0, 1, 3):
        program.rank(rank, "all_gather", "evaluate(job)", "dist.all_gather")
    found = program.rank(2, "all_reduce", "turns(job)", "dist.all_reduce").mismatch()
    assert (found.ranks, found.attributes["in_turns"]) == ([2], True)
    assert program.diagnosis().verdict is Verdict.UNDECIDED


def test_turns_of_a_loop_in_a_forward_pass_are_layers_of_which_no_rank_has_more() -> None:
    program = Program(
        "def train(job):\n    for batch in job.batches:\n        forward(batch)\n        if len(batch) == 8:\n"
        "            dist.all_gather(job.parts, job.own)\n"
        "def forward(batch):\n    for layer in batch.layers:\n        dist.all_reduce(layer.sums)\n"
    )
    for rank in (0, 1, 3):
        program.rank(rank, "all_gather", "dist.all_gather")
    found = program.rank(2, "all_reduce", "forward(batch)", "dist.all_reduce").mismatch()
    assert (found.ranks, found.attributes["in_turns"], found.attributes["left_out"]) == ([2], False, True)
    assert (program.diagnosis().verdict, program.diagnosis().causes[0].id) == ("diagnosed", "rank-skipped-collective")


EVALUATED = """\
def train(job):
    for step, batch in enumerate(job.batches):
        if step % 20 == 0:
            evaluate(job)
            dist.barrier()
def evaluate(job):
    for batch in job.held_out:
        dist.all_gather(batch.parts, batch.own)
"""


@pytest.mark.parametrize(("behind", "turns"), [([2], "fewer"), ([0, 1, 3], "more")])
def test_who_is_through_with_a_loop_that_nobody_can_leave_had_fewer_turns(behind: list[int], turns: str) -> None:
    program = Program(EVALUATED)
    for rank in range(4):
        if rank in behind:
            program.rank(rank, "barrier", "dist.barrier")
        else:
            program.rank(rank, "all_gather", "evaluate(job)", "dist.all_gather")
    found = program.mismatch()
    assert (found.ranks, found.attributes["turns"]) == ([2], turns)
    said = program.diagnosis()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == ("diagnosed", "uneven-data", [2])


def test_a_loop_that_can_be_left_earlier_says_nothing_of_turns() -> None:
    program = Program(
        EVALUATED.replace(
            "        dist.all_gather", "        if batch.bad:\n            break\n        dist.all_gather"
        )
    )
    for rank in (0, 1, 3):
        program.rank(rank, "all_gather", "evaluate(job)", "dist.all_gather")
    assert program.rank(2, "barrier", "dist.barrier").mismatch().attributes.get("turns") is None


ONE_FUNCTION = """\
def main(job):
    for epoch in job.epochs:
        for batch in job.batches:
            backward(job)
        evaluate(job)
def backward(job):
    dist.all_reduce(job.grads)
def evaluate(job):
    dist.all_gather(job.parts, job.own)
def forward(job):
    for batch in job.batches:
        backward(job)
    evaluate(job)
"""


@pytest.mark.parametrize(
    ("replaced", "turns"),
    [
        (("", ""), "fewer"),
        (
            (
                "            backward(job)\n",
                "            backward(job)\n            if job.done:\n                break\n",
            ),
            None,
        ),
        (("        evaluate(job)\ndef", "        if job.due:\n            evaluate(job)\ndef"), None),
        (("def main(job)", "def forward(job)"), None),
    ],
    ids=["no-way-around", "left-early", "not-each-round", "layers"],
)
def test_who_is_behind_a_loop_that_comes_again_had_fewer_turns_of_it(
    replaced: tuple[str, str], turns: str | None
) -> None:
    """Nobody comes to the next round but through the call that the rank waits in: its peers are not a round ahead."""
    program = Program(ONE_FUNCTION.replace(*replaced, 1))
    for rank in (0, 1, 3):
        program.rank(rank, "all_reduce", "    backward(job)", "dist.all_reduce")
    found = program.rank(2, "all_gather", "    evaluate(job)", "dist.all_gather").mismatch()
    assert (found.ranks, found.attributes.get("turns")) == ([2], turns)
    assert (program.diagnosis().causes[0].id == "uneven-data") is (turns is not None)


CAUGHT = """\
def main(job):
    for batch in job.batches:
        try:
            dist.all_reduce(job.grads)
        except ValueError:
            dist.barrier()
"""


def test_an_exception_that_was_caught_leads_around_what_its_peers_wait_in() -> None:
    program = Program(CAUGHT)
    for rank in (0, 1, 3):
        program.rank(rank, "all_reduce", "dist.all_reduce")
    found = program.rank(2, "barrier", "dist.barrier").mismatch()
    assert (found.ranks, found.attributes["way_around"]) == ([2], "except ValueError")
    said = program.diagnosis()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == ("diagnosed", "rank-skipped-collective", [2])


HOOK = """\
def main(trainer):
    trainer.fit()
def on_validation_epoch_end(self):
    if self.seen:
        dist.all_gather(self.parts, self.own)
"""


SITE = "/v/lib/python3.11/site-packages"


def hooked(guard: str) -> Program:
    """Three ranks are in a hook that runs under a condition, and rank 2 is in the next step."""
    program = Program(HOOK.replace("self.seen", guard))
    loops = f"{SITE}/lightning/pytorch/loops"
    for rank in (0, 1, 3):
        frames = [("log", f"{loops}/evaluation_loop.py")]
        program.rank(rank, "all_gather", "trainer.fit", "dist.all_gather", inside=frames)
    return program.rank(2, "barrier", "trainer.fit", inside=[("advance", f"{loops}/fit_loop.py")])


def test_a_hook_that_a_rank_left_out_is_where_the_ranks_part_below_one_line_of_the_program() -> None:
    program = hooked("self.seen")
    found = program.mismatch()
    assert (found.ranks, found.attributes["way_around"], found.attributes["way_at"]) == (
        [2], "self.seen", "job.py:4 on_validation_epoch_end"
    )  # fmt: skip
    assert [place.line for place in found.locations] == [5, 4, 2]
    said = program.diagnosis()
    assert (said.causes[0].id, {cause.id for cause in said.causes[1:]}) == ("rank-skipped-collective", {"uneven-data"})


@pytest.mark.parametrize(
    ("guard", "by_value"),
    [
        ("self.score < self.best", True),
        ("torch.isfinite(self.score)", True),
        ("not self.trainer.sanity_checking", False),
        ("dist.is_initialized() and self.enabled", False),
        ("self.trainer.current_epoch >= self.hparams.from_epoch", False),
    ],
)
def test_what_a_rank_measures_leads_around_a_hook_and_a_flag_may_be_a_setting(guard: str, by_value: bool) -> None:
    program = hooked(guard)
    assert program.mismatch().attributes["way_by_value"] is by_value
    said = program.diagnosis()
    assert (said.verdict is Verdict.DIAGNOSED) is by_value
    assert said.causes[0].id == "rank-skipped-collective"


STEP = """\
def main(trainer):
    trainer.train()
def training_step(self, batch):
    try:
        loss.backward()
    except Exception:
        pass
"""


def test_who_logs_at_the_end_of_a_step_that_its_peers_are_in_left_out_what_they_do() -> None:
    program = Program(STEP)
    trainer, engine = f"{SITE}/transformers/trainer.py", f"{SITE}/torch/autograd/graph.py"
    backward = [("_engine_run_backward", engine)]
    for rank in (0, 1, 3):
        program.rank(rank, "", "trainer.train", "loss.backward", inside=backward)
    found = program.rank(2, "all_gather", "trainer.train", inside=[("_maybe_log_save_evaluate", trainer)]).mismatch()
    assert (found.ranks, found.attributes["way_around"]) == ([2], "except Exception")
    said = program.diagnosis()
    assert (said.verdict, said.causes[0].id) == (Verdict.DIAGNOSED, "rank-skipped-collective")
    assert [place.line for place in said.culprits.locations][:2] == [5, 6]


CHUNKS = """\
def train(job):
    for step in range(job.steps):
        backward(job)
        if step % MINE_EVERY == 0:
            exchange(job.found)
def backward(job):
    dist.all_reduce(job.grads)
def exchange(found):
    for start in range(0, len(found), 64):
        dist.all_gather(found.parts, found.own)
"""


@pytest.mark.parametrize("guard", ["step % MINE_EVERY == 0", "job.args.mine and step > warmup_steps", "job.found"])
def test_a_condition_on_the_round_is_the_same_on_all_ranks_that_are_in_it(guard: str) -> None:
    """So peers in the next round had fewer turns of what this one ends with; they may not have met other conditions."""
    program = Program(CHUNKS.replace("step % MINE_EVERY == 0", guard))
    for rank in (0, 1, 3):
        program.rank(rank, "all_reduce", "backward(job)", "dist.all_reduce")
    found = program.rank(2, "all_gather", "exchange(job.found)", "dist.all_gather").mismatch()
    told = guard != "job.found"
    assert (found.ranks, found.attributes.get("turns")) == ([2], "more" if told else None)
    assert (program.diagnosis().causes[0].id == "uneven-data") is told


def test_who_is_in_the_next_round_while_its_peers_end_this_one_had_fewer_turns() -> None:
    program = Program(CHUNKS)
    for rank in (0, 1, 3):
        program.rank(rank, "all_gather", "exchange(job.found)", "dist.all_gather")
    found = program.rank(2, "all_reduce", "backward(job)", "dist.all_reduce").mismatch()
    assert (found.ranks, found.attributes["turns"]) == ([2], "fewer")
