"""Record fingerprints of each rank's state, so that ranks and runs can be compared later with `ddx consistency DIR`.

Add one line to the program, after backward and the reduction of gradients, before the optimizer's step:

    ddx_consistency.look(step, model, optimizer, batch=batch)

or none: `ddx run --consistency 1,2,100 -- torchrun …` samples before the optimizer steps with these numbers (from 0).
Each rank appends to its own file, `consistency-rank-<rank>.<pid>.jsonl`, in $DDX_CONSISTENCY_DIR, else in
`consistency/` of $DDX_RUN_DIR, else in ./ddx-consistency. The first line names the rank. Then each tensor has a line:
what (parameter, gradient, own_gradient before any reduction, buffer, optimizer, batch, value), name, shape, a hash of
the bits, sum, norm, minimum, maximum, the number of non-finite values, a projection (it is linear, so that means and
sums over ranks can be checked), and for a DTensor its mesh, coordinate and placements. Further lines record the states
of random generators, tied parameters, the wrapper, and the program lines that called forward, the optimizer step and
(if torch's flight recorder is on) reductions.

It adds no collective, takes none of the job's locks, changes no tensor and swallows its own errors. It does nothing at
steps that were not requested. Python 3.8, torch 2.1.
"""

from __future__ import annotations

import functools
import gc
import json
import math
import os
import random
import socket
import sys
import threading
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

STEPS = "DDX_CONSISTENCY"
"""The variable with the steps: `1,2,100-103,/500` (every 500th); unset: the first five and every 100th."""
DEFAULT_STEPS = "0-4,/100"
CHUNK = 1 << 16
WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_MIX, _BITS = 0x9E3779B97F4A7C1, (1 << 64) - 1

Line = Dict[str, Any]


