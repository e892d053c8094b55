"""The wheel: what is in it, that it works where there is no checkout, and who may import whom."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddx_tools.knowledge import resources

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "ddx_tools": ROOT / "tools/ddx_tools",
    "ddx_server": ROOT / "server/ddx_server",
    "ddx_evals": ROOT / "evals/ddx_evals",
}
DATA = {"playbooks": ROOT / "playbooks", "skill": ROOT / "skill", "lab": ROOT / "evals/lab"}


def run(argv: Sequence[str | Path], **options: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        argv, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT])
    (built,) = out.glob("*.whl")
    return built


class Installed:
    """An environment that holds the wheel, sees our dependencies, and does not see the checkout."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        venv.create(directory, with_pip=False)
        self.bin = directory / "bin"
        self.elsewhere = directory / "elsewhere"
        self.elsewhere.mkdir()
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"]
        run([*pip, "--no-deps", "--no-index", str(wheel)])
        # A directory that a .pth file names is searched for packages, but its own .pth files, such as the one
        # of the editable install, are not read.
        dependencies = next(entry for entry in sys.path if entry.endswith("site-packages"))
        (self.site / "dependencies.pth").write_text(dependencies + "\n", encoding="utf-8")

    @property
    def site(self) -> Path:
        (site,) = self.bin.parent.glob("lib/python3*/site-packages")
        return site

    def run(self, program: str, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return run([self.bin / program, *arguments], cwd=self.elsewhere, env=environment)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("environment"), wheel)


def files_below(directory: Path) -> set[str]:
    files = (file.relative_to(directory) for file in directory.rglob("*") if file.is_file())
    return {file.as_posix() for file in files if "__pycache__" not in file.parts}


def test_the_wheel_holds_the_packages_and_the_data_and_nothing_else(wheel: Path) -> None:
    expected = {f"{name}/{file}" for name, source in PACKAGES.items() for file in files_below(source)}
    expected |= {f"ddx_tools/_data/{name}/{file}" for name, source in DATA.items() for file in files_below(source)}
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.parametrize(
    "file",
    [
        "ddx_tools/evidence/schema.sql",
        "ddx_tools/knowledge/frames.yaml",
        "ddx_tools/payloads/rank_agent.py",
        "ddx_tools/payloads/site/sitecustomize.py",
        "ddx_tools/_data/playbooks/symptoms/hang.md",
        "ddx_tools/_data/skill/debug-distributed/SKILL.md",
        "ddx_tools/_data/lab/jobs/ddp/train.py",
        "ddx_tools/_data/lab/scenarios/healthy.yaml",
    ],
)
def test_the_wheel_holds(wheel: Path, file: str) -> None:
    assert file in zipfile.ZipFile(wheel).namelist()


def test_an_installed_wheel_uses_nothing_of_the_checkout(installed: Installed) -> None:
    program = (
        "import ddx_tools, ddx_server, ddx_evals\n"
        "from ddx_tools.knowledge import resources as r\n"
        "modules = [m.__file__ for m in (ddx_tools, ddx_server, ddx_evals)]\n"
        "data = [r.playbooks_dir(), r.skill_dir(), r.lab_dir(), r.payloads_dir()]\n"
        "print(*modules, *data, sep='\\n')"
    )
    paths = [Path(line) for line in installed.run("python", "-c", program).splitlines()]
    assert len(paths) == 7
    for path in paths:
        assert path.exists()
        assert path.is_relative_to(installed.site.resolve())


def test_an_installed_ddx_shows_help_and_playbooks(installed: Installed) -> None:
    assert "ddx why" in installed.run("ddx", "--help")
    assert "rank-crashed" in installed.run("ddx", "playbook")


def test_a_checkout_finds_its_own_data() -> None:
    found = {
        "playbooks": resources.playbooks_dir(),
        "skill": resources.skill_dir(),
        "lab": resources.lab_dir(),
    }
    assert found == DATA
    assert (resources.payloads_dir() / "rank_agent.py").is_file()


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [("ddx_tools", {"ddx_server", "ddx_evals"}), ("ddx_server", {"ddx_evals"})],
)
def test_dependencies_point_one_way(package: str, forbidden: set[str]) -> None:
    offending = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in PACKAGES[package].rglob("*.py")
        for name in imports(file)
        if name.split(".")[0] in forbidden
    }
    assert not offending


def test_every_module_can_be_imported_without_torch() -> None:
    modules = [
        ".".join(file.relative_to(source.parent).with_suffix("").parts)
        for source in PACKAGES.values()
        for file in source.rglob("*.py")
        # What starts when it is imported: an entry point, and what Python itself runs at its start. What Inspect
        # imports is made of its decorators.
        if file.name not in ("__main__.py", "sitecustomize.py") and file.parent.name != "inspect_tasks"
    ]
    program = f"""
import importlib, sys
for extra in ("torch", "anthropic", "inspect_ai"):
    sys.modules[extra] = None
for module in {sorted(modules)!r}:
    importlib.import_module(module.removesuffix(".__init__"))
"""
    run([sys.executable, "-c", program])


def test_a_small_log_is_judged_without_what_only_larger_material_needs(tmp_path: Path) -> None:
    """At the second start, that is: the first one has parsed the playbooks for those that follow."""
    log = tmp_path / "job.log"
    log.write_text("[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: boom\n")
    slow = ["torch", "pyarrow", "numpy", "yaml", "tree_sitter", "ClusterShell", "anthropic", "mcp"]
    program = f"""
import sys
from ddx_tools.investigation.run import investigate
assert investigate([{str(log)!r}]).diagnose().verdict == "diagnosed"
print([name for name in {slow!r} if name in sys.modules])
"""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    run([sys.executable, "-c", program], env=environment)
    assert run([sys.executable, "-c", program], env=environment) == "[]\n"


def test_the_command_line_starts_without_what_is_slow_to_import() -> None:
    slow = ["torch", "duckdb", "pyarrow", "anthropic", "mcp"]
    program = f"import sys, ddx_server.cli; print([name for name in {slow!r} if name in sys.modules])"
    assert run([sys.executable, "-c", program]) == "[]\n"
