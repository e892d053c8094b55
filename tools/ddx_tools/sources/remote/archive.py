"""Builds the archive for a host without ddx: one zip with modules of this installation, for Python 3.8 and later.

It contains the modules that `agent` imports, rewritten for older Pythons; replacements for packages that such a host
lacks (`ddx_tools.payloads.host_agent`); and this machine's psutil, nvidia-ml-py and py-spy, which run with any Python
on the same machine type.
"""

from __future__ import annotations

import ast
import io
import json
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ddx_tools.knowledge.load import shipped
from ddx_tools.model.errors import UsageError
from ddx_tools.payloads import HOST_AGENT_DIRECTORY
from ddx_tools.sources.hosts.pyspy import find_pyspy
from ddx_tools.sources.remote.agent import PYSPY

OLDEST_PYTHON = (3, 8)
MOST_BYTES = 8 << 20
AGENT, COLLECTOR = "ddx_tools.sources.remote.agent", "ddx_tools.sources.remote.collect"
"""The programs that an archive can run."""
_MAIN = "import ddx_backports\nddx_backports.install()\nfrom {} import main\nmain()\n"
_STAND_INS = {
    "ddx_tools.knowledge.load": "shipped_data",
    "re2": "expressions",
    "zstandard": "no_zstandard",
    "ddx_backports": "backports",
}
_DATA = ("secret_names.yaml", "secret_shapes.yaml", "launchers.yaml")
_OTHER_SYSTEMS = ("_psaix", "_psbsd", "_psosx", "_pssunos", "_pswindows")


@cache
def archive(entry: str = AGENT) -> bytes:
    """Build the zip that runs a program, `AGENT` or `COLLECTOR`.

    Raises UsageError if a package is missing here, or if the zip is too large to send.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for name, data in _members(entry):
            target.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)
    if made.tell() > MOST_BYTES:
        raise UsageError(f"the archive for hosts without ddx takes {made.tell() >> 20} MiB", "Install ddx there.")
    return made.getvalue()


def _members(entry: str) -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN.format(entry).encode()
    sources = _modules(entry)
    for package in sorted({parent for name in sources for parent in _parents(name)}):
        yield f"{package.replace('.', '/')}/__init__.py", b""
    for name, source in sorted(sources.items()):
        yield f"{name.replace('.', '/')}.py", source.encode()
    for data in _DATA:
        yield f"ddx_tools/knowledge/{data}.json", json.dumps(shipped(data)).encode()
    yield PYSPY, Path(find_pyspy()).read_bytes()
    psutil = _place("psutil").parent
    for file in sorted(psutil.iterdir()):
        if file.suffix in (".py", ".so") and file.stem not in _OTHER_SYSTEMS:
            yield f"psutil/{file.name}", file.read_bytes()
    yield "pynvml.py", _place("pynvml").read_bytes()


def _modules(entry: str) -> dict[str, str]:
    """The source of each of our modules that a program needs, and of the replacements for others."""
    sources = {name: (HOST_AGENT_DIRECTORY / f"{file}.py").read_text("utf-8") for name, file in _STAND_INS.items()}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            tree = ast.parse(_place(name).read_text("utf-8"))
            sources[name] = older(tree)
            waiting += [one for one in _imported(tree) if one.startswith("ddx_tools.")]
    return sources


def _place(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise UsageError(f"{module} is not installed here, so nothing can be sent to hosts without ddx", "")
    return Path(spec.origin)


def _parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts)))


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a source imports anywhere; in `from package import name`, `name` may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                one = f"{node.module}.{alias.name}"
                yield one if _is_module(node.module, alias.name) else node.module


def _is_module(package: str, name: str) -> bool:
    if not package.startswith("ddx_tools"):
        return False
    place = _place(package)
    return place.name == "__init__.py" and place.with_name(f"{name}.py").is_file()


def older(tree: ast.Module) -> str:
    """Translate Python 3.11 source into equivalent Python 3.8 source. Raises SyntaxError if it cannot.

    Names missing from the old standard library come from `ddx_backports`; here is the rest.
    """
    source = ast.unparse(_Older().visit(tree))
    if "ddx_backports." in source:
        first = "from __future__ import annotations\n"
        source = source.replace(first, f"{first}import ddx_backports\n", 1)
    ast.parse(source, feature_version=OLDEST_PYTHON)
    return source


_GENERIC = frozenset({
    "tuple", "list", "dict", "set", "frozenset", "type", "Callable", "Iterator", "Iterable", "Mapping", "Sequence",
    "Counter", "deque", "defaultdict", "Match", "Pattern", "TemporaryDirectory", "Popen",
})  # fmt: skip
"""Classes that could not be subscripted in Python 3.8."""
_METHODS = {"removeprefix": "without_prefix", "removesuffix": "without_suffix", "fromisoformat": "moment"}


class _Older(ast.NodeTransformer):
    """Replaces syntax and calls that Python 3.8 lacks."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace newer methods, newer arguments, and unions in `isinstance`."""
        called = ast.unparse(node.func).rpartition(".")[2]
        if called == "isinstance" and isinstance(node.args[1], ast.BinOp):
            node.args[1] = ast.Tuple(list(_united(node.args[1])), ast.Load())
        self.generic_visit(node)
        if called in _METHODS and isinstance(node.func, ast.Attribute):
            return ast.copy_location(_ours(_METHODS[called], node.func.value, *node.args), node)
        later = {"zip": "strict", "dataclass": "slots"}.get(called)
        node.keywords = [keyword for keyword in node.keywords if keyword.arg is None or keyword.arg != later]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Replace `|`, which dictionaries lacked."""
        self.generic_visit(node)
        is_union = isinstance(node.op, ast.BitOr)
        return ast.copy_location(_ours("united", node.left, node.right), node) if is_union else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Replace `|=`, which dictionaries lacked."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        if any(isinstance(part, ast.Call) for part in ast.walk(node.target)):
            raise SyntaxError("the target of |= would be evaluated twice")
        before = ast.parse(ast.unparse(node.target), mode="eval").body
        now = ast.Assign([node.target], _ours("united_in_place", before, node.value))
        return ast.fix_missing_locations(ast.copy_location(now, node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leave annotations, which are never evaluated."""
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Leave annotations, which are never evaluated."""
        node.value = self.visit(node.value) if node.value else None
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Leave annotations, which are never evaluated."""
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Remove subscripts such as in `Counter[str]`."""
        self.generic_visit(node)
        is_generic = ast.unparse(node.value).rpartition(".")[2] in _GENERIC
        return node.value if is_generic and isinstance(node.ctx, ast.Load) else node


def _ours(function: str, *args: ast.expr) -> ast.Call:
    """Return a call of a function of `backports`."""
    return ast.Call(ast.Attribute(ast.Name("ddx_backports", ast.Load()), function, ast.Load()), list(args), [])


def _united(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _united(node.left)
        yield from _united(node.right)
    else:
        yield node
