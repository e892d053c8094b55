"""Redacts structured data: mappings, argument lists, environments, rows with locals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddx_tools.redaction.names import Meaning, is_name_field, is_value_field, meaning_of
from ddx_tools.redaction.shapes import Span
from ddx_tools.redaction.text import LEFT_OUT, MARK, Counts, redact, replaced, secrets_in
from ddx_tools.redaction.values import KIND, may_be_secret, mixes

_MOST_DEEP = 60

# Variables that decide how ranks find each other and what they leave behind; others are not captured.
_ALLOWED_PREFIXES = (
    "ACCELERATE_", "CUBLAS_", "CUDA_", "DDX_", "DEEPSPEED_", "DS_", "FI_", "FSDP_", "GLOO_", "HIP_VISIBLE_", "HSA_",
    "KMP_", "MASTER_", "MKL_", "NCCL_", "OMPI_COMM_", "OMP_", "PET_", "PMIX_", "PMI_", "PYTORCH_", "RAY_",
    "RCCL_", "ROCR_VISIBLE_", "TORCH", "UCX_", "VLLM_", "XCCL_",
)  # fmt: skip
_ALLOWED = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "CROSS_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "CROSS_SIZE", "LOCAL_SIZE", "ROLE_NAME", "ENABLE_INTRA_NODE_COMM",
    "USE_LIBUV", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "PYTHONFAULTHANDLER",
    "PYTHONHASHSEED", "PYTHONPATH", "PYTHONUNBUFFERED", "SLURMD_NODENAME", "SLURM_JOB_ID", "SLURM_JOB_NODELIST",
    "SLURM_LOCALID", "SLURM_NNODES", "SLURM_NODEID", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_PROCID",
    "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE", "TMPDIR", "VIRTUAL_ENV",
}  # fmt: skip

_OPTION = re.compile(r"--?[A-Za-z][\w.-]{0,80}")
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,120}")
_ASSIGNMENT = re.compile(r"(-{0,2}[A-Za-z_+][\w.-]{0,80}=)(.+)", re.S)


def redact_value(value: Any, counts: Counts | None = None) -> Any:
    """Redact JSON-like data.

    A value is judged by its key; a field `value` (or `repr` …) by the field `name` beside it; a list element by the
    option before it. Numbers and booleans stay.
    """
    return _redacted(value, counts, 0)


def redact_json(text: str) -> str:
    """Redact a JSON document, keeping its numbers and its form; any other text is redacted as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return redact(text)
    clean = redact_value(value)
    return text if clean == value else json.dumps(clean, indent=2 if "\n" in text else None, ensure_ascii=False)


def _redacted(value: Any, counts: Counts | None, depth: int) -> Any:
    if isinstance(value, str):
        return redact(value, counts)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth > _MOST_DEEP:
        return LEFT_OUT
    return _mapping(value, counts, depth + 1) if isinstance(value, dict) else _list(value, counts, depth + 1)


def _mapping(value: Mapping[Any, Any], counts: Counts | None, depth: int) -> dict[Any, Any]:
    secret = secret_keys(value)
    clean: dict[Any, Any] = {}
    for key, item in value.items():
        new = _all_hidden(item, counts, depth) if key in secret else _redacted(item, counts, depth)
        clean[redact(key, counts) if isinstance(key, str) else key] = new
    return clean


def secret_keys(value: Mapping[Any, Any]) -> set[Any]:
    """The keys of a mapping whose values are secrets: by their own names, or by the name in a field beside them."""
    names = [name for key, name in value.items() if isinstance(name, str) and is_name_field(str(key))]
    of_kubernetes = value.get("kind") == "Secret"
    return {
        key
        for key, item in value.items()
        if isinstance(key, str)
        and (
            is_secret(key, item)
            or (of_kubernetes and key in ("data", "stringData"))
            or (is_value_field(key) and _is_named(names, item))
        )
    }


