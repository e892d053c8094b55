"""Suffixes of files in a training directory that contain no text about the job and are not read."""

from __future__ import annotations

from pathlib import PurePosixPath

_DATA = (
    ".bin .ckpt .distcp .h5 .npy .npz .nsys-rep .onnx .parquet .pcap .pickle .pkl .pt .pth .qdrep .safetensors .sqlite"
)
_PACKED = ".bz2 .gz .tar .whl .xz .zip .zst"
_PICTURES = ".gif .jpeg .jpg .mp4 .pdf .png .svg"
_PROGRAMS = ".ipynb .py .pyc .so"
_STREAMS = ".pipe .sock"

PROGRAM = ".py"
NO_TEXT = frozenset(f"{_DATA} {_PACKED} {_PICTURES} {_PROGRAMS} {_STREAMS}".split())
PACKED = frozenset(_PACKED.split())
NO_LOG = NO_TEXT | {".csv", ".toml", ".yaml", ".yml"}


def suffix(path: str) -> str:
    """The last suffix of a path, in lower case: `.gz` of `train.log.GZ`; empty if it has none."""
    return PurePosixPath(path).suffix.lower()