class Recorder:
    """Writes the file of this rank."""

    def __init__(self) -> None:
        self.steps = os.environ.get(STEPS) or DEFAULT_STEPS
        self.file: Any = None
        self.own: Dict[Tuple[str, str], Line] = {}
        self.handles: List[Any] = []
        self.counts: Dict[int, int] = {}
        self.calls: Line = {}
        self.last_record = -1
        self.called = False

    def wants(self, step: int) -> bool:
        """Whether the requested steps include this one.

        They come from the environment variable DDX_CONSISTENCY: numbers, ranges such as `0-4`, and `/100` for every
        hundredth step.
        """
        for part in self.steps.split(","):
            first, _, last = part.strip().partition("-")
            if first.startswith("/") and step % int(first[1:]) == 0:
                return True
            if first.isdigit() and int(first) <= step <= int(last or first):
                return True
        return False

    def look(self, step: int, model: Any, optimizer: Any, batch: Any, values: Dict[str, Any]) -> None:
        """Write the fingerprints of this step, if it was requested, and hook the model if the next step is.

        `values` maps names to further tensors.
        """
        if self.wants(step):
            began = time.perf_counter()
            roots = [model] if model is not None else _roots(optimizer)
            lines = list(self._lines(roots, optimizer, batch, values))
            self._write(step, lines, time.perf_counter() - began)
        self._disarm()
        if self.wants(step + 1):
            self._arm([model] if model is not None else _roots(optimizer), with_batch=batch is None)

    def _lines(self, roots: List[Any], optimizer: Any, batch: Any, values: Dict[str, Any]) -> Iterator[Line]:
        yield {"what": "rng", **_rng()}
        yield {"what": "calls", "step_at": _place(), **self.calls, "reductions": _quietly(self._reductions) or []}
        yield from [*_batch(batch), *self.own.values()]
        names: Dict[int, str] = {}
        for root in roots:
            yield _wrapper(root)
            same: Dict[int, List[str]] = {}
            for name, parameter in root.named_parameters(remove_duplicate=False):
                same.setdefault(id(parameter), []).append(_plain(name))
                if id(parameter) not in names:
                    names[id(parameter)] = _plain(name)
                    yield {"what": "parameter", "name": _plain(name), **fingerprint(parameter)}
                    if parameter.grad is not None:
                        yield {"what": "gradient", "name": _plain(name), **fingerprint(parameter.grad)}
            for name, buffer in root.named_buffers():
                yield {"what": "buffer", "name": _plain(name), **fingerprint(buffer)}
            tied = sorted(sorted(each) for each in same.values() if len(each) > 1)
            yield {"what": "tied", "names": tied}
        for parameter, state in getattr(optimizer, "state", {}).items():
            for key, value in state.items() if isinstance(state, dict) else ():
                if _is_tensor(value):
                    name = "%s/%s" % (names.get(id(parameter), "?"), key)
                    yield {"what": "optimizer", "name": name, **fingerprint(value)}
        for name, value in values.items():
            yield from _batch(value, "value", name)

    def _arm(self, roots: List[Any], with_batch: bool) -> None:
        """Hook one step: this rank's gradients before any reduction, and the model's inputs."""

        def keep(name: str) -> Callable[[Any], None]:
            def hook(parameter: Any) -> None:
                if parameter.grad is not None:
                    line = _quietly(lambda: {"what": "own_gradient", "name": name, **fingerprint(parameter.grad)})
                    self.own.pop(("own_gradient", name), None)
                    self.own.update({("own_gradient", name): line} if line else {})

            return hook

        def given(module: Any, arguments: Any, keywords: Any) -> None:
            sync = getattr(module, "require_backward_grad_sync", True)
            self.calls.update(forward=_place(), past_wrapper=False, sync=sync)
            given_now = [*arguments, *keywords.values()] if with_batch else []
            for line in _quietly(lambda: list(_batch(given_now))) or ():
                self.own[line["what"], line["name"]] = line

        def inner(_: Any, __: Any) -> None:
            if "forward" not in self.calls:
                self.calls.update(forward=_place(), past_wrapper=True)

        for root in roots:
            self.handles.append(root.register_forward_pre_hook(given, with_kwargs=True))
            if type(root).__name__ == "DistributedDataParallel":
                self.handles.append(root.module.register_forward_pre_hook(inner))
            for name, parameter in root.named_parameters():
                if parameter.requires_grad and hasattr(parameter, "register_post_accumulate_grad_hook"):
                    self.handles.append(parameter.register_post_accumulate_grad_hook(keep(_plain(name))))

    def _disarm(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles, self.own, self.calls = [], {}, {}

    def _reductions(self) -> List[Line]:
        """The reductions since the last sample, by the line that called them."""
        import pickle

        of_nccl = "nccl" in sys.modules["torch.distributed"].get_backend()
        name = "_dump_nccl_trace" if of_nccl else "_dump_fr_trace"
        told = pickle.loads(getattr(sys.modules["torch._C._distributed_c10d"], name)(True, True, False))
        found: Dict[Any, Line] = {}
        for entry in told["entries"]:
            number, name = entry["record_id"], entry["profiling_name"].partition(":")[2]
            if number <= self.last_record or "reduce" not in name.lower():
                continue
            at = _first_user([(f["filename"], f["line"], f["name"]) for f in entry.get("frames", [])])
            group = entry["process_group"][1] or entry["process_group"][0]
            line = found.setdefault((name, group, tuple(at)), {"op": name, "group": group, "at": at, "count": 0})
            line["count"] += 1
        self.last_record = max([self.last_record, *(entry["record_id"] for entry in told["entries"])])
        return list(found.values())[:20]

    def _write(self, step: int, lines: List[Line], seconds: float) -> None:
        if self.file is None:
            self.file = _open()
        for order, line in enumerate([*lines, {"what": "took", "seconds": round(seconds, 6)}]):
            self.file.write(json.dumps({"step": step, "order": order, **line}) + "\n")
        self.file.flush()

    def before_step(self, optimizer: Any, _: Any, __: Any) -> None:
        """The hook that torch calls before an optimizer step. It samples, unless the program calls `look` itself."""
        step = self.counts.get(id(optimizer), 0)
        self.counts[id(optimizer)] = step + 1
        if not self.called and (self.wants(step) or self.wants(step + 1)):
            _quietly(lambda: self.look(step, None, optimizer, None, {}))


_RECORDER = Recorder()


def look(step: int, model: Any = None, optimizer: Any = None, batch: Any = None, **values: Any) -> None:
    """Record this rank's state at a step, if that step was requested. Pass further tensors by name.

    Call it in every step: it prepares one step ahead.
    """
    _RECORDER.called = True
    _quietly(lambda: _RECORDER.look(int(step), model, optimizer, batch, values))


def attach() -> None:
    """Sample before the steps of all optimizers, as soon as the process has joined a job."""
    threading.Thread(target=_attach, name="ddx-consistency", daemon=True).start()


def _attach() -> None:
    while not _quietly(_register):
        time.sleep(0.1)


def _register() -> bool:
    distributed = sys.modules.get("torch.distributed")
    if not getattr(distributed, "is_initialized", bool)():
        return False
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(_RECORDER.before_step)
    return True


def fingerprint(tensor: Any) -> Line:
    """The fingerprint of a tensor; for a DTensor, that of its local part, with its placement."""
    import torch

    found: Line = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).rpartition(".")[2]}
    if hasattr(tensor, "placements"):
        mesh = tensor.device_mesh
        found["placements"] = [str(placement) for placement in tensor.placements]
        found["mesh"] = list(mesh.mesh_dim_names or ["dim%d" % at for at in range(mesh.ndim)])
        ranks = mesh.mesh.flatten().tolist()
        found["mesh_size"], found["mesh_id"] = len(ranks), zlib.crc32(repr(ranks).encode())
        found["coordinate"] = mesh.get_coordinate()
        tensor = tensor.to_local()
        found["local"] = list(tensor.shape)
    with torch.no_grad():
        found.update(_numbers(tensor.detach().contiguous().reshape(-1)))
    return found


