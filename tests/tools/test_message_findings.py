"""Known messages become findings: what was said, by whom, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_reading import findings_of, of_code

from ddx_tools.model.diagnosis import Finding, Severity

GIB = 1 << 30

# Constructed after tracebacks of CPython 3.11; frames of torch 2.13.
TORCH = "/usr/lib/python3.11/site-packages/torch"
FRAMES = {
    "main": ("/home/user/train.py", 88, "main"),
    "backward": (f"{TORCH}/_tensor.py", 581, "backward"),
    "engine": (f"{TORCH}/autograd/graph.py", 825, "_engine_run_backward"),
    "linear": (f"{TORCH}/nn/modules/linear.py", 125, "forward"),
    "call": (f"{TORCH}/nn/modules/module.py", 1751, "_call_impl"),
    "adam": (f"{TORCH}/optim/adam.py", 143, "_init_group"),
    "load": (f"{TORCH}/serialization.py", 1524, "load"),
    "to": (f"{TORCH}/nn/modules/module.py", 1343, "to"),
    "from_pretrained": ("/usr/lib/python3.11/site-packages/transformers/modeling_utils.py", 4333, "from_pretrained"),
    "gather": (f"{TORCH}/distributed/distributed_c10d.py", 3950, "all_gather_into_tensor"),
    "group": (f"{TORCH}/distributed/distributed_c10d.py", 1764, "init_process_group"),
    "user": ("/home/user/model.py", 12, "attend"),
}
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB "
    "of which 1.20 GiB is free. Of the allocated memory 68.00 GiB is allocated by PyTorch, and 5.00 GiB is reserved by "
    "PyTorch but unallocated."
)


def traceback(last: str, *frames: str, rank: int | None = None) -> str:
    places = [
        f'  File "{file}", line {line}, in {name}\n    call()' for file, line, name in map(FRAMES.__getitem__, frames)
    ]
    lines = "\n".join(["Traceback (most recent call last):", *places, last]).split("\n")
    return "".join(line + "\n" if rank is None else f"[rank{rank}]: {line}\n" for line in lines)


@pytest.fixture
def told(tmp_path: Path) -> Teller:
    return Teller(tmp_path)


class Teller:
    """Writes logs and reads them."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "train.log"

    def all(self, text: str) -> list[Finding]:
        self._log.write_text(text)
        return findings_of(self._log)

    def one(self, code: str, text: str) -> Finding:
        (finding,) = of_code(self.all(text), code)
        return finding


def test_a_message_says_who_what_and_where(told: Teller) -> None:
    line = "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 1/2 clients joined."
    found = told.one("startup.missing_ranks", traceback(line, "main", rank=0))
    assert (found.ranks, found.severity) == ([0], Severity.FAILURE)
    wanted = {"joined": 1, "expected": 2, "timeout_s": 6, "stage": "store", "role": "root", "basis": "log", "count": 1}
    assert found.attributes.items() >= wanted.items()
    assert found.attributes["signatures"] == ["store_waiting_for_clients"]
    assert found.evidence[0].line == 4
    assert "1/2 clients joined" in found.evidence[0].quote
    assert found.locations[0].short() == "train.py:88 main"
    assert found.summary.startswith("Rank 0: Fewer ranks than the world size")


def test_what_several_ranks_say_is_one_finding(told: Teller) -> None:
    line = "RuntimeError: CUDA error: invalid device ordinal"
    found = told.one("device.invalid", "".join(traceback(line, "main", rank=rank) for rank in (2, 0, 1)))
    assert (found.ranks, found.attributes["count"], found.attributes["all_ranks"]) == ([0, 1, 2], 3, True)


def test_of_measures_the_largest_counts_and_lists_are_joined(told: Teller) -> None:
    texts = [OUT_OF_MEMORY.replace("GPU 1", f"GPU {rank}").replace("2.00", f"{rank + 1}.00") for rank in (0, 1)]
    log = "".join(traceback(text, "main", rank=rank) for rank, text in enumerate(texts))
    found = told.one("memory.cuda_oom", log + "[rank2]: step 3 loss 1.0\n")
    assert (found.attributes["tried_bytes"], found.attributes["devices"]) == (2 * GIB, ["0", "1"])
    assert found.attributes["all_ranks"] is False
    assert found.attributes["steps_done"] is True


def test_messages_that_differ_in_words_are_different_findings(told: Teller) -> None:
    line = "RuntimeError: CUDA error: {}"
    found = told.all("".join(
        traceback(line.format(error), "main", rank=rank)
        for rank, error in enumerate(("device-side assert triggered", "an illegal memory access was encountered"))
    ))  # fmt: skip
    assert {(f.attributes["error"], *f.ranks) for f in of_code(found, "gpu.kernel_fault")} == {
        ("device-side assert triggered", 0),
        ("an illegal memory access was encountered", 1),
    }


