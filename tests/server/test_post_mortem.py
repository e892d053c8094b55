"""A post-mortem: what the evidence says is filled in, and what it cannot say is asked, never invented."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_cli import HEALTHY, HUNG, RECORDS, run
from test_render import HOSTILE, assert_harmless
from test_render_markdown import SPANS

from ddx_server.post_mortem.blamed_lines import blamed_line
from ddx_server.post_mortem.moments import job_moments
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Location

__all__ = ["run"]  # the fixture

WELL = RECORDS.parent / "dp_tp_stall-ok"
TITLES = [
    "Impact", "Timeline", "How it was found", "Root cause", "Reproducer", "Fix", "Proof", "Prevention",
    "What was lucky",
]  # fmt: skip


def sections_of(page: str) -> dict[str, str]:
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def written(run: Any, tmp_path: Path) -> Any:
    def made(*arguments: str) -> dict[str, str]:
        out = tmp_path / "post-mortem.md"
        done = run("post-mortem", *arguments, "-o", str(out))
        assert done.code in (0, 1, 3), done.err
        sections = sections_of(out.read_text(encoding="utf-8"))
        assert list(sections) == TITLES
        assert all(text.strip() for text in sections.values())
        return sections

    return made


def test_every_part_is_filled_or_asked(written: Any, tmp_path: Path) -> None:
    sections = written(str(RECORDS), "--fixed", str(WELL), "--baseline", str(WELL))
    assert "- 4 ranks on 1 host." in sections["Impact"] and "No progress for at least 8 s" in sections["Impact"]
    assert "which never completed" in sections["Timeline"]
    assert f"ddx show record 'rank_1.pkl#15' --from {RECORDS}" in sections["How it was found"]
    assert "- Who: rank 3 (node-0); ranks 0-2 waited." in sections["Root cause"]
    assert "Which line of the program" in sections["Root cause"]
    assert (tmp_path / "post-mortem-repro.py").exists() and "--healthy" in sections["Reproducer"]
    assert "[ ] What was changed" in sections["Fix"]
    assert "HEALTHY" in sections["Proof"] and "Which run proves" not in sections["Proof"]


def test_the_command_that_it_shows_shows_the_quote(written: Any, run: Any) -> None:
    sections = written(str(RECORDS))
    done = run("show", "record", "rank_1.pkl#15", "--from", str(RECORDS))
    assert done.code == 0 and "all_reduce" in done.out and "all_reduce" in sections["How it was found"]


def test_a_run_that_fails_is_no_proof(written: Any) -> None:
    proof = written(str(RECORDS), "--fixed", str(RECORDS))["Proof"]
    assert "does not prove the fix: ddx why says UNDECIDED" in proof and "[ ] Which run proves the fix?" in proof


def test_a_run_that_ended_well_is_a_proof_and_one_that_did_not_is_none(written: Any, tmp_path: Path) -> None:
    directory = tmp_path / "fixed"
    directory.mkdir()
    (directory / "launcher.log").write_text("step 1 loss 0.5\nstep 2 loss 0.4\n")
    told = {"exit_code": 0, "started_at_s": 100.0, "ended_at_s": 160.0}
    (directory / "run.json").write_text(json.dumps(told))
    proof = written(str(RECORDS), "--fixed", str(directory))["Proof"]
    assert "it ran for 60 s and ended with exit code 0" in proof and "Which run proves" not in proof
    for other in (json.dumps(told | {"exit_code": 1}), "{", "[]", '{"exit_code": 0}'):
        (directory / "run.json").write_text(other)
        proof = written(str(RECORDS), "--fixed", str(directory))["Proof"]
        assert "does not prove the fix" in proof and "[ ] Which run proves" in proof


def test_what_nothing_says_is_asked(written: Any, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("Traceback (most recent call last):\n  ...\nRuntimeError: something\n")
    sections = written(str(log))
    assert "[ ] From when to when did the job make no progress?" in sections["Impact"]
    assert "[ ] What happened when?" in sections["Timeline"]
    assert "[ ] How can it be reproduced" in sections["Reproducer"]
    assert "were lost" not in sections["Impact"]


def test_an_open_cause_is_a_question_and_a_healthy_job_blames_nobody(written: Any, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("step 1 loss 0.4\n[rank0]: ConnectionResetError: [Errno 104] Connection reset by peer\n")
    assert "[ ] Why did it happen?" in written(str(log))["Root cause"]
    assert "- Who:" not in written(HEALTHY)["Root cause"]


def git(repo: Path, *arguments: str) -> None:
    named = ["-c", "user.name=A B", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(repo), *named, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The program of a hang, whose line of the lock came with the second commit."""
    if not shutil.which("git"):
        pytest.skip("needs git on PATH")
    repo = tmp_path / "checkout"
    (repo / "src").mkdir(parents=True)
    lines = [f"# {number}" for number in range(1, 60)]
    (repo / "src/metrics.py").write_text("\n".join(lines))
    git(repo, "init", "-q")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "Begin")
    lines[36] = "        with self.file_lock:"
    (repo / "src/metrics.py").write_text("\n".join(lines))
    git(repo, "commit", "-qam", "Lock the file of <metrics>")
    return repo