def _is_named(names: Sequence[str], value: object) -> bool:
    """Whether the names in fields beside a value make it a secret: a bare `token` only if the value looks like one."""
    if any(map(_is_named_secret, names)):
        return True
    is_token = any(name.lower() == "token" for name in names)
    return is_token and isinstance(value, str) and mixes(value.encode("utf-8", "surrogatepass"))


def _is_named_secret(name: object) -> bool:
    return isinstance(name, str) and " " not in name and len(name) <= 120 and meaning_of(name) >= Meaning.PROBABLY


def is_secret(name: str, value: object) -> bool:
    """Whether a value is a secret, by its name; for vaguer names, by its look."""
    meaning = meaning_of(name)
    if meaning is Meaning.CERTAINLY:
        return True
    if meaning is Meaning.PROBABLY and isinstance(value, str) and " " not in value and not value.isdigit():
        return len(value) >= 16 or any(map(str.isdigit, value))
    return False


def _all_hidden(value: Any, counts: Counts | None, depth: int) -> Any:
    """Redact everything in a value with a secret name, except placeholders (`None`, `$HF_TOKEN`, a path)."""
    if depth > _MOST_DEEP:
        return LEFT_OUT
    if isinstance(value, dict):
        return {key: _all_hidden(item, counts, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_all_hidden(item, counts, depth + 1) for item in value]
    if not isinstance(value, str) or not may_be_secret(value):
        return value
    if counts is not None:
        counts[KIND] += 1
    return MARK


def _list(items: Sequence[Any], counts: Counts | None, depth: int) -> list[Any]:
    if len(items) == 2 and all(isinstance(item, str) for item in items) and _NAME.fullmatch(items[0]):
        hidden = is_secret(*items)
        return [items[0], _all_hidden(items[1], counts, depth) if hidden else redact(items[1], counts)]
    if any(isinstance(item, str) and item.startswith("-") for item in items):
        return _arguments(items, counts, depth)
    return [_redacted(item, counts, depth) for item in items]


def is_secret_pair(items: Sequence[str]) -> bool:
    """Whether two texts are the name of a secret and its value."""
    return bool(_NAME.fullmatch(items[0])) and is_secret(*items)


def _arguments(items: Iterable[Any], counts: Counts | None, depth: int) -> list[Any]:
    shown: list[Any] = []
    expected = False
    for item in items:
        if not isinstance(item, str):
            shown.append(_redacted(item, counts, depth))
        elif expected and not item.startswith("--"):
            shown.append(_all_hidden(item, counts, depth))
        else:
            shown.append(_argument(item, counts))
        expected = isinstance(item, str) and is_secret_option(item)
    return shown


def is_secret_option(text: str) -> bool:
    """Whether a text is an option of a command line that may take a secret."""
    return bool(_OPTION.fullmatch(text)) and meaning_of(text) > Meaning.NOTHING


def _argument(argument: str, counts: Counts | None = None) -> str:
    assignment = _ASSIGNMENT.fullmatch(argument)
    if assignment and meaning_of(assignment[1]) > Meaning.NOTHING:
        return assignment[1] + str(_all_hidden(assignment[2], counts, 0))
    return redact(argument, counts)


def redact_argv(arguments: Iterable[str]) -> list[str]:
    """Redact a command line, in which the argument after an option is certainly its value.

    Secrets that only the whole line shows (`curl -u user:password`) are found in the joined line.
    """
    shown = [argument.encode("utf-8", "surrogatepass") for argument in _arguments(arguments, None, 0)]
    spans = secrets_in(b" ".join(shown))
    at, clean = 0, []
    for argument in shown:
        end = at + len(argument)
        own = [Span(max(s.start, at) - at, min(s.end, end) - at, s.kind) for s in spans if s.start < end and at < s.end]
        clean.append(replaced(argument, own).decode("utf-8", "surrogatepass"))
        at = end + 1
    return clean


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables that matter to distributed training, sorted, with redacted values."""
    return {
        name: redact_variable(name, value)
        for name, value in sorted(environment.items())
        if name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)
    }


def redact_variable(name: str, value: str) -> str:
    """Redact the value of a variable or an option, judged by its name and its look."""
    return _argument(f"{name}={value}").partition("=")[2]
