"""Files of NCCL Inspector: what each rank finished, who is behind its peers, and when that proves something."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from each_of import each_of
from hypothesis import given
from hypothesis import strategies as st
from inspector_files import InspectedJob, weight_sync

from ddx_tools.analysis.nccl.finished_findings import finished_findings
from ddx_tools.analysis.wait_graph.build import wait_graph
from ddx_tools.analysis.wait_graph.roots import find_roots
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Certainty, Finding, Severity, Verdict
from ddx_tools.parsers.nccl.nccl_inspector import inspector_rows, recognises

FIXTURE = Path(__file__).parents[1] / "fixtures/nccl/inspector_2.30.7.log"


def found_in(job: InspectedJob, cuts: dict[int, float] | None = None) -> list[Finding]:
    """The findings about a job's files, some of which were copied earlier."""
    with Store() as store:
        for rank in range(job.ranks):
            store.insert(inspector_rows(job.text(rank, (cuts or {}).get(rank, float("inf"))).encode(), f"{rank}.log"))
        return finished_findings(store)


def in_step(late: int | None = None, steps: int = 100) -> InspectedJob:
    """Eight ranks that reduce once a second. One of them does not finish the last reduction, and then all stop."""
    job = InspectedJob(ranks=8, communicators={"ff": range(8)})
    for second in range(steps):
        job.finish("ff", "AllReduce", second, [late] if late is not None and second == steps - 1 else [])
    return job


# --- reading


def test_lines_of_the_plugins_own_writer_are_read() -> None:
    data = FIXTURE.read_bytes()
    assert recognises("node1-pid4242.log", data)
    broadcast, reduce = inspector_rows(data, "x")["nccl_finished"]
    assert (reduce["communicator"], reduce["rank"], reduce["nranks"]) == ("7f8c496ae9f661", 2, 8)
    assert (reduce["operation"], reduce["last_sn"], reduce["is_last"], reduce["source_line"]) == (
        "AllReduce", 1407, True, 5,
    )  # fmt: skip
    assert (broadcast["operation"], broadcast["last_sn"], broadcast["is_last"]) == ("Broadcast", 0, False)
    assert reduce["writes_all"] and reduce["ends_s"] == 1_764_000_060.0


def test_a_line_that_was_cut_and_the_end_of_a_long_file_are_read() -> None:
    data = FIXTURE.read_bytes()
    (*_, row) = inspector_rows(data[300:-200], "x", whole_file=False)["nccl_finished"]
    assert (row["last_sn"], row["source_line"]) == (1407, None)


def test_a_long_file_is_read_at_its_end(tmp_path: Path) -> None:
    job = in_step(steps=3_000)
    job.ranks = 1
    folder = job.write(tmp_path / "files")
    with Store() as store:
        investigate([folder], store=store)
        (row,) = store.query("SELECT last_sn, source_line FROM nccl_finished")
    assert (row["last_sn"], row["source_line"]) == (2_999, None)


@given(st.binary(max_size=300), st.integers(0, 1600), st.integers(0, 1600))
def test_any_bytes_are_read_without_an_error(noise: bytes, start: int, end: int) -> None:
    data = FIXTURE.read_bytes()
    inspector_rows(noise, "x")
    inspector_rows(data[:start] + noise + data[end:], "x")
    recognises("x", noise)


VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["id", "rank", "coll", "coll_sn", "pid"]), inner),
)


@given(VALUES, VALUES, VALUES, st.sampled_from(["rank", "n_ranks", "id", "hostname", "pid", "coll", "coll_sn"]))
def test_any_values_are_read_without_an_error(one: object, two: object, three: object, name: str) -> None:
    line = json.loads(FIXTURE.read_text().splitlines()[0])
    for part in line.values():
        if name in part:
            part[name] = one
    texts = [line, {"header": two, "metadata": three, "coll_perf": one}, {**line, "coll_perf": two}]
    inspector_rows("\n".join(json.dumps(text) for text in texts).encode(), "x")


# --- who is behind


def test_who_is_behind_in_what_makes_no_progress_is_waited_for(tmp_path: Path) -> None:
    result = investigate([weight_sync([6]).write(tmp_path / "files")])
    (found,) = [finding for finding in result.findings if finding.code == "rank.waited_for"]
    assert (found.ranks, found.group, found.severity) == ([6], "communicator aa of 9 ranks", Severity.FAILURE)
    assert found.summary == (
        "Rank 6 (process 41006 on node2) finished broadcast 2 of communicator aa of 9 ranks and no later one; "
        "the other 8 finished broadcast 3. "
        "No rank finished anything in it while members went on in other communicators for 220 s."
    )
    assert '"coll_sn":2' in found.evidence[0].quote
    diagnosis = result.diagnose()
    assert (diagnosis.verdict, [each.ranks for each in diagnosis.suspects]) == (Verdict.UNDECIDED, [[6]])
    assert diagnosis.suspects[0].certainty is Certainty.SEEN
    assert diagnosis.victims.ranks == [0, 1, 2, 3, 4, 5, 7, 8]


