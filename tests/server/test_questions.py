"""At a terminal an undecided answer asks for facts; nowhere else."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.diagnosis.questions import separating_fact
from ddx_tools.diagnosis.submitted import fact_finding
from ddx_tools.investigation.run import investigate
from ddx_tools.knowledge.facts import known_facts

ROOT = Path(__file__).parents[2]
CLEAN = str(ROOT / "tests/fixtures/logs/torchrun_raise.log")
DDX = [sys.executable, "-c", "from ddx_server.cli import main; main()"]
ENDS = "Enter stops"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def stopped(tmp_path: Path) -> str:
    """A log that just stops: undecided, and no symptom is seen in it."""
    log = tmp_path / "train.log"
    log.write_text("[rank0]: step 1 loss 2.0\n[rank1]: step 1 loss 2.0\n[rank0]: step 2 loss 1.9\n")
    return str(log)


def at_terminal(*words: str, answers: str = "") -> tuple[int, str]:
    """(exit code, what a terminal shows) of a command that is answered with these keys, each followed by Enter."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen([*DDX, *words], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    shown, left, deadline = b"", list(answers), time.monotonic() + 120
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 0.5)[0]:
            continue
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
        if shown.rstrip().endswith(b"[y/n/?]:"):
            os.write(ours, (left.pop(0).strip() if left else "").encode() + b"\n")
            shown += b"\n"
    os.close(ours)
    return done.wait(timeout=60), ESCAPES.sub("", shown.decode(errors="replace"))


def test_an_undecided_answer_asks_judges_again_and_says_how_to_get_the_same(stopped: str) -> None:
    code, shown = at_terminal("why", stopped, answers="yn?")
    assert ENDS in shown and shown.count("[y/n/?]") == 3
    (again,) = [line for line in shown.splitlines() if line.startswith("to get this answer without questions: ddx ")]
    words = again.strip().removeprefix("to get this answer without questions: ddx ").split()
    assert words[:2] == ["why", stopped] and words[-1] == "--no-ask" and words.count("--fact") == 2
    same = subprocess.run([*DDX, *words, "--json"], capture_output=True, text=True, check=False)
    told = json.loads(same.stdout)
    assert same.returncode == code and told["headline"] in " ".join(shown.split())


def test_enter_ends_the_questions(stopped: str) -> None:
    code, shown = at_terminal("why", stopped, answers=" ")
    assert shown.count("[y/n/?]") == 1 and "to get this answer without questions" not in shown
    assert code == 3


def test_what_is_no_answer_is_asked_again(stopped: str) -> None:
    _, shown = at_terminal("why", stopped, answers="x ")
    assert shown.count("[y/n/?]") == 2


@pytest.mark.parametrize("words", [["--no-ask"], ["--json"], ["--markdown"]])
def test_nothing_is_asked_of_who_does_not_want_it(stopped: str, words: list[str]) -> None:
    _, shown = at_terminal("why", stopped, *words)
    assert "[y/n/?]" not in shown


def test_nothing_is_asked_in_a_pipe_nor_where_it_is_decided(stopped: str) -> None:
    piped = subprocess.run(
        [*DDX, "why", stopped], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert "[y/n/?]" not in piped.stdout + piped.stderr
    code, shown = at_terminal("why", CLEAN)
    assert code == 1 and "[y/n/?]" not in shown


def test_what_is_asked_first_separates_and_is_not_asked_twice(stopped: str) -> None:
    found, asked = investigate([stopped]), list[str]()
    for _ in range(3):
        name = separating_fact(found.findings, load_playbooks(), found.missing, asked)
        assert name is not None and name in known_facts() and name not in asked
        asked.append(name)
    assert "hangs" in asked, "where no symptom was seen, that is what is asked for"
    known = [*found.findings, fact_finding(asked[0])]
    assert separating_fact(known, load_playbooks(), found.missing) != asked[0]
