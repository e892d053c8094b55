"""Share of tokens of the validation set that get the right tag."""

import torch
from accelerate import Accelerator
from data import IGNORED
from torch import nn
from torch.utils.data import DataLoader


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader, batches: int = 4) -> float:
    model.eval()
    right = total = 0
    for number, batch in enumerate(loader):
        predicted = model(batch["tokens"]).argmax(dim=-1)
        predicted = accelerator.pad_across_processes(predicted, dim=1, pad_index=IGNORED)
        tags = accelerator.pad_across_processes(batch["tags"], dim=1, pad_index=IGNORED)
        predicted, tags = accelerator.gather_for_metrics((predicted, tags))
        known = tags != IGNORED
        right += int((predicted == tags)[known].sum())
        total += int(known.sum())
        if number + 1 == batches:
            break
    model.train()
    return right / total
