"""The teacher: a moving average of the student's weights."""

import copy
import threading

import torch
import torch.distributed as dist
from torch import nn


class Teacher:
    def __init__(self, student: nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(student).requires_grad_(False)
        self.decay = decay
        # Somebody who copies the weights must not get half of an update.
        self.lock = threading.Lock()

    @torch.no_grad()
    def follow(self, student: nn.Module) -> None:
        with self.lock:
            for own, other in zip(self.network.parameters(), student.parameters(), strict=True):
                own.lerp_(other, 1.0 - self.decay)

    def share(self) -> None:
        """The teacher of rank 0 for everybody, so that rounding does not drive them apart."""
        for parameter in self.network.parameters():
            dist.broadcast(parameter, src=0)

    def weights(self) -> dict[str, torch.Tensor]:
        with self.lock:
            return {name: value.clone() for name, value in self.network.state_dict().items()}
