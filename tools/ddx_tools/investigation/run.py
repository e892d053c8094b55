"""One investigation: run the probes against hosts, merge the results, judge them.

Live, recorded and user-supplied material takes the same path: the probes capture from a host, everything is parsed into
one store, every probe analyses the merged store once, and the playbooks judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ddx_tools.analysis.ranks.seats import read_seats
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.exports import write_exports
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.session.capture import (
    Captured,
    Machine,
    Progress,
    bundle_directory,
    capture_here,
    capture_recorded,
    result_of,
    run_step,
)
from ddx_tools.investigation.session.metrics import metrics_question
from ddx_tools.investigation.session.plan import Step, debug_server_plan, file_plan, live_plan
from ddx_tools.investigation.show.addresses import Names, names_of
from ddx_tools.investigation.show.case import case_of
from ddx_tools.investigation.show.frameworks import frameworks_of, versions_of
from ddx_tools.investigation.show.gaps import still_missing, unused
from ddx_tools.investigation.show.jobs_of_hosts import jobs_by_rank
from ddx_tools.investigation.show.origins import origins
from ddx_tools.investigation.show.suspect_view import sight_of
from ddx_tools.model.diagnosis import (
    HOST_NOT_LOOKED_AT,
    NOT_LOOKED_AT,
    Diagnosis,
    Finding,
    Missing,
    ProbeStatus,
    Severity,
)
from ddx_tools.model.errors import UsageError
from ddx_tools.model.files.names import shown
from ddx_tools.probes.declaration import Probe
from ddx_tools.probes.registry import PROBES, probe_if_present
from ddx_tools.sources.asked_host import AskedHost
from ddx_tools.sources.bundle import Bundle, JournalEntry, Manifest, claimed, is_bundle
from ddx_tools.sources.host import UNKNOWN_HOST, Host, HostCall, Reply
from ddx_tools.sources.hosts.recorded import RecordedHost
from ddx_tools.sources.hosts.written import NOTE_PATH, WrittenNotes
from ddx_tools.sources.raw import Raw
from ddx_tools.sources.temporary import temporary_directory

if TYPE_CHECKING:
    from ddx_tools.investigation.many_hosts.gather import HostsGathered
    from ddx_tools.sources.cluster.targets import Reach
    from ddx_tools.sources.hosts.local import LocalHost

_MOST_REASONS = 8
_BY_SEVERITY = {severity: place for place, severity in enumerate(reversed(Severity))}


def this_machine(name: str | None = None) -> LocalHost:
    """The machine that ddx runs on, able to perform calls that are themselves investigations."""
    from ddx_tools.sources.hosts.local import LocalHost

    return LocalHost(name, {one.id: partial(_perform, one) for one in PROBES if one.performs})


def _perform(one: Probe[Any], call: HostCall) -> Reply:
    assert one.performs is not None
    return Reply(str(one.performs(one.args.model_validate(call.options), ask_why)).encode())


def ask_why(target: str, bundle: Path) -> Diagnosis:
    """Diagnose a pid or a path and save the capture as a bundle."""
    return investigate([target], save=bundle).diagnose()


def investigate(
    target: Sequence[str],
    save: Path | None = None,
    progress: Progress = lambda _: None,
    notes: Sequence[str] = (),
    *,
    machine: Machine = this_machine,
    store: Store | None = None,
    reach: Reach | None = None,
    told: Sequence[Finding] = (),
    debug_server: str | None = None,
    prometheus: str | None = None,
) -> Investigation:
    """Investigate a live job (no target or pids), a bundle, or files and directories.

    With `reach`, the job is captured on all these hosts, and the target may add only files. `notes` are remarks about
    the job, saved with the rest. `told` are submitted facts and findings. With `save`, the bundle is saved there. A
    given `store` receives the rows and stays open. `debug_server` is HOST:PORT of torch's debug server, which is asked
    about the job; `prometheus` is the URL of a Prometheus server, which is asked about the job's hosts. Raises
    `UsageError` if the target cannot be used.
    """
    if not all(target):
        raise UsageError("a target is empty", "Name a pid or a path; omit it for the job on this host.")
    if prometheus:
        from ddx_tools.sources.hosts.metrics_client import server_of

        prometheus = server_of(prometheus)
    if debug_server:
        _refuse_other_jobs(target, reach)
        plan = [*debug_server_plan(debug_server), *(file_plan(absolute_target(target)) if target else ())]
        return capture_steps(
            [*plan, *_note_steps(notes)],
            absolute_target(target),
            save,
            progress,
            machine,
            store,
            told,
            prometheus=prometheus,
        )
    if reach:
        plan = live_plan([], among_others=True)
        return investigate_hosts(reach, plan, target, save, progress, notes, store, told, prometheus=prometheus)
    if bundle := bundle_of(target):
        return replay(bundle, progress, notes, store, told, prometheus=prometheus)
    if beside := _files_beside_a_bundle(target):
        bundle, files = beside
        return replay(bundle, progress, notes, store, told, prometheus=prometheus, files=files)
    for item in target:
        _refuse_unusable(item)
    absolute = absolute_target(target)
    paths, pids = paths_and_pids(absolute)
    plan = [*(live_plan(pids) if pids or not paths else ()), *(file_plan(paths) if paths else ()), *_note_steps(notes)]
    return capture_steps(plan, absolute, save, progress, machine, store, told, prometheus=prometheus)


def _refuse_other_jobs(target: Sequence[str], reach: Reach | None) -> None:
    """Raise UsageError if a debug server, which answers for its whole job, is combined with hosts or a pid."""
    if reach:
        raise UsageError(
            "the debug server answers for all hosts of its job", "Name either the debug server or the hosts."
        )
    for item in target:
        if item.isdigit():
            raise UsageError(
                "the debug server answers for its own job", f"Name either the debug server or process {item}."
            )
        _refuse_unusable(item)


def investigate_hosts(
    reach: Reach,
    plan: Sequence[Step],
    target: Sequence[str],
    save: Path | None,
    progress: Progress,
    notes: Sequence[str] = (),
    kept: Store | None = None,
    told: Sequence[Finding] = (),
    *,
    prometheus: str | None = None,
) -> Investigation:
    """Run steps on many hosts, collect their rows, and judge them together; see `investigate`.

    The target may contain only files from the user.
    """
    from ddx_tools.investigation.many_hosts.gather import gather
    from ddx_tools.investigation.many_hosts.merge import BundlePart, merge

    paths, pids = paths_and_pids(absolute_target(target))
    if pids:
        raise UsageError(f"{pids[0]}: a pid means something on one host only", "Omit it if hosts are named.")
    for path in paths:
        _refuse_unusable(path)
    besides = [*(file_plan(paths) if paths else ()), *_note_steps(notes)]
    with (
        bundle_directory(save) as directory,
        claimed(directory) if save else nullcontext(),
        temporary_directory("hosts") as scratch,
        _opened(kept) as store,
    ):
        brought = Path(scratch) / "brought"
        with capture_here(besides, brought, paths, this_machine) as captured:
            came = gather(reach, plan, store, Path(scratch), progress, raw=save is not None)
            captured = replace(captured, steps=[*plan, *besides], brought=None, live=False)
            found = conclude(store, captured, progress, told, came=came, prometheus=prometheus)
        if save:
            own = [BundlePart(brought)] if besides or prometheus else []
            merge([*came.parts, *own], directory, came.asked)
        return found


def paths_and_pids(target: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a target into its paths and its pids."""
    return [item for item in target if not item.isdigit()], [item for item in target if item.isdigit()]


