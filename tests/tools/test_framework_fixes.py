"""A framework's own fix comes first where the framework is seen, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.show.frameworks import framework_fixes, own_fixes

RAISED = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    trainer.fit(model)
  File "/usr/lib/python3/site-packages/{package}/trainer/trainer.py", line 538, in fit
    call._call_and_handle_interrupt(
RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error \
indicates that your module has parameters that were not used in producing loss.
"""


def test_every_fix_is_for_a_cause_that_there_is() -> None:
    causes = load_playbooks().causes
    for one in framework_fixes():
        assert one.fixes.keys() <= causes.keys(), one.framework


def test_a_fix_is_told_to_whom_it_helps() -> None:
    assert own_fixes("uneven-data", {"Accelerate"})[0].startswith("Accelerate: ")
    assert own_fixes("uneven-data", set()) == own_fixes("gil-held", {"Accelerate"}) == []


def test_a_traceback_through_a_framework_brings_its_own_fix_first(tmp_path: Path) -> None:
    for package, told in (("lightning/pytorch", True), ("strange", False)):
        log = tmp_path / f"{package.split('/')[0]}.log"
        log.write_text(RAISED.format(package=package))
        said = investigate([str(log)]).diagnose()
        assert said.causes[0].id == "ddp-unused-parameter"
        if said.fix:
            assert said.fix[0].startswith("Lightning: ") is told
