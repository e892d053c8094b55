"""The shipped playbook pages keep the promises of docs/playbooks.md."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest
import yaml
from each_of import each_of
from made_findings import seen

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.matching import VERBS, fill, title_of
from ddx_tools.diagnosis.playbook import (
    NODE,
    Cause,
    Clause,
    Condition,
    NextCheckRule,
    Playbooks,
    Symptom,
    load_playbooks,
    parse_page,
)
from ddx_tools.model.diagnosis import Finding, Location, Verdict

ROOT = Path(__file__).parents[2]
SHIPPED = load_playbooks()
PAGES: dict[str, Symptom | Cause] = {**SHIPPED.symptoms, **SHIPPED.causes}
CATEGORIES: dict[str, list[str]] = yaml.safe_load(
    (ROOT / "tests/fixtures/playbooks/cause_ids.yaml").read_text(encoding="utf-8")
)
CAUSE_IDS = {cause for causes in CATEGORIES.values() for cause in causes}

SECTIONS = ("## Recognise it", "## By hand", "## What the evidence does not prove")

# Names with a hyphen that stand in backticks and are no page.
PROGRAMS = {"py-spy", "nvidia-smi", "systemd-oomd"}

# What some advice on the web says, and what makes things worse or does not exist.
FORBIDDEN = (
    r"\bpkill\b",
    r"\bkillall\b",
    r"(?<!TORCH_)NCCL_(TIMEOUT|ASYNC_ERROR_HANDLING|BLOCKING_WAIT)",  # no such variable, or one of old versions
    r"NCCL_IB_TIMEOUT",  # of a packet's acknowledgement, not of a collective
    r"NCCL_DEBUG_FILE\S*%[^hp]",  # not expanded: all ranks of a host write one file
    r"CUDA_MEMORY_FRACTION",
    r"set_detect_anomaly",
)
DETAIL = "TORCH_DISTRIBUTED_DEBUG=DETAIL"

every_page = each_of(PAGES.values(), lambda page: page.id)
every_cause = each_of(SHIPPED.causes.values(), lambda page: page.id)


def words(page: Symptom | Cause) -> str:
    """All that a reader sees of a page, on one line."""
    said = [page.text, *(check.question for check in page.next_check), *(clause.says for clause in clauses(page))]
    if isinstance(page, Cause):
        said += [*page.fix, *page.verify, *page.prevent, *page.harmful]
    return " ".join(" ".join(said).split())


def clauses(page: Symptom | Cause) -> list[Clause]:
    if isinstance(page, Symptom):
        return [*page.present, *page.absent]
    return [*page.decides, *page.supports, *page.excludes]


def bound(conditions: list[Condition]) -> set[str]:
    return {condition.as_ for condition in conditions if condition.as_ and not condition.absent}


def placeholders(text: object) -> set[str]:
    return set(re.findall(r"\{(\w+)\.\w+\}", text)) if isinstance(text, str) else set()


# --- the shipped pages ----------------------------------------------------------------------------------------


def test_the_first_symptoms_have_pages() -> None:
    assert {"hang", "crash", "wrong-results"} <= SHIPPED.symptoms.keys()


@every_cause
def test_a_cause_has_a_known_id_and_stands_in_its_category(page: Cause) -> None:
    assert page.id in CATEGORIES[page.category], f"add {page.id} to tests/fixtures/playbooks/cause_ids.yaml"


@every_page
def test_a_page_lies_in_the_folder_of_its_kind(page: Symptom | Cause) -> None:
    assert (ROOT / "playbooks" / f"{page.kind}s" / f"{page.id}.md").is_file()


@every_cause
def test_a_title_goes_on_after_the_rank_and_the_place(page: Cause) -> None:
    """The headline is `Rank 3 at train.py:41: <title>`."""
    assert page.title[0].islower()
    assert page.title[-1] not in ".:!"
    assert not placeholders(page.title)


@every_cause
def test_the_text_of_a_cause_has_its_sections_in_order(page: Cause) -> None:
    headings = [line for line in page.text.splitlines() if line.startswith("## ")]
    assert tuple(headings[:3]) == SECTIONS
    assert not page.text.startswith("#"), "the first paragraph says what happens"


@every_cause
def test_the_text_of_a_cause_says_what_differs_by_backend(page: Cause) -> None:
    limits = page.text.split(SECTIONS[2])[1]
    assert "NCCL" in limits or "Gloo" in limits or "backend" in limits


@every_page
def test_pages_named_in_the_text_exist_or_are_said_to_be_missing(page: Symptom | Cause) -> None:
    text = words(page)
    named = re.finditer(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`(?P<missing> \(no page yet\))?", text)
    for reference in named:
        name, missing = reference[1], bool(reference["missing"])
        if name in PROGRAMS:
            continue
        assert name in PAGES or name in CAUSE_IDS, f"{page.id} names {name}, which is no page and no cause"
        assert missing == (name not in PAGES), f"{page.id}: wrong about whether {name} has a page"


def test_what_a_cause_refines_is_a_tree_without_rings() -> None:
    assert SHIPPED.above("host-oom-killed") == {"rank-crashed"}
    assert SHIPPED.above("module-skipped-on-rank") == {"rank-skipped-collective", "ranks-disagree"}
    assert "wrong-network-interface" in SHIPPED.below("never-formed") & SHIPPED.below("transport-broken")


def test_every_cause_hangs_in_the_tree_and_a_node_has_special_cases() -> None:
    alone = {cause for cause in SHIPPED.causes if not SHIPPED.above(cause) and not SHIPPED.below(cause)}
    assert alone == {"timeout-too-short"}
    assert all(SHIPPED.below(page.id) for page in SHIPPED.causes.values() if page.category == NODE)


@every_page
def test_placeholders_are_bound_where_they_stand(page: Symptom | Cause) -> None:
    for clause in clauses(page):
        assert placeholders(clause.says) <= bound(clause.all), clause.says
    for check in page.next_check:
        asked = {name for text in (check.question, *check.args.values()) for name in placeholders(text)}
        assert asked <= bound(check.when), check.question
    if isinstance(page, Cause):
        grounds = [bound(clause.all) for clause in page.decides or page.supports]
        always = set.intersection(*grounds) if grounds else set()
        for sentence in (*page.fix, *page.verify):
            assert placeholders(sentence) <= always, sentence
        assert not any(placeholders(sentence) for sentence in (*page.prevent, *page.harmful))


@every_page
def test_no_page_gives_advice_that_makes_it_worse(page: Symptom | Cause) -> None:
    text = words(page)
    for pattern in FORBIDDEN:
        assert not re.search(pattern, text), pattern
    if DETAIL in text:
        assert "crashes with it" in text or "where it crashes" in text, f"{DETAIL} is no harmless default"


@every_page
def test_a_longer_timeout_is_no_fix(page: Symptom | Cause) -> None:
    advice = [*page.fix, *page.prevent, *page.verify] if isinstance(page, Cause) else []
    for sentence in advice:
        assert not re.search(r"\b(rais|increas|lengthen|extend)\w* the timeout", sentence, re.IGNORECASE), sentence


@every_page
def test_excerpts_name_no_machine_of_ours(page: Symptom | Cause) -> None:
    assert not re.search(r"/(?:root|home|work|opt|tmp/run-)/", page.text)


@every_page
def test_python_in_the_text_parses(page: Symptom | Cause) -> None:
    for source in re.findall(r"^ *```python\n(.*?)^ *```", page.text, re.S | re.M):
        ast.parse(textwrap.dedent(source), page.id)


@every_cause
def test_no_words_of_a_user_decide_alone(page: Cause) -> None:
    """Sentences are misread and experiments are done badly: a report decides together with something that was seen."""
    for clause in page.decides:
        seen = {code for condition in clause.all if not condition.absent for code in condition.codes}
        assert seen - {"user.reported"}, clause


@every_cause
def test_no_page_mentions_a_finding_only_to_exclude_itself(page: Cause) -> None:
    """What decides another cause wins by itself; here stands only what makes this one impossible."""
    own = {code for c in (*page.decides, *page.supports) for each in c.all for code in each.codes}
    about = {code for c in page.excludes if c.same != "culprit" for each in c.all for code in each.codes}
    assert about <= own


@every_cause
def test_every_cause_says_how_to_go_on(page: Cause) -> None:
    assert page.next_check


WRONG_OF_ONE = re.compile(r"(?<!does )\brank 3 (?:are|were|have|do|wait)\b|\bDo rank 3\b")
WRONG_OF_MANY = re.compile(
    r"\b(?:ranks 3, 5|the ranks|they) (?:is|was|has|does|waits|needs|runs|calls)\b|\bDoes ranks\b"
)
PAST = {
    *("aborted", "allocated", "asked", "called", "ended", "finished", "had", "left", "lost", "made", "moved"),
    *("never", "of", "may", "passed", "raised", "ran", "skipped", "timed", "took", "went"),
}


@every_page
def test_a_verb_behind_ranks_agrees_with_them(page: Symptom | Cause) -> None:
    """In the past tense anyhow; in the present one by the list in `matching`."""
    said = words(page)
    verbs = set(re.findall(r"\{\w+\.ranks\} ([a-z]+)", said))
    unknown = verbs - PAST - set(VERBS) - set(VERBS.values())
    assert not unknown, "use another verb, or add its plural to VERBS in diagnosis/matching.py"


@every_page
def test_a_sentence_about_ranks_agrees_for_one_and_for_many(page: Symptom | Cause) -> None:
    bindings = set(re.findall(r"\{(\w+)\.", words(page)))
    questions = [check.question for check in page.next_check]
    for text in (page.title, *questions, *(clause.says for clause in clauses(page))):
        for ranks, wrong in (((3,), WRONG_OF_ONE), ((3, 5), WRONG_OF_MANY)):
            found = seen("rank.raised", *ranks)
            filled = fill(text, {name: [found] for name in bindings})
            filled = title_of(filled, ranks) if text is page.title else filled
            assert not wrong.search(filled), filled


def test_every_separated_cause_is_asked_about_by_its_own_page_too() -> None:
    """A check that is said to separate causes is no use on a page that it does not concern."""
    for page in SHIPPED.causes.values():
        for check in page.next_check:
            assert page.id in check.separates or set(check.separates) <= SHIPPED.below(page.id)


# --- the example of the manual --------------------------------------------------------------------------------


def manual() -> str:
    return (ROOT / "docs" / "playbooks.md").read_text(encoding="utf-8")


def test_the_example_of_the_manual_does_what_the_manual_says() -> None:
    text = manual()
    source = re.search(r"```markdown\n(.*?)```", text, re.S)
    headline = re.search(r"headline reads\n\n```text\n(.*?)\n```", text)
    assert source and headline
    example = parse_page(source[1], "the example")
    findings = [
        Finding(
            code="rank.outside_collective",
            ranks=[2],
            summary="rank 2 is not in it",
            locations=[Location(file="/srv/job/train.py", line=41, function="save")],
            attributes={"activity": "socket_wait", "contexts": ["checkpoint"], "moving": False},
        ),
        Finding(
            code="collective.peers_wait",
            ranks=[0, 1, 3],
            summary="ranks 0-1, 3 wait in barrier",
            attributes={"operation": "barrier", "wait_s": 12.0},
        ),
    ]

    hang = SHIPPED.symptoms["hang"].model_copy(update={"next_check": []})  # they name pages that are not here
    diagnosis = diagnose(findings, Playbooks([hang, example]))

    assert diagnosis.verdict is Verdict.DIAGNOSED
    assert diagnosis.headline == headline[1]
    assert diagnosis.culprits.ranks == [2]
    assert round(diagnosis.causes[0].probability, 2) == 0.92
    assert diagnosis.verify == ["The rank leaves train.py:41 save, and its peers' collective completes."]


@pytest.mark.parametrize("model", [Symptom, Cause, Clause, Condition, NextCheckRule])
def test_the_manual_names_every_key(model: type[Symptom | Cause | Clause | Condition | NextCheckRule]) -> None:
    described = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`\n]+)`", manual()))))
    keys = {field.alias or name for name, field in model.model_fields.items()} - {"text"}
    assert keys <= described


@pytest.mark.parametrize(
    ("cause", "seen"),
    [
        (
            "host-jitter",
            Finding(code="rank.slowest_changes", severity="warning", summary="In 7 steps 6 ranks were last."),
        ),
        (
            "main-module-reexecuted",
            Finding(code="launch.main_reexecuted", severity="failure", summary="A worker imports train.py again."),
        ),
    ],
)
def test_a_new_cause_is_its_own_page_and_no_edit_of_another(cause: str, seen: Finding) -> None:
    others = [page for name, page in SHIPPED.causes.items() if name != cause]
    before = Playbooks([*SHIPPED.symptoms.values(), *others])
    assert cause not in {each.id for each in diagnose([seen], before).causes}
    assert diagnose([seen], SHIPPED).causes[0].id == cause
