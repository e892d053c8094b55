"""What an unwatched job says of itself: once, only what will not heal, and whatever happens to the look."""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddx_server.run import attendant as attendants
from ddx_server.run.attendant import Attendant
from ddx_server.run.look import JudgedLook, LookFailed, look_beside, write_page_beside
from ddx_server.run.notify import Notifier
from ddx_server.run.patience import Limit, Patience, Stage
from ddx_server.run.watch import JobLimits, RankWatch, Silence
from ddx_tools.investigation.run import investigate
from ddx_tools.sources.hosts.rank_agent import AgentAddress

STACKS = Path(__file__).parents[1] / "fixtures/stacks"
DEADLOCK = JudgedLook("diagnosed", "deadlock", ["DIAGNOSED  a deadlock"], lasting=True, waiting=True, at_work=False)
LATE_RANK = JudgedLook("diagnosed", "late", ["DIAGNOSED  rank 2 is late"], lasting=False, waiting=True, at_work=False)
SAVING = replace(LATE_RANK, at_work=True)
MOVING = replace(LATE_RANK, moving=True)
SLOW = replace(LATE_RANK, slows=True)
HEALTHY = JudgedLook("healthy", "healthy", ["HEALTHY  it moves"], lasting=True, waiting=False, at_work=False)
UNCLEAR = JudgedLook("undecided", "undecided", ["UNDECIDED  who knows"], lasting=False, waiting=True, at_work=False)
UNCLEAR_ALONE = replace(UNCLEAR, waiting=False)
NARROWED = replace(UNCLEAR_ALONE, diagnosis={"narrowed_to": {"id": "never-formed"}})


class Job:
    """An attended job in which nothing moves since 100 s, and what was said in its output."""

    def __init__(self, run_dir: Path, notifier: Notifier | None = None) -> None:
        self.said: list[str] = []
        self.looks: list[JudgedLook | Exception] = []
        self.looked_at: list[str] = []
        self.patience = Patience(time.monotonic() - 100.0, 300.0)
        self.attendant = Attendant(run_dir, 4711, self.patience, self._look, self.said.extend, notifier or Notifier())

    def _look(self, target: str, bundle: Path, limit_s: float) -> JudgedLook:
        self.looked_at.append(target)
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        bundle.write_bytes(b"evidence")
        return replace(look, bundle=bundle, took_s=1.0)

    def silent(self, look: JudgedLook | Exception, stage: Stage = "last", limit_s: float | None = 110.0) -> list[str]:
        """What is said when this is found."""
        self.looks.append(look)
        limit = Limit(self.patience.moved_s, limit_s) if limit_s else None
        before = len(self.said)
        assert self.attendant.silent(Silence(stage, self.patience.moved_s, limit, 20))
        self.attendant.finish()
        return self.said[before:]

    def move(self) -> None:
        now = time.monotonic()
        since_s = self.patience.moved_s
        self.patience.move(now)
        self.attendant.moved(since_s, now)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_answer_is_kept_as_a_page_where_one_is_wanted(tmp_path: Path) -> None:
    notified = tmp_path / "told.jsonl"
    job = Job(tmp_path, Notifier(file=notified))
    job.attendant.page = tmp_path / "report.html"
    said = job.silent(DEADLOCK)
    # The evidence here is none: nothing is claimed of a page that was not written.
    assert "the report could not be written: " in said[-1] and not job.attendant.page.exists()
    assert "report" not in json.loads(notified.read_text())
    problem = write_page_beside(STACKS / "lock-order.tar.zst", job.attendant.page, 60.0)
    assert problem is None and "Rank 3" in job.attendant.page.read_text()


def bundles(job: Job) -> list[str]:
    return sorted(path.name for path in job.attendant.run_dir.glob("*.tar.zst"))


def test_a_deadlock_is_said_at_the_first_look_with_the_limit_and_the_bundle(job: Job, tmp_path: Path) -> None:
    said = job.silent(DEADLOCK, "early")
    assert said == [
        "no progress for 100 s, since step 20; a timeout of 110 s expires in 10 s.",
        "DIAGNOSED  a deadlock",
        f"diagnose again: ddx why {tmp_path}/incident-1.tar.zst",
    ]
    assert job.looked_at == ["4711"]