def _numbers(flat: Any) -> Line:
    """The numbers computed from a flat tensor, copied from the device at once."""
    import torch

    if not flat.numel():
        return {"hash": "empty"}
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    sums = _sums(flat, clean=False)
    if not all(map(math.isfinite, sums)):
        sums = _sums(flat, clean=True)
    total, square, projection, low, high, odd = sums
    return {
        "hash": _hash(flat),
        "sum": total,
        "norm": square**0.5,
        "projection": projection,
        "low": low,
        "high": high,
        "non_finite": int(odd),
    }


def _sums(flat: Any, clean: bool) -> List[float]:
    """Sum, sum of squares, projection, minimum, maximum, count of non-finite values; `clean`: only over finite ones."""
    import torch

    rows = []
    for number, piece in enumerate(flat.split(_piece(flat))):
        exact = piece.to(torch.float64)
        finite = torch.isfinite(exact) if clean else None
        if finite is not None:
            exact = torch.where(finite, exact, torch.zeros_like(exact))
        weight = _weights(exact.device, _piece(flat))[: exact.numel()]
        low, high = exact.aminmax()
        odd = exact.new_zeros(()) if finite is None else (~finite).sum().double()
        projection = torch.dot(exact, weight) * math.cos(number * 0.9)
        rows.append(torch.stack([exact.sum(), torch.dot(exact, exact), projection, odd, low, high]))
    told = torch.stack(rows)
    totals: List[float] = torch.cat([told[:, :4].sum(0), told[:, 4].min()[None], told[:, 5].max()[None]]).tolist()
    return [*totals[:3], *totals[4:], totals[3]]


def _hash(flat: Any) -> str:
    """A hash of the bits and their positions: a wrapping sum of products, so that order does not matter."""
    import torch

    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    total = 0
    for number, piece in enumerate(flat.view(wide).split(_piece(flat))):
        places = torch.arange(1, 2 * piece.numel(), 2, device=flat.device)
        total += int(((piece.to(torch.int64) + 1) * places * _MIX).sum()) * (2 * number + 1)
    return "%016x" % (total & _BITS)


def _piece(flat: Any) -> int:
    """The number of elements to process at a time: on a CPU, what fits its caches."""
    return CHUNK if flat.device.type == "cpu" else 64 * CHUNK


