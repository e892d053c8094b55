"""What is read out of programs and printed values beside the logs, each sick text beside its healthy twin."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.probes.notes.probe import NotesArgs, capture
from ddx_tools.probes.notes.texts.capture import text_rows
from ddx_tools.probes.notes.texts.findings import text_findings
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw, RawItem


def codes(text: str, name: str = "excerpt.txt") -> set[str]:
    raw = Raw("host", [RawItem("text", textwrap.dedent(text).encode(), name, {"path": name})])
    with Store() as store:
        store.insert(text_rows(raw))
        return {finding.code for finding in text_findings(store)}


PROGRAMS = {
    "program.group_left_out": (
        "import a\nif mpu.is_pipeline_last_stage():\n    dist.all_reduce(loss)\nfor x in y:\n    z()\n",
        "import a\nif mpu.is_pipeline_last_stage():\n    dist.all_reduce(loss, group=dp)\nfor x in y:\n    z()\n",
    ),
    "program.breakpoint": (
        "import torch\nif x:\n    dist.breakpoint(rank=1)\n",
        "import torch\nif x:\n    # breakpoint()\n    y()\n",
    ),
    "program.guarded_call": (
        "import torch\nif is_main:\n    trainer.save_model(path)\n",
        "import torch\nif is_main:\n    print('saved')\ntrainer.save_model(path)\n",
    ),
    "program.leaves_before_collective": (
        "def step(x):\n    if total == 0:\n        return\n    dist.all_reduce(x)\nimport a\n",
        "def step(x):\n    if not dist.is_initialized():\n        return\n    dist.all_reduce(x)\nimport a\n",
    ),
    "program.rank_local_decision": (
        "import a\nfor b in c:\n    if time.time() - last > limit:\n        save_checkpoint(b)\n",
        "import a\nfor b in c:\n    if step % 100 == 0:\n        save_checkpoint(b)\n",
    ),
    "program.uneven_split": (
        "import a\nids = split(ids, ceil(len(ids) / n))[rank]\nfor i in ids:\n    m = DDP(m)\n",
        "import a\nids = split(ids, ceil(len(ids) / n))[0]\nfor i in ids:\n    m = DDP(m)\n",
    ),
    "program.sampler_seed_by_rank": (
        "import a\nfor b in c:\n    s = DistributedSampler(d, shuffle=True,\n        seed=int(time.time()) * rank)\n",
        "import a\nfor b in c:\n    s = DistributedSampler(d, shuffle=True,\n        seed=config.seed, rank=rank)\n",
    ),
    "program.sync_left_out": (
        "for x in data:\n    with model.no_sync():\n        loss(x).backward()\n    opt.step()\n",
        "for x in data:\n    with model.no_sync():\n        loss(x).backward()\n    loss(y).backward()\n",
    ),
    "program.sum_not_divided": (
        "import a\nfor p in model.parameters():\n    dist.all_reduce(p.grad, op=SUM)\n",
        "import a\nfor p in model.parameters():\n    dist.all_reduce(p.grad)\n    p.grad /= world_size\n",
    ),
    "program.metric_of_one_rank": (
        "for x, y in loader:\n    hits += right(x, y)\nif rank == 0:\n    print(hits / len(loader.dataset))\n",
        "for x, y in loader:\n    hits += right(x, y)\ndist.all_reduce(hits)\nprint(hits / len(loader.dataset))\n",
    ),
    "program.no_sampler": (
        "import a\nfrom torch import b\nloader = DataLoader(data, shuffle=True)\n",
        "import a\nfrom torch import b\nloader = accelerator.prepare(DataLoader(data, shuffle=True))\n",
    ),
    "program.rng_of_one_rank": (
        "import a\nif rank == 0:\n    save({'rng': torch.get_rng_state()})\ntorch.set_rng_state(c['rng'])\n",
        "import a\nif rank == 0:\n    save({'rng': states})\ntorch.set_rng_state(c['rng'][rank])\n",
    ),
    "program.one_bucket": (
        "import a\nfor b in c:\n    m = DDP(m, bucket_cap_mb=4000)\n",
        "import a\nfor b in c:\n    m = DDP(m, bucket_cap_mb=25)\n",
    ),
    "program.rank_by_default": (
        "import os\nimport a\nrank = int(os.environ.get('RANK', 0))\n",
        "import os\nimport a\nrank = int(os.environ['RANK'])\n",
    ),
    "program.unwaited_transfer": (
        "import a\nfor b in c:\n    dist.isend(b, 1)\n",
        "import a\nfor b in c:\n    works.append(dist.isend(b, 1))\n",
    ),
}


GUARDED = (
    "def build(rank):\n    if rank not in members:\n        return None\n    return dist.new_group(members)\n",
    " 54 def log(x):\n 55     if rank == 0:\n 56         dist.all_reduce(x)\n 57     return x\n",
)


@pytest.mark.parametrize("program", GUARDED)
def test_a_condition_on_the_rank_keeps_what_follows_its_return_and_lines_may_be_numbered(program: str) -> None:
    assert "program.guarded_call" in codes(program)


@pytest.mark.parametrize("code", PROGRAMS)
def test_of_a_program_only_what_depends_on_the_rank_is_told(code: str) -> None:
    sick, healthy = PROGRAMS[code]
    assert code in codes(sick, "train.py")
    assert code not in codes(healthy, "train.py")


VALUES = {
    "numerics.ratio_to_group": (
        "dp_replicate 2 dp_shard 4  reported 90.5097  expected 64.0000\n",
        "dp_replicate 2 dp_shard 4  reported 64.0001  expected 64.0000\n",
    ),
    "checkpoint.size_ratio": (
        "RuntimeError: The size of tensor a (56124554) must match the size of tensor b (14031139) at dimension 0\n",
        "RuntimeError: The size of tensor a (5612455) must match the size of tensor b (14031139) at dimension 0\n",
    ),
    "data.samples_overlap": (
        "rank 0 step 0 ids [4, 10, 1, 14] loss 2.3\nrank 1 step 0 ids [9, 4, 0, 11] loss 2.2\n",
        "# sample ids\nrank 0: 4 10 1 14\nrank 1: 9 5 0 11\n",
    ),
    "launch.several_rank_zero": (
        "rank 0 / world_size 1 on cuda:0\nrank 0 / world_size 1 on cuda:0\n",
        "rank 0 / world_size 2 on cuda:0\nrank 1 / world_size 2 on cuda:1\n",
    ),
    "preflight.bandwidth": ("# Avg bus bandwidth    : 190.2\n", "# Out of bounds values : 0 OK\n"),
    "host.threads_per_process": (
        "top - 10:01:12 up 3 days,  load average: 911.20, 880.41\n$ nproc\n64\n",
        "top - 10:01:12 up 3 days,  load average: 60.20, 58.41\n$ nproc\n64\n",
    ),
    "host.name_shared": (
        "lab:1:2 [0] INFO Ring 00 : 6[6] -> 10[2] via P2P/IPC\nlab:1:3 [0] INFO Ring 00 : 2[2] -> 6[6] via P2P/IPC\n",
        "lab:1:2 [0] INFO Ring 00 : 0[0] -> 1[0] via P2P/IPC\nlab:1:3 [0] INFO Ring 00 : 6[6] -> 10[2] via NET/IB/0\n",
    ),
    "launch.main_reexecuted": (
        '  File "<frozen runpy>", line 286, in run_path\n  File "/srv/train.py", line 29, in <module>\n    main()\n',
        '  File "<frozen runpy>", line 198, in _run_module_as_main\n  File "/srv/train.py", line 29, in <module>\n',
    ),
    "rank.gil_held": (
        "(gdb) t 18\n#1 take_gil (ceval_gil.h)\n(gdb) t 1\n#0 nanosleep ()\n#3 pybind11::cpp_function::dispatcher ()\n",
        "(gdb) t 18\n#1 epoll_wait ()\n(gdb) t 1\n#0 nanosleep ()\n#3 pybind11::cpp_function::dispatcher ()\n",
    ),
}


def test_values_of_which_some_differ_by_no_size_are_no_reduction_that_is_scaled_wrongly() -> None:
    shuffled = "".join(f"From rank {rank}: (expected {rank}.0, got {(rank - 1) % 8}.0)\n" for rank in range(8))
    halved = "".join(f"From rank {rank} of 2: (expected {rank}.0, got {rank / 2})\n" for rank in range(8))
    assert "numerics.ratio_to_group" not in codes(shuffled)
    assert "numerics.ratio_to_group" in codes(halved)


def test_values_of_runs_side_by_side_grow_with_the_number_of_ranks() -> None:
    assert "numerics.ratio_to_group" in codes("1 gpu:  val acc 0.7612\n4 gpus: val acc 0.1905\n")
    assert "numerics.ratio_to_group" not in codes("1 gpu:  val acc 0.7612\n4 gpus: val acc 0.7598\n")


def test_what_of_a_whole_was_right_shows_whose_the_whole_is() -> None:
    assert codes("8 GPUs: acc 78.9 % (986 of 1250)\n1 GPU: acc 76.2 % (7621 of 10000)\n") == {"numerics.ratio_to_group"}
    assert codes("8 GPUs: acc 78.9 % (7890 of 10000)\n1 GPU: acc 76.2 % (7621 of 10000)\n") == set()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("#  Rank  0 Group  0 Pid  41 on c1 device  0\n#  Rank  0 Group  0 Pid  42 on c1 device  0\n", True),
        ("#  Rank  0 Group  0 Pid  41 on c1 device  0\n#  Rank  1 Group  0 Pid  42 on c1 device  1\n", False),
        ("rank 0 of 1\n" + "step\n" * 20 + "rank 0 of 1\n", False),
    ],
    ids=["side by side", "ranks of one job", "one run after the other"],
)
def test_processes_that_each_run_alone_say_so_side_by_side(text: str, told: bool) -> None:
    assert ("launch.several_rank_zero" in codes(text)) == told


@pytest.mark.parametrize("code", VALUES)
def test_of_printed_values_only_what_does_not_fit_is_told(code: str) -> None:
    sick, healthy = VALUES[code]
    assert code in codes(sick)
    assert code not in codes(healthy)


@pytest.mark.parametrize("code", VALUES)
def test_colours_of_a_terminal_change_nothing(code: str) -> None:
    sick, _ = VALUES[code]
    assert codes(re.sub(r"\b(?:INFO|in|rank|Error|acc)\b", "\x1b[32m\\g<0>\x1b[0m", sick)) == codes(sick)


def test_code_pasted_into_a_note_is_not_read(tmp_path: Path) -> None:
    code = "It hangs.\n\n    if accelerator.is_main_process:\n        accelerator.save_state(path)\n"
    for name, kept in (("notes.txt", 0), ("train.py", 1)):
        (tmp_path / name).write_text(code if name == "notes.txt" else textwrap.dedent(code.partition("\n\n")[2]))
        raw = capture(LocalHost("unknown"), NotesArgs(target=[str(tmp_path / name)]))
        assert len(raw.of("text")) == kept


@pytest.mark.parametrize(
    "mend",
    [
        lambda code: code.replace("if is_main:", "if is_main:\n    ..."),
        lambda code: textwrap.indent(code, "    "),
        lambda code: f"  # from the middle\n{code}",
        lambda code: code + "\n} else what is this {",
        lambda code: f"class Open:\n{code}",
    ],
    ids=["left out", "indented", "a comment", "a line that is none", "a block left out"],
)
def test_an_excerpt_need_not_parse_as_a_whole(mend: Callable[[str], str]) -> None:
    assert "program.guarded_call" in codes(mend(PROGRAMS["program.guarded_call"][0]), "train.py")


@pytest.mark.parametrize("piece", ["(", "if x:\n", "f(" * 99, "    a\n", "x = [", "not ", "\0", "a: b\n"])
def test_any_text_called_a_program_is_read_to_an_end(piece: str) -> None:
    assert codes(piece * (60_000 // len(piece)), "train.py") >= set()


def test_a_wrapper_that_is_never_called_leaves_gradients_alone() -> None:
    past = "import a\nmodel = DDP(net)\nfor x in data:\n    loss = model.module(x)\n    loss.backward()\n"
    assert "program.sync_left_out" in codes(past)
    assert codes(past.replace("model.module(x)", "model(x)")) == set()
    assert codes(past.replace("model.module(x)", "model(x)\n    w = model.module.state_dict()")) == set()


def test_who_goes_into_a_collective_by_a_value_of_its_own_decides_alone() -> None:
    own = "import a\nfor e in epochs:\n    if val_loss < best:\n        dist.broadcast(flag, 0)\n"
    assert "program.rank_local_decision" in codes(own)
    assert codes(own.replace("    if", "    dist.all_reduce(val_loss)\n    if")) == set()


def test_ranks_walk_a_set_of_names_in_orders_of_their_own() -> None:
    walk = "NAMES = {'loss', 'top1'}\ndef check(sums):\n    for name in NAMES:\n        dist.all_reduce(sums[name])\n"
    walk += "    return sums\nimport a\n"
    assert codes(walk) == {"program.rank_local_decision"}
    assert "program.rank_local_decision" in codes(walk.replace("in NAMES", "in set(names)"))
    for healthy in (
        ("in NAMES", "in sorted(NAMES)"),
        ("{'loss', 'top1'}", "['loss', 'top1']"),
        ("dist.all_reduce", "add"),
    ):
        assert codes(walk.replace(*healthy)) == set()
    assert codes(walk.replace("{'loss', 'top1'}", "{'loss': 1, 'top1': 2}")) == set()  # a dict keeps its order


def test_hits_of_one_rank_over_the_length_of_all_data() -> None:
    part = (
        "def evaluate(model, ds):\n    for q in loader:\n        hit += found(q)\n    n = len(ds)\n    print(hit / n)\n"
    )
    assert codes(part) == {"program.metric_of_one_rank"}
    for healthy in (("hit / n", "n"), ("    n =", "    dist.all_reduce(hit)\n    n =")):
        assert codes(part.replace(*healthy)) == set()


def test_a_score_that_shrinks_as_cards_are_added_in_any_language() -> None:
    table = "1 卡: R@1 0.8104  用时 412 s\n4 卡: R@1 0.2031  用时 107 s\n"
    assert codes(table) == {"numerics.ratio_to_group"}
    assert codes(table.replace("0.2031", "0.8102")) == set()


def test_a_program_beside_a_log_is_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    (tmp_path / "train.py").write_text(PROGRAMS["program.guarded_call"][0])
    found = investigate([str(tmp_path / "train.log"), str(tmp_path / "train.py")])
    assert any("1 log, 1 program" in line for line in found.looked_at)
    (call,) = [finding for finding in found.findings if finding.code == "program.guarded_call"]
    assert [(place.file, place.line) for place in call.locations] == [(call.evidence[0].source, 3)]
