"""One look at one thing of an incident: what stands there, and that evidence names it in the same words."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_evals.incidents import named_incidents
from ddx_tools.investigation.lookup import look
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.show.addresses import Thing, Words, parse_words
from ddx_tools.investigation.show.suspect_view import guard_of
from ddx_tools.model.errors import UsageError

pytestmark = pytest.mark.slow

BUNDLES = Path(__file__).parents[1] / "fixtures" / "stacks"


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("ranks", Words(Thing.RANKS)),
        ("rank 77", Words(Thing.RANK, number=77)),
        ("group mesh_dp", Words(Thing.GROUP, "mesh_dp")),
        ("collective mesh dp 350", Words(Thing.COLLECTIVE, "mesh dp", 350)),
        ("record dumps/a b#15", Words(Thing.RECORD, "dumps/a b", 15)),
        ("record dumps/a b#record_id=15", Words(Thing.RECORD, "dumps/a b", 15)),
        ("material job.tar!logs/rank3.log:41", Words(Thing.MATERIAL, "job.tar!logs/rank3.log", 41)),
        ("train.log:41", Words(Thing.MATERIAL, "train.log", 41)),
        ("train.log", Words(Thing.MATERIAL, "train.log")),
    ],
)
def test_words_name_one_thing(said: str, means: Words) -> None:
    assert parse_words(said.split(" ")) == means


@pytest.mark.parametrize("said", ["", "rank", "rank three", "group", "collective mesh_dp", "record dumps/a"])
def test_words_that_name_nothing_are_refused_with_what_to_say(said: str) -> None:
    with pytest.raises(UsageError, match="nothing") as refused:
        parse_words(said.split(" "))
    assert "rank 77" in refused.value.help


def test_a_quote_of_a_stack_stands_in_what_its_source_shows() -> None:
    target = [str(BUNDLES / "lock-order.tar.zst")]
    claims = investigate(target).diagnose().evidence
    of_ranks = [claim for claim in claims if claim.source.startswith("rank ")]
    assert of_ranks
    for claim in of_ranks:
        assert claim.quote in look(claim.source.split(), target).text


def test_a_rank_of_which_nothing_is_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError) as refused:
        look(["rank", "9"], [str(BUNDLES / "lock-order.tar.zst")])
    assert "rank 9" in refused.value.message and "Known: ranks 0-" in refused.value.help


def test_the_suspect_stands_beside_its_peers_and_the_program_around_its_place() -> None:
    said = investigate([str(BUNDLES / "lock-order.tar.zst")]).diagnose()
    assert said.differs and said.differs.suspect == f"rank {said.culprits.ranks[0]}"
    place = next(aspect for aspect in said.differs.aspects if aspect.what == "place")
    assert place.suspect != place.peers
    assert said.source_lines and any(line.startswith(f"{said.source_lines.line}: ") for line in said.source_lines.lines)


def test_a_healthy_job_has_nobody_to_put_beside_others() -> None:
    said = investigate([str(BUNDLES / "healthy.tar.zst")]).diagnose()
    assert said.differs is None and said.source_lines is None


PROGRAM = """\
def step(rank, batches):
    for batch in batches:
        loss = model(batch)
        if rank == 0:
            # the first one says
            log(loss,
                flush=True)
            dist.barrier()
        loss.backward()
    dist.barrier()
""".splitlines()


@pytest.mark.parametrize(("line", "guard"), [(8, 4), (9, 2), (10, None), (3, 2)])
def test_the_guard_of_a_line_is_the_innermost_condition_or_loop_around_it(line: int, guard: int | None) -> None:
    assert guard_of(PROGRAM, line) == guard


def test_what_was_brought_is_named_from_where_it_lies_and_opened_from_there(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank3.log").write_text("step 1\nTraceback (most recent call last):\n  x\nKeyError: 'a'\n")
    target = [str(tmp_path / "logs")]
    said = investigate(target).diagnose()
    claim = next(claim for claim in said.evidence if claim.quote)
    assert claim.source.startswith("material rank3.log:")
    assert claim.quote in look(claim.source.split(), target).text
    with pytest.raises(UsageError, match="no such file"):
        look(["material", "/etc/hostname"], target)


def test_the_condition_that_parts_the_ranks_stands_beside_the_place_of_the_suspect() -> None:
    """One rank answered a condition of its own otherwise: its own place, loss.backward(), says nothing of that."""
    (incident,) = named_incidents(["unseen/1bcfa6"])
    said = investigate([str(incident.material)]).diagnose()
    assert said.source_lines and said.peer_lines
    assert said.source_lines.guard is None
    assert said.peer_lines.lines[0].endswith("if accuracy > best:")
