"""Notes are found by their content, kept as they are, and not interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.investigation.run import investigate
from ddx_tools.knowledge.prose import is_note
from ddx_tools.model.diagnosis import Severity
from ddx_tools.probes.notes.probe import NotesArgs, capture
from ddx_tools.sources.hosts.local import LocalHost

ROOT = Path(__file__).parents[2]
ISSUE = """We train on two nodes. The job hangs
before the first step.

```
[rank0]: it hangs with NCCL_P2P_DISABLE=1
```

NCCL version 2.21.5+cuda12.4
"""


def test_an_issue_is_a_note_with_its_logs() -> None:
    assert is_note(ISSUE, named_so=False)


@pytest.mark.parametrize("log", sorted((ROOT / "tests/fixtures/logs").glob("*.log")), ids=lambda path: path.name)
def test_a_log_is_no_note(log: Path) -> None:
    assert not is_note(log.read_text(encoding="utf-8", errors="replace"), named_so=False)


@pytest.mark.parametrize(
    ("text", "named_so", "note"),
    [
        ("Fails before the first step.\n", True, True),
        ("hangs", True, True),
        ("Fails before the first step.\n", False, False),
        ("We see this on one node only.\n\n2026-01-01 10:00:00 INFO step 1\n", False, True),
        ("step 1 loss 2.3\nstep 2 loss 2.2\n", True, False),
        ("hello\n", False, False),
        ("", True, False),
    ],
)
def test_content_decides_and_names_help(text: str, named_so: bool, note: bool) -> None:
    assert is_note(text, named_so=named_so) is note


def kept_below(directory: Path) -> list[bytes]:
    return [item.data for item in capture(LocalHost("unknown"), NotesArgs(target=[str(directory)])).of("note")]


def test_notes_beside_logs_are_kept_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("With P2P disabled it still hangs.\n")
    (tmp_path / "train.log").write_text("We note: it works with gloo.\n")
    assert kept_below(tmp_path) == [b"With P2P disabled it still hangs.\n"]


def test_pages_of_the_project_are_not_about_the_incident(tmp_path: Path) -> None:
    deep = tmp_path / "repo/third_party/library"
    deep.mkdir(parents=True)
    (deep / "README.md").write_text("We know that it hangs on two nodes.\n")
    (tmp_path / "repo/CHANGELOG.md").write_text("We fixed a hang with gloo.\n")
    assert kept_below(tmp_path) == []


PIECES = ["We", "it", "hangs", "not", ",", ".", "\n", "\n\n", "```", "> ", "- ", "<!--", "\0", "NCCL INFO", "0x7f00aa"]
WRITTEN = st.lists(st.sampled_from(PIECES)).map(" ".join)


@given(st.one_of(st.text(max_size=400), WRITTEN))
def test_any_text_can_be_looked_at(text: str) -> None:
    assert is_note(text, named_so=True) in (True, False)


@pytest.mark.parametrize("piece", ["on the same ", "not ", "a ", "(", "<!--", "> ", "- x.\n"])
def test_a_long_text_ends_somewhere(piece: str) -> None:
    """No expression goes back and forth: this ends in a second, and would not end at all otherwise."""
    assert is_note(piece * (1_000_000 // len(piece)), named_so=True) in (True, False)


DENIED = 'The pod ends with "Error", not OOMKilled, and we saw no CUDA error: out of memory.\n'
PASTED = "$ kubectl describe pod trainer-0\n      Reason:       OOMKilled\n"


@pytest.mark.parametrize(("note", "codes"), [(DENIED, set()), (DENIED + PASTED, {"host.oom_kill"})])
def test_what_a_sentence_names_was_not_printed(tmp_path: Path, note: str, codes: set[str]) -> None:
    (tmp_path / "notes.txt").write_text(note)
    found = investigate([str(tmp_path)]).findings
    assert {finding.code for finding in found if finding.severity is not Severity.INFO} == codes
