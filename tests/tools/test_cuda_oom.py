"""The numbers of CUDA out-of-memory errors, in all wordings of torch since 1.13."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.analysis.log_events.cuda_oom import parse_cuda_oom

GIB = 1 << 30
MIB = 1 << 20

# Constructed after c10/cuda/CUDACachingAllocator.cpp of the versions that the keys name.
WORDINGS = {
    "2.13": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
        "80.00 GiB of which 1.50 GiB is free. Process 4711 has 3.00 GiB memory in use. Process 4712 has 512.00 MiB "
        "memory in use. Including non-PyTorch memory, this process has 74.00 GiB memory in use. 40.00 GiB allowed; Of "
        "the allocated memory 68.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA "
        "Graphs), and 5.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    ),
    "2.1": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of "
        "8.00 GiB of which 0 bytes is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory "
        "in use. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 15.00 MiB is reserved by PyTorch but "
        "unallocated."
    ),
    "1.13": (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 24.00 GiB total capacity; 17.00 GiB "
        "already allocated; 1.00 GiB free; 21.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated "
        "memory try setting max_split_size_mb to avoid fragmentation."
    ),
}


def test_the_present_wording_is_read() -> None:
    assert parse_cuda_oom(WORDINGS["2.13"]) == {
        "tried_bytes": 2 * GIB,
        "devices": ["3"],
        "total_bytes": 80 * GIB,
        "free_bytes": 3 * GIB // 2,
        "other_processes_bytes": 3 * GIB + 512 * MIB,
        "other_processes": 2,
        "process_bytes": 74 * GIB,
        "allowed_bytes": 40 * GIB,
        "allocated_bytes": 68 * GIB,
        "private_pools_bytes": GIB,
        "reserved_unallocated_bytes": 5 * GIB,
        "fragmented": True,
        "tried_is_large": False,
        "unused_is_small": True,
    }


def test_much_unused_memory_is_not_called_little() -> None:
    found = parse_cuda_oom(WORDINGS["1.13"])
    assert found is not None
    assert "unused_is_small" not in found, "4 of 21 GiB"


def test_the_misspelt_wording_is_read() -> None:
    found = parse_cuda_oom(WORDINGS["2.1"])
    assert found is not None
    assert (found["tried_bytes"], found["total_bytes"], found["free_bytes"]) == (20 * MIB, 8 * GIB, 0)
    assert found["fragmented"] is False, "15 MiB lie unused, 20 MiB were wanted"
    assert "process_bytes" not in found, "that version printed a negative number without its sign"


def test_the_old_wording_is_read() -> None:
    found = parse_cuda_oom(WORDINGS["1.13"])
    assert found is not None
    wanted = {"tried_bytes": 2 * GIB, "devices": ["1"], "total_bytes": 24 * GIB, "free_bytes": GIB}
    assert found.items() >= wanted.items()
    assert (found["allocated_bytes"], found["reserved_unallocated_bytes"]) == (17 * GIB, 4 * GIB)
    assert found["fragmented"] is True


@pytest.mark.parametrize("version", WORDINGS)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_line_breaks_do_not_matter(version: str, width: int) -> None:
    words, lines = WORDINGS[version].split(" "), [""]
    for word in words:
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f"{word} "
    assert parse_cuda_oom("\n".join(lines)) == parse_cuda_oom(WORDINGS[version])


def test_a_little_slack_is_no_fragmentation() -> None:
    text = WORDINGS["2.1"].replace("15.00 MiB is reserved", "{} is reserved")
    for unused, fragmented in (("15.00 MiB", False), ("100.00 MiB", False), ("1.00 GiB", True)):
        found = parse_cuda_oom(text.format(unused))
        assert found is not None
        assert found["fragmented"] is fragmented


def test_a_limit_of_the_program_is_told_apart() -> None:
    found = parse_cuda_oom(
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
        "limit. Requested size: 1.00 GiB"
    )
    assert found == {"tried_bytes": GIB, "own_limit": True}


def test_what_is_not_said_is_left_out() -> None:
    assert parse_cuda_oom("CUDA out of memory.") == {}
    assert parse_cuda_oom("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has") == {"tried_bytes": 2 * GIB}
    assert parse_cuda_oom("the GPU has memory enough") is None


@given(st.text(max_size=400), st.sampled_from(sorted(WORDINGS)), st.integers(0, 400))
def test_cut_and_broken_texts_are_read_or_not(noise: str, version: str, cut: int) -> None:
    for text in (noise, WORDINGS[version][:cut] + noise, noise + WORDINGS[version][cut:]):
        found = parse_cuda_oom(text)
        assert found is None or all(isinstance(value, int | bool | list) for value in found.values())


def test_in_a_container_torch_takes_itself_for_another_process() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 18.55 GiB. GPU 2 has a total capacity of 79.10 GiB of which 11.94 GiB "
        "is free. Process 88 has 67.14 GiB memory in use. Of the allocated memory 64.80 GiB is allocated by PyTorch, "
        "and 630.55 MiB is reserved by PyTorch but unallocated."
    )
    alone = parse_cuda_oom(text) or {}
    assert alone["tried_is_large"]
    assert not alone.get("other_processes_bytes")
    others = text.replace("Process 88", "Process 91 has 2.00 GiB memory in use. Process 88")
    assert (parse_cuda_oom(others) or {})["other_processes_bytes"] == 2 << 30
