"""Extracts the error strings that a library can print from its C++ and Python sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.knowledge.library_messages import HOLE, message_id, written

_CPP = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
# Parts of a library that print nothing in a training job, or that only its own tests and examples run.
_LEFT_OUT = re.compile(
    r"(?:^|/)(?:tests?|testing|examples?|benchmarks?|_tools|rpc|_sharding_spec|inference|module_inject|autotuning"
    r"|ops/(?:transformer|sparse_attention)|compression|datasets?|tokenizers?|tasks|legacy|docs)/"
)
_PARTS = {
    "torch": re.compile(
        r"torch/csrc/distributed/c10d/(?!.*(?:UCC|MPI))|torch/lib/c10d/|torch/csrc/DataLoader|torch/csrc/cuda/nccl"
        r"|c10/cuda/|torch/distributed/(?!_shard|pipelin)|torch/utils/data/|torch/nn/parallel/|torch/multiprocessing/"
        r"|torch/_inductor/(?:codecache|async_compile|compile_worker|remote_cache|runtime/cache)"
    ),
    "megatron": re.compile(
        r"megatron/(?:(?:initialize|arguments|checkpointing|mpu|p2p_communication|schedules|dist_\w+)|training/"
        r"|core/(?!inference|models|export|post_training|quantization|ssm|extensions|transformer/(?!moe|fsdp)))"
    ),
    "lightning": re.compile(r"(?:pytorch|fabric)/(?!cli|demos|tuner|profilers|loggers|_graveyard)"),
}
# Calls whose text reaches a log, and whether they only warn. Debug output (INFO, TRACE) is left out.
_CALL = re.compile(
    r"\b(?P<call>WARN|GLOO_(?:WARN|ERROR\w*|THROW\w*|ENFORCE\w*)|TORCH_(?:CHECK\w*|INTERNAL_ASSERT\w*|WARN\w*)"
    r"|REDUCER_CHECK|C10\w*_THROW\w*|C10D_(?:WARNING|ERROR|CHECK)\w*|NCCL_OFI_WARN|AT_ERROR|AT_ASSERTM"
    r"|c10::str|fmt::format|MakeString|throw [\w:]+|SYSCHECK\w*|std::runtime_error|handler_error\w*)\s*\("
    r"|\bLOG\((?P<level>ERROR|WARNING|FATAL)\)\s*<<|\b(?:o?ss|\w*[sS]tream|err|msg)\s*<<(?=\s*\")"
    r"|\b(?P<text>return|(?:const )?(?:std::string|char ?\*)(?: const)? \w+(?:\[\])? ?=|\w*(?:[mM]sg|[mM]essage) \+?=)"
    r"(?=\s*\")"
)
_WARNS = re.compile(r"WARNING|TORCH_WARN|GLOO_WARN")
_LITERAL = re.compile(r'(?:u8|L|R)?"((?:[^"\\\n]|\\.)*)"')
_FORMAT = re.compile(
    r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?[diouxXeEfgGcspn]|%l[xud]|\{[^{}\n]{0,40}\}"
)
_FUNCTION = re.compile(r"^[A-Za-z_][^;={}#\n]*?([\w~]+)\s*\([^;]*$", re.M)
_LOGS = {"error": "error", "exception": "error", "critical": "error", "warning": "warning", "warn": "warning"}
_LONGEST = 400


@dataclass(frozen=True)
class Printed:
    """An error string of a library, with its file and function."""

    template: str
    """The text, with `{}` for each value."""
    level: str
    """`error` or `warning`."""
    file: str
    function: str


def printed_strings(library: str, tree: Path) -> list[Printed]:
    """The distinct error strings of a source tree, in file order."""
    found: dict[str, Printed] = {}
    part = _PARTS.get(library, re.compile(""))
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if path.suffix not in {".py", *_CPP} or not part.search(name) or _LEFT_OUT.search(f"/{name}"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        strings = _python_strings(text, name) if path.suffix == ".py" else _cpp_strings(text, name)
        for one in strings:
            found.setdefault(message_id(library, one.template), one)
    return list(found.values())


def _printed(template: str, level: str, file: str, function: str) -> Iterator[Printed]:
    template = re.sub(rf"(?:{re.escape(HOLE)}\W{{0,2}}){{2,}}", f"{HOLE} ", " ".join(template.split()))[:_LONGEST]
    if len(written(template)) >= 2:
        yield Printed(template.strip(), level, file, function)


# --- C++


def _cpp_strings(text: str, file: str) -> Iterator[Printed]:
    text = _without_comments(text)
    functions = [(match.start(), match[1]) for match in _FUNCTION.finditer(text)]
    for call in _CALL.finditer(text):
        line_start = text.rfind("\n", 0, call.start()) + 1
        if text[line_start : call.start()].lstrip().startswith("#define"):
            continue
        body = _until(text, call.end(), ")" if call["call"] else ";")
        level = "warning" if _WARNS.search(call[0]) else "error"
        function = next((name for start, name in reversed(functions) if start <= call.start()), "")
        yield from _printed(_cpp_template(body), level, file, function)


def _without_comments(text: str) -> str:
    pattern = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)
    return pattern.sub(lambda match: match[0] if match[0][0] == '"' else " ", text)


def _until(text: str, start: int, end: str) -> str:
    """The text from a position to the bracket or semicolon that ends it."""
    depth, at = 0, start
    while at < len(text) and at < start + 4_000:
        character = text[at]
        if character == '"':
            literal = _LITERAL.match(text, at)
            at = literal.end() if literal else at + 1
            continue
        if depth == 0 and character == end:
            break
        depth += (character in "([{") - (character in ")]}")
        at += 1
    return text[start:at]


def _cpp_template(body: str) -> str:
    """The literals of a C++ expression, joined by `{}`."""
    parts, end = [], None
    for literal in _LITERAL.finditer(body):
        if end is not None and body[end : literal.start()].strip(" \n\t\r,+<"):
            parts.append(HOLE)
        parts.append(_FORMAT.sub(HOLE, re.sub(r"\\[nt]", " ", literal[1]).replace('\\"', '"')))
        end = literal.end()
    if end is not None and re.search(r"[,+<]\s*[\w*(]", body[end:]):
        parts.append(HOLE)
    return "".join(parts)


# --- Python


def _python_strings(text: str, file: str) -> Iterator[Printed]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    yield from _of_scope(tree.body, file, "", {})


def _of_scope(body: Iterable[ast.stmt], file: str, function: str, said: dict[str, str]) -> Iterator[Printed]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = statement.name if not isinstance(statement, ast.ClassDef) else function
            yield from _of_scope(statement.body, file, inner, dict(said))
            continue
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                said[name] = _template(value, said) or ""
        yield from _of_statement(statement, file, function, said)
        for field in ("body", "orelse", "finalbody"):
            yield from _of_scope(getattr(statement, field, []), file, function, said)
        for handler in getattr(statement, "handlers", []):
            yield from _of_scope(handler.body, file, function, said)


def _of_statement(statement: ast.stmt, file: str, function: str, said: dict[str, str]) -> Iterator[Printed]:
    told: list[tuple[ast.expr, str]] = []
    if isinstance(statement, ast.Raise) and isinstance(statement.exc, ast.Call):
        told = [(argument, "error") for argument in statement.exc.args[:2]]
        told += [(word.value, "error") for word in statement.exc.keywords if word.arg in ("message", "msg")]
    elif isinstance(statement, ast.Assert) and statement.msg:
        told = [(statement.msg, "error")]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and statement.value.args:
        called = statement.value.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        level = _LOGS.get(name) or ("warning" if "warn" in name else None)
        told = [(statement.value.args[0], level)] if level else []
    for expression, level in told:
        if template := _template(expression, said):
            yield from _printed(template, level, file, function)


def _template(node: ast.expr, said: dict[str, str]) -> str | None:
    """The text of an expression that makes a string; None if it has none."""
    match node:
        case ast.Constant(value=str(text)):
            return _FORMAT.sub(HOLE, text)
        case ast.JoinedStr(values=values):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in values)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            before, behind = _template(left, said), _template(right, said)
            return None if before is None and behind is None else (before or HOLE) + (behind or HOLE)
        case ast.BinOp(op=ast.Mod(), left=left):
            return _template(left, said)
        case ast.Call(func=ast.Attribute(value=text, attr="format" | "join" | "strip" | "replace")):
            return _template(text, said)
        case ast.Call(func=ast.Name(id="dedent" | "str" | "repr"), args=[text, *_]):
            return _template(text, said)
        case ast.Name(id=name):
            return said.get(name) or None
    return None
