"""What people write becomes facts: many phrasings of each, and near misses that are none. All texts are constructed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from each_of import each_of
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.prose import is_note, sentences
from ddx_tools.knowledge.reports import ProseFact, expression, normalised, outcome_of, vocabulary
from ddx_tools.parsers.notes.user_report import read_reports
from ddx_tools.probes.notes.probe import NotesArgs, analyse, capture, parse
from ddx_tools.sources.hosts.local import LocalHost

ROOT = Path(__file__).parents[2]
FACTS = list(vocabulary().values())


def stated(text: str) -> set[str]:
    """Ids of facts; a contrary one with a `not ` before it."""
    return {("not " if report.negated else "") + report.fact for report in read_reports(text)}


def texts(attribute: str) -> Callable[[Callable[[tuple[ProseFact, str]], None]], object]:
    """Make one test of all texts of a kind."""
    of_facts = [(fact, text) for fact in FACTS for text in getattr(fact, attribute)]
    return each_of(of_facts, lambda each: f"{each[0].id}: {each[1]}")


# --- the vocabulary, by its own examples


@texts("examples")
def test_an_example_states_its_fact(each: tuple[ProseFact, str]) -> None:
    fact, text = each
    assert fact.id in stated(text)
    assert f"not {fact.id}" not in stated(text)


@texts("contrary_examples")
def test_a_contrary_example_states_the_contrary(each: tuple[ProseFact, str]) -> None:
    fact, text = each
    assert f"not {fact.id}" in stated(text)
    assert fact.id not in stated(text)


@texts("near")
def test_a_near_miss_states_nothing_of_it(each: tuple[ProseFact, str]) -> None:
    fact, text = each
    assert not {fact.id, f"not {fact.id}"} & stated(text)


@each_of(FACTS, lambda fact: fact.id)
def test_every_experiment_can_fail(fact: ProseFact) -> None:
    if fact.kind == "experiment":
        assert fact.contrary and fact.contrary_examples
    if fact.contrary_examples:
        assert fact.contrary


# --- phrasings that were written after the vocabulary

PARAPHRASES = """
When I set NCCL_P2P_DISABLE=1 everything goes smoothly | works_with_p2p_disabled
I found that adding `export NCCL_P2P_DISABLE=1` to my script makes the problem disappear. | works_with_p2p_disabled
my workaround is to disable p2p | works_with_p2p_disabled
With P2P off, we do not see the hang. | works_with_p2p_disabled
We don't see the deadlock any more after disabling peer-to-peer. | works_with_p2p_disabled
It does not hang with NCCL_P2P_DISABLE=1. | works_with_p2p_disabled
Without NCCL_P2P_DISABLE=1 it never gets past the first all_reduce. | works_with_p2p_disabled
Everything works when NCCL_P2P_DISABLE=1 is set, otherwise it hangs forever. | works_with_p2p_disabled, hangs
I can get it to work by setting NCCL_P2P_DISABLE=1, but performance is horrible. | works_with_p2p_disabled
NCCL_P2P_DISABLE=1 (no effect), NCCL_IB_DISABLE=1 (no effect) | not works_with_p2p_disabled, not works_with_ib_disabled
Neither NCCL_P2P_DISABLE=1 nor NCCL_IB_DISABLE=1 helped. | not works_with_p2p_disabled, not works_with_ib_disabled
I've tried NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1 to no avail. | not works_with_p2p_disabled
Tried: NCCL_P2P_DISABLE=1, gloo backend. None of these worked. | not works_with_p2p_disabled, not works_with_gloo
No, NCCL_P2P_DISABLE=1 didn't change anything. | not works_with_p2p_disabled
works on one node, NCCL_P2P_DISABLE=1 changes nothing | works_on_one_node, not works_with_p2p_disabled
hangs at epoch end with 8 GPUs | hangs, fails_at_epoch_end
- NCCL_P2P_DISABLE=1: hangs | not works_with_p2p_disabled
- NCCL_SHM_DISABLE=1 -> works | works_with_shm_disabled
NCCL_IB_DISABLE=1 lets it run | works_with_ib_disabled
It runs OK over ethernet but not over infiniband. | works_with_ib_disabled
The hang occurs with both nccl and gloo. | not works_with_gloo
the gloo backend doesn't have this problem | works_with_gloo
The code runs well on a single node but is stuck on two nodes. | works_on_one_node, hangs
I can train on 1 node without any issue. With 2 nodes, it gets stuck at init. | works_on_one_node, fails_at_start
I see the error only when I use more than one node. | works_on_one_node
multi-gpu on one machine is fine; across machines it fails | works_on_one_node
It works fine if I only use one gpu, but hangs when I use 2 or more gpus. | works_on_one_gpu
This doesn't occur when using a single GPU. | works_on_one_gpu
2 nodes OK, 4 nodes OK, 8 nodes hang | works_with_fewer_ranks
It runs on 16 nodes but as soon as I go to 32 nodes, NCCL times out | works_with_fewer_ranks
After downgrading to torch 2.1 the problem is gone. | works_with_other_version
torch 1.13 works, 2.0 does not | works_with_other_version
Rolled back to NCCL 2.14.3, problem persists | not works_with_other_version
I tried different nodes, same result. | not works_on_other_hardware
The problem started after we upgraded the driver from 525 to 535. | after_a_change
We moved to a new cluster and since then all jobs hang. | after_a_change
training gets stuck at the end of the first epoch | fails_at_epoch_end
It gets stuck after the first validation epoch. | fails_at_epoch_end, fails_in_evaluation
When evaluation starts, all ranks wait forever. | fails_in_evaluation, hangs
Saving the checkpoint takes forever and then NCCL times out. | fails_at_checkpoint_save
Resuming leads to CUDA OOM, while training from scratch is OK. | fails_on_resume
Trains for about 10 hours and then hangs. | fails_after_a_while
about 40 minutes after the start the job dies | fails_after_a_while
The failure is not deterministic. | fails_randomly
All 8 GPUs show 100% utilization but nothing happens. | gpu_busy_while_stuck, hangs
GPU usage drops to 0% | gpu_idle_while_stuck
without any output, it just hangs there | no_error_printed
I am using nvcr.io/nvidia/pytorch:24.01-py3 in kubernetes. | in_a_container
I increased the timeout to 2h but it does not help | not works_with_longer_timeout
Increasing the timeout to 3600 solved my issue. | works_with_longer_timeout
The failing node is always the same one. | always_the_same_host
CUDA memory keeps increasing with every iteration. | memory_grows
I set batch size to 1 and still get OOM | not works_with_smaller_batch
parameters on different ranks are not in sync after a few steps | loss_differs_between_ranks
The training loss on 8 GPUs is much higher than on 1 GPU. | loss_differs_with_rank_count
Two-node training is 5x slower than a single node. | slow_not_stuck
I ran two training jobs on the same server. | several_jobs_on_host
Some batches contain no images. | variable_batches
in some iterations, certain layers are not used | conditional_modules
There's plenty of space left on the disk (1.2T). | disk_not_full
rank 0 uses 2GB more memory than other ranks | one_gpu_holds_more
each rank gets a different number of batches | ranks_differ_in_batches
[BUG] DDP hangs when using more than 1 node | works_on_one_node, hangs
NCCL timeout at the end of training when saving the model | hangs, fails_at_checkpoint_save
same hang with NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1 | not works_with_p2p_disabled, not works_with_ib_disabled
falling back to sockets makes the error disappear | works_with_ib_disabled
Using 4 nodes is fine but 5 or more nodes hang | works_with_fewer_ranks
I've reproduced it with torch 2.0, 2.1 and nightly | not works_with_other_version
it stops at the last batch of every epoch | fails_at_epoch_end
resume fails with CUDA OOM but fresh training is fine | fails_on_resume
RuntimeError happens at the first backward pass | fails_at_first_collective
it doesn't happen every time | fails_randomly
extending the timeout doesn't fix it | not works_with_longer_timeout
rank 1 loss differs from rank 0 loss | loss_differs_between_ranks
after opening port 29500 in the firewall it works | works_with_firewall_off
It hangs on the second node, any ideas? | hangs
NCCL_P2P_DISABLE=1 fixed it, but why? | works_with_p2p_disabled
I can't ping the other host any more, maybe unrelated? | hosts_do_not_reach_each_other
"""


@pytest.mark.parametrize("line", PARAPHRASES.strip().splitlines())
def test_other_words_state_the_same(line: str) -> None:
    text, _, facts = line.partition(" | ")
    wanted = set(facts.split(", "))
    assert wanted <= stated(text)
    contrary = {fact.removeprefix("not ") if fact.startswith("not ") else f"not {fact}" for fact in wanted}
    assert not contrary & stated(text)


@pytest.mark.parametrize(
    "text",
    [
        "Please let me know whether NCCL_P2P_DISABLE=1 fixes it.",
        "I think it may be a memory leak.",
        "Can you check whether it works on a single node?",
        "Have you tried the gloo backend? It might work.",
        "Would it hang without NCCL_P2P_DISABLE=1, and is that bad?",
        "If I disable P2P, maybe it works?",
        "You could set NCCL_IB_DISABLE=1, that usually works.",
        "### Expected behavior\n\nIt should not hang. Training works on multiple GPUs with gloo.",
        "```\nit hangs with NCCL_P2P_DISABLE=1\n```",
        "torchrun --nproc-per-node 8 train.py --timeout=60",
        "<!-- Describe the bug: it hangs on two nodes. -->",
    ],
)
def test_what_is_asked_expected_or_suggested_is_no_report(text: str) -> None:
    assert stated(text) == set()


def test_a_sentence_that_begins_with_a_tool_and_its_version_is_no_command() -> None:
    assert "offloads_to_host" in stated("deepspeed 0.16.2, stage 3 + optimizer offload cpu, 21/24 GB used.")
    assert stated("deepspeed train.py --offload cpu") == set()


def test_two_opinions_are_no_report_and_ask_who_is_right() -> None:
    assert stated("Our admin says it hung; I say it only waits. Who is right?") == {"asks_whether_well"}
    assert "hangs" in stated("It hung again, and our admin says the network is fine.")


def test_scales_are_compared_over_the_whole_text() -> None:
    assert "works_with_fewer_ranks" in stated("On 4 nodes the job completes.\n\nOn 16 nodes it hangs.")
    assert "works_with_fewer_ranks" not in stated("On 16 nodes the job completes.\n\nOn 4 nodes it hangs.")


# --- outcomes


@pytest.mark.parametrize(
    ("clause", "outcome"),
    [
        ("it works", "good"),
        ("it doesn't work", "bad"),
        ("it does not hang any more", "good"),
        ("it no longer crashes", "good"),
        ("it never returns", "bad"),
        ("that fixed it", "good"),
        ("that did not fix the hang", "bad"),
        ("still the same hang", "bad"),
        ("no luck", "bad"),
        ("not sure why it hangs", "bad"),
        ("there is no error", "good"),
        ("we use 8 gpus", None),
    ],
)
def test_how_it_went(clause: str, outcome: str | None) -> None:
    assert outcome_of(normalised(clause)) == outcome


# --- which texts are a person's

ISSUE = """\
### Describe the bug