def _note_steps(notes: Sequence[str]) -> list[Step]:
    spoken = [note for note in notes if note.strip()]
    reader = probe_if_present("notes")
    if not (spoken and reader):
        return []
    return [Step(reader, {"target": [NOTE_PATH]}, host=WrittenNotes(UNKNOWN_HOST, spoken))]


def bundle_of(target: Sequence[str]) -> Path | None:
    """The path of the bundle, if the target is one; otherwise None."""
    path = Path(target[0]) if len(target) == 1 and _exists(target[0]) else None
    return path if path and is_bundle(path) else None


def _files_beside_a_bundle(target: Sequence[str]) -> tuple[Path, list[str]] | None:
    """A bundle and the files that are named with it; None if the target is not exactly one bundle and files."""
    bundles = [item for item in target if not item.isdigit() and _exists(item) and is_bundle(Path(item))]
    files = [item for item in target if item not in bundles]
    if len(bundles) != 1 or any(item.isdigit() for item in files):
        return None
    for item in files:
        _refuse_unusable(item)
    return Path(bundles[0]), absolute_target(files)


def _refuse_unusable(item: str) -> None:
    if Path(item).is_relative_to("/proc") and Path(item).is_dir():
        raise UsageError(f"{item} is a kernel file, not evidence from a job", "Name a process by its pid: ddx why PID")
    if not item.isdigit() and not _exists(item):
        raise UsageError(
            f"{item}: no such file or directory",
            'Put remarks after --note: ddx why … --note "…"'
            if " " in Path(item).name and not Path(item).suffix
            else "Name a pid, a bundle, logs or dumps. Default: the job on this host.",
        )
    if not item.isdigit() and is_bundle(Path(item)):
        # Read as a file among others it would lose its evidence.
        raise UsageError(
            f"{item} is a bundle, which is judged alone or with files",
            f"Judge it first: ddx why {item}. Then the others, in a command without it.",
        )


