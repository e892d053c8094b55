"""What the text of a program says about two of its lines, and that no text can break the reader."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.analysis.program.python_source import UNRELATED, PythonSource, Relation

PROGRAM = """\
class Trainer:
    def fit(self, loader):
        self.prepare()
        for step, batch in enumerate(loader):
            loss = self.loss(batch)
            if not torch.isfinite(loss):
                self.skipped += 1
                continue
            if self.rank == 0 and step % 10 == 0:
                self.save()
            else:
                self.wait_for_save()
            loss.backward()
            dist.all_reduce(
                loss,
                op=dist.ReduceOp.SUM,
            )
        else:
            self.epoch_done()
        self.finish()

    def finish(self):
        try:
            self.upload()
        except OSError:
            self.keep()
        except ValueError:
            self.discard()
        finally:
            self.close()

    @property
    def kind(self):
        match self.stage_index:
            case 0:
                return self.first()
            case 1:
                return self.last()
        while self.busy():
            self.poll()
        with self.lock:
            self.flush()

def finish(job): job.end()
"""
SOURCE = PythonSource(PROGRAM)


def line(text: str) -> int:
    """The number of the only line that holds a text."""
    (number,) = [n for n, content in enumerate(PROGRAM.splitlines(), 1) if text in content]
    return number


def relation(ours: str, theirs: str) -> Relation:
    return SOURCE.relation(line(ours), line(theirs))


# --- places of a program


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        ("self.save()", "self.save()", "same_line"),
        ("op=dist.ReduceOp.SUM", "dist.all_reduce(", "same_line"),
        ("self.prepare()", "loss.backward()", "before"),
        ("self.loss(batch)", "loss.backward()", "before"),
        ("loss.backward()", "self.loss(batch)", "after"),
        ("self.finish()", "loss.backward()", "past_loop"),
        ("self.finish()", "self.prepare()", "after"),
        ("self.epoch_done()", "loss.backward()", "past_loop"),
        ("loss.backward()", "self.epoch_done()", "before"),
        ("self.save()", "self.wait_for_save()", "other_branch"),
        ("self.first()", "self.last()", "other_branch"),
        ("self.keep()", "self.discard()", "unrelated"),
        ("self.keep()", "self.upload()", "after"),
        ("self.upload()", "self.keep()", "unrelated"),
        ("self.upload()", "loss.backward()", "unrelated"),
        ("def finish(job)", "self.upload()", "unrelated"),
        # At the first line of a statement that the other is inside of: a loop comes back to it, an `if` does not.
        ("for step, batch", "loss.backward()", "before"),
        ("loss.backward()", "for step, batch", "before"),
        ("self.poll()", "while self.busy()", "before"),
        ("if not torch.isfinite", "self.skipped", "before"),
        ("self.skipped", "if not torch.isfinite", "after"),
        ("with self.lock", "self.flush()", "before"),
        ("self.flush()", "with self.lock", "after"),
    ],
)
def test_where_a_line_stands_to_another(ours: str, theirs: str, kind: str) -> None:
    assert relation(ours, theirs).kind == kind


def test_lines_of_two_methods_of_one_name_are_not_compared() -> None:
    """Stacks of Encoder.forward and Decoder.forward part in files and functions of the same name."""
    source = PythonSource(
        textwrap.dedent("""\
        class Encoder:
            def forward(self, x):
                x = self.a(x)
                if self.rank == 0:
                    x = self.b(x)
                return x
        class Decoder:
            def forward(self, x):
                x = self.c(x)
                return self.d(x)
        """)
    )
    assert source.relation(3, 10) == source.relation(5, 10) == UNRELATED


def test_the_branch_that_a_rank_takes_is_told() -> None:
    found = relation("self.save()", "self.wait_for_save()")
    assert (found.kind, found.guard_side, found.guard_on_rank) == ("other_branch", "both", True)
    assert found.guard == "self.rank == 0 and step % 10 == 0"


def test_a_branch_that_leaves_before_the_peers_line_is_told() -> None:
    found = relation("self.skipped", "loss.backward()")
    assert (found.kind, found.guard, found.guard_side) == ("before", "not torch.isfinite(loss)", "rank")
    assert (found.guard_on_rank, found.leaves) == (False, True)


def test_a_branch_that_only_the_peer_took_is_told() -> None:
    found = relation("loss.backward()", "self.save()")
    assert (found.kind, found.guard_side, found.guard_on_rank, found.leaves) == ("after", "peer", True, False)


def test_the_cases_of_a_match_are_told_apart_by_what_they_match() -> None:
    found = relation("self.last()", "self.first()")
    assert (found.kind, found.guard, found.guard_on_rank) == ("other_branch", "self.stage_index", True)


def test_lines_that_share_a_loop_may_belong_to_different_rounds_of_it() -> None:
    assert relation("loss.backward()", "self.loss(batch)").in_loop
    assert not relation("self.finish()", "loss.backward()").in_loop


@pytest.mark.parametrize(
    "guard",
    [
        "rank == 0", "self.rank", "dist.get_rank() == 0", "global_rank % 2", "args.local_rank in (0, -1)",
        "is_main_process()", "trainer.is_global_zero", "args.local_rank not in [-1, 0]",
        "accelerator.is_local_main_process", "is_rank_zero", "dp_rank", "tp_rank > 0", "RANK",
        "trainer.is_global_zero or is_master", "stage_index == 0", "process_index", "is_first_stage",
    ],
)  # fmt: skip
def test_conditions_that_ask_for_the_rank(guard: str) -> None:
    assert PythonSource(f"if {guard}:\n    a()\nelse:\n    b()").relation(2, 4).guard_on_rank


@pytest.mark.parametrize(
    "guard",
    [
        "loss > 3", "frank", "ranking is None", "step % 10 == 0", "self.cranky", "x.main",
        "args.local_rank != -1", "rank is not None", "dist.get_rank() >= 0",  # is there a rank at all?
    ],
)  # fmt: skip
def test_conditions_that_do_not(guard: str) -> None:
    assert not PythonSource(f"if {guard}:\n    a()\nelse:\n    b()").relation(2, 4).guard_on_rank


@pytest.mark.parametrize(
    ("text", "function", "qualified"),
    [
        ("self.loss(batch)", "fit", "Trainer.fit"),
        ("self.upload()", "finish", "Trainer.finish"),
        ("def finish(job)", "finish", "finish"),
        ("self.first()", "kind", "Trainer.kind"),
        ("self.save()", "<lambda>", "<lambda>"),
    ],
)
def test_functions_get_the_name_of_their_class(text: str, function: str, qualified: str) -> None:
    assert SOURCE.qualified(line(text), function) == qualified


# --- lines, as Python counts them


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_python_ends_them(end: str) -> None:
    source = PythonSource(end.join(["a = 1", "\x0c", "b = '\x1c\u2028\x85'", "def f():", "    c()"]))
    assert (source.line_text(1), source.line_text(2), source.line_text(5)) == ("a = 1", "", "c()")
    assert source.qualified(5, "f") == "f"
    assert source.relation(1, 3).kind == "before"


def test_lines_that_do_not_exist_have_no_text() -> None:
    assert [SOURCE.line_text(n) for n in (-1, 0, 10**9)] == [None, None, None]
    assert SOURCE.relation(10**9, 3).kind in ("unrelated", "unknown")


def test_a_byte_order_mark_is_no_part_of_the_program() -> None:
    source = PythonSource("\ufeffif rank == 0:\n    a()\nelse:\n    b()")
    assert source.line_text(1) == "if rank == 0:"
    assert source.relation(2, 4).kind == "other_branch"


# --- texts that are no programs, or too much of one


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def broken(:\n  x",
        "x = 1\0\ny = 2",
        "\ufffd\ufffd latin-1 \ufffd",
        "(" * 5_000,
        "[" * 90 + "]" * 90,
        "-" * 50_000 + "1",
        "x" + " + x" * 50_000,
        "if a:\n b\n" + "".join(f"{' ' * n}if a:\n" for n in range(1, 99)) + " " * 99 + "pass",
        "x = '" + "y" * 1_000_000 + "'",
        "\t\n" * 1_000,
    ],
    ids=range(11),
)
def test_a_text_that_does_not_parse_still_has_lines(text: str) -> None:
    source = PythonSource(text)
    source.relation(1, 2)
    assert source.qualified(1, "f") == "f"
    assert source.line_text(1) == (text.split("\n")[0].strip() if text else "")


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        ("self.prepare()", []),
        ("self.loss(batch)", []),
        ("self.save()", [("not torch.isfinite(loss)", False), ("self.rank == 0 and step % 10 == 0", True)]),
        ("loss.backward()", [("not torch.isfinite(loss)", False)]),
        ("self.upload()", [("except OSError", False)]),
        ("self.keep()", [("except OSError", False)]),
        ("self.close()", []),
        ("self.flush()", [("self.stage_index", True)]),
    ],
)
def test_how_a_line_can_be_passed_by(words: str, ways: list[tuple[str, bool]]) -> None:
    assert [(way.guard, way.on_rank) for way in SOURCE.ways_around(line(words))] == ways


def test_only_what_leaves_before_a_line_leads_around_it() -> None:
    text = "def f():\n  for x in y:\n    if x: break\n  a()\n  if z: return\n  b()\n  if w: raise ValueError\n  c()\n"
    source = PythonSource(text)
    assert source.ways_around(4) == ()
    assert [way.guard for way in source.ways_around(6)] == [way.guard for way in source.ways_around(8)] == ["z"]


def test_a_long_chain_of_conditions_is_followed() -> None:
    chain = "if a: b()\n" + "elif a: b()\n" * 900 + "else: return\n"
    source = PythonSource("def f():\n" + "".join(f"  {text}\n" for text in chain.splitlines()) + "  c()\n")
    assert len(source.ways_around(904)) == 1


@pytest.mark.parametrize("terms", [50, 900, 5_000])
def test_a_condition_of_any_length_is_bounded(terms: int) -> None:
    source = PythonSource(f"if {' + '.join(['a'] * terms)}:\n    a()\nelse:\n    b()")
    assert len(source.relation(2, 4).guard or "") <= 200


def test_warnings_about_the_program_are_not_ours_to_print() -> None:
    """Warnings are errors in these tests."""
    assert PythonSource('import re\nx = re.compile("\\d")\nif 1 is 1:\n    a()').relation(2, 4).kind == "before"


@given(text=st.text(max_size=200), lines=st.tuples(st.integers(-3, 30), st.integers(-3, 30)))
def test_no_text_raises(text: str, lines: tuple[int, int]) -> None:
    source = PythonSource(text)
    source.relation(*lines)
    source.ways_around(lines[0])
    source.qualified(lines[0], "f")
    source.line_text(lines[0])


REPOSITORY = Path(__file__).parents[2]
PROGRAMS = [REPOSITORY / "evals/lab/jobs" / name for name in ("ddp/train.py", "pipeline/train.py", "fsdp/model.py")]


@given(program=st.sampled_from(PROGRAMS), data=st.data())
def test_the_relation_of_two_lines_has_two_sides(program: Path, data: st.DataObject) -> None:
    text = program.read_text(encoding="utf-8")
    numbers = st.integers(1, len(text.splitlines()))
    a, b = data.draw(numbers), data.draw(numbers)
    source = PythonSource(text)
    there, back = source.relation(a, b), source.relation(b, a)
    assert (there.kind == "same_line") == (back.kind == "same_line")
    assert (there.kind == "other_branch") == (back.kind == "other_branch")
    assert (there.kind == "unrelated") == (back.kind == "unrelated")
    assert {there.kind, back.kind} != {"after"}
    if a == b:
        assert there.kind == "same_line"


@pytest.mark.parametrize(
    ("guard", "alike"),
    [
        ("step % 20 == 0", True),
        ("(step + 1) % self.config.log_every == 0 and not args.quiet", True),
        ("global_step >= MAX_STEPS or i == 0", True),
        ("cfg['eval'] and state.global_step % cfg['every'] == 0", True),
        ("rank == 0 and step % 20 == 0", False),
        ("step % 20 == 0 and batch.images", False),
        ("steps_left() == 0", False),
        ("loss < args.target", False),
        ("self.done", False),
        pytest.param("step" + " + 1" * 900 + " == 0", False, id="too deep to follow"),
    ],
)
def test_ranks_in_one_round_answer_alike_what_asks_for_rounds_and_settings(guard: str, alike: bool) -> None:
    source = PythonSource(f"def train():\n    if {guard}:\n        return\n    work()\n")
    assert [way.alike for way in source.ways_around(4)] == [alike]


@pytest.mark.parametrize(
    ("call", "names_one"),
    [
        ("dist.all_reduce(x, group=self.tp)", True),
        ("dist.all_reduce(x, dist.ReduceOp.SUM, self.tp)", True),
        ("dist.all_to_all_single(out, x, None, None, ep)", True),
        ("dist.barrier(pair)", True),
        ("dist.all_reduce(x, dist.ReduceOp.SUM)", False),
        ("dist.all_reduce(x, dist.ReduceOp.SUM, None)", False),
        ("dist.broadcast(x, 0, dist.group.WORLD)", False),
        ("dist.broadcast(x, *rest)", False),
        ('accelerator.barrier("epoch end")', False),
    ],
)
def test_a_call_names_a_process_group_by_keyword_or_place(call: str, names_one: bool) -> None:
    assert PythonSource(call).names_group(1) is names_one


@pytest.mark.parametrize(
    ("first", "condition", "on_rank"),
    [
        ("r = dist.get_rank()", "r == 0", True),
        ("me, size = dist.get_rank(), dist.get_world_size()", "not me", True),
        ("r, w = dist.get_rank(), dist.get_world_size()", "w > 1", False),
        ("place = mesh.get_coordinate()", "place[0] == 0", True),
        ("r = int(os.environ['RANK'])", "r == 0 and step % 10 == 0", True),
        ("r = 1.0", "r == 0", False),
        ("r = dist.get_rank()\n    r = loss.item()", "r == 0", False),
        ("r = dist.get_rank()", "self.r == 0", False),
        ("main = get_rank() == 0", "main", True),
        ("model = DDP(model, device_ids=[local_rank])", "model.training", False),
        ("loss = step(batch, rank)", "loss > 9", False),
        ("part = parts[rank]", "part is None", False),
    ],
)
def test_a_variable_that_holds_the_rank_is_the_rank(first: str, condition: str, on_rank: bool) -> None:
    text = f"def main():\n    {first}\n    if {condition}:\n        work()\n    dist.barrier()\n"
    lines = text.count("\n")
    relation = PythonSource(text).relation(lines - 1, lines)
    assert (relation.guard, relation.guard_on_rank) == (condition, on_rank)
