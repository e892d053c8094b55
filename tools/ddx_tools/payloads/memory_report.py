"""Report the memory of one rank: one line of JSON per call, to the rank's own file. No collective, no lock.

    from ddx_tools.payloads.memory_report import report   # or copy this file: it needs the standard library and torch
    report("memory-rank{rank}.jsonl", model, optimizer)    # after wrapping: the sharded parameters
    report("memory-rank{rank}.jsonl", step=step)           # every N steps: growth over time

`ddx memory DIR` reads the files of all ranks. Python 3.8, torch 2.0. It never raises into the job.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any, Dict, List, Optional

COUNTERS = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current")


def report(path: str, model: Any = None, optimizer: Any = None, step: Optional[int] = None) -> None:
    """Append one JSON line about this rank's memory to the file `path`.

    `{rank}` in the path is replaced by the rank. The line holds the memory of the process and of CUDA and, if given,
    the sizes of the model's parameters and the optimizer's state. Errors are printed, never raised.
    """
    try:
        rank = os.environ.get("RANK", "0")
        line: Dict[str, Any] = {"ddx_memory_report": 1, "rank": int(rank), "host": socket.gethostname()}
        line.update(step=step, time_s=time.time(), **_host_memory())
        line["cuda"] = _cuda_memory()
        if model is not None:
            line["parameters"] = _parameters(model)
        if optimizer is not None:
            states = (value for state in optimizer.state.values() for value in state.values())
            line["optimizer_bytes"] = sum(_local(value)[1] for value in states if hasattr(value, "numel"))
        with open(path.replace("{rank}", rank), "a") as file:
            file.write(json.dumps(line) + "\n")
    except Exception as error:
        print("ddx memory_report: %r" % (error,), file=sys.stderr)


def _host_memory() -> Dict[str, Optional[int]]:
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    names = (("rss_bytes", "VmRSS"), ("peak_rss_bytes", "VmHWM"))
    return {name: int(lines[key].split()[0]) * 1024 if key in lines else None for name, key in names}


def _cuda_memory() -> Dict[int, Dict[str, Any]]:
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return {}
    stats = {device: cuda.memory_stats(device) for device in range(cuda.device_count())}
    return {
        device: {name: counters.get(name) for name in COUNTERS}
        for device, counters in stats.items()
        if counters.get("reserved_bytes.all.peak")
    }


def _parameters(model: Any) -> List[Dict[str, Any]]:
    found = []
    for name, parameter in model.named_parameters():
        whole, local = _local(parameter)
        # FSDP1 keeps one flat parameter for each module that it wraps: this rank holds its part of it.
        flat = type(parameter).__name__ == "FlatParameter" or ".flat_param" in "." + name
        if flat:
            size = getattr(parameter, "_unpadded_unsharded_size", None)
            whole = size.numel() * parameter.element_size() if size is not None else whole
        found.append({"name": name, "bytes": whole, "local_bytes": local, "sharded": flat or local < whole})
    return found


def _local(tensor: Any) -> Any:
    """Bytes of a whole tensor and of the part on this rank: a DTensor holds only a part (torch.distributed.tensor)."""
    part = getattr(tensor, "_local_tensor", tensor)
    return tensor.numel() * tensor.element_size(), part.numel() * part.element_size()
