"""Python call paths of a training job's collectives: the `frames` of an entry, innermost first.

The library frames carry file names, functions and lines as torch 2.13.0 has them; the user's code is a fictitious
transformer trainer in /srv/train.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from ddx_evals.simulator.formats.torch_pickle import PickledFrame

SITE_PACKAGES = "/srv/venv/lib/python3.11/site-packages"
_TORCH = f"{SITE_PACKAGES}/torch"
_C10D = f"{_TORCH}/distributed/distributed_c10d.py"
_LOGGER = ("wrapper", f"{_TORCH}/distributed/c10d_logger.py", 83)
_FSDP = f"{_TORCH}/distributed/fsdp/_fully_shard"
_MODULE = f"{_TORCH}/nn/modules/module.py"

Place: TypeAlias = tuple[str, str, int]
"""Function, file, line."""

_CALLED: dict[str, int] = {
    "all_reduce": 3245,
    "all_gather_into_tensor": 4387,
    "reduce_scatter_tensor": 4936,
    "all_to_all_single": 5131,
    "all_gather": 4280,
    "broadcast": 3145,
    "gather": 4660,
    "scatter": 4778,
    "reduce": 3392,
    "barrier": 5349,
    "isend": 2642,
    "irecv": 2698,
    "send": 2740,
    "recv": 2781,
    "batch_isend_irecv": 2890,
}
"""The line in distributed_c10d.py at which each API function calls the backend."""


@cache
def _frame(name: str, filename: str, line: int) -> PickledFrame:
    return PickledFrame(name=name, filename=filename, line=line)


def user(function: str, file: str, line: int) -> Place:
    """A place in the user's own code."""
    return (function, f"/srv/train/{file}", line)


def api(function: str) -> tuple[Place, ...]:
    """The frames of torch.distributed's own function, such as `all_reduce`."""
    return ((function, _C10D, _CALLED[function]), _LOGGER)


def module_call(forward: Place) -> tuple[Place, ...]:
    """The frames of a module's forward, with the two frames by which nn.Module calls it."""
    return (forward, ("_call_impl", _MODULE, 1789), ("_wrapped_call_impl", _MODULE, 1778))


FSDP_UNSHARD = (
    *api("all_gather_into_tensor"),
    ("__call__", f"{_FSDP}/_fsdp_collectives.py", 119),
    ("foreach_all_gather", f"{_FSDP}/_fsdp_collectives.py", 364),
    ("decorate_context", f"{_TORCH}/utils/_contextlib.py", 124),
    ("unshard", f"{_FSDP}/_fsdp_param_group.py", 407),
)
FSDP_PRE_FORWARD = (
    *FSDP_UNSHARD,
    ("pre_forward", f"{_FSDP}/_fsdp_param_group.py", 511),
    ("_pre_forward", f"{_FSDP}/_fsdp_state.py", 262),
    ("fsdp_hook_wrapper", f"{_FSDP}/_fsdp_state.py", 81),
)
FSDP_PRE_BACKWARD = (
    *FSDP_UNSHARD,
    ("_prefetch_unshard", f"{_FSDP}/_fsdp_param_group.py", 741),
    ("_backward_prefetch", f"{_FSDP}/_fsdp_param_group.py", 727),
    ("pre_backward", f"{_FSDP}/_fsdp_param_group.py", 604),
)
FSDP_POST_BACKWARD = (
    *api("reduce_scatter_tensor"),
    ("__call__", f"{_FSDP}/_fsdp_collectives.py", 184),
    ("foreach_reduce", f"{_FSDP}/_fsdp_collectives.py", 619),
    ("decorate_context", f"{_TORCH}/utils/_contextlib.py", 124),
    ("post_backward", f"{_FSDP}/_fsdp_param_group.py", 688),
    ("backward", f"{_FSDP}/_fsdp_param_group.py", 967),
)
BACKWARD = (
    ("_engine_run_backward", f"{_TORCH}/autograd/graph.py", 979),
    ("backward", f"{_TORCH}/autograd/__init__.py", 395),
    ("backward", f"{_TORCH}/_tensor.py", 623),
)
AUTOGRAD_FUNCTION = ("apply", f"{_TORCH}/autograd/function.py", 307)

MAIN = (user("main", "train.py", 312), user("<module>", "train.py", 340))


def stack(*places: Place) -> list[PickledFrame]:
    """The frames of a call path, as one list shared by all entries with this path."""
    return _stack(places)


@cache
def _stack(places: tuple[Place, ...]) -> list[PickledFrame]:
    return [_frame(*place) for place in places]
