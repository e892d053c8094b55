"""The process that captures and judges: `python -m ddx_server.run.look_process TARGET BUNDLE SECONDS`.

It prints one JSON object: the fields of `ddx_server.run.look.JudgedLook`, except the last two.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddx_tools.model.diagnosis import Finding
from ddx_tools.model.errors import DdxError
from ddx_tools.redaction.published import published_json

_WORK = frozenset({"compile", "checkpoint", "checkpoint_io", "evaluation", "import"})
"""Activities and contexts of a rank that its peers may occasionally wait for in a healthy job."""
_GONE = frozenset({"rank.process_gone", "rank.killed", "rank.raised"})
_UNSEEN = frozenset({"rank.unreadable"})
_BEHIND = frozenset({"rank.waited_for", "collective.missing_ranks"})
"""Findings from records about a rank outside the collective, for when its stack cannot be read."""
_PR_SET_PDEATHSIG = 1


def _seen(target: str, bundle: Path) -> dict[str, Any]:
    from ddx_server.render.brief import brief
    from ddx_tools.diagnosis.playbook import load_playbooks
    from ddx_tools.investigation.run import investigate

    found = investigate([target], save=bundle)
    diagnosis = found.diagnose()
    cause = diagnosis.causes[0].id if diagnosis.causes else ""
    playbooks = load_playbooks()
    # A cause that is only possible does not change who waits for whom.
    known = playbooks.causes[cause].symptoms if diagnosis.verdict == "diagnosed" else []
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
        "moving": bool(outside) and all(finding.attributes.get("moving") for finding in outside),
        "slows": bool(known) and all(playbooks.symptoms[symptom].goes_on for symptom in known),
        "diagnosis": json.loads(published_json(diagnosis)),
    }


def _is_at_work(finding: Finding) -> bool:
    about = {finding.attributes.get("activity"), *finding.attributes.get("contexts", [])}
    return bool(about & _WORK) and finding.attributes.get("moving") is not False


def main(argv: Sequence[str]) -> int:
    """Capture and judge the target, and print the result as JSON."""
    target, bundle, limit_s = argv
    # If memory runs out, the job has priority. The CPU is used fully: time is short, and the job hangs.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Nor does a capture outlive the process that asked for it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.alarm(int(float(limit_s)) + 1)
    try:
        seen = _seen(target, Path(bundle))
    except DdxError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    except Exception as error:
        # A bug in ddx: report where it happened, too.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        Path(bundle).with_name("look-failed.txt").write_text(traceback.format_exc(), encoding="utf-8")
        print(f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})", file=sys.stderr)
        return 70
    print(json.dumps(seen), flush=True)
    # No remaining cleanup is worth the time.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
