"""Prompts: users' typical questions, each with the tools to call, cheapest first.

They name tools and pages; knowledge of causes is in the playbooks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ddx_tools.probes.registry import PROBES

if TYPE_CHECKING:
    from mcp.server import MCPServer


@dataclass(frozen=True)
class _Look:
    """One step, with a probe that this version may lack."""

    probe: str
    why: str


@dataclass(frozen=True)
class _Walk:
    name: str
    title: str
    question: str
    symptom: str
    """The playbook page to follow."""
    looks: tuple[_Look, ...]


_WALKS = (
    _Walk(
        name="why_is_my_job_hung",
        title="Why is my job hung?",
        question="My distributed training job hangs. Which rank and line hold it up, why, and what do I do?",
        symptom="hang",
        looks=(
            _Look("jobs", "which processes are ranks of the job, and is any missing, stopped or restarted?"),
            _Look("stacks", "where is every rank, and which one is not where the waiting ranks are?"),
            _Look(
                "flight_recorder", "what did each rank enqueue and complete, and which one is behind, in which group?"
            ),
            _Look("job_log", "did a rank fail before the others began to wait?"),
            _Look("nccl_log", "if it never started: did every rank join the communicator, and over which transport?"),
        ),
    ),
    _Walk(
        name="why_is_it_slow",
        title="Why is my job slow?",
        question="My distributed training job is slow. Which rank, host or link holds it up, and why?",
        symptom="slow",
        looks=(
            _Look("flight_recorder", "which rank is late at the collectives, and is it always the same one?"),
            _Look("stacks", "what is the late rank doing while the others wait?"),
            _Look("host", "is a GPU throttled, a link degraded, or a CPU or disk busy on its host?"),
            _Look("nccl_log", "which transport was chosen, and is it the same everywhere?"),
            _Look("mesh", "does a mesh dimension with much traffic cross hosts?"),
            _Look("env", "do the settings differ between ranks?"),
        ),
    ),
    _Walk(
        name="why_did_it_crash",
        title="Why did my job crash?",
        question="My distributed training job crashed. Which rank failed first, why, and what do I change?",
        symptom="crash",
        looks=(
            _Look(
                "job_log", "which failure came first? The others follow from it (aborts, SIGTERM, closed connections)"
            ),
            _Look("host", "was a process OOM-killed, or did a GPU report an error at that time?"),
            _Look("flight_recorder", "what was running on each rank when it ended?"),
            _Look("nccl_log", "did the transport fail before the first failure, or because of it?"),
            _Look("env", "do versions or settings differ between ranks?"),
        ),
    ),
)

_READY = _Walk(
    name="is_this_cluster_ready",
    title="Is this cluster ready?",
    question="I am about to start a distributed training job. Is anything wrong with these machines or settings?",
    symptom="startup",
    looks=(
        _Look("env", "are the settings valid and the same everywhere, and would a hang be diagnosable?"),
        _Look("host", "are GPUs, links, memory limits and shared memory healthy on every host?"),
        _Look("network", "does every host reach every other host over the interface that the job will use?"),
        _Look("nccl_log", "if there are logs from an earlier start: which transport was chosen?"),
        _Look("preflight", "it sends traffic, so ask me first: do the links reach the expected bandwidth?"),
    ),
)

_TARGET = Annotated[str, Field(description="A pid, paths of logs or dumps, or an incident id; empty: the job here.")]
_SEEN = Annotated[str, Field(description="What you have seen or tried, in your own words.")]


def register_prompts(server: MCPServer) -> None:
    """Register the prompts with the server; they leave out probes that this version does not have."""
    for walk in _WALKS:
        _register(server, walk, _investigation)
    _register(server, _READY, _inspection)


def _register(server: MCPServer, walk: _Walk, steps: Callable[[_Walk], list[str]]) -> None:
    @server.prompt(name=walk.name, title=walk.title, description=walk.question)
    def prompt(target: _TARGET = "", seen: _SEEN = "") -> str:
        asked = [walk.question]
        if target:
            asked.append(f"Target: {target}")
        if seen:
            asked.append(f"What I have seen: {seen}")
        return "\n".join([*asked, "", *steps(walk)])


def _investigation(walk: _Walk) -> list[str]:
    return [
        "Follow these steps, and stop as soon as the question is answered:",
        "1. `diagnose` the target; without one, it looks at the job on this machine.",
        "2. If the job still runs, `capture_incident` before anybody restarts it: its id is the target from then on.",
        f"3. `read_playbook`, page `{walk.symptom}`: what to look at, and where each answer leads.",
        "4. While more than one cause is left, run the check that `next_check` names. In general, cheapest first:",
        *_looks(walk),
        "5. `read_playbook`, page of the leading cause: look for evidence against it, and for its look-alikes.",
        "6. `report_diagnosis`: quoted evidence, culprits and victims, fix and verification. If the evidence",
        "   does not decide, the verdict is `undecided`, with the check that would decide.",
    ]


def _inspection(walk: _Walk) -> list[str]:
    return [
        "Follow these steps:",
        "1. Check the cheapest first. No job is needed; a launch script or a log from an earlier start helps:",
        *_looks(walk),
        f"2. `read_playbook`, page `{walk.symptom}`, and the page of each cause that a finding points at: is it real?",
        "3. Tell me what to change before I start, worst first, with the evidence, and what could not be checked.",
        "   Whatever was not checked is unknown, not ready.",
    ]


def _looks(walk: _Walk) -> list[str]:
    probes = {probe.id for probe in PROBES}
    return [f"   - `{look.probe}`: {look.why}" for look in walk.looks if look.probe in probes]