@functools.lru_cache(maxsize=4)
def _weights(device: Any, count: int) -> Any:
    import torch

    return torch.cos(torch.arange(count, device=device, dtype=torch.float64) * 0.7310585)


def _batch(value: Any, what: str = "batch", name: str = "") -> Iterator[Line]:
    """Yield a line for each tensor in nested containers."""
    if _is_tensor(value):
        yield {"what": what, "name": name, **fingerprint(value)}
    elif isinstance(value, dict) or hasattr(value, "items"):
        for key, part in value.items():
            yield from _batch(part, what, "%s.%s" % (name, key) if name else str(key))
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value):
            yield from _batch(part, what, "%s.%d" % (name, at) if name else str(at))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor)


def _rng() -> Line:
    import torch

    states = {
        "torch": zlib.crc32(bytes(torch.get_rng_state().tolist())),
        "python": zlib.crc32(repr(random.getstate()).encode()),
    }
    if "numpy" in sys.modules:
        states["numpy"] = zlib.crc32(repr(sys.modules["numpy"].random.get_state()[1].tolist()).encode())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = zlib.crc32(bytes(torch.cuda.get_rng_state().tolist()))
    return {"states": states}


def _wrapper(root: Any) -> Line:
    """The wrapper that reduces; for DistributedDataParallel, also its ranks and whether it broadcasts buffers."""
    import torch.distributed as dist

    line: Line = {"what": "wrapper", "name": type(root).__name__}
    if line["name"] == "DistributedDataParallel":
        line["ranks"] = dist.get_process_group_ranks(root.process_group)
        line["broadcast_buffers"] = bool(root.broadcast_buffers)
    return line


def _roots(optimizer: Any) -> List[Any]:
    """The outermost modules that hold the optimizer's parameters, found among all objects and cached."""
    known: Optional[List[Any]] = getattr(optimizer, "_ddx_roots", None)
    if known is None:
        module = sys.modules["torch"].nn.Module
        wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        # isinstance would access objects' __class__, which has side effects for some.
        modules = [each for each in gc.get_objects() if issubclass(type(each), module)]
        inner = {id(child) for each in modules for child in each.children()}
        outer = [each for each in modules if id(each) not in inner]
        known = [each for each in outer if any(id(parameter) in wanted for parameter in each.parameters())]
        optimizer._ddx_roots = known
    return known


def _place() -> List[Any]:
    """File, line and function of the program code that called our caller."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return _first_user(frames)


def _first_user(frames: List[Tuple[str, int, str]]) -> List[Any]:
    """The innermost frame that is neither in this file nor in a library; if there is none, the outermost."""
    library = (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(sys.modules["torch"].__file__ or "")))
    mine = [each for each in frames if each[0] != __file__ and not each[0].startswith((*library, "<"))]
    return list((mine or frames[-1:] or [("", 0, "")])[0])


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace("." + wrapper, ".")
        while name.startswith(wrapper):
            name = name[len(wrapper) :]
    return name


def _open() -> Any:
    run = os.environ.get("DDX_RUN_DIR")
    place = os.environ.get("DDX_CONSISTENCY_DIR") or (os.path.join(run, "consistency") if run else "ddx-consistency")
    os.makedirs(place, exist_ok=True)
    rank, world = _place_in_job()
    path = os.path.join(place, "consistency-rank-%d.%d.jsonl" % (rank, os.getpid()))
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115
    torch = sys.modules["torch"]
    head = {"ddx": "consistency/1", "rank": rank, "world_size": world, "host": socket.gethostname()}
    file.write(json.dumps({**head, "began_s": time.time(), "torch": str(torch.__version__)}) + "\n")
    return file


def _place_in_job() -> Tuple[int, int]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def _quietly(action: Callable[[], Any]) -> Any:
    """Run an action without disturbing the job: an error is written to the file once, if there is a file."""
    try:
        return action()
    except Exception as error:
        try:
            if _RECORDER.file is not None:
                _RECORDER.file.write(json.dumps({"what": "error", "error": repr(error)[:300]}) + "\n")
                _RECORDER.file.flush()
        except Exception:
            pass
        return None