def test_the_wait_graph_of_a_folder_has_these_waits(tmp_path: Path) -> None:
    with Store() as store:
        result = investigate([weight_sync([6]).write(tmp_path / "files")], store=store)
        roots = find_roots(wait_graph(store, {}, result.findings))
    assert (roots.ranks, roots.victims, roots.clear) == ((6,), (0, 1, 2, 3, 4, 5, 7, 8), True)


def test_two_ranks_that_are_behind_are_both_named() -> None:
    (found,) = found_in(weight_sync([6, 8]))
    assert (found.code, found.ranks) == ("rank.waited_for", [6, 8])


def test_two_ranks_that_are_behind_have_each_their_own_evidence(tmp_path: Path) -> None:
    with Store() as store:
        result = investigate([weight_sync([6, 8]).write(tmp_path / "files")], store=store)
        conditions = wait_graph(store, {}, result.findings).conditions
    said = result.diagnose()
    sources = {node.rank: {one.source for each in of for one in each.evidence} for node, of in conditions.items()}
    assert len(sources[6]) == len(sources[8]) == 1 and sources[6] != sources[8]
    assert "have not finished what their peers have" in said.headline and "pending" not in said.headline


def test_files_that_leave_operations_out_show_it_too() -> None:
    (found,) = found_in(weight_sync([6], writes_all=False))
    assert (found.code, found.ranks) == ("rank.waited_for", [6])


@pytest.mark.parametrize("late", [0, 3])
def test_if_all_files_end_who_is_behind_is_a_guess(late: int, tmp_path: Path) -> None:
    result = investigate([in_step(late).write(tmp_path / "files")])
    (found,) = [finding for finding in result.findings if finding.ranks == [late]]
    assert (found.code, found.severity) == ("rank.awaited_if_hung", Severity.NOTICE)
    diagnosis = result.diagnose()
    assert diagnosis.suspects[0].certainty is Certainty.LIKELY
    assert diagnosis.suspects[0].unless == "its file was copied earlier than the others', or the job ended"
    assert not diagnosis.causes


def test_no_guess_is_made_about_a_job_whose_log_shows_progress(tmp_path: Path) -> None:
    folder = in_step(3).write(tmp_path / "files")
    steps = "".join(f"[2025-11-24 16:0{n // 60}:{n % 60:02d}] step {n} loss {3 - n / 99:.3f}\n" for n in range(99))
    (tmp_path / "files" / "train.log").write_text(steps + "Training finished.\n")
    assert not [each for each in investigate([folder]).diagnose().suspects if each.certainty is Certainty.SEEN]


# --- when nobody is


def test_a_job_that_goes_on_has_nobody_behind() -> None:
    assert found_in(weight_sync()) == []
    assert found_in(in_step()) == []


SEEDS = range(16)


@each_of(SEEDS, str)
def test_files_copied_at_different_moments_on_clocks_apart_blame_nobody(seed: int) -> None:
    chance = random.Random(seed)
    clocks = {rank: chance.choice([0.0, -7200.0, chance.uniform(-3600, 3600)]) for rank in range(9)}
    job = weight_sync(writes_all=chance.random() < 0.7, clocks_s=clocks)
    by_host = {host: chance.uniform(1, 400) for host in range(3)}
    cuts = {rank: by_host[rank // 4] if seed % 2 else chance.uniform(1, 400) for rank in range(9)}
    assert not [found for found in found_in(job, cuts) if found.code != "rank.awaited_if_hung"]


def test_a_file_that_was_copied_earlier_is_not_taken_for_a_rank_that_is_behind() -> None:
    assert found_in(in_step(), {5: 60.0}) == []
    assert found_in(weight_sync(), {6: 170.0}) == []


def test_a_rank_that_works_elsewhere_is_not_even_a_guess() -> None:
    """A communicator that is no longer used, whose last operation one rank did not write; all go on in other ones."""
    job = InspectedJob(ranks=4, communicators={"aa": range(4), "bb": range(4)})
    for second in range(300):
        if second < 100:
            job.finish("aa", "AllReduce", second, [2] if second == 99 else [])
        job.finish("bb", "AllReduce", second + 0.5)
    assert found_in(job) == []


def test_where_a_rank_has_no_file_or_as_many_are_behind_as_ahead_nobody_is() -> None:
    job = weight_sync([6])
    job.ranks = 8
    assert found_in(job) == []
    assert found_in(weight_sync([5, 6, 7, 8, 4])) == []


def test_two_copies_of_a_file_are_not_compared(tmp_path: Path) -> None:
    job = weight_sync()
    job.write(tmp_path / "files" / "later")
    job.write(tmp_path / "files" / "earlier", lambda rank: 150.0)
    assert not [found for found in investigate([str(tmp_path / "files")]).findings if found.ranks]
