"""A rank at work of its own that it counts: usual and soon done, unusual, too long for its peers, or standing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log_reading import findings_of as findings_of_logs
from made_findings import judged, told
from watchdog_logs import timed_out

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Diagnosis, Finding, Verdict
from ddx_tools.parsers.logs.step_lines import counted_work, step_facts
from ddx_tools.probes.stacks.probe import PROBE
from ddx_tools.sources.raw import Raw, RawItem

C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
APART_S = 5.0
EARLIER = "step 90 loss 2.1\nuploading of snapshot 1: 40/160 files\nstep 91 loss 2.0\nstep 92 loss 2.0\n"


def frame(function: str, file: str, line: int) -> dict[str, Any]:
    return {"name": function, "filename": file, "line": line}


def look(number: int, pid: int, *frames: dict[str, Any]) -> RawItem:
    thread = {"pid": pid, "os_thread_id": pid, "thread_name": "MainThread", "active": False, "frames": list(frames)}
    facts = {"pid": pid, "rank": pid - 100, "role": "rank", "look": number, "taken_s": number * APART_S}
    return RawItem("stack", json.dumps([thread]).encode(), f"raw/{pid}-{number}.json", facts)


def findings_of(before: str, after: str, *, waiting: bool = True) -> list[Finding]:
    """Rank 0 is at another line of `publish` at each look and prints; ranks 1 and 2 wait for it, or do the same."""
    raw = Raw("node1")
    call = frame("barrier", C10D, 5_000)
    for number, said in ((1, before), (2, after)):
        work = frame("publish", "/srv/job/publish.py", 10 + number), frame("main", "/srv/job/train.py", 70)
        wait = call, frame("main", "/srv/job/train.py", 71)
        raw.items += [
            look(number, 100, *work),
            *(look(number, pid, *(wait if waiting else work)) for pid in (101, 102)),
        ]
        raw.items.append(RawItem("output", said.encode(), "raw/out.log", {"path": "/srv/job/out.log", "ranks": [0]}))
    with Store() as store:
        store.insert(PROBE.parse(raw))
        return PROBE.analyse(store)


def said_of(before: str, after: str) -> Diagnosis:
    return judged(*findings_of(before, after))


def test_work_that_training_went_on_after_before_is_no_hang() -> None:
    now = "uploading of snapshot 2: 40/160 files\n"
    said = said_of(EARLIER + now, EARLIER + now + "uploading of snapshot 2: 80/160 files\n")
    assert (said.verdict, said.culprits.ranks) == (Verdict.HEALTHY, [])
    assert "80 of 160" in said.evidence[0].claim


def test_work_that_was_never_done_before_is_waited_for_and_nobody_is_blamed_yet() -> None:
    said = said_of(
        "step 92 loss 2.0\nuploaded 40/160 files\n", "step 92 loss 2.0\nuploaded 40/160 files\nuploaded 80/160 files\n"
    )
    assert (said.verdict, said.culprits.ranks, said.causes) == (Verdict.UNDECIDED, [], [])
    assert [one.id for one in said.ruled_out] == ["slow-rank-before-collective"]
    assert said.next_check is not None and "80 of 160" in said.next_check.question


@pytest.mark.parametrize("earlier", ["", EARLIER])
def test_work_that_outlasts_the_patience_of_its_peers_is_the_cause(earlier: str) -> None:
    first = f"{earlier}uploading of snapshot 2: 40/160000 files\n"
    said = said_of(first, first + "uploading of snapshot 2: 80/160000 files\n")
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (
        Verdict.DIAGNOSED,
        "slow-rank-before-collective",
        [0],
    )


def test_a_count_that_stands_promises_nothing() -> None:
    printed = EARLIER + "uploading of snapshot 2: 40/160 files\n"
    codes = {finding.code for finding in findings_of(printed, printed)}
    assert "rank.outside_collective" in codes and not codes & {"job.progressing", "rank.work_counted"}


def test_before_the_first_step_ranks_that_count_and_do_not_wait_get_on() -> None:
    codes = {
        f.code
        for f in findings_of("hashed 3 of 90 parts\n", "hashed 3 of 90 parts\nhashed 4 of 90 parts\n", waiting=False)
    }
    assert codes == {"job.progressing"}
    still = {f.code for f in findings_of("hashed 3 of 90 parts\n", "hashed 3 of 90 parts\n", waiting=False)}
    assert "job.progressing" not in still


def of_log(directory: Path, text: str) -> list[Finding]:
    log = directory / "train.log"
    log.write_text(text, encoding="utf-8")
    return findings_of_logs(log)


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [([0, 30, 60, 90], Verdict.HEALTHY), ([60], Verdict.UNDECIDED), ([0, 45, 90, 120], Verdict.UNDECIDED)],
    ids=["on its way", "a single line", "done, and no step since"],
)
def test_a_log_of_counts_before_the_first_step_is_well_if_somebody_asks(
    counts: list[int], verdict: Verdict, tmp_path: Path
) -> None:
    found = of_log(tmp_path, "".join(f"vocabulary: {count} of 120 files\n" for count in counts))
    assert judged(*found, told("asks_whether_well")).verdict is verdict
    assert judged(*found, told("hangs")).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("fact", ["steps_go_on", "asks_whether_well"])
def test_a_log_of_steps_is_not_healthy_if_somebody_reports_a_hang(fact: str, tmp_path: Path) -> None:
    found = of_log(tmp_path, "".join(f"step {step} loss 2.5\n" for step in range(20)))
    assert judged(*found, told("hangs"), told(fact)).verdict is Verdict.UNDECIDED
    assert judged(*found, told(fact)).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(("behind", "named"), [(True, True), (False, False)])
def test_a_count_printed_after_peers_gave_up_shows_work_that_went_on(behind: bool, named: bool, tmp_path: Path) -> None:
    lines = [timed_out(3, 9).strip(), "[hook] step 700: rendered 16/20 pictures"]
    found = of_log(tmp_path, "\n".join(lines if behind else reversed(lines)) + "\n")
    assert ("rank.progress_continues" in {finding.code for finding in found}) == named


@pytest.mark.parametrize(
    ("line", "done"),
    [
        ("backup of epoch 7: part 3 of 12", (3, 12)),
        ("[cb] step 1500: rendered 16/20", (16, 20)),
        ("Processed 12,000 of 400,000 documents", (12_000, 400_000)),
        ("Validating: 12%|# | 120/1000 [00:01<00:08, 100it/s]", (120, 1_000)),
        ("epoch 3 of 10", None),
        ("rank 3/8 is ready", None),
        ("written on 10/11/2026", None),
        ("step 12/100 loss 0.53", None),
        ("iteration 100/5000 | consumed samples 1600 of 80000", None),
        ("step 7: rank 3 of 8 joined", None),
    ],
)
def test_a_count_of_work_is_told_from_steps_ranks_and_dates(line: str, done: tuple[int, int] | None) -> None:
    facts = step_facts(line)
    assert (counted_work(facts) if facts else None) == done


ENDS_WELL = "epoch 4 it  80/80  loss 1.2\ntraining finished in 0:20:11\nexit status: 0\n"


@pytest.mark.parametrize(
    ("more", "verdict"),
    [("", Verdict.HEALTHY), ("[rank1]: RuntimeError: shapes do not fit\n", Verdict.UNDECIDED)],
    ids=["with warnings only", "an error below"],
)
def test_a_run_that_went_to_its_end_is_well_whatever_it_warned_of(more: str, verdict: Verdict, tmp_path: Path) -> None:
    warned = "UserWarning: Grad strides do not match bucket view strides.\n"
    found = of_log(tmp_path, f"epoch 4 it  40/80  loss 1.3\n{warned}{ENDS_WELL}{more}")
    assert (judged(*found).verdict is Verdict.HEALTHY) == (verdict is Verdict.HEALTHY)
    assert judged(*found, told("hangs")).verdict is not Verdict.HEALTHY