@pytest.mark.parametrize(
    ("look", "stage", "limit_s", "is_said"),
    [
        (LATE_RANK, "early", 110.0, False),
        (LATE_RANK, "last", 110.0, True),
        (LATE_RANK, "last", None, True),
        (SAVING, "last", 110.0, True),
        (SAVING, "last", 1800.0, False),
        (SAVING, "last", None, False),
        (MOVING, "last", 110.0, True),
        (MOVING, "last", 1800.0, False),
        (MOVING, "last", None, True),
        (SLOW, "last", 110.0, False),
        (UNCLEAR, "early", 110.0, False),
        (UNCLEAR, "last", 110.0, True),
        (UNCLEAR_ALONE, "last", 110.0, False),
        (NARROWED, "early", 110.0, False),
        (NARROWED, "last", 110.0, True),
        (HEALTHY, "early", 110.0, False),
        (HEALTHY, "last", 110.0, False),
    ],
)
def test_what_may_heal_by_itself_is_said_when_no_time_is_left(
    job: Job, look: JudgedLook, stage: Stage, limit_s: float | None, is_said: bool
) -> None:
    assert bool(job.silent(look, stage, limit_s)) is is_said


def test_when_the_time_runs_out_what_was_held_back_is_said_once_and_nothing_of_a_job_that_moved(job: Job) -> None:
    def run_out() -> None:
        job.attendant.running_out(Silence("last", job.patience.moved_s, Limit(job.patience.moved_s, 110.0), 20))
        job.attendant.finish()

    job.silent(LATE_RANK, "early")
    run_out()
    run_out()
    assert [line for line in job.said if "DIAGNOSED" in line] == ["DIAGNOSED  rank 2 is late"]
    job.move()
    job.silent(SAVING, "early")
    job.move()
    run_out()
    assert [line for line in job.said if "DIAGNOSED" in line] == ["DIAGNOSED  rank 2 is late"]


def test_who_holds_the_job_up_is_said_before_the_limit_though_why_is_open(job: Job) -> None:
    assert job.silent(replace(UNCLEAR, at_work=True)) == []
    job.attendant.running_out(Silence("last", job.patience.moved_s, Limit(job.patience.moved_s, 110.0), 20))
    job.attendant.finish()
    assert "UNDECIDED  who knows" in job.said


def test_what_moved_while_it_was_looked_at_is_not_spoken_of(job: Job) -> None:
    look = job.attendant.look_at

    def slow(target: str, bundle: Path, limit_s: float) -> JudgedLook:
        job.move()
        return look(target, bundle, limit_s)

    job.attendant.look_at = slow
    assert job.silent(DEADLOCK) == []
    assert bundles(job) == []


def test_a_rank_that_waits_while_others_go_on_is_spoken_of(job: Job) -> None:
    since_s = job.patience.moved_s
    job.move()
    job.looks.append(LATE_RANK)
    job.attendant.silent(Silence("last", job.patience.moved_s, Limit(since_s, 110.0), 20))
    job.move()
    job.attendant.finish()
    assert job.said[0] == "a rank has waited in a collective for 100 s; a timeout of 110 s expires in 10 s."


def test_the_same_answer_is_not_printed_twice_and_another_is_once_the_job_has_moved(job: Job) -> None:
    assert job.silent(DEADLOCK)
    assert job.silent(DEADLOCK) == []
    assert job.silent(LATE_RANK) == []
    for _ in range(3):
        job.move()
    assert job.silent(LATE_RANK)
    assert bundles(job) == ["incident-1.tar.zst", "incident-2.tar.zst"]


def named(look: JudgedLook, *ranks: int) -> JudgedLook:
    """An answer that suspects these ranks, or blames them."""
    party = {"culprits": {"ranks": list(ranks)}} if look.verdict == "diagnosed" else {"suspects": [{"ranks": [*ranks]}]}
    return replace(look, key=f"{look.key} {ranks}", diagnosis=party)


@pytest.mark.parametrize(
    ("later", "is_said"),
    [
        (named(DEADLOCK, 2), True),
        (named(DEADLOCK, 0, 1), False),
        (named(UNCLEAR, 0, 1), False),
        (UNCLEAR, False),
    ],
    ids=["why", "others are blamed", "others are suspected", "nobody"],
)
def test_what_is_seen_after_an_answer_extends_it_and_never_replaces_it(
    job: Job, later: JudgedLook, is_said: bool
) -> None:
    assert job.silent(named(UNCLEAR, 2))
    job.move()  # ranks that raise stir once more
    assert bool(job.silent(later)) is is_said
    job.attendant.failed("the job failed with exit code 1")
    assert job.said[-1] == "the job failed with exit code 1, without any progress since the answer above."


def test_after_an_answer_that_named_nobody_what_is_left_may_name_somebody(job: Job) -> None:
    assert job.silent(UNCLEAR)
    job.looks = [named(DEADLOCK, 2)]
    job.attendant.failed("the job failed with exit code 1")
    assert "DIAGNOSED  a deadlock" in job.said