def _exists(item: str) -> bool:
    """Whether a path exists; False also for a text that cannot be a path (pasted by mistake, say)."""
    try:
        return Path(item).exists()
    except (OSError, ValueError):
        return False


def absolute_target(target: Sequence[str]) -> list[str]:
    """The target independent of the working directory, as the journal keeps it: pids and absolute paths."""
    return [item if item.isdigit() else str(Path(item).absolute()) for item in target]


def replay(
    path: Path,
    progress: Progress = lambda _: None,
    notes: Sequence[str] = (),
    store: Store | None = None,
    told: Sequence[Finding] = (),
    *,
    prometheus: str | None = None,
    files: Sequence[str] = (),
) -> Investigation:
    """Investigate a bundle with the same code as a live job; `notes` and `told` are added to its contents.

    `files` are absolute paths on this machine to read as well. `prometheus` is the URL of a metrics server to ask now;
    without it, a bundle's own answers of one are replayed.
    """

    def as_captured(manifest: Manifest) -> list[tuple[str, Step]]:
        known = [(run, probe_if_present(run.probe)) for run in manifest.probes]
        absent.update({run.probe: None for run, reader in known if reader is None})
        return [(run.host, Step(reader, run.args)) for run, reader in known if reader]

    absent: dict[str, None] = {}
    on_top = _note_steps(notes)
    found = replay_steps(
        path, as_captured, progress, on_top, store, told, follow=True, prometheus=prometheus, files=files
    )
    found.missing += [
        Missing(what=f"the probe {name} is not installed here", why_it_matters=NOT_LOOKED_AT) for name in absent
    ]
    return found


def replay_steps(
    path: Path,
    choose: Callable[[Manifest], list[tuple[str, Step]]],
    progress: Progress,
    on_top: Sequence[Step] = (),
    kept: Store | None = None,
    told: Sequence[Finding] = (),
    *,
    follow: bool = False,
    prometheus: str | None = None,
    files: Sequence[str] = (),
) -> Investigation:
    """Run steps against the hosts of a bundle; with `follow`, also run the next checks. See `capture_recorded`.

    `files` on this machine are read as well, and not added to the bundle.
    """
    with (
        capture_recorded(path, choose, progress, on_top) as (captured, bundle),
        _files_read(files, captured, progress),
        _opened(kept) as store,
    ):
        found = conclude(store, captured, progress, told, follow=bundle if follow else None, prometheus=prometheus)
        found.is_incomplete = bool(bundle.gaps())
        found.lacking = bundle.gaps(found.missing)
        found.missing += found.lacking
        return found


@contextmanager
def _files_read(files: Sequence[str], captured: Captured, progress: Progress) -> Iterator[None]:
    """Add to a recorded capture what files on this machine say."""
    if not files:
        yield
        return
    with (
        temporary_directory("brought") as scratch,
        capture_here(file_plan(files), Path(scratch) / "bundle", files, this_machine, progress, kept=False) as here,
    ):
        captured.steps += here.steps
        captured.raws += here.raws
        captured.hosts += here.hosts
        more = {
            "journal": [*captured.manifest.journal, *here.manifest.journal],
            "target": [*captured.manifest.target, *files],
        }
        captured.manifest = captured.manifest.model_copy(update=more)
        yield


def _note_asked(store: Store, found: Investigation, asked: Sequence[AskedHost]) -> None:
    """Report how many hosts answered; hosts that did not become findings of the `jobs` probe."""
    if not asked:
        return
    from ddx_tools.sources.cluster.targets import reasons

    store.insert({"asked_hosts": [one.model_dump() for one in asked]})
    found.unanswered = reasons(asked)
    # These come first, so that no other gap is reported in their place.
    found.missing[:0] = [Missing(what=line, why_it_matters=HOST_NOT_LOOKED_AT) for line in found.unanswered]
    answered = sum(one.state == "answered" for one in asked)
    idle = sum(one.jobs == 0 for one in asked)
    found.looked_at.append(
        f"{answered} of {len(asked)} hosts answered{f', {idle} of them without a job' if idle else ''}"
    )


