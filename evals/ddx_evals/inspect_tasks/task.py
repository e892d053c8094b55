"""The task: one sample per view of each incident.

inspect eval ddx_evals/incidents --model anthropic/… -T names=dev -T arm=server -T epochs=3
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from inspect_ai import Epochs, Task, task
from inspect_ai.dataset import MemoryDataset, Sample

from ddx_evals.agents.arm import Arm, Tools, arm_named
from ddx_evals.agents.prompt import told
from ddx_evals.baselines import Case
from ddx_evals.incidents import Incident, View, chosen_views, named_incidents, staged
from ddx_evals.inspect_tasks.scorers import graded, outcome
from ddx_evals.inspect_tasks.solver import REACT, investigated
from ddx_evals.sealed import sealing_fails
from ddx_tools.model.errors import UsageError

MOST_MESSAGES = 120
_IS_INSTALLED = Path(__file__).resolve().is_relative_to(Path(sysconfig.get_path("purelib")).resolve())
# Inspect prefixes names from installed packages, but does not recognise ours in an editable install.
_NAME = "incidents" if _IS_INSTALLED else "ddx_evals/incidents"


@task(name=_NAME)
def incidents(
    names: str | list[str] = "dev",
    views: str | list[str] = "full",
    arm: str = "server",
    agent: str = REACT,
    epochs: int = 1,
) -> Task:
    """The task over the incidents `names` (splits, ids, directories) in some views, with the tools of `arm`.

    `agent` is Inspect's own loop (`react`), or an agent of inspect_swe (`claude_code`, `codex_cli`), which works in the
    evaluation's sandbox. Raises UsageError for unknown names, or if it cannot run here.
    """
    given = arm_named(arm)
    if given.tools.has_material and (agent != REACT or (reason := sealing_fails())):
        why = f"{agent} works in its own sandbox" if agent != REACT else reason
        raise UsageError(f"the arm {arm} has a shell in a sealed place, and {why}", "Use the arm server.")
    wanted = chosen_views([views] if isinstance(views, str) else views)
    found = named_incidents([names] if isinstance(names, str) else names)
    samples = [_sample(each, view, given) for each in found for view in each.views if view in wanted]
    if not samples:
        raise UsageError("none of these incidents has such a view", f"Views: {', '.join(View)}")
    return Task(
        dataset=MemoryDataset(samples, name="incidents"),
        solver=investigated(str(given), agent),
        scorer=[outcome(), graded()],
        # For k tries at a case: the share that passed, and whether all did.
        epochs=Epochs(epochs, ["mean", f"pass_k_{epochs}"] if epochs > 1 else ["mean"]),
        message_limit=MOST_MESSAGES,
        metadata={"arm": str(given), "agent": agent},
    )


def _sample(incident: Incident, view: View, arm: Arm) -> Sample:
    """The model reads only `input`; the rest is for scorers and for readers of the log."""
    logs = {}
    if arm.tools is Tools.NONE:
        with staged(incident, view) as material:
            logs = Case(incident, view, material).logs
    return Sample(
        id=f"{incident.split}/{incident.id} {view}",
        input=told(incident.truth.prompt, arm, logs),
        target=incident.truth.cause,
        metadata={"incident": f"{incident.split}/{incident.id}", "view": str(view), "where": str(incident.directory)},
    )
