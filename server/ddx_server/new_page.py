"""`ddx playbook new ID`: creates the page of a new cause, ready to be filled in."""

from __future__ import annotations

import re
from pathlib import Path

from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.errors import UsageError

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_PAGE = """\
---
kind: cause
id: {id}
title: the rank …            # continues "Rank 3 at train.py:41: "
category: rank-absent        # that of similar causes: ddx playbook
symptoms: [hang]
refines: [rank-stuck]        # the more general cause
decides:
  - all:                     # ddx facts --codes WORD finds codes and their attributes
      - {{finding: rank.outside_collective, where: {{activity: sleep}}, as: odd}}
    strength: moderate       # conclusive, strong, moderate, weak
    says: "{{odd.ranks}} sleeps at {{odd.place}}"
culprits: [odd]
next_check:
  - probe: ask
    question: "What to look at next, with the command? One result: this cause. Another: that one."
    separates: [{id}]
fix: ["What to change, and where."]
verify: ["What you see once it is fixed."]
---

What happens, and why, in one paragraph for a tired person.

## Recognise it

## By hand

1. A command with stock tools, and what its output says.

## What the evidence does not prove

- Other causes that look the same; what NCCL and Gloo show differently.
"""


def write_page(page_id: str) -> Path:
    """Write the page of a new cause to `playbooks/causes`, or here if there is no such folder. Raises UsageError."""
    if not _ID.fullmatch(page_id):
        raise UsageError(
            f"{page_id[:80]!r} is not a valid cause id", "Use lower-case words with dashes: loader-out-of-files."
        )
    known = load_playbooks()
    if page_id in known.causes or page_id in known.symptoms:
        raise UsageError(f"there is already a page {page_id!r}", f"Read it: ddx playbook {page_id}")
    folder = Path("playbooks/causes")
    place = (folder if folder.is_dir() else Path()) / f"{page_id}.md"
    try:
        with place.open("x", encoding="utf-8") as file:
            file.write(_PAGE.format(id=page_id))
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror or error}", "Choose another id, or another folder.") from error
    return place