def _follow(store: Store, found: Investigation, bundle: Bundle, done: set[str], progress: Progress) -> None:
    """Run the diagnosis's next checks on the recorded hosts that were asked the same: reading these disturbs no job.

    A question that was not asked at capture is not a gap of the capture, so it is not counted as missing.
    """
    while (check := found.judge().next_check) and check.probe != "ask" and check.probe not in done:
        done.add(check.probe)
        reader = probe_if_present(check.probe)
        if reader is None:
            continue
        step = Step(reader, {"target": [], **check.args})
        try:
            step.probe.args.model_validate(step.args)
        except ValidationError:  # the arguments that the page filled in do not fit
            continue
        kept = (entry for entry in bundle.manifest.journal if entry.path)
        asked = {entry.host for entry in kept if PurePosixPath(entry.path or "").parts[2:3] == (check.probe,)}
        raws = [run_step(step, RecordedHost(bundle, host, step.probe.id)) for host in sorted(asked)]
        answered = [raw for raw in raws if raw.items and raw.status in (ProbeStatus.OK, ProbeStatus.PARTIAL)]
        for raw in answered:
            progress(f"{step.probe.id} on {raw.host}: the next check (recorded)")
            _parse(store, found, step, replace(raw, missing=[], problems=[]))
        if answered:
            _analyse(store, found, [step], progress)


def _opened(kept: Store | None) -> AbstractContextManager[Store]:
    """The caller's store, which stays open, or a temporary one for the investigation."""
    return Store() if kept is None else nullcontext(kept)


def capture_steps(
    plan: Sequence[Step],
    target: Sequence[str],
    save: Path | None,
    progress: Progress,
    machine: Machine = this_machine,
    kept: Store | None = None,
    told: Sequence[Finding] = (),
    *,
    prometheus: str | None = None,
) -> Investigation:
    """Run steps against this machine and judge the results; see `investigate`."""
    with (
        bundle_directory(save) as directory,
        _opened(kept) as store,
        capture_here(plan, directory, target, machine, progress, kept=save is not None) as captured,
    ):
        return conclude(store, captured, progress, told, prometheus=prometheus)


def conclude(
    store: Store,
    captured: Captured,
    progress: Progress,
    told: Sequence[Finding] = (),
    *,
    came: HostsGathered | None = None,
    follow: Bundle | None = None,
    prometheus: str | None = None,
) -> Investigation:
    """Read a capture into the store, let every probe analyse it, and judge the findings.

    `came` are the answers of many hosts, whose rows are already in the store. `follow` is the bundle for next checks.
    `prometheus` is the URL of a metrics server, which is asked once it is known about which hosts and which time.
    Raises UsageError if no probe can use the user's files.
    """
    found = Investigation(live=captured.live)
    if came:
        found.missing = list({one.what: one for one in came.said.missing}.values())
        found.results = came.said.results
    # Only now is it known which probes want the lines of which log.
    for step, raw in captured.raws:
        _parse(store, found, step, raw)
    if captured.brought:
        _refuse_nothing([raw for _, raw in captured.raws], captured.manifest.target, captured.brought)
    _note_asked(store, found, came.asked if came else captured.manifest.asked)
    _note_intakes(store, found, captured.hosts)
    steps, journal = list(captured.steps), list(captured.manifest.journal)
    if prometheus:
        live = captured.live or came is not None
        asked = metrics_question(store, prometheus, this_machine(UNKNOWN_HOST), live=live)
        found.missing += asked.missing
        steps.append(asked.step)
        journal = _ask_besides(store, found, captured, asked.step, progress)
    # Sorting the rows of thousands of ranks takes seconds, and with several probes nobody reads them.
    _analyse(store, found, steps, progress, shown=not came or len(came.said.results) == 1)
    if follow:
        _follow(store, found, follow, {step.probe.id for step in captured.steps}, progress)
    names = names_of(journal, captured.manifest.target, kept=captured.kept)
    found.origins = origins(journal)
    if came:
        names.places |= came.said.opens
        found.origins |= came.said.origins
    _look_closer(store, found, names, told)
    return found


def _ask_besides(
    store: Store, found: Investigation, captured: Captured, step: Step, progress: Progress
) -> list[JournalEntry]:
    """Run one more step on this machine, and read its answers. Returns the journal with them.

    What is asked about a bundle is not added to it.
    """
    journal = captured.manifest.journal
    if captured.ask:
        raw = captured.ask(step)
    else:
        with (
            temporary_directory("asked") as scratch,
            capture_here([step], Path(scratch) / "bundle", [], this_machine, progress, kept=False) as here,
        ):
            raw, journal = here.raws[0][1], [*journal, *here.manifest.journal]
    _parse(store, found, step, raw)
    found.looked_at += raw.searched
    return journal