def test_a_look_at_a_job_that_ends_meanwhile_is_not_spoken_of(job: Job, tmp_path: Path) -> None:
    look = job.attendant.look_at

    def late(target: str, bundle: Path, limit_s: float) -> JudgedLook:
        job.attendant.rank_ended(AgentAddress(str(tmp_path), 1, 4712), 256)
        return look(target, bundle, limit_s)

    job.attendant.look_at = late
    assert job.silent(LookFailed("no training job on this host")) == []


def test_ranks_that_leave_early_are_told_of(job: Job) -> None:
    job.attendant.left_early([2], [0, 1, 3])
    assert job.said == ["rank 2 has exited with code 0, but ranks 0-1, 3 go on"]


def test_a_job_that_goes_on_after_an_answer_says_so_once(job: Job) -> None:
    job.silent(DEADLOCK)
    for _ in range(5):
        job.move()
    assert job.said[3:] == ["the job makes progress again, after 100 s"]


def test_a_job_that_never_stood_still_says_nothing_when_it_moves(job: Job) -> None:
    job.silent(HEALTHY)
    job.move()
    assert job.said == []


def test_there_is_an_end_to_the_answers_and_to_the_disk_they_take(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendants, "MOST_BUNDLE_BYTES", 20)
    for number in range(8):
        job.silent(replace(DEADLOCK, key=str(number)))
        for _ in range(3):
            job.move()
    assert sum(line.startswith("DIAGNOSED") for line in job.said) == 5
    assert bundles(job) == ["incident-1.tar.zst", "incident-2.tar.zst"]


def test_a_job_that_dies_of_what_was_said_is_not_diagnosed_again(job: Job) -> None:
    job.silent(DEADLOCK)
    job.attendant.failed("the job failed with exit code 1")
    assert job.said[3:] == ["the job failed with exit code 1, without any progress since the answer above."]
    assert job.looked_at == ["4711"]


def test_a_crash_is_diagnosed_from_what_is_left(job: Job, tmp_path: Path) -> None:
    job.looks = [DEADLOCK]
    job.attendant.failed("the job failed with exit code 1")
    assert job.looked_at == [str(tmp_path)]
    assert job.said[:2] == ["the job failed with exit code 1.", "DIAGNOSED  a deadlock"]


def test_where_what_is_left_tells_nothing_the_answer_that_was_held_back_stands(job: Job) -> None:
    job.silent(LATE_RANK, "early")
    job.looks = [UNCLEAR]
    job.attendant.failed("the job failed with exit code 1")
    assert job.said[:2] == ["the job failed with exit code 1.", "DIAGNOSED  rank 2 is late"]
    assert "incident-1.tar.zst" in bundles(job)


def test_of_a_job_that_ends_well_no_evidence_is_kept_that_was_not_spoken_of(job: Job) -> None:
    job.silent(LATE_RANK, "early")
    assert bundles(job) == ["incident-1.tar.zst"]
    job.attendant.ended_well()
    assert bundles(job) == []


def test_an_answer_that_was_held_back_of_another_silence_does_not_stand(job: Job) -> None:
    job.silent(LATE_RANK, "early")
    job.move()
    job.looks = [UNCLEAR]
    job.attendant.failed("the job failed with exit code 1")
    assert job.said[1] == "UNDECIDED  who knows"


@pytest.mark.parametrize("error", [LookFailed("it took longer than 120 s"), ValueError("a bug of ours")])
def test_a_look_that_fails_is_a_line_and_what_to_type(job: Job, tmp_path: Path, error: Exception) -> None:
    assert job.silent(error, "early") == []
    assert str(error) in job.silent(error)[0]
    job.looks = [error]
    job.attendant.failed("the job failed with exit code 1")
    assert job.said[-1] == f"the job failed with exit code 1. To find out why: ddx why {tmp_path}"


def test_who_asks_is_answered_also_that_all_is_well(job: Job) -> None:
    job.looks = [HEALTHY]
    assert job.attendant.asked(Silence("last", job.patience.moved_s, None, 20))
    job.attendant.finish()
    assert "HEALTHY  it moves" in job.said
    job.move()
    assert job.said[-1].startswith("diagnose again: ")


