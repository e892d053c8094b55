"""Broken playbook pages are refused, and the error names the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.diagnosis.playbook import PlaybookError, Playbooks, load_playbooks, parse_page
from ddx_tools.model.errors import UsageError

HANG = """\
---
kind: symptom
id: hang
title: The job hangs
present:
  - all: [{finding: collective.peers_wait, as: waiting}]
victims: [waiting]
---
Look at all ranks.
"""

STOPPED = """\
---
kind: cause
id: stopped
title: the process is stopped
category: rank-absent
symptoms: [hang]
decides:
  - all: [{finding: rank.stopped, as: stopped}]
    strength: conclusive
culprits: [stopped]
next_check:
  - {probe: stacks, question: "Which state has it?", separates: [stopped]}
fix: [Let it go on.]
verify: [It moves.]
---
Nothing in it runs.
"""


SEEN = "{finding: rank.stopped, as: stopped}"
HELD = "{{finding: rank.outside_collective, where: {{activity: {}}}, as: stopped}}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with two good pages."""
    for kind, name, text in (("symptoms", "hang", HANG), ("causes", "stopped", STOPPED)):
        page = tmp_path / kind / f"{name}.md"
        page.parent.mkdir()
        page.write_text(text, encoding="utf-8")
    return tmp_path


def spoil(directory: Path, old: str, new: str, name: str = "causes/stopped.md") -> Path:
    page = directory / name
    text = page.read_text(encoding="utf-8")
    assert text.count(old) == 1
    page.write_text(text.replace(old, new), encoding="utf-8")
    return directory


def test_good_pages_load(directory: Path) -> None:
    playbooks = load_playbooks(directory)
    assert playbooks.page("stopped").text == "Nothing in it runs."
    assert playbooks.page("hang").title == "The job hangs"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        pytest.param("culprits:", "culprit:", "culprit", id="unknown key of the page"),
        pytest.param("strength: conclusive", "strenght: weak", "strenght", id="unknown key of a clause"),
        pytest.param("as: stopped}", "ass: stopped}", "ass", id="unknown key of a condition"),
        pytest.param("strength: conclusive", "strength: certain", "certain", id="unknown strength"),
        pytest.param("rank.stopped", "rank.stoped", "'rank.stoped' is not a registered", id="unknown finding code"),
        pytest.param("culprits: [stopped]", "culprits: [held]", "no condition binds 'held'", id="unbound culprit"),
        pytest.param("separates: [stopped]", "separates: [gone]", "separates 'gone'", id="separates no cause"),
        pytest.param("symptoms: [hang]", "symptoms: [slow]", "'slow' is not a symptom", id="no such symptom"),
        pytest.param("symptoms: [hang]", "symptoms: []", "symptoms", id="a cause of nothing"),
        pytest.param("fix: [Let it go on.]", "fix: []", "fix", id="no fix"),
        pytest.param("as: stopped}]", "absent: true}]", "only absences", id="absences alone"),
        pytest.param("kind: cause", "kind: reason", "kind", id="unknown kind"),
        pytest.param("title: the", "title: [the", "stopped.md", id="no YAML"),
        pytest.param("---\nkind", "kind", "no front matter", id="no front matter"),
        pytest.param(
            SEEN, "{finding: rank.stopped, where: {stat: T}, as: stopped}", "nearest is 'state'", id="attribute"
        ),
        pytest.param(SEEN, "{finding: rank.stopped, where: {state: {min: 3}}, as: stopped}", "numbers", id="no number"),
        pytest.param(SEEN, HELD.format("pipe_writ"), "nearest is 'pipe_write'", id="value of a closed set"),
        pytest.param(
            "strength: conclusive", "says: '{stopped.stat}'", "nearest is 'state'", id="attribute in a sentence"
        ),
        pytest.param("strength: conclusive", "says: '{held.ranks}'", "no condition is named 'held'", id="unbound name"),
    ],
)
def test_a_broken_cause_page_is_refused_by_name(directory: Path, old: str, new: str, complaint: str) -> None:
    with pytest.raises(PlaybookError) as refused:
        load_playbooks(spoil(directory, old, new))
    assert "stopped" in refused.value.message
    assert complaint in refused.value.message


@pytest.mark.parametrize(
    "seen",
    [
        "{finding: rank.stopped, where: {state: T, severity: warning, count: {max: 1}}, as: stopped}",
        "{finding: [rank.stopped, rank.held], where: {activity: pipe_write}, as: stopped}",
        "{finding: rank.outside_collective, where: {activity: [unknown, sleep]}, as: stopped}",
    ],
)
def test_what_findings_have_may_be_asked(directory: Path, seen: str) -> None:
    assert load_playbooks(spoil(directory, SEEN, seen)).page("stopped")


def test_a_symptom_page_with_an_unbound_victim_is_refused(directory: Path) -> None:
    spoil(directory, "victims: [waiting]", "victims: [slow]", "symptoms/hang.md")
    with pytest.raises(PlaybookError, match="hang: no condition binds 'slow'"):
        load_playbooks(directory)


def test_the_id_of_a_page_is_its_file_name(directory: Path) -> None:
    page = directory / "causes" / "stopped.md"
    page.rename(page.with_name("process-stopped.md"))
    with pytest.raises(PlaybookError, match=r"process-stopped\.md: its id is 'stopped'"):
        load_playbooks(directory)


def test_two_pages_cannot_share_an_id() -> None:
    cause = parse_page(STOPPED, "stopped.md")
    with pytest.raises(PlaybookError, match="share the id"):
        Playbooks([parse_page(HANG, "hang.md"), cause, cause])


@pytest.mark.parametrize("test", ["[lock, [file_io, sleep]]", "{not: [lock, [file_io, sleep]]}"])
def test_a_list_in_a_list_is_refused_since_nothing_would_equal_it(directory: Path, test: str) -> None:
    spoil(directory, "{finding: rank.stopped,", "{finding: rank.stopped, where: {state: " + test + "},")
    with pytest.raises(PlaybookError, match=r"stopped\.md: state has a list inside a list"):
        load_playbooks(directory)


def test_a_page_that_is_asked_for_and_missing_names_those_there_are() -> None:
    with pytest.raises(UsageError) as refused:
        load_playbooks().page("no-such-page")
    assert "process-stopped" in refused.value.help
