"""Real jobs of two or four ranks on Gloo, each with one mistake, that write down what they hold. Run as a program.

`python consistency_jobs.py DIRECTORY` makes one directory a job. torch is imported once; the ranks are forked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

STEPS = 4
PAYLOAD = Path(__file__).parents[2] / "tools/ddx_tools/payloads/site/ddx_consistency.py"


@dataclass(frozen=True)
class Job:
    """What is wrong with a job. The first of each kind is the healthy one."""

    run: Callable[..., None]
    ranks: int = 2
    wrong: str = ""


def recorder() -> Any:
    spec = spec_from_file_location("ddx_consistency", PAYLOAD)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_model() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def data_parallel(rank: int, wrong: str) -> None:
    """DistributedDataParallel over all ranks."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    network = small_model()
    model = DistributedDataParallel(network, **({"forward_sync_buffers": False} if wrong == "buffers" else {}))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    module = recorder()
    look = module.look
    if "attached" in wrong:
        assert module._register()
    for step in range(STEPS):
        seed = step if wrong == "same data" else 100 * rank + step
        inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed))
        odd = step == 2 and rank == 1
        inputs = inputs.log() if wrong == "nan batch" and odd else inputs
        tokens = 0 if wrong == "nan" and odd else 16
        with model.no_sync() if "no_sync" in wrong else nullcontext():
            called = network if wrong == "unwrapped" else model
            (called(inputs).square().sum() / tokens).backward()
        if "attached" not in wrong:
            look(step, model, optimizer)
        optimizer.step()
        optimizer.zero_grad()