def _look_closer(store: Store, found: Investigation, names: Names, told: Sequence[Finding]) -> None:
    """Derive views that need the rows while they exist, and add submitted findings."""
    from ddx_tools.diagnosis.waits import waits_of

    found.told = list(told)
    found.findings += found.told
    found.missing = [*still_missing(store, found.missing), *unused(found.findings)]
    found.jobs = jobs_by_rank(store)
    found.frameworks = frameworks_of(store)
    found.versions = versions_of(store)
    names.of_rows(store)
    found.names = names
    found.waits = waits_of(store, found.findings, found.seats)
    found.sight = sight_of(store, found.judge(), found.frameworks)
    found.case = case_of(store, names, found.waits)


def _refuse_nothing(raws: Sequence[Raw], target: Sequence[str], brought: Host) -> None:
    """Raise UsageError if no probe can read any of the files: that is unusable input, not an undecided case."""
    if not all(raw.host == UNKNOWN_HOST and not raw.items for raw in raws):
        return
    for item in target:
        _refuse_unusable(item)
    materials = [material for taken in brought.intakes.values() for material in taken.materials]
    reasons = dict.fromkeys(shown(material.why_not) for material in materials if material.why_not)
    reasons |= dict.fromkeys(shown(line) for taken in brought.intakes.values() for line in taken.left_out)
    reasons |= dict.fromkeys(shown(problem.replace("\n", ". ")) for raw in raws for problem in raw.problems)
    told = [reason for reason in reasons if not any(other.startswith(f"{reason}. ") for other in reasons)]
    why = "; ".join(told[:_MOST_REASONS])
    raise UsageError(
        f"nothing usable in {', '.join(target)[:300]}: no log, flight record, trace, error file, stack dump, "
        f"environment, launch script or machine report ({why or f'{len(materials)} files were examined'})",
        "Name the launcher's log, the ranks' logs, a directory of flight records, py-spy dumps, or a bundle.",
    )


def _note_intakes(store: Store, found: Investigation, hosts: Iterable[Host]) -> None:
    """Record which files were examined, and which were not read."""
    for taken in [taken for host in hosts for taken in host.intakes.values()]:
        store.insert(taken.rows())
        if taken.host.name == UNKNOWN_HOST and any(material.path != NOTE_PATH for material in taken.materials):
            found.looked_at.append(taken.counts())
        known = {missing.what for missing in found.missing}
        found.missing += [gap for gap in taken.gaps() if gap.what not in known][:_MOST_REASONS]


def _parse(store: Store, found: Investigation, step: Step, raw: Raw) -> None:
    if step.probe.id == "notes":
        found.said += [item.data.decode("utf-8", "replace") for item in raw.of("note")]
    store.insert(step.probe.parse(raw))
    known = {missing.what for missing in found.missing}
    found.missing.extend(missing for missing in raw.missing if missing.what not in known)
    if raw.host == UNKNOWN_HOST:
        told = [missing.what for missing in raw.missing]
        problems = [problem.rstrip(".") for problem in raw.problems]
        unread = [problem for problem in problems if problem not in known and not problem.startswith(tuple(told))]
        found.missing.extend(Missing(what=problem, why_it_matters=NOT_LOOKED_AT) for problem in unread)
    found.results.append(result_of(step, raw))


def _analyse(
    store: Store, found: Investigation, plan: Sequence[Step], progress: Progress, *, shown: bool = True
) -> None:
    """Let the probes analyse the store; with `shown`, also sort the rows for display."""
    found.seats = read_seats(store)
    for step in {step.probe.id: step for step in plan}.values():
        progress(f"comparing {step.probe.title.lower()}")
        findings = step.probe.analyse(store) if store.holds_any(step.probe.rests_on) else []
        found.findings.extend(findings)
        worst_first = sorted(findings, key=lambda finding: _BY_SEVERITY[finding.severity])
        results = [result for result in found.results if result.probe == step.probe.id]
        summary = "; ".join(f.summary for f in worst_first[:3]) or "nothing to report"
        table, cut = step.probe.shown(store) if shown else ([], [])
        for result in results:
            result.findings, result.summary, result.table, result.truncated = worst_first, summary, table, cut
        write_exports(store, step, findings, results, progress)
