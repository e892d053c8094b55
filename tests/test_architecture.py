"""The shape of the house: which room may import which, what each keeps to, and that a probe can be removed."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from import_graph import PACKAGES, ROOT, folder_graph, module_files, reached_from, room_graph

from ddx_tools.probes.declaration import Later
from ddx_tools.probes.registry import PROBES

MOST_LINES_OF_A_FUNCTION = 60
MOST_ROOMS = 12


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_form_no_cycle(package: str) -> None:
    TopologicalSorter(folder_graph(package)).prepare()


def test_rooms_form_no_cycle() -> None:
    TopologicalSorter(room_graph()).prepare()


def test_the_top_of_the_tools_has_few_names() -> None:
    top = PACKAGES["ddx_tools"]
    names = {file.relative_to(top).parts[0] for file in top.rglob("*.py")} - {"__init__.py"}
    assert len(names) <= MOST_ROOMS, sorted(names)


def test_no_parser_opens_a_file_or_a_process() -> None:
    calls = {"open", "read_text", "read_bytes", "Popen", "run", "check_output", "system"}
    modules = {"subprocess", "socket", "os", "shutil", "tempfile", "urllib"}
    offending = []
    for file in (PACKAGES["ddx_tools"] / "parsers").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in calls:
                offending.append(f"{file.name}:{node.lineno}: {ast.unparse(node.func)}")
            if isinstance(node, ast.Import) and modules & {alias.name.split(".")[0] for alias in node.names}:
                offending.append(f"{file.name}:{node.lineno}: {ast.unparse(node)}")
    assert not offending, offending


def test_what_analyses_rows_calls_no_parser() -> None:
    known = module_files("ddx_tools")
    starts = {name for name in known if name.startswith(("ddx_tools.analysis.", "ddx_tools.diagnosis."))}
    for probe in PROBES:
        if isinstance(probe.analyse, Later):
            starts.add(probe.analyse.place.partition(":")[0])
    offending = [f"{name} imports {other}" for name, other in reached_from(starts, known) if ".parsers" in other]
    assert not offending, offending


def test_nobody_imports_the_package_of_a_probe_but_itself() -> None:
    for folder, others in folder_graph("ddx_tools").items():
        mine = ".".join(folder.split(".")[:3])
        foreign = {one for one in others if one.startswith("ddx_tools.probes.") and not one.startswith(mine)}
        assert not foreign, f"{folder} imports {foreign}"


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(list)
    for source in PACKAGES.values():
        for file in source.rglob("*.py"):
            if "payloads" not in file.parts:
                for node in ast.parse(file.read_text("utf-8")).body:
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        places[node.name].append(file.relative_to(ROOT).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_functions_fit_on_a_screen() -> None:
    """Not the length of a file is the smell: a file is as long as its one story. The options of a command are none."""
    lengths: Counter[str] = Counter()
    for source in PACKAGES.values():
        for file in source.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno is not None
                    lengths[f"{file.relative_to(ROOT)}: {node.name}"] = node.end_lineno - node.body[0].lineno + 1
    assert {name: n for name, n in lengths.items() if n > MOST_LINES_OF_A_FUNCTION} == {}


def test_the_map_in_contributing_is_as_the_imports_are() -> None:
    drawn = subprocess.run(
        [sys.executable, ROOT / "docs/draw_rooms.py"], capture_output=True, text=True, check=True
    ).stdout
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert drawn in page, "python docs/draw_rooms.py --write"
    rooms = {file.relative_to(PACKAGES["ddx_tools"]).parts[0] for file in PACKAGES["ddx_tools"].rglob("*.py")}
    assert [room for room in rooms - {"__init__.py"} if f"`{room}/" not in page] == []


# --- a probe is removed

BUNDLE = ROOT / "tests/fixtures/stacks/lock-order.tar.zst"
ITS_PROBES = ["jobs", "stacks", "flight_recorder", "job_log"]

_PACKAGES_OF_PROBES = sorted({probe.args.__module__.split(".")[2] for probe in PROBES})


@pytest.mark.parametrize(
    "removed",
    [
        pytest.param(package, marks=[] if package in ("preflight", "network") else [pytest.mark.long])
        for package in _PACKAGES_OF_PROBES
    ],
)
def test_without_a_probe_the_rest_works(removed: str, tmp_path: Path) -> None:
    """Its command is gone, everything imports, and an incident that does not need it is judged."""
    copy = tmp_path / "tools"
    shutil.copytree(PACKAGES["ddx_tools"], copy / "ddx_tools", ignore=shutil.ignore_patterns("__pycache__"))
    for data in ("playbooks", "skill"):
        shutil.copytree(ROOT / data, tmp_path / data)
    shutil.rmtree(copy / "ddx_tools/probes" / removed)
    log = tmp_path / "job.log"
    log.write_text("[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: boom\n")
    names = [probe.id for probe in PROBES if f".probes.{removed}." in probe.args.__module__]
    program = f"""
import importlib, pathlib, sys
import ddx_tools
root = pathlib.Path(ddx_tools.__file__).parent
assert root == pathlib.Path({str(copy / "ddx_tools")!r})
for file in sorted(root.rglob("*.py")):
    if "payloads" not in file.parts:
        importlib.import_module(".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"))
from ddx_tools.probes.registry import PROBES
assert not {{probe.id for probe in PROBES}} & set({names!r})
from ddx_tools.investigation.run import investigate
if {removed!r} != "job_log":
    found = investigate([{str(log)!r}]).diagnose()
    assert found.verdict == "diagnosed", found.headline
replayed = investigate([{str(BUNDLE)!r}])
named = [name for name in {ITS_PROBES!r} if any(f"the probe {{name}} is not" in gap.what for gap in replayed.missing)]
assert named == [name for name in {ITS_PROBES!r} if name in {names!r}], replayed.missing
if {removed!r} not in {ITS_PROBES!r}:
    assert replayed.diagnose().culprits.ranks == [3], replayed.diagnose().headline
from ddx_server.start import main
sys.argv = ["ddx", "--help"]
main()
"""
    path = os.pathsep.join([str(copy), str(ROOT / "server"), str(ROOT / "evals")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    commands = {line.strip("│ ").split(" ")[0] for line in done.stdout.splitlines()}
    assert not commands & {name.replace("_", "-") for name in names}
    assert "why" in commands
