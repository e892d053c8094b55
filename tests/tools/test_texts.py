"""What is read out of programs and printed values beside the logs, each sick text beside its healthy twin."""

from __future__ import annotations

import textwrap

import pytest

from ddx_tools.probe import Raw, RawItem
from ddx_tools.store import Store
from ddx_tools.texts.capture import text_rows
from ddx_tools.texts.findings import text_findings


def codes(text: str, name: str = "excerpt.txt") -> set[str]:
    raw = Raw("host", [RawItem("text", textwrap.dedent(text).encode(), name, {"path": name})])
    with Store() as store:
        store.insert(text_rows(raw))
        return {finding.code for finding in text_findings(store)}


PROGRAMS = {
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
    "program.rank_dependent_dtype": (
        "import a\nfor b in c:\n    m = torch.tensor(\n        1.0 if self.rank == 0 else 0, device=d)\n",
        "import a\nfor b in c:\n    m = torch.tensor(\n        1.0 if self.rank == 0 else 0.0, device=d)\n",
    ),
    "program.sampler_seed_by_rank": (
        "import a\nfor b in c:\n    s = DistributedSampler(d, shuffle=True,\n        seed=int(time.time()) * rank)\n",
        "import a\nfor b in c:\n    s = DistributedSampler(d, shuffle=True,\n        seed=config.seed, rank=rank)\n",
    ),
    "program.unwaited_transfer": (
        "import a\nfor b in c:\n    dist.isend(b, 1)\n",
        "import a\nfor b in c:\n    works.append(dist.isend(b, 1))\n",
    ),
}


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
        "# sample ids\nrank 0: 4 10 1 14\nrank 1: 9 4 0 11\n",
        "# sample ids\nrank 0: 4 10 1 14\nrank 1: 9 5 0 11\n",
    ),
    "numerics.partly_equal": (
        "Rank 0, layer 0, weight 3.55e-05, bias 7.24e-05\nRank 1, layer 0, weight 3.55e-05, bias -8.14e-05\n",
        "[rank0] step: 1  loss: 12.2343  grad_norm: 1.6094\n[rank1] step: 1  loss: 12.2343  grad_norm: 1.5411\n",
    ),
    "numerics.timings_differ": (
        "".join(f"local_rank {rank} bytes: {0.44 if rank < 2 else 0.277} sec\n" for rank in range(8)),
        "".join(f"local_rank {rank} bytes: {0.27 + rank / 1000} sec\n" for rank in range(8)),
    ),
    "gpu.copy_differs": (
        ">>> x\ntensor([1], device='cuda:0')\n>>> x.to(1)\ntensor([0], device='cuda:1')\n",
        ">>> x\ntensor([1], device='cuda:0')\n>>> x.to(1)\ntensor([1], device='cuda:1')\n",
    ),
    "p2p.sends_cross": (
        "rank 0: ncclSend x -> 1\nrank 0: ncclRecv y <- 1\nrank 1: ncclSend y -> 0\nrank 1: ncclRecv x <- 0\n",
        "rank 0: ncclSend x -> 1\nrank 0: ncclRecv y <- 1\nrank 1: ncclRecv x <- 0\nrank 1: ncclSend y -> 0\n",
    ),
    "rank.came_late": (
        "12:00:00 rank 1..3: before iter\n12:00:06 rank 2: Socket Timeout\n12:00:07 rank 0: loaded, before iter\n",
        "12:00:00 rank 1..3: before iter\n12:00:01 rank 0: loaded, before iter\n12:00:06 rank 2: done\n",
    ),
    "host.name_shared": (
        "lab:1:2 [0] INFO Ring 00 : 6[6] -> 10[2] via P2P/IPC\nlab:1:3 [0] INFO Ring 00 : 2[2] -> 6[6] via P2P/IPC\n",
        "lab:1:2 [0] INFO Ring 00 : 0[0] -> 1[0] via P2P/IPC\nlab:1:3 [0] INFO Ring 00 : 6[6] -> 10[2] via NET/IB/0\n",
    ),
    "transport.host_path": (
        "GPU0   0     XGMI\nGPU1   XGMI  0\n"
        "h:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 1, bw 15.0/15.0, type SYS/SYS\n",
        "GPU0   0     XGMI\nGPU1   XGMI  0\n"
        "h:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 8, bw 48.0/48.0, type XGMI/PIX\n",
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


@pytest.mark.parametrize("code", VALUES)
def test_of_printed_values_only_what_does_not_fit_is_told(code: str) -> None:
    sick, healthy = VALUES[code]
    assert code in codes(sick)
    assert code not in codes(healthy)