def test_a_message_that_differs_on_every_rank_is_still_one(told: Teller) -> None:
    line = "[rank{0}]: NCCL WARN socketStartConnect: Connect to 10.0.0.{0}<4567{0}> failed : No route to host\n"
    found = told.one("startup.endpoint_unreachable", "".join(line.format(rank) for rank in range(10)))
    assert found.ranks == list(range(10))
    assert found.attributes["how"] == "no_route"
    assert len(found.attributes["peer"]) == 10


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (("main", "backward", "engine"), "backward"),
        (("main", "call", "linear"), "forward"),
        (("main", "backward", "engine", "call", "linear"), "backward"),
        (("main", "adam"), "optimizer"),
        (("main", "load"), "load"),
        (("main", "to"), "init"),
        (("main", "from_pretrained", "to"), "load"),
        (("main", "call", "gather"), "collective"),
        (("main", "group"), "init"),
        (("main", "call", "linear", "user"), "forward"),
        (("main", "user"), None),
    ],
)
def test_frames_tell_what_the_program_was_doing(told: Teller, frames: tuple[str, ...], phase: str | None) -> None:
    found = told.one("memory.cuda_oom", traceback(OUT_OF_MEMORY, *frames))
    assert found.attributes.get("phase") == phase


def test_a_message_over_several_lines_is_read_as_a_whole(told: Teller) -> None:
    wrapped = OUT_OF_MEMORY.replace("of which", "of \nwhich").replace("by PyTorch, and", "by \nPyTorch, and")
    found = told.one("memory.cuda_oom", traceback(wrapped, "main", "adam", rank=1))
    assert found.attributes["free_bytes"] == round(1.2 * GIB)
    assert found.attributes["reserved_unallocated_bytes"] == 5 * GIB
    assert (found.attributes["fragmented"], found.attributes["count"]) == (True, 1)


def test_what_a_rank_says_and_its_launcher_repeats_counts_once(told: Teller) -> None:
    summary = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\ntrain.py FAILED\n"
        "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
        "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-11-21_02:54:42\n  host      : node-01\n  rank      : 1 (local_rank: 1)\n"
        "  exitcode  : 1 (pid: 26638)\n  error_file: <N/A>\n  traceback : Traceback (most recent call last):\n"
        '    File "/home/user/train.py", line 88, in main\n      call()\n'
        "  RuntimeError: CUDA error: invalid device ordinal\n"
        "============================================================\n"
    )
    own = traceback("RuntimeError: CUDA error: invalid device ordinal", "main", rank=1)
    assert told.one("device.invalid", own + summary).attributes["count"] == 1
    alone = told.one("device.invalid", summary)
    assert alone.ranks == [1]


def test_the_names_of_unused_parameters_join_what_ddp_says(told: Teller) -> None:
    text = (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
        "error indicates that your module has parameters that were not used in producing loss. You can enable unused \n"
        "Parameter indices which did not receive grad for rank {0}: {1}\n"
        " In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG"
    )
    found = told.one(
        "ddp.parameters_unused",
        traceback(text.format(1, "2 3"), "main", rank=1) + traceback(text.format(2, "3 5"), "main", rank=2),
    )
    assert (found.ranks, found.attributes["indices"]) == ([1, 2], [2, 3, 5])


def test_no_space_is_told_apart_by_what_asked_for_it(told: Teller) -> None:
    full = "OSError: [Errno 28] No space left on device"
    semaphore = traceback(full, "main").replace(
        full, f'  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n    sl = 1\n{full}'
    )
    found = told.all(semaphore)
    assert [f.attributes["what"] for f in of_code(found, "limits.shm_full")] == ["semaphore"]
    assert not of_code(found, "limits.resource")
    (raised,) = of_code(found, "rank.raised")
    assert raised.attributes["signature"] == "semaphore_without_space"
    found = told.all(traceback(f"{full}: '/scratch/x.pt'", "main"))
    assert [f.attributes["what"] for f in of_code(found, "limits.resource")] == ["disk"]
    assert not of_code(found, "limits.shm_full")


def test_consequences_are_no_failures(told: Teller) -> None:
    (found,) = told.all("NCCL WARN [Service thread] Could not receive type from localRank 3, res=3, closed=0\n")
    assert (found.severity, found.attributes["role"]) == (Severity.NOTICE, "secondary")
    flushed = "NET/IB: Got completion from peer 10.0.0.1<4> with status=5 opcode=0 len=0 vendor err 244 (Recv)\n"
    assert told.one("network.completion_error", flushed).severity == Severity.NOTICE


def test_an_error_of_the_driver_says_what_it_means(told: Teller) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1234, name=python\n"
    found = told.one("gpu.xid", line.format(48))
    assert (found.attributes["xid"], found.attributes["class"], found.attributes["devices"]) == (
        48,
        "memory",
        ["0000:3b:00"],
    )
    assert told.one("gpu.xid", line.format(45)).severity == Severity.NOTICE, "it follows from another"


def test_a_healthy_job_says_nothing(told: Teller) -> None:
    lines = ["world_size=2", "NCCL INFO Connected all rings", "[rank0]: step 1 loss 2.0", "[rank1]: step 1 loss 2.0"]
    assert [f for f in told.all("\n".join(lines) + "\n") if f.severity != Severity.INFO] == []
