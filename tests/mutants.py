"""Does anything notice a wrong edit? `make mutants` makes each edit of mutants.yaml in a copy of the tree and looks.

An edit is caught if the incident gate changes its mind, or else if a test of `tests/tools` fails; what lies near the
edit is asked first. Prints a line each and the share that is caught; exits 1 if one survives, 2 if an edit fits the
tree no more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = ("tools", "server", "evals")


def main(names: Sequence[str]) -> int:
    """Try the edits of these files (parts of a name will do), or all."""
    edits = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    wanted = [edit for edit in edits if not names or any(name in edit["file"] for name in names)]
    # One that fits no more would be said after minutes of others.
    for edit in wanted:
        if (REPOSITORY / edit["file"]).read_text(encoding="utf-8").count(edit["was"]) != 1:
            print(f"{edit['file']} does not hold this exactly once any more, mend mutants.yaml:\n{edit['was']}")
            return 2
    caught = [_tried(edit) for edit in wanted]
    print(f"{sum(caught)} of {len(caught)} wrong edits were caught")
    return int(not all(caught))


def _tried(edit: dict[str, str]) -> bool:
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        copy = Path(scratch) / "tree"
        kept_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")
        shutil.copytree(REPOSITORY, copy, ignore=kept_out, symlinks=True)
        mutant = copy / edit["file"]
        mutant.write_text(mutant.read_text(encoding="utf-8").replace(edit["was"], edit["is"]), encoding="utf-8")
        told = _caught_by(copy, edit)
        print(f"{edit['file']}: {edit['says']}: {told or 'SURVIVES'}", flush=True)
        return told is not None


def _caught_by(copy: Path, edit: dict[str, str]) -> str | None:
    edited = Path(edit["file"])
    near = _incidents_near(copy, edited)
    for incidents in [near, []] if near else [[]]:
        gate = _in(copy, "-m", "ddx_evals.gate", "--first", *incidents)
        if gate.returncode:
            changed = [line for line in gate.stdout.splitlines() if line.startswith(("lost", "other"))]
            said = changed or gate.stderr.splitlines()[-1:]
            return f"caught by the gate ({said[0] if said else 'which ended without a word'})"
    tests_near = _tests_near(copy, edited)
    for tests in [tests_near, ["tests/tools"]] if tests_near else [["tests/tools"]]:
        ran = _in(copy, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", "not long and not e2e", *tests)
        if ran.returncode == 1:
            failed = next(line.split()[1] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
            _expect_pass_without(copy, edit, failed)
            return f"caught by a test ({failed})"
    return None


def _expect_pass_without(copy: Path, edit: dict[str, str], test: str) -> None:
    """A test that fails in any case catches nothing, and hides those behind it: SystemExit with its name."""
    shutil.copy2(REPOSITORY / edit["file"], copy / edit["file"])
    if _in(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", test).returncode:
        sys.exit(f"{test} fails without any edit, too: mend it first")


def _incidents_near(copy: Path, edited: Path) -> list[str]:
    """Those whose answer is the cause of a page; of a module, none is nearer than others."""
    rows = [line.split("\t") for line in (copy / "evals/incidents/expected.tsv").read_text("utf-8").splitlines()]
    return sorted({case.rpartition("/")[0] for case, _, cause, *_ in rows if cause == edited.stem})


def _tests_near(copy: Path, edited: Path) -> list[str]:
    """The files of tests that name a page or the module's subject."""
    named = edited.stem if edited.suffix == ".md" else ".".join(edited.with_suffix("").parts[1:-1])
    return [str(file) for file in sorted((copy / "tests/tools").glob("test_*.py")) if named in file.read_text("utf-8")]


def _in(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    roots = os.pathsep.join(str(copy / root) for root in SOURCE_ROOTS)
    environment = {**os.environ, "PYTHONPATH": roots, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