def test_the_commit_of_the_line_is_named(written: Any, checkout: Path) -> None:
    cause = written(HUNG, "--repo", str(checkout))["Root cause"]
    assert re.search(
        r"`src/metrics.py:37` was last changed by `[0-9a-f]{12}` on [-\d]{10} \d\d:\d\d: Lock the file of `<met", cause
    )
    assert "A B" not in cause and "Which commit" not in cause
    assert "[ ] Which commit introduced it? Name the checkout" in written(HUNG)["Root cause"]


def test_a_checkout_that_reads_otherwise_is_not_believed(checkout: Path) -> None:
    ran = Location(file="/srv/job/metrics.py", line=37, source="with self.file_lock:")
    assert (found := blamed_line(checkout, ran)) and found.same and found.subject.startswith("Lock the file")
    assert (other := blamed_line(checkout, ran.model_copy(update={"source": "pass"}))) and not other.same
    assert blamed_line(checkout, Location(file="/srv/job/train.py", line=1)) is None
    assert blamed_line(checkout, Location(file="--help", line=1)) is None
    assert blamed_line(checkout / "src/nowhere", ran) is None
    (checkout / "metrics.py").write_text("")
    (checkout / "other").mkdir()
    (checkout / "other/metrics.py").write_text("")
    git(checkout, "add", ".")
    assert blamed_line(checkout, Location(file="/x/metrics.py", line=37)) is None


def test_a_line_that_was_fixed_since_is_found_in_the_history_with_its_fix(checkout: Path) -> None:
    ran = Location(file="/srv/job/metrics.py", line=37, source="with self.file_lock:")
    source = checkout / "src/metrics.py"
    source.write_text(source.read_text().replace("with self.file_lock:", "with self.queue:"))
    git(checkout, "commit", "-qam", "Queue the metrics")
    found = blamed_line(checkout, ran)
    assert found and found.same and found.subject.startswith("Lock the file")
    assert found.changed_by.endswith(": Queue the metrics")


def test_runs_without_a_common_figure_are_not_said_to_be_alike(written: Any, tmp_path: Path) -> None:
    (tmp_path / "clean.log").write_text("step 1 loss 2\nddx run: the launcher ended with exit code 0\n")
    proof = written(HUNG, "--fixed", str(tmp_path / "clean.log"))["Proof"]
    assert "Nothing was compared" in proof and "Nothing differs" not in proof


def test_a_line_of_two_files_of_one_name_is_nobodys(checkout: Path) -> None:
    (checkout / "other").mkdir()
    (checkout / "other/metrics.py").write_text("1\n")
    git(checkout, "add", ".")
    at = Location(file="/srv/job/metrics.py", line=1)
    assert blamed_line(checkout, at) is None
    assert blamed_line(checkout, at.model_copy(update={"file": "/srv/src/metrics.py"})) is not None


def test_a_clock_that_is_wrong_makes_no_silence() -> None:
    def event(rank: int, kind: str, time_s: float) -> dict[str, Any]:
        return {"rank": rank, "kind": kind, "code": kind, "text": kind, "time_s": time_s, "details": "{}"}

    with Store() as store:
        store.insert({"log_events": [event(1, "traceback", 1.7e9), event(0, "exit", 1.7e9 + 600)]})
        assert job_moments(store, [0], [1]).silence_s == 600
    with Store() as store:
        store.insert({"log_events": [event(1, "traceback", 1.7e9), event(0, "exit", 2.7e9)]})
        assert job_moments(store, [0], [1]).silence_s is None
    with Store() as store:
        assert job_moments(store, [], []).moments == []


def test_what_a_job_says_is_no_markup(written: Any, tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    shown = HOSTILE.splitlines()[0]
    log.write_text(
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/srv/`x`.py", line 7, in <script>\n[rank0]:     ```\n'
        f"[rank0]: RuntimeError: <script>@all</script> [a](http://b) {shown}\n"
    )
    page = "\n".join(written(str(log)).values())
    assert_harmless(page)
    outside = SPANS.sub("", re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", page)).replace("- [ ]", "")
    assert not re.search(r"[<>@\[\]|]|://", outside), outside


def test_as_json_it_says_where_it_is(run: Any, tmp_path: Path) -> None:
    done = run("post-mortem", str(RECORDS), "-o", str(tmp_path / "pm.md"), "--json")
    told = json.loads(done.out)
    assert told["post_mortem"] == str(tmp_path / "pm.md") and told["questions"] > 3
    assert told["reproducer"] == str(tmp_path / "pm-repro.py")
