"""Does anything notice a wrong edit? `make mutants` makes each edit of mutants.yaml in a copy of the tree and looks.

An edit is caught if the incident gate changes its mind, or else if a test of `tests/tools` fails. Prints a line
each and the share that is caught; exits 1 if one survives, 2 if an edit fits the tree no more.
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
        gate = _in(copy, "-m", "ddx_evals.gate")
        changed = [line for line in gate.stdout.splitlines() if line.startswith(("lost", "other"))]
        if gate.returncode:
            told = f"caught by the gate ({len(changed)} cases)" if changed else "caught by the gate, which fails"
        else:
            tests = _in(
                copy, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", "not long and not e2e", "tests/tools"
            )
            told = "caught by a test" if tests.returncode == 1 else "SURVIVES"
        print(f"{edit['file']}: {edit['says']}: {told}", flush=True)
        return told != "SURVIVES"


def _in(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    roots = os.pathsep.join(str(copy / root) for root in SOURCE_ROOTS)
    environment = {**os.environ, "PYTHONPATH": roots, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