def test_before_a_silent_job_is_stopped_it_is_looked_at_and_a_moving_one_is_not(job: Job) -> None:
    silence = Silence("last", job.patience.moved_s, None, 20)
    job.looks = [UNCLEAR]
    job.attendant.stopping(silence, 10.0, lambda: False)
    assert "UNDECIDED  who knows" in job.said
    job.move()
    job.attendant.stopping(Silence("last", job.patience.moved_s, None, 20), 10.0, lambda: False)
    assert job.looked_at == ["4711"]


def test_a_look_does_not_hold_back_somebody_who_asks_twice_that_the_job_end(job: Job) -> None:
    seen = threading.Event()

    def slow(target: str, bundle: Path, limit_s: float) -> JudgedLook:
        seen.wait(60)
        return DEADLOCK

    job.attendant.look_at = slow
    job.attendant.stopping(Silence("last", job.patience.moved_s, None, 20), 60.0, lambda: True)
    assert job.said == []
    seen.set()
    job.attendant.finish()


def echo(tmp_path: Path, exit_code: int = 0) -> str:
    """A command that writes its input down."""
    program = f"import sys; open({str(tmp_path / 'told')!r}, 'w').write(sys.stdin.read()); sys.exit({exit_code})"
    (tmp_path / "tell.py").write_text(program)
    return f"{sys.executable} {tmp_path}/tell.py"


def test_an_answer_is_told_to_a_command_and_to_a_file(tmp_path: Path) -> None:
    job = Job(tmp_path, Notifier.of(echo(tmp_path), tmp_path / "notes.jsonl"))
    job.silent(DEADLOCK)
    for text in ((tmp_path / "told").read_text(), (tmp_path / "notes.jsonl").read_text()):
        message = json.loads(text)
        assert (message["kind"], message["text"]) == ("stalled", "DIAGNOSED  a deadlock")
        assert message["bundle"] == str(tmp_path / "incident-1.tar.zst")


@pytest.mark.parametrize(
    "notifier",
    [
        lambda path: Notifier.of(echo(path, 3), None),
        lambda path: Notifier.of("/no/such/program", None),
        lambda path: Notifier.of(None, path / "no-such-directory" / "notes"),
    ],
)
def test_a_notification_that_fails_is_a_line(tmp_path: Path, notifier: Callable[[Path], Notifier]) -> None:
    job = Job(tmp_path, notifier(tmp_path))
    assert job.silent(DEADLOCK)[-1].startswith("the notification failed: ")


def test_what_is_left_of_a_crash_is_judged_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text(
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/train.py", line 9, in <module>\n[rank1]:     load(batch)\n'
        "[rank1]: ValueError: bad batch\n"
    )
    look = look_beside(str(tmp_path), tmp_path / "incident-1.tar.zst", 100)
    assert look.verdict == "diagnosed"
    assert any("train.py:9" in line for line in look.lines)
    assert look.bundle is not None and look.bundle.exists()


@pytest.mark.parametrize(("target", "limit_s"), [("/no/such/directory", 100), (".", 0.05)])
def test_a_look_that_comes_to_nothing_says_why(tmp_path: Path, target: str, limit_s: float) -> None:
    with pytest.raises(LookFailed, match=r"no such file|longer than"):
        look_beside(target, tmp_path / "incident-1.tar.zst", limit_s)


def test_a_watch_that_breaks_says_so_and_the_job_goes_on(job: Job, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "launcher.log").write_text("step 1 loss 2.1\n")
    broke = threading.Event()

    class Broken(Attendant):
        def moved(self, since_s: float, now_s: float) -> None:
            raise ValueError("a bug of ours")

        def watch_broke(self, error: Exception) -> None:
            super().watch_broke(error)
            broke.set()

    broken = Broken(tmp_path, 4711, job.patience, job.attendant.look_at, job.said.extend, Notifier())
    watch = RankWatch(tmp_path, tmp_path / "launcher.log", job.patience, JobLimits(), broken)
    assert broke.wait(60)
    assert watch.stop() == []
    assert job.said == ["the job is no longer watched (ValueError: a bug of ours)"]


def test_answers_in_the_output_are_no_evidence_for_the_next(tmp_path: Path) -> None:
    steps = "".join(f"[default0]:step {step} loss 2.1\n" for step in range(20))
    answer = "ddx: DIAGNOSED\nddx: seen   RuntimeError: CUDA error: an illegal memory access was encountered\n"
    said = []
    for name, text in [("plain", steps), ("answered", steps + answer), ("raw", steps + answer.replace("ddx: ", ""))]:
        log = tmp_path / name / "train.log"
        log.parent.mkdir()
        log.write_text(text)
        said.append(sorted(finding.code for finding in investigate([str(log)]).findings))
    assert said[0] == said[1] != said[2]
