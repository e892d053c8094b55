"""Facts and findings from outside: of a closed list, quoted, weighed less than what was seen, and told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.diagnosis.playbook import Condition, load_playbooks
from ddx_tools.diagnosis.submitted import HandedIn, fact_finding, read_handed_in
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.submission import with_checked
from ddx_tools.knowledge.facts import known_facts
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.knowledge.load import shipped
from ddx_tools.model.diagnosis import Level, Verdict
from ddx_tools.model.errors import UsageError

ROOT = Path(__file__).parents[2]
LOG = "step 1\nstep 2\nnode-3 was drained by the operator\n"


@pytest.fixture
def target(tmp_path: Path) -> list[str]:
    (tmp_path / "train.log").write_text(LOG)
    return [str(tmp_path / "train.log")]


@pytest.mark.parametrize("name", known_facts())
def test_every_fact_can_be_reported_with_yes_and_no(name: str) -> None:
    for value, negated in (("yes", False), ("no", True)):
        found = fact_finding(f"{name}={value}")
        assert (found.attributes["fact"], found.attributes["negated"]) == (name, negated)
    assert known_facts()[name].question.endswith("?")


def test_the_list_is_what_pages_ask_for_and_nothing_else() -> None:
    assert set(known_facts()) == {fact for condition in conditions() for fact in facts_of(condition)}


def conditions() -> list[Condition]:
    pages = load_playbooks()
    clauses = [clause for page in pages.symptoms.values() for clause in (*page.present, *page.absent)]
    clauses += [clause for page in pages.causes.values() for clause in (*page.decides, *page.supports, *page.excludes)]
    checks = [check for page in pages.symptoms.values() for check in page.next_check]
    checks += [check for page in pages.causes.values() for check in page.next_check]
    found = [condition for clause in clauses for condition in clause.all]
    return found + [condition for check in checks for condition in check.when]


def facts_of(condition: Condition) -> list[str]:
    told = condition.where.get("fact", [])
    return told if isinstance(told, list) else [told]


def test_the_manual_lists_every_fact_as_it_is() -> None:
    manual = (ROOT / "docs/notes.md").read_text(encoding="utf-8")
    assert [f"| `{name}` | {fact.so} |" for name, fact in known_facts().items()] == [
        line for line in manual.splitlines() if line.startswith("| `")
    ]


def test_a_fact_and_its_contrary() -> None:
    assert fact_finding("works_on_one_node").attributes["negated"] is False
    assert fact_finding("works_on_one_node=no").attributes["negated"] is True


@pytest.mark.parametrize("told", ["works_on_one_nod=yes", "works_on_one_node=perhaps", "", "a b"])
def test_what_is_not_on_the_list_is_refused(told: str) -> None:
    with pytest.raises(UsageError):
        fact_finding(told)


def test_a_quote_that_stands_there_counts_and_the_answer_says_so(target: list[str]) -> None:
    one = HandedIn(code="rank.raised", ranks=[3], quote="drained by the operator", source="material train.log:3")
    alone, said = investigate(target).diagnose(), with_checked(one, [], target).diagnose()
    assert alone.changed == []
    assert said.changed and said.changed[0].startswith("1 submitted; ")
    assert [suspect.ranks for suspect in said.suspects] == [[3]]
    assert said.verdict is Verdict.UNDECIDED
    assert all(cause.level is not Level.ESTABLISHED for cause in said.causes)


@pytest.mark.parametrize(
    ("quote", "source"),
    [("drained by nobody", "material train.log:3"), ("drained by the operator", "material other.log:3")],
)
def test_a_quote_that_does_not_stand_there_is_refused(target: list[str], quote: str, source: str) -> None:
    with pytest.raises(UsageError):
        with_checked(HandedIn(code="rank.raised", ranks=[3], quote=quote, source=source), [], target)


def test_a_code_that_nobody_registered_is_refused_with_near_ones() -> None:
    with pytest.raises(UsageError) as refused:
        HandedIn(code="rank.raise", quote="abcd", source="ranks").finding()
    assert "rank.raised" in refused.value.help


def test_what_was_kept_is_read_again() -> None:
    one = HandedIn(code="rank.raised", quote="abcd", source="ranks", attributes={"independent": False})
    assert read_handed_in(f"[{one.model_dump_json()}]".encode()) == [one]
    assert one.finding().attributes == {"independent": False, "basis": "added"}


def test_usual_attributes_are_those_of_registered_codes() -> None:
    assert all(is_registered(code) for code in shipped("handed_in.yaml"))


RANKS = """\
[rank0]: step 1
[rank1]: step 1
[rank1]: ranks 4-6 were left out of the mesh
node-3 was drained by the operator
[rank1]: host 3 has 99 widgets, rank=8 has none, [rank9] too; (local_rank 11)
"""


@pytest.fixture
def two_ranks(tmp_path: Path) -> list[str]:
    (tmp_path / "train.log").write_text(RANKS)
    return [str(tmp_path / "train.log")]


@pytest.mark.parametrize(("rank", "is_named"), [(8, True), (9, True), (3, False), (11, False), (99, False)])
def test_only_a_number_that_the_line_calls_a_rank_is_one(two_ranks: list[str], rank: int, is_named: bool) -> None:
    one = HandedIn(code="rank.raised", ranks=[rank], quote="has 99 widgets", source="material train.log:5")
    if is_named:
        assert with_checked(one, [], two_ranks).diagnose().changed
    else:
        with pytest.raises(UsageError, match=f"rank {rank}: not in the job"):
            with_checked(one, [], two_ranks)


@pytest.mark.parametrize("ranks", [[7], [0, 200], [-1]])
def test_a_rank_that_neither_the_line_nor_the_job_has_is_refused(two_ranks: list[str], ranks: list[int]) -> None:
    quote = "drained by the operator"
    one = HandedIn(code="rank.raised", ranks=ranks, quote=quote, source="material train.log:4")
    with pytest.raises(UsageError) as refused:
        with_checked(one, [], two_ranks)
    assert "rank" in refused.value.message and "omit" in refused.value.help
    assert ranks == [-1] or "the job has ranks 0-1" in refused.value.message


@pytest.mark.parametrize(
    ("ranks", "quote", "line"),
    [([1], "drained by", 4), ([5], "left out", 3), ([], "drained by", 4)],
)
def test_a_rank_that_the_line_or_the_job_has_is_taken(
    two_ranks: list[str], ranks: list[int], quote: str, line: int
) -> None:
    one = HandedIn(code="rank.raised", ranks=ranks, quote=quote, source=f"material train.log:{line}")
    assert with_checked(one, [], two_ranks).diagnose().changed


def test_what_changed_nothing_says_why(target: list[str]) -> None:
    def changed(code: str, **attributes: str) -> str:
        one = HandedIn(code=code, quote="drained by the operator", source="material train.log:3", attributes=attributes)
        (line,) = with_checked(one, [], target).diagnose().changed
        return line

    assert changed("job.ranks_unseen").startswith("1 submitted; it changed nothing: job.ranks_unseen was seen already")
    assert "supports rendezvous-missing-rank only together with findings" in changed("job.part_not_started")
    fact = investigate(target, told=[fact_finding("disk_not_full=yes")]).diagnose()
    assert fact.changed[0].startswith("1 submitted; it changed nothing: disk_not_full "), fact.changed
