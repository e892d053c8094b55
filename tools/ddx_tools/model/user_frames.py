"""Which frames belong to the user's program, and library paths independent of where the library is installed."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages)/|/lib(64)?/python\d+\.\d+/|^<frozen |^<(string|stdin|unknown|eval_with_key)"
    r"|/torchinductor_[^/]+/|/ddx_tools/payloads/"
)
# py-spy --native names the binary or, with debug symbols, the source file of a C, C++, CUDA or Rust frame.
_NATIVE = re.compile(
    r"\.so(\.[\d.]+)?$|\.dylib$|\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|rs|S)$|(^|/)python[\d.]*$|^\[?vdso\]?$"
)
_PACKAGE_ROOT = re.compile(
    r"^.*?/(?:site-packages|dist-packages)/|^.*?/lib(?:64)?/python\d+\.\d+/(?!site-packages|dist-packages)"
)

# py-spy's text dumps shorten library paths to their package root; these packages are never the user's program.
_LIBRARY_ROOTS = frozenset(sys.stdlib_module_names) | {
    "accelerate", "aiohttp", "anthropic", "anyio", "azure", "bitsandbytes", "boto3", "botocore",
    "cloudpickle", "cv2", "datasets", "decord", "deepspeed", "diffusers", "dill", "einops", "fairscale",
    "fastapi", "filelock", "flash_attn", "fsspec", "gcsfs", "grpc", "h11", "h5py", "httpcore", "httpx",
    "huggingface_hub", "joblib", "kornia", "lightning", "lightning_fabric", "lmdb", "megatron", "mlflow",
    "msgpack", "multiprocess", "nltk", "numpy", "omegaconf", "openai", "pandas", "paramiko", "peft", "PIL", "psutil",
    "psycopg2", "pyarrow", "pymongo", "pytorch_lightning", "ray", "redis", "requests", "s3fs", "s3transfer",
    "safetensors", "scipy", "sentencepiece", "sglang", "sklearn", "smart_open", "sqlalchemy", "starlette",
    "tensorboard", "tensorboardX", "tiktoken", "timm", "tokenizers", "torch", "torchaudio", "torchdata", "torchtitan",
    "torchvision", "tqdm", "transformer_engine", "transformers", "triton", "trl", "urllib3", "uvicorn", "uvloop",
    "vllm", "wandb", "webdataset", "xformers", "yaml", "zarr", "zmq",
}  # fmt: skip


@lru_cache(16384)
def is_user_file(file: str) -> bool:
    """Whether a source file is the user's: not an installed package, the standard library, generated code or C code."""
    path = file.replace("\\", "/")
    if not path or _LIBRARY.search(path) or _NATIVE.search(path):
        return False
    root = path.split("/", 1)[0].removesuffix(".py")
    return path.startswith("/") or path[1:2] == ":" or root not in _LIBRARY_ROOTS


def is_program_file(file: str) -> bool:
    """Whether a file may be the program if no frame is the user's own: an installed package that is not a framework."""
    if is_user_file(file):
        return True
    path = file.replace("\\", "/")
    installed = "/site-packages/" in path or "/dist-packages/" in path
    return installed and module_path(path).split("/", 1)[0].removesuffix(".py") not in _LIBRARY_ROOTS


def module_path(file: str) -> str:
    """A library file's path from its package root: `torch/distributed/distributed_c10d.py`, `threading.py`."""
    return _PACKAGE_ROOT.sub("", file.replace("\\", "/"), count=1)
