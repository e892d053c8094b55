"""How the layers are split, and what every rank holds of them."""

import torch
from model import LanguageModel
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module


def block_plan() -> dict[str, ParallelStyle]:
    return {"up": ColwiseParallel(), "down": RowwiseParallel()}


def parallelize(model: LanguageModel, mesh: DeviceMesh) -> LanguageModel:
    """Split the blocks; embedding, norms and head are whole on every rank."""
    for block in model.blocks:
        parallelize_module(block, mesh, block_plan())
    return model


def layout(model: LanguageModel) -> str:
    """The placements of the first block's weights, and the shape of what is held here."""
    held = []
    for name, parameter in model.blocks[0].named_parameters():
        if isinstance(parameter, DTensor) and name.endswith("weight"):
            held.append(f"{name} {parameter.placements} {tuple(parameter.to_local().shape)}")
    return ", ".join(held)


def whole_checksum(model: LanguageModel) -> float:
    """Of the weights that every rank holds whole: the same number on all of them."""
    whole = [p.detach() for p in model.parameters() if not isinstance(p, DTensor)]
    return float(torch.stack([p.double().abs().sum() for p in whole]).sum())
