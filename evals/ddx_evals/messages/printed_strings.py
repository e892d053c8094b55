"""What libraries can print: error strings out of a source tree, and the share of them that is recognised.

    python -m ddx_evals.message_sources nccl 2.27.7 TREE            the share that the catalogue recognises
    python -m ddx_evals.message_sources nccl 2.27.7 TREE --update   take the strings of this release into the catalogue

What is kept are facts: the words of a message with `{}` where a value stands, the file and function that print it, and
the releases that do. A new entry is classed by its words (`message_classes.yaml`), a proposal for a person to check; an
update never changes the class of an entry that is there.
"""

from __future__ import annotations

import ast
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ddx_tools.parsers.logs.library_messages import (
    HOLE,
    NEEDS_VALUES,
    LibraryMessage,
    message_id,
    read_catalogue,
    recognise,
    written,
)
from ddx_tools.parsers.logs.signatures import match_signatures, signatures
from ddx_tools.yaml_data import load_yaml

_CPP = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
# Parts of a library that say nothing in a job that trains, or that only its own tests and examples run.
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
# Calls whose text reaches a log, and whether they only warn. What only debugging prints (INFO, TRACE) is left out.
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
_TRANSPORTS = ("nccl", "gloo", "ofi")


@dataclass(frozen=True)
class Printed:
    """One string that a library can print."""

    template: str
    """Its words, `{}` for each value."""
    level: str
    """`error` or `warning`."""
    file: str
    function: str


def printed_strings(library: str, tree: Path) -> list[Printed]:
    """Error strings of a tree, each once, in the order of the files."""
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
    """The text from a place to the bracket or semicolon that ends it."""
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
    """Its literals, and a hole for what stands between two of them."""
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
    """The words of an expression that makes a string; None if it has none."""
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


# --- the catalogue


def updated(
    known: Iterable[LibraryMessage], library: str, release: str, strings: Iterable[Printed]
) -> list[LibraryMessage]:
    """The entries with those of a release among them."""
    entries = {entry.id: entry for entry in known}
    for one in strings:
        name = message_id(library, one.template)
        before = entries.get(name)
        if before:
            first, _, last = before.versions.partition("..")
            ends = sorted((first, last or first, release), key=_by_version)
            versions = ends[0] if ends[0] == ends[-1] else f"{ends[0]}..{ends[-1]}"
            entries[name] = replace(before, versions=versions)
        else:
            place = (one.file, one.function)
            entries[name] = LibraryMessage(
                name, one.level, speaks_of(library, one), _signature(one.template), release, *place, one.template
            )
    return sorted(entries.values(), key=lambda entry: (entry.file, entry.template, entry.id))


def _by_version(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


@cache
def _classes() -> dict[str, dict[str, list[str]]]:
    rules: dict[str, dict[str, list[str]]] = load_yaml(
        Path(__file__).with_name("message_classes.yaml").read_text(encoding="utf-8")
    )
    return rules


def speaks_of(library: str, one: Printed) -> str:
    """A first guess at what a message is about, from its words."""
    is_transport = library in _TRANSPORTS
    words = one.template.lower()
    rules = _classes()["transports" if is_transport else "others"]
    guess = next((name for name, patterns in rules.items() if any(re.search(each, words) for each in patterns)), None)
    return guess or ("own_failure" if is_transport or "INTERNAL" in one.template else "program")


def _signature(template: str) -> str:
    """The known message that a template is one of, if there is one that reads it without its values."""
    matches = [match.signature for sample in _samples(template) for match in match_signatures(sample)]
    by_words = (known for known in signatures() if any(_is_telling(part) and part in template for part in known.needle))
    found = (known for known in (*matches, *by_words) if not NEEDS_VALUES.match(known.id) and known.role != "context")
    return next((known.id for known in found), "")


def _is_telling(needle: str) -> bool:
    return len(written(needle)) >= 3


def _samples(template: str) -> Iterator[str]:
    """The message with values in its holes."""
    for value in ("4711", "node-01", "1, 2"):
        yield template.replace(HOLE, value)
        yield f"RuntimeError: {template.replace(HOLE, value)}"


def recognised(library: str, strings: Iterable[Printed]) -> tuple[list[Printed], list[Printed]]:
    """Strings that are recognised, and the others; each as a line or an exception shows it."""
    told: tuple[list[Printed], list[Printed]] = ([], [])
    for one in strings:
        text = _shown(library, one)
        told[0 if match_signatures(text) or recognise(text) else 1].append(one)
    return told


def _shown(library: str, one: Printed) -> str:
    said = one.template.replace(HOLE, "4711")
    match library:
        case "nccl" | "ofi":
            return f"node-01:4711:4712 [0] {Path(one.file).name}:1 NCCL WARN {'NET/OFI ' * (library == 'ofi')}{said}"
        case "gloo":
            return f"RuntimeError: [../third_party/gloo/{one.file}:1] {said}"
        case "torch" if "csrc/distributed" in one.file:
            return f"RuntimeError: {said}\n@ torch/distributed/distributed_c10d.py:1 {one.function}"
    return f"RuntimeError: {said}\n@ {one.file}:1 {one.function}"


@cache
def _folder() -> Path:
    import ddx_tools

    return Path(ddx_tools.__file__).parent / "knowledge" / "messages"


def main(arguments: list[str] | None = None) -> int:
    """The command: prints the share, or updates the catalogue of a library."""
    parser = ArgumentParser(prog="python -m ddx_evals.message_sources", description=__doc__.split("\n", 1)[0])
    parser.add_argument("library")
    parser.add_argument("release")
    parser.add_argument("tree", type=Path)
    parser.add_argument("--update", action="store_true", help="take the strings into the catalogue")
    parser.add_argument("--unknown", action="store_true", help="print what is not recognised")
    told = parser.parse_args(arguments)
    strings = printed_strings(told.library, told.tree)
    file = _folder() / f"{told.library}.tsv"
    known, unknown = recognised(told.library, strings)
    share = 100 * len(known) / max(1, len(strings))
    print(f"{told.library} {told.release}: {len(known)} of {len(strings)} error strings recognised ({share:.1f} %)")
    if told.update:
        file = _folder() / f"{told.library}.tsv"
        entries = updated(read_catalogue(file) if file.exists() else [], told.library, told.release, strings)
        file.write_text("".join(entry.line() for entry in entries), encoding="utf-8")
    if told.unknown:
        for one in unknown:
            print(f"  {one.file} {one.function}: {one.template}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
