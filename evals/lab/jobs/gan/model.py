"""The two networks that are trained against each other."""

from data import NOISE, POINT
from torch import nn


def make_generator(width: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Linear(NOISE, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, POINT)
    )


def make_discriminator(width: int = 96) -> nn.Module:
    return nn.Sequential(
        nn.Linear(POINT, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1)
    )
