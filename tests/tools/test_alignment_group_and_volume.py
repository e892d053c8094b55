"""Calls in different groups, exchanges whose sums do not add up, and ranks that were aborted (constructed)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from constructed_jobs import Job
from constructed_records import as_pickle, dump, entry
from test_alignment_constructed import codes, of

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Finding, Verdict

pytestmark = pytest.mark.slow

# --- one line, two groups


def _two_groups(lines: tuple[int, int], history: tuple[int, ...] = (), framed: int = 5) -> list[Finding]:
    """Five ranks; rank 3 waits in the world's group, its peers in a group of the same members.

    `framed`: of how many ranks there are frames.
    """
    job = Job(5)
    world, other = job.group("0", range(5), "default_pg"), job.group("4", range(5))
    for rank in range(5):
        for seq, line in enumerate((10, 20), 1):
            job.call(rank, world, seq, line=line)
        for seq, line in enumerate(history, 1):
            job.call(rank, other, seq, line=line)
        if rank == 3:
            job.call(rank, world, 3, line=lines[0], done=False)
        else:
            job.call(rank, other, len(history) + 1, line=lines[1] if rank < framed else None, done=False)
    return job.findings()


@pytest.mark.parametrize("framed", [5, 4])
def test_one_line_that_is_called_in_two_groups_names_the_rank_with_the_other_group(framed: int) -> None:
    found = _two_groups((30, 30), framed=framed)
    finding = of(found, "collective.group_mismatch")
    assert finding.ranks == [3] and finding.attributes["groups"]["default_pg"] == [3]
    said = diagnose(found, load_playbooks())
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (Verdict.DIAGNOSED, "wrong-process-group", [3])


@pytest.mark.parametrize(
    ("lines", "history"),
    [((30, 31), ()), ((10, 10), (10, 20))],
    ids=["two lines", "a loop over groups"],
)
def test_two_lines_and_a_line_that_serves_both_groups_in_turn_are_no_choice_of_a_group(
    lines: tuple[int, int], history: tuple[int, ...]
) -> None:
    assert "collective.group_mismatch" not in codes(_two_groups(lines, history))


@pytest.mark.parametrize("earlier", [False, True])
def test_in_the_first_turn_of_a_loop_over_groups_a_turn_left_out_is_no_wrong_group_yet(earlier: bool) -> None:
    """Rank 3 is in group 5, the others in group 4, at one line; `earlier`: which all called in group 4 before."""
    job = Job(5)
    groups = [job.group(name, range(5)) for name in ("4", "5")]
    for rank in range(5):
        if earlier:
            job.call(rank, groups[0], 1, line=30)
        mine = groups[1] if rank == 3 else groups[0]
        job.call(rank, mine, 2 if earlier and rank != 3 else 1, line=30, done=False)
    found = job.findings()
    if not earlier:
        said = diagnose(found, load_playbooks())
        assert of(found, "collective.group_mismatch").attributes["may_be_loop"] is True
        assert said.verdict is Verdict.UNDECIDED
        assert {"wrong-process-group", "rank-skipped-collective"} <= {cause.id for cause in said.causes}
    else:
        assert all(not finding.attributes.get("may_be_loop") for finding in found)


def test_groups_of_different_members_are_called_from_one_line_in_a_healthy_job() -> None:
    job = Job(4)
    groups = [job.group("1", (0, 1), "mesh_tp"), job.group("2", (2, 3), "mesh_tp")]
    for rank in range(4):
        job.call(rank, groups[rank // 2], 1, line=10, done=False)
    assert "collective.group_mismatch" not in codes(job.findings())


# --- what is sent and what is expected


def _exchange(*, surplus: int, ranks: int = 4, way_back: bool = True) -> list[Finding]:
    """Each rank sends its rows and gets them back; in the last exchange rank 2 brings a surplus."""
    job = Job(ranks)
    group = job.group("7", range(ranks), "mesh_ep")
    rows = [(40 + 3 * rank, 40 + 3 * ((rank + 1) % ranks)) for rank in range(ranks)]
    for rank, (sent, expected) in enumerate(rows):
        back = (expected, sent) if way_back else (8, 8)
        job.call(rank, group, 1, "all_to_all", line=10, sizes=((back[0], 16),), outputs=((back[1], 16),))
        extra = surplus if rank == 2 else 0
        sizes = {"sizes": ((sent + extra, 16),), "outputs": ((expected, 16),)}
        job.call(rank, group, 2, "all_to_all", line=20, done=False, **sizes)
    return job.findings()


def test_sizes_that_do_not_add_up_name_the_rank_that_its_own_way_back_contradicts() -> None:
    found = _exchange(surplus=5)
    finding = of(found, "collective.shape_mismatch")
    assert finding.ranks == [2] and not finding.attributes["tie"]
    sent, expected = map(int, re.findall(r"(\d+) elements and expect (\d+)", finding.summary)[0])
    assert sent - expected == 5 * 16
    said = diagnose(found, load_playbooks())
    assert (said.causes[0].id, said.culprits.ranks) == ("collective-shape-mismatch", [2])


def test_sizes_that_differ_by_rank_and_add_up_are_no_mismatch() -> None:
    assert "collective.shape_mismatch" not in codes(_exchange(surplus=0))


@pytest.mark.parametrize(("ranks", "way_back"), [(4, False), (2, True)])
def test_without_a_way_back_or_a_majority_nobody_is_named(ranks: int, way_back: bool) -> None:
    found = _exchange(surplus=5, ranks=ranks, way_back=way_back) if ranks > 2 else _pair()
    finding = of(found, "collective.shape_mismatch")
    assert finding.attributes["tie"] and finding.ranks == list(range(ranks))


def _pair() -> list[Finding]:
    job = Job(2)
    group = job.group("7", range(2), "mesh_ep")
    for rank in range(2):
        job.call(rank, group, 1, "all_to_all", line=10, sizes=((9, 16),))
        job.call(rank, group, 2, "all_to_all", line=20, sizes=((9 + rank, 16),), outputs=((9, 16),), done=False)
    return job.findings()


def _capacity(*, habit: bool, odd: int, before: int = 10) -> list[Finding]:
    """Exchanges of as many rows on each of four ranks, or (without a habit) not; in the last one rank 2 brings more."""
    job = Job(4)
    group = job.group("7", range(4), "mesh_ep")
    for rank in range(4):
        for seq in range(1, before + 1):
            rows = 8 * seq + (0 if habit or seq % 3 else rank)
            job.call(rank, group, seq, "all_to_all_single", line=20, sizes=((rows, 16),), outputs=((rows, 16),))
        rows = 96 + (odd if rank == 2 else 0)
        last = {"sizes": ((rows, 16),), "outputs": ((rows, 16),)}
        job.call(rank, group, before + 1, "all_to_all_single", line=20, done=False, **last)
    return job.findings()


def test_where_all_ranks_always_brought_equal_sizes_who_brings_another_is_the_odd_one() -> None:
    found = _capacity(habit=True, odd=8)
    finding = of(found, "collective.shape_mismatch")
    assert finding.ranks == [2] and not finding.attributes["tie"]
    said = diagnose(found, load_playbooks())
    assert (said.causes[0].id, said.culprits.ranks) == ("collective-shape-mismatch", [2])


@pytest.mark.parametrize(("habit", "odd", "before"), [(True, 0, 10), (False, 8, 10), (True, 8, 3)])
def test_equal_sizes_or_sizes_that_differ_anyway_or_a_short_record_are_no_mismatch(
    habit: bool, odd: int, before: int
) -> None:
    assert "collective.shape_mismatch" not in codes(_capacity(habit=habit, odd=odd, before=before))


# --- a rank that was aborted left no record

ABORT = (
    "[default{rank}]:terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "[default{rank}]:  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] "
    "op.preamble.length <= op.nbytes. {received} vs {expected}. Received data size doesn't match expected size. "
    "Is there a distributed collective mismatch in your code?\n"
)


def _aborted(directory: Path, received: int, expected: int) -> Finding:
    """Of three ranks 0 brought 6 rows and 1 brought 24; rank 2 was aborted."""
    for rank, rows in ((0, 6), (1, 24)):
        sizes = {"input_sizes": [[rows, 4]], "output_sizes": [[3 * rows, 4]]}
        call = entry(profiling_name="gloo:all_gather", process_group=("0", "default_pg"), **sizes)
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
        (directory / f"rank_{rank}.pkl").write_bytes(as_pickle(dump(call, pg_config=config)))
    (directory / "train.log").write_text(ABORT.format(rank=2, received=received, expected=expected))
    return next(f for f in investigate([str(directory)]).findings if f.code == "collective.shape_mismatch")


def test_an_abort_tells_whose_size_the_aborted_rank_had(tmp_path: Path) -> None:
    """It expected a quarter of what came: it had the smaller size, as rank 0, and so rank 1 is the odd one."""
    finding = _aborted(tmp_path, received=768, expected=192)
    assert finding.ranks == [1] and finding.attributes["minority"]
    assert "ranks 0, 2" in finding.summary


def test_an_abort_whose_ratio_fits_no_recorded_sizes_tells_nothing(tmp_path: Path) -> None:
    finding = _aborted(tmp_path, received=500, expected=192)
    assert finding.ranks == [0, 1] and finding.attributes["tie"]


# --- what is quoted


def test_a_missing_record_shows_where_the_others_end() -> None:
    job = Job(3, without=(2,))
    group = job.group("0", range(3))
    for rank in range(3):
        job.call(rank, group, 1, line=10)
        job.call(rank, group, 2, "all_to_all", line=20, done=False)
    quotes = [evidence.quote for evidence in of(job.findings(), "records.rank_missing").evidence]
    assert "all_to_all" in quotes[0] and "train.py:20" in quotes[0]


def test_a_circle_shows_first_what_the_rank_that_is_waited_for_is_in() -> None:
    finding = of(_two_groups((30, 31)), "rank.waited_for")
    assert finding.attributes["state"] == "circle"
    assert finding.evidence[0].quote.startswith(f"rank {finding.ranks[0]} ")
