"""Look at a job and judge it, in a process of its own: whatever becomes of that, the job and its output go on.

`python -m ddx_server.run.look TARGET BUNDLE SECONDS` prints one JSON object, the fields of `Look` but the last two.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddx_tools.errors import DdxError

if TYPE_CHECKING:
    from ddx_tools.model import Finding

_WORK = frozenset({"compile", "checkpoint", "checkpoint_io", "evaluation", "import"})
"""Activities and contexts of a rank that its peers may have to wait for, now and then, in a healthy job."""
_GONE = frozenset({"rank.process_gone", "rank.killed", "rank.raised"})
_UNSEEN = frozenset({"rank.unreadable"})
_BEHIND = frozenset({"rank.waited_for", "collective.missing_ranks"})
"""What records say of a rank that is elsewhere, where its stack cannot be read."""
_NICE = 10
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Look:
    """What was seen and judged."""

    verdict: str
    key: str
    """The same for two looks that say the same: cause and culprits."""
    lines: list[str]
    """For a person."""
    lasting: bool
    """Whether it cannot heal by itself: no rank is elsewhere that could still come, or one is stopped or gone."""
    waiting: bool
    """Whether a rank was seen to wait for others."""
    at_work: bool
    """Whether the ranks that others wait for compile, write a checkpoint or evaluate, and move."""
    diagnosis: dict[str, Any] = field(default_factory=dict)
    """As `ddx why --json` prints it."""
    bundle: Path | None = None
    took_s: float = 0.0


class LookFailed(Exception):
    """There is no answer. The text says why."""


def look_beside(target: str, bundle: Path, limit_s: float) -> Look:
    """Look at `target` (a pid, or what is left of a job) in a process of its own; keep the bundle.

    Raises LookFailed if that process fails, or takes longer than `limit_s`.
    """
    began = time.monotonic()
    # -P: what lies in the job's directory is not for us to import.
    argv = [sys.executable, "-P", "-m", __name__, target, str(bundle), str(limit_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True) as child:
        try:
            out, errors = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise LookFailed(f"it took longer than {limit_s:g} s") from error
        finally:
            # With it go the programs that it has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    try:
        seen = json.loads(out)
    except ValueError as error:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        raise LookFailed(last[0][:300]) from error
    return Look(**seen, bundle=bundle if bundle.exists() else None, took_s=time.monotonic() - began)


def _seen(target: str, bundle: Path) -> dict[str, Any]:
    from ddx_server.render.brief import brief
    from ddx_tools.investigate import investigate

    found = investigate([target], save=bundle)
    diagnosis = found.diagnose()
    cause = diagnosis.causes[0].id if diagnosis.causes else ""
    outside = [finding for finding in found.findings if finding.code == "rank.outside_collective"]
    codes = {finding.code for finding in found.findings}
    waiting = "collective.peers_wait" in codes
    may_come = bool(outside) or bool(codes & _UNSEEN and codes & _BEHIND)
    return {
        "verdict": diagnosis.verdict,
        "key": f"{diagnosis.verdict} {cause} {diagnosis.culprits.ranks} {diagnosis.culprits.hosts}",
        "lines": brief(diagnosis),
        "lasting": "rank.stopped" in codes or (waiting and (bool(codes & _GONE) or not may_come)),
        "waiting": waiting,
        "at_work": bool(outside) and all(map(_is_at_work, outside)),
        "diagnosis": json.loads(diagnosis.to_json()),
    }


def _is_at_work(finding: Finding) -> bool:
    about = {finding.attributes.get("activity"), *finding.attributes.get("contexts", [])}
    return bool(about & _WORK) and finding.attributes.get("moving") is not False


def main(argv: Sequence[str]) -> int:
    """The process of its own."""
    target, bundle, limit_s = argv
    # The job comes first: for the CPU, and when memory runs out.
    os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Nor does a look outlive whom it is for.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.alarm(int(float(limit_s)) + 1)
    try:
        seen = _seen(target, Path(bundle))
    except DdxError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    print(json.dumps(seen), flush=True)
    # Nothing is left to tidy up that is worth the time.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
