"""What the repository promises as a whole, file by file."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from ddx_tools.diagnosis.playbook import Cause, Symptom, load_playbooks
from ddx_tools.knowledge import resources
from ddx_tools.knowledge.finding_codes import finding_codes
from ddx_tools.probes.declaration import Later
from ddx_tools.probes.registry import PROBES

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests/fixtures"


def repository_files() -> Iterator[Path]:
    """Every file that .gitignore does not exclude."""
    patterns = [line.strip().strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines() if line]
    ignored = [".git", *patterns]
    for directory, subdirectories, names in os.walk(ROOT):
        subdirectories[:] = [d for d in subdirectories if not any(fnmatch.fnmatch(d, i) for i in ignored)]
        yield from (Path(directory, name) for name in names if not any(fnmatch.fnmatch(name, i) for i in ignored))


def python_files() -> Iterator[Path]:
    return (file for file in repository_files() if file.suffix == ".py" and not file.is_relative_to(FIXTURES))


def in_repository(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


# Where somebody worked on this, rather than where a job may run.
FOREIGN = re.compile(
    rb"""
      (?<![\w.~}>-]) / (?: work | builds | home/runner ) /   # checkouts of build machines
    | [/.] pyenv / versions | / opt / [\w-]* (?: pypi | wheels )
    | https?:// [\w.-]* (?: pypi | pythonhosted | artifactory | devpi | nexus ) [\w.-]*
    | \.\. / shared /
    """,
    re.VERBOSE,
)


def test_no_file_tells_where_it_was_made() -> None:
    own = [re.escape(os.fsencode(path)) for path in {ROOT, Path(sys.base_prefix)} if len(path.parts) > 2]
    patterns = [FOREIGN, *(re.compile(rb"%s(?![\w-])" % path) for path in own)]
    offending = [
        f"{in_repository(file)}: {match[0]!r}"
        for file in repository_files()
        for pattern in patterns
        if (match := pattern.search(file.read_bytes()))
    ]
    assert not offending, "\n".join(offending)


def test_every_wrong_edit_can_be_made() -> None:
    edits = yaml.safe_load((ROOT / "tests/mutants.yaml").read_text("utf-8"))
    fits = {edit["file"]: (ROOT / edit["file"]).read_text("utf-8").count(edit["was"]) for edit in edits}
    assert {file: times for file, times in fits.items() if times != 1} == {}


def test_no_module_needs_itself() -> None:
    """Neither at once nor through others; an import within a function, made to break a circle, counts."""
    modules = {
        ".".join(file.relative_to(ROOT / root).with_suffix("").parts): file
        for root in ("tools", "server", "evals")
        for file in (ROOT / root).glob("ddx_*/**/*.py")
    }
    TopologicalSorter({name: set(_imported(file)) & modules.keys() for name, file in modules.items()}).prepare()


def _imported(file: Path) -> Iterator[str]:
    """Modules that run when this one does. What only types need does not count."""
    pending: list[ast.AST] = [ast.parse(file.read_text("utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{name.name}" for name in node.names))
        pending.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize(
    "payload", sorted(resources.payloads_dir().rglob("*.py")), ids=lambda path: path.name.removesuffix(".py")
)
def test_payloads_are_python_3_8(payload: Path) -> None:
    ast.parse(payload.read_text(encoding="utf-8"), str(payload), feature_version=(3, 8))


def test_playbooks_name_probes_that_exist() -> None:
    playbooks = load_playbooks()
    pages: list[Symptom | Cause] = [*playbooks.symptoms.values(), *playbooks.causes.values()]
    assert pages
    known = {probe.id for probe in PROBES} | {"ask"}
    unknown = {(page.id, check.probe) for page in pages for check in page.next_check if check.probe not in known}
    assert not unknown


def test_what_probes_import_later_is_there() -> None:
    for probe in PROBES:
        writes = [export.write for export in probe.exports.values()]
        for step in (probe.capture, probe.parse, probe.analyse, probe.table, *writes):
            if isinstance(step, Later):
                module, _, name = step.place.partition(":")
                assert callable(getattr(import_module(module), name)), step


def test_every_finding_is_registered() -> None:
    raised = {
        code.value
        for file in (ROOT / "tools").rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func).lower().endswith("finding")
        for code in (*call.args[:1], *(given.value for given in call.keywords if given.arg == "code"))
        if isinstance(code, ast.Constant) and "." in str(code.value)
    }
    assert len(raised) > 100
    assert raised <= finding_codes().keys()


def test_the_skill_says_what_it_is_for() -> None:
    page = (resources.skill_dir() / "debug-distributed/SKILL.md").read_text(encoding="utf-8")
    _, front_matter, text = page.split("---\n", 2)
    head = yaml.safe_load(front_matter)
    assert head.keys() == {"name", "description"}
    assert head["name"] == "debug-distributed"
    assert 100 < len(head["description"]) < 1024
    assert "ddx why --json" in text