def by_hand(rank: int, wrong: str) -> None:
    """Gradients reduced by the program itself."""
    import torch
    import torch.distributed as dist
    from torch import nn

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])] if dist.get_world_size() == 4 else []
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    if wrong == "untied":
        model[0].again = model[0].weight if rank else nn.Parameter(model[0].weight.detach().clone())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    group = pairs[rank // 2] if wrong == "group" else None
    count = (
        1
        if wrong == "sum" or (wrong == "sum on one" and rank == dist.get_world_size() // 2)
        else dist.get_world_size(group)
    )
    look = recorder().look
    for step in range(STEPS):
        inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(100 * rank + step))
        model(inputs).square().mean().backward()
        for name, parameter in model.named_parameters():
            if (wrong == "bias" and name == "2.bias") or parameter.grad is None:
                continue
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= count
        look(step, model, optimizer, batch=inputs)
        optimizer.step()
        optimizer.zero_grad()


def meshed(rank: int, wrong: str) -> None:
    """DTensors on a mesh of two dimensions: cut along tp, whole along dp."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    generator = torch.Generator().manual_seed(7)
    whole = torch.randn(8, 6, generator=generator)
    part = whole.chunk(2)[mesh.get_coordinate()[1]]
    if wrong == "drift" and rank == 3:
        part = part * 1.001
    if wrong == "torn" and mesh.get_coordinate()[1]:
        part = part[:3]
    lies = [Replicate(), Shard(0)]
    if wrong == "placement" and rank == 2:
        part, lies = whole, [Replicate(), Replicate()]
    model = nn.Module()
    model.up = nn.Module()
    held = DTensor.from_local(part, mesh, lies, run_check=False, shape=whole.shape, stride=whole.stride())
    model.up.weight = nn.Parameter(held)
    look = recorder().look
    if wrong in ("summand", "summed"):
        summands(rank, wrong, look, mesh, whole)
        return
    for step in range(STEPS):
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * mesh.get_coordinate()[0] + step))
        look(step, model, None, batch=inputs)
    dist.barrier()


def summands(rank: int, wrong: str, look: Any, mesh: Any, whole: Any) -> None:
    """A weight that all hold whole, whose gradient is a sum over tp."""
    import torch
    from torch import nn
    from torch.distributed.tensor import DTensor, Partial, Replicate

    everywhere = [Replicate(), Replicate()]
    model = nn.Module()
    model.weight = nn.Parameter(DTensor.from_local(whole.clone(), mesh, everywhere, run_check=False))
    for step in range(STEPS):
        part = DTensor.from_local(gradient(step, mesh.get_coordinate()[1]), mesh, [Replicate(), Partial()])
        model.weight.grad = part
        look(step, model, None)
        used = part.redistribute(placements=everywhere) if wrong == "summed" else part
        with torch.no_grad():
            model.weight.to_local().sub_(used.to_local(), alpha=0.1)


def gradient(step: int, part: int) -> Any:
    """One of two summands."""
    import torch

    return torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + part))


def alone(rank: int, wrong: str) -> None:
    """What the jobs with a mesh do, on one rank."""
    import torch
    from torch import nn

    whole = torch.randn(8, 6, generator=torch.Generator().manual_seed(7))
    model = nn.Module()
    model.weight = nn.Parameter(whole.clone())
    model.up = nn.Module()
    model.up.weight = nn.Parameter(whole.clone())
    look = recorder().look
    for step in range(STEPS):
        model.weight.grad = gradient(step, 0) + gradient(step, 1)
        look(step, model, None)
        with torch.no_grad():
            model.weight.sub_(model.weight.grad, alpha=0.1)


def resumed(rank: int, wrong: str) -> None:
    """A job that ends after step 3 and goes on behind its checkpoint of step 1, in the same directory."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    saved: dict[str, Any] = {}
    for attempt in (0, 1):
        torch.manual_seed(rank if not attempt or "rng" not in wrong else 1234)
        model = DistributedDataParallel(torch.nn.Linear(6, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if attempt:
            model.load_state_dict(saved["model"])
            if "rng" not in wrong:
                torch.set_rng_state(saved["rng"])
        module = recorder()
        os.environ["DDX_CONSISTENCY_DIR"] += "/again" if attempt else ""
        for step in range(2 * attempt, STEPS):
            inputs = torch.randn(16, 6)
            model(torch.nn.functional.dropout(inputs, 0.2)).square().mean().backward()
            module.look(step - 2 * attempt * ("anew" in wrong), model, optimizer, batch=inputs)
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                saved = {"model": {k: v.clone() for k, v in model.state_dict().items()}, "rng": torch.get_rng_state()}


JOBS = {
    "ddp": Job(data_parallel),
    "no-sync": Job(data_parallel, wrong="no_sync"),
    "attached": Job(data_parallel, wrong="attached"),
    "attached-no-sync": Job(data_parallel, wrong="attached, no_sync"),
    "unwrapped": Job(data_parallel, wrong="unwrapped"),
    "same-data": Job(data_parallel, wrong="same data"),
    "buffers": Job(data_parallel, wrong="buffers"),
    "nan": Job(data_parallel, wrong="nan"),
    "nan-in-batch": Job(data_parallel, wrong="nan batch"),
    "by-hand": Job(by_hand, 4),
    "sum-for-mean": Job(by_hand, 4, "sum"),
    "sum-on-one": Job(by_hand, 4, "sum on one"),
    "by-hand-on-two": Job(by_hand),
    "sum-on-one-of-two": Job(by_hand, 2, "sum on one"),
    "wrong-group": Job(by_hand, 4, "group"),
    "untied": Job(by_hand, 4, "untied"),
    "one-bias": Job(by_hand, 4, "bias"),
    "mesh": Job(meshed, 4),
    "placement": Job(meshed, 4, "placement"),
    "torn": Job(meshed, 4, "torn"),
    "copy-differs": Job(meshed, 4, "drift"),
    "summand-used": Job(meshed, 4, "summand"),
    "summed": Job(meshed, 4, "summed"),
    "alone": Job(alone, 1),
    "resume": Job(resumed),
    "resume-without-rng": Job(resumed, wrong="rng"),
    "restart": Job(resumed, wrong="counts anew"),
    "restart-without-rng": Job(resumed, wrong="rng, counts anew"),
}


def rank_of(job: Job, rank: int, directory: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["DDX_CONSISTENCY_DIR"] = str(directory)
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"  # as `ddx run` sets it
    dist.init_process_group("gloo", f"file://{directory}.store", rank=rank, world_size=job.ranks)
    job.run(rank, job.wrong)
    dist.barrier()


def main() -> None:
    import torch._dynamo  # which DDP imports when it is made
    import torch.distributed.tensor
    import torch.nn.parallel  # noqa: F401

    failed = 0
    for name, job in JOBS.items():
        ranks = []
        for rank in range(job.ranks):
            if not (pid := os.fork()):
                try:
                    rank_of(job, rank, Path(sys.argv[1]) / name)
                    os._exit(0)
                except BaseException as error:
                    print(f"{name}: rank {rank}: {error!r}", flush=True)
                    os._exit(1)
            ranks.append(pid)
        failed += sum(os.waitpid(pid, 0)[1] != 0 for pid in ranks)
    sys.exit(failed)


if __name__ == "__main__":
    main()
