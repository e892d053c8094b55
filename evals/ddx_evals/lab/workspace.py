"""The copy of a job that runs: a plain training directory, changed only by the scenario's edits."""

import re
import shutil
import tempfile
from pathlib import Path

from ddx_evals.lab.scenario import Scenario, ScenarioError, scenario_file
from ddx_tools.knowledge.resources import lab_dir


def new_workdir() -> Path:
    """Create a directory with a neutral name, such as /tmp/run-k3x9q2ab."""
    return Path(tempfile.mkdtemp(prefix="run-")).resolve()


_MAKES_A_GROUP = r"(?:init_process_group\(|init_distributed\(dist_backend=|DDPStrategy\(process_group_backend=)"
_LIMITS = (
    (re.compile(rf'({_MAKES_A_GROUP}"gloo")\)'), r'\1, timeout=__import__("datetime").timedelta(seconds={}))'),
    (re.compile(r'("--timeout-s", type=\w+, default=)[\d_.]+'), r"\g<1>{}"),
    # On CPUs, Transformers does not pass on `ddp_timeout`.
    (
        re.compile(r"^( *)(?=return TrainingArguments\()", re.MULTILINE),
        r'\1__import__("torch").distributed.init_process_group'
        r'("gloo", timeout=__import__("datetime").timedelta(seconds={}))\n\1',
    ),
)
"""The places where lab jobs set the timeout of collectives, or leave it to torch."""


def limit_collectives(workdir: Path, limit_s: int) -> None:
    """Set the timeout of collectives in the copy in `workdir`. Raises ScenarioError if there is no place for it."""
    path = workdir / "train.py"
    source, edits = path.read_text(encoding="utf-8"), 0
    for pattern, limited in _LIMITS:
        source, count = pattern.subn(limited.format(limit_s), source)
        edits += count
    if edits != 1:
        raise ScenarioError(
            f"{path} creates its process group in an unsupported way", "Choose a scenario with another job."
        )
    path.write_text(source, encoding="utf-8")


def prepare(scenario: Scenario, nproc: int, step: int, workdir: Path) -> None:
    """Copy the scenario's job into `workdir` and apply its edits. Raises ScenarioError."""
    jobs_dir = lab_dir() / "jobs"
    job_dir = jobs_dir / scenario.job
    if not (job_dir / "train.py").is_file():
        known = ", ".join(sorted(path.parent.name for path in jobs_dir.glob("*/train.py")))
        raise ScenarioError(
            f"scenario {scenario.id}: there is no job {scenario.job!r} in {jobs_dir}", f"Jobs: {known}."
        )
    shutil.copytree(job_dir, workdir, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in scenario.patch:
        path = workdir / edit.file
        source = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = source.count(edit.find)
        if found != 1:
            raise ScenarioError(
                f"scenario {scenario.id}: {edit.file} contains the text {edit.find!r} {found} times, not once",
                f"Fix `find` in {scenario_file(scenario.id)}; edits are applied in order to a copy of {job_dir}.",
            )
        replacement = scenario.fill(edit.replace, nproc, step)
        path.write_text(source.replace(edit.find, replacement), encoding="utf-8")
