"""What a recorded name of an operation stands for: the names of torch, of c10d's recorder and of TorchComms."""

from __future__ import annotations

import pytest

from ddx_tools.analysis.collectives.operation_classes import class_of

TORCHCOMMS = {
    "send", "recv", "broadcast", "all_reduce", "reduce", "all_gather", "all_gather_v", "all_gather_single",
    "reduce_scatter", "reduce_scatter_v", "reduce_scatter_single", "all_to_all_single", "all_to_all_v_single",
    "all_to_all", "barrier", "scatter", "gather", "gather_single", "split", "new_window", "batch_op_issue", "finalize",
}  # fmt: skip
"""`getOpName` of comms/torchcomms/hooks/common/OpNameHelper.hpp (7203755d): a copy by hand, as no package has the list.
"""
C10D_HOOK = {
    "send", "recv", "broadcast", "all_reduce", "allreduce_coalesced", "reduce", "all_gather", "_all_gather_base",
    "allgather_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "all_to_all", "all_to_all_single", "barrier", "scatter", "gather", "split",
    "new_window", "allreduce", "allgather", "alltoall",
}  # fmt: skip
"""`hookOpName` of torch/csrc/distributed/c10d/hooks/FlightRecorderHook.cpp (main after 2.13), with its first spellings
of three: a copy by hand, too. It is a list apart from TorchComms' and from the analyser's `COLLECTIVES`."""


def known(name: str) -> bool:
    return class_of(name).kind != "unknown"


@pytest.mark.needs("torch")
def test_every_operation_of_torchs_own_list_has_a_class() -> None:
    from torch.distributed.flight_recorder.components.types import COLLECTIVES, P2P

    assert [name for name in sorted(COLLECTIVES | P2P) if not known(name)] == []


@pytest.mark.parametrize("names", [TORCHCOMMS, C10D_HOOK], ids=["torchcomms", "c10d hook"])
def test_every_operation_of_the_copied_lists_has_a_class(names: set[str]) -> None:
    assert [name for name in sorted(names) if not known(name)] == []


def test_a_receive_from_any_source_of_c10ds_hook_is_a_transfer() -> None:
    assert class_of("nccl2:recv 1<-?").kind == "transfer"


@pytest.mark.parametrize("backend", ["", "nccl:", "nccl2:", "gloo:", "xccl:"])
def test_the_backend_does_not_matter(backend: str) -> None:
    assert class_of(f"{backend}reduce_scatter_single") == class_of("_reduce_scatter_base")
    assert class_of(f"{backend}send 1->2").kind == "transfer"


def test_forms_of_one_operation_agree_in_what_members_must_share() -> None:
    forms = {
        "all_gather": ["_all_gather_base", "_allgather_base", "all_gather_single", "ALLGATHER_coalesced",
                       "all_gather_into_tensor_coalesced"],
        "all_reduce": ["allreduce_coalesced", "all_reduce_barrier"],
        "reduce_scatter": ["REDUCE_SCATTER_coalesced", "reduce_scatter_tensor_coalesced"],
        "all_to_all": ["alltoall_base", "all_to_all_single", "all_to_all_v_single"],
        "broadcast": ["_broadcast_oop"],
    }  # fmt: skip
    assert [name for operation, names in forms.items() for name in names if class_of(name) != class_of(operation)] == []


def test_what_may_differ_by_rank_is_not_compared() -> None:
    assert class_of("all_gather_v").sizes_agree == "nowhere" and class_of("all_gather_v").completes_together
    assert class_of("all_to_all_single").sizes_agree == "nowhere" and class_of("all_to_all_single").exchange
    assert class_of("scatter").sizes_agree == "output"


def test_what_nobody_knows_has_no_rule() -> None:
    unknown = class_of("nccl:teleport")
    assert (unknown.kind, unknown.sizes_agree, unknown.completes_together) == ("unknown", "nowhere", False)