When I train on two nodes the job hangs at init_process_group. A single node
works without problems.

```
[rank0]: it hangs with NCCL_P2P_DISABLE=1
```

NCCL version 2.21.5+cuda12.4
"""


def test_an_issue_is_read_without_its_logs() -> None:
    assert is_note(ISSUE, named_so=False)
    assert stated(ISSUE) == {"hangs", "fails_at_start", "works_on_one_node"}


def test_a_sentence_over_two_lines_is_one_and_knows_its_line() -> None:
    (report,) = [report for report in read_reports(ISSUE) if report.fact == "works_on_one_node"]
    assert report.quote == "A single node works without problems."
    assert report.line == 3


@pytest.mark.parametrize("log", sorted((ROOT / "tests/fixtures/logs").glob("*.log")), ids=lambda path: path.name)
def test_a_log_is_no_note(log: Path) -> None:
    text = log.read_text(encoding="utf-8", errors="replace")
    assert not is_note(text, named_so=False)
    assert stated(text) == set()


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


# --- the probe


def notes_below(directory: Path) -> set[tuple[str, bool]]:
    raw = capture(LocalHost("unknown"), NotesArgs(target=[str(directory)]))
    with Store() as store:
        store.insert(parse(raw))
        found = analyse(store)
    assert {finding.code for finding in found} <= {"user.reported"}
    assert all(finding.attributes["basis"] == "user" and finding.evidence for finding in found)
    return {(finding.attributes["fact"], finding.attributes["negated"]) for finding in found}


def test_notes_beside_logs_are_found(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("With P2P disabled it still hangs.\n")
    (tmp_path / "train.log").write_text("We note: it works with gloo.\n")
    assert notes_below(tmp_path) == {("works_with_p2p_disabled", True), ("hangs", False)}


def test_pages_of_the_project_are_not_about_the_incident(tmp_path: Path) -> None:
    deep = tmp_path / "repo/third_party/library"
    deep.mkdir(parents=True)
    (deep / "README.md").write_text("We know that it hangs on two nodes.\n")
    (tmp_path / "repo/CHANGELOG.md").write_text("We fixed a hang with gloo.\n")
    assert notes_below(tmp_path) == set()


def test_reports_of_both_kinds_are_both_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("It works with gloo.\n\nOn the other cluster it hangs with gloo.\n")
    assert {("works_with_gloo", False), ("works_with_gloo", True)} <= notes_below(tmp_path)


# --- hostile text

WORDS = sorted({word for fact in FACTS for text in fact.examples for word in text.split()})
WRITTEN = st.lists(st.sampled_from([*WORDS, "not", "but", ",", ".", "\n", "\n\n", "```", "> ", "- ", "<!--", "\0"]))


@given(st.one_of(st.text(max_size=400), WRITTEN.map(" ".join)))
def test_any_text_can_be_read(text: str) -> None:
    lines = text.splitlines()
    for report in read_reports(text):
        assert report.fact in vocabulary()
        assert 1 <= report.line <= len(lines)
        assert 0 < len(report.quote) <= 240
    is_note(text, named_so=True)


@pytest.mark.parametrize("piece", ["on the same ", "not ", "always only ", "a ", "(", "<!--", "> ", "- x.\n"])
def test_a_long_text_ends_somewhere(piece: str) -> None:
    """No expression goes back and forth: this ends in a second, and would not end at all otherwise."""
    text = piece * (1_000_000 // len(piece))
    assert len(read_reports(text)) <= 200
    assert sum(len(sentence.text) for sentence in sentences(text)) <= 64_000


def test_expressions_repeat_nothing_without_limit() -> None:
    """`*` and `+` over more than one character are where backtracking comes from; `(?:the |a )*` has fixed words."""
    for fact in FACTS:
        for way in [*fact.any, *fact.implied, fact.not_with]:
            for each in way:
                pattern = expression(each).pattern
                assert not re.search(r"\.[*+]|\\[wWsSdD][*+]|\][*+]", pattern), pattern


# --- what is suspected


def test_a_list_of_ideas_reports_nothing() -> None:
    assert "gpu_clocks_low" in stated("GPU 3 of that box is throttled.")
    assert "gpu_clocks_low" not in stated("Ideas so far: NCCL takes sockets; or GPU 3 of that box is throttled.")


# --- the manual


def test_the_manual_lists_every_fact() -> None:
    named = set(re.findall(r"`([a-z0-9_]+)`", (ROOT / "docs/notes.md").read_text(encoding="utf-8")))
    assert {fact.id for fact in FACTS} <= named
