"""One investigation: run the probes against a host, merge what they saw, judge it.

Live, recorded and brought-in material take the same path: the probes capture from a host, everything they
got is parsed into one store, every probe analyses the merged store once, and the playbooks judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ddx_tools.bundle import Bundle, BundleWriter, Manifest, ProbeRun, is_bundle, pack
from ddx_tools.cluster.asked_host import AskedHost
from ddx_tools.diagnose import diagnose
from ddx_tools.errors import HostError, NotRecorded, UnreadableInput, UsageError
from ddx_tools.exports import refuse_unwritable, write_pieces
from ddx_tools.formats.names import shown
from ddx_tools.hosts.base import UNKNOWN_HOST, Host
from ddx_tools.hosts.recorded import RecordedHost, RecordingHost
from ddx_tools.hosts.written import NOTE_PATH, WrittenNotes
from ddx_tools.model import Diagnosis, Finding, Missing, NextProbe, ProbeResult, ProbeStatus, Severity, Truncation
from ddx_tools.origins import origin_of, origins
from ddx_tools.playbook import load_playbooks
from ddx_tools.probe import Probe, Raw
from ddx_tools.probes import LIVE_PROBES, probe
from ddx_tools.sources.temporary import temporary_directory
from ddx_tools.store import Store

if TYPE_CHECKING:
    from ddx_tools.cluster.targets import Reach

Progress = Callable[[str], None]
Machine = Callable[[str | None], Host]
"""Makes the host that answers for this machine: under its own name, or under the one given."""
IMPORT_SECTION = "import"
_MOST_REASONS = 8
_BY_SEVERITY = {severity: place for place, severity in enumerate(reversed(Severity))}


@dataclass(frozen=True)
class Step:
    """One probe of a plan, and its arguments."""

    probe: Probe[Any]
    args: dict[str, Any]
    exports: Mapping[str, Path] = field(default_factory=dict)
    """Which of the probe's exports to write, and where."""
    host: Host | None = None
    """Who answers it, if not this machine."""


@dataclass
class Investigation:
    """What an investigation brought to light."""

    findings: list[Finding] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    results: list[ProbeResult] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    """For each raw file of the bundle: what was asked of the host to get it."""
    looked_at: list[str] = field(default_factory=list)
    """What there was to look at: lines for a person."""
    unanswered: list[str] = field(default_factory=list)
    """Of many hosts, those that did not answer or not wholly, why, and what to do."""

    def diagnose(self) -> Diagnosis:
        """The judgement of the shipped playbooks."""
        said = diagnose(self.findings, load_playbooks(), self.missing)
        return said.model_copy(update={"looked_at": self.looked_at})


def live_plan(target: Sequence[str], *, among_others: bool = False) -> list[Step]:
    """What to run against a live job; `among_others`: on one of its hosts."""
    stacks = {"looks": 2, "confirm_s": 5.0, **({"among_others": True} if among_others else {})}
    looks = {"stacks": stacks, "host": {"interval_s": 0.25}}
    return [Step(probe(id_), {"target": list(target), **looks.get(id_, {})}) for id_ in LIVE_PROBES]


def file_plan(target: Sequence[str]) -> list[Step]:
    """What to run over files and directories that somebody brought."""
    once = {"mesh": {"records": False}}  # which flight_recorder reads
    ids = ("stacks", "flight_recorder", "job_log", "nccl_log", "host", "env", "mesh", "notes")
    return [Step(probe(id_), {"target": list(target), **once.get(id_, {})}) for id_ in ids]


def _this_machine(name: str | None = None) -> Host:
    from ddx_tools.hosts.local import LocalHost

    return LocalHost(name)


def investigate(
    target: Sequence[str],
    save: Path | None = None,
    progress: Progress = lambda _: None,
    notes: Sequence[str] = (),
    *,
    machine: Machine = _this_machine,
    store: Store | None = None,
    reach: Reach | None = None,
) -> Investigation:
    """Investigate a live job (no target or pids), a bundle, or files and directories.

    With `reach`, the job is looked at on all these hosts, and the target holds at most files besides. `notes` is what
    somebody says about the job; it is kept with the rest. Raises `UsageError` if the target cannot be used. With
    `save`, the bundle is kept there. A `store` that is given takes the rows, and stays open.
    """
    if not all(target):
        raise UsageError("a target is empty", "Name a pid or a path; leave it out for the job on this host.")
    if reach:
        with _gathered(reach, live_plan([], among_others=True), target, save, progress) as directory:
            return replay(directory, progress, notes, store)
    if bundle := _the_bundle(target):
        return replay(bundle, progress, notes, store)
    for item in target:
        _refuse_absent(item)
    absolute = _absolute(target)
    paths, pids = _paths_and_pids(absolute)
    plan = [*(live_plan(pids) if pids or not paths else ()), *(file_plan(paths) if paths else ()), *_note_steps(notes)]
    return _capture(plan, absolute, save, progress, machine, store)


@contextmanager
def _gathered(
    reach: Reach, plan: Sequence[Step], target: Sequence[str], save: Path | None, progress: Progress
) -> Iterator[Path]:
    """The bundle of what many hosts say, and of files that were brought besides. Raises UsageError."""
    from ddx_tools.cluster.gather import gather

    paths, pids = _paths_and_pids(_absolute(target))
    if pids:
        raise UsageError(f"{pids[0]}: a pid means something on one host only", "Leave it out where hosts are named.")
    for path in paths:
        _refuse_absent(path)
    with _bundle_directory(save) as directory:
        gather(reach, plan, paths, directory, progress)
        yield directory


def capture_only(
    plan: Sequence[Step],
    directory: Path,
    target: Sequence[str] = (),
    machine: Machine = _this_machine,
    *,
    patient: bool = False,
) -> None:
    """Keep as a bundle what an investigation would look at, and conclude nothing. `patient`: see `_run`."""
    writer = BundleWriter(directory, list(target))
    try:
        hosts = RecordingHosts(writer, machine)
        for step in plan:
            raw = _run(step, hosts.of(step), patient=patient)
            writer.manifest.probes.append(probe_run(step, raw))
    finally:
        writer.close()


def _paths_and_pids(target: Sequence[str]) -> tuple[list[str], list[str]]:
    return [item for item in target if not item.isdigit()], [item for item in target if item.isdigit()]


def _note_steps(notes: Sequence[str]) -> list[Step]:
    spoken = [note for note in notes if note.strip()]
    return [Step(probe("notes"), {"target": [NOTE_PATH]}, host=WrittenNotes(UNKNOWN_HOST, spoken))] if spoken else []


def _the_bundle(target: Sequence[str]) -> Path | None:
    """The bundle, if the target is one."""
    path = Path(target[0]) if len(target) == 1 and _exists(target[0]) else None
    return path if path and is_bundle(path) else None


def _refuse_absent(item: str) -> None:
    if not item.isdigit() and not _exists(item):
        raise UsageError(
            f"{item}: no such file or directory",
            "Name a pid, a bundle, logs or dumps; or nothing, for the job on this host.",
        )


def _exists(item: str) -> bool:
    """Whether there is such a path; of a text that cannot be one (pasted by mistake, say) there is none."""
    try:
        return Path(item).exists()
    except (OSError, ValueError):
        return False


def _absolute(target: Sequence[str]) -> list[str]:
    """The target in the words of the journal, which do not depend on where somebody stood: pids, absolute paths."""
    return [item if item.isdigit() else str(Path(item).absolute()) for item in target]


def replay(
    path: Path, progress: Progress = lambda _: None, notes: Sequence[str] = (), store: Store | None = None
) -> Investigation:
    """Take a bundle through exactly the code that a live job takes; `notes` come on top of those that it holds."""

    def as_captured(manifest: Manifest) -> list[tuple[str, Step]]:
        return [(run.host, Step(probe(run.probe), run.args)) for run in manifest.probes]

    return _replay(path, as_captured, progress, _note_steps(notes), store, follow=True)


def _replay(
    path: Path,
    choose: Callable[[Manifest], list[tuple[str, Step]]],
    progress: Progress,
    on_top: Sequence[Step] = (),
    kept: Store | None = None,
    *,
    follow: bool = False,
) -> Investigation:
    """Run steps against the hosts of a bundle; a host that it does not hold answers nothing."""
    with Bundle(path) as bundle, _opened(kept) as store:
        found = Investigation(origins=origins(bundle.manifest.journal))
        hosts = RecordedHosts(bundle)
        steps = choose(bundle.manifest)
        for name, step in steps:
            progress(f"{step.probe.id} on {name} (recorded)")
            if name in bundle.manifest.hosts:
                raw = _run(step, hosts.of(name, step), patient=bool(bundle.manifest.asked))
                _parse(store, found, step, raw)
        _note_asked(store, found, bundle.manifest.asked)
        for step in on_top:
            if step.host:
                _parse(store, found, step, _run(step, step.host))
        _note_intakes(store, found, hosts.all)
        _analyse(store, found, [*(step for _, step in steps), *on_top], progress)
        if follow:
            _follow(store, found, bundle, {step.probe.id for _, step in steps}, progress)
        return found


def _note_asked(store: Store, found: Investigation, asked: Sequence[AskedHost]) -> None:
    """Say how many of many hosts answered; those that did not are findings of what a job is."""
    if not asked:
        return
    from ddx_tools.cluster.reasons import reasons

    store.insert({"asked_hosts": [one.model_dump() for one in asked]})
    found.unanswered = reasons(asked)
    found.missing += [
        Missing(what=line, why_it_matters="nothing is known of the ranks there") for line in found.unanswered
    ]
    answered = sum(one.state == "answered" for one in asked)
    idle = sum(one.jobs == 0 for one in asked)
    found.looked_at.append(
        f"{answered} of {len(asked)} hosts answered{f', {idle} of them without a job' if idle else ''}"
    )


def _follow(store: Store, found: Investigation, bundle: Bundle, done: set[str], progress: Progress) -> None:
    """Go on as the diagnosis asks, on the hosts that were asked the same at capture: to read that disturbs no job.

    What nobody asked there is no gap in what was captured, so it is not counted as missing.
    """
    while (check := found.diagnose().next_check) and check.probe != "ask" and check.probe not in done:
        done.add(check.probe)
        step = Step(probe(check.probe), {"target": [], **check.args})
        try:
            step.probe.args.model_validate(step.args)
        except ValidationError:  # what the page filled in is no argument for it
            continue
        kept = (entry for entry in bundle.manifest.journal if entry.path)
        asked = {entry.host for entry in kept if PurePosixPath(entry.path or "").parts[2:3] == (check.probe,)}
        raws = [_run(step, RecordedHost(bundle, host, step.probe.id)) for host in sorted(asked)]
        answered = [raw for raw in raws if raw.items and raw.status in (ProbeStatus.OK, ProbeStatus.PARTIAL)]
        for raw in answered:
            progress(f"{step.probe.id} on {raw.host}, which is the next check (recorded)")
            _parse(store, found, step, replace(raw, missing=[], problems=[]))
        if answered:
            _analyse(store, found, [step], progress)


def _opened(kept: Store | None) -> AbstractContextManager[Store]:
    """The caller's store, which stays open, or one for the time of the investigation."""
    return Store() if kept is None else nullcontext(kept)


def _capture(
    plan: Sequence[Step],
    target: Sequence[str],
    save: Path | None,
    progress: Progress,
    machine: Machine = _this_machine,
    kept: Store | None = None,
) -> Investigation:
    with _bundle_directory(save) as directory, _opened(kept) as store:
        writer = BundleWriter(directory, list(target), kept=save is not None)
        found = Investigation()
        raws: list[Raw] = []
        try:
            hosts = RecordingHosts(writer, machine)
            for step in plan:
                progress(step.probe.title.lower())
                raws.append(_run(step, hosts.of(step)))
                _parse(store, found, step, raws[-1])
                writer.manifest.probes.append(probe_run(step, raws[-1]))
            _refuse_nothing(raws, target, hosts.brought)
            _note_intakes(store, found, [hosts.brought])
            _analyse(store, found, plan, progress)
        finally:
            writer.close()
        found.origins = origins(writer.manifest.journal)
        return found


def _refuse_nothing(raws: Sequence[Raw], target: Sequence[str], brought: Host) -> None:
    """Files of which no probe can read any are unusable input, not an undecided case."""
    if not all(raw.host == UNKNOWN_HOST and not raw.items for raw in raws):
        return
    for item in target:
        _refuse_absent(item)
    materials = [material for taken in brought.intakes.values() for material in taken.materials]
    reasons = dict.fromkeys(shown(material.why_not) for material in materials if material.why_not)
    reasons |= dict.fromkeys(shown(line) for taken in brought.intakes.values() for line in taken.left_out)
    why = "; ".join(list(reasons)[:_MOST_REASONS])
    raise UsageError(
        f"nothing usable in {', '.join(target)[:300]}: no log, flight record, error file, stack dump, environment, "
        f"launch script or text of a machine ({why or f'{len(materials)} files were looked at'})",
        "Name the launcher's log, the ranks' logs, a directory of flight records, py-spy dumps, or a bundle.",
    )


def _note_intakes(store: Store, found: Investigation, hosts: Iterable[Host]) -> None:
    """Say what there was to look at, and what of it was not read."""
    for taken in [taken for host in hosts for taken in host.intakes.values()]:
        store.insert(taken.rows())
        if taken.host.name == UNKNOWN_HOST and any(material.path != NOTE_PATH for material in taken.materials):
            found.looked_at.append(taken.counts())
        gaps = [f"{shown(m.path)}: {m.why_not}" for m in taken.materials if m.cut and m.why_not]
        known = {missing.what for missing in found.missing}
        for gap in [gap for gap in [*gaps, *map(shown, taken.left_out)] if gap not in known][:_MOST_REASONS]:
            found.missing.append(Missing(what=gap, why_it_matters="what stands there was not looked at"))


class RecordedHosts:
    """The hosts of a bundle, each as every probe asks it; what was brought is read once for all."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._hosts: dict[tuple[str, str], RecordedHost] = {}

    @property
    def all(self) -> Iterable[Host]:
        """Those that were asked."""
        return self._hosts.values()

    def of(self, name: str, step: Step) -> Host:
        """Who answers a step on a host."""
        section = IMPORT_SECTION if name == UNKNOWN_HOST else step.probe.id
        if not any(entry.section for entry in self._bundle.manifest.journal):
            section = ""  # of version 1: one order of answers for all
        return self._hosts.setdefault((name, section), RecordedHost(self._bundle, name, section))


class RecordingHosts:
    """The hosts of one capture: this machine, and the one of files that somebody brought, which are read once."""

    def __init__(self, writer: BundleWriter, machine: Machine) -> None:
        self._writer = writer
        self._machine = machine
        self.brought: Host = RecordingHost(machine(UNKNOWN_HOST), writer, IMPORT_SECTION)
        """Where files come from that somebody brought: no host that we know."""

    def of(self, step: Step) -> Host:
        """Who answers a step, recorded."""
        if step.host:
            return RecordingHost(step.host, self._writer, IMPORT_SECTION)
        if any(not item.isdigit() for item in step.args["target"]):
            return self.brought
        return RecordingHost(self._machine(None), self._writer, step.probe.id)


def _run(step: Step, host: Host, *, patient: bool = False) -> Raw:
    """One capture. A probe that gets no answer costs only itself; a wrong target is the caller's error.

    With `patient`, as of one host among many, that costs only itself, too.
    """
    try:
        args = step.probe.args.model_validate(step.args)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UnreadableInput(f"{step.probe.id} has no such arguments ({where}: {first['msg']})") from error
    try:
        raw = step.probe.capture(host, args)
    except (HostError, UsageError) as error:
        if not patient and isinstance(error, UsageError):
            raise
        raw = Raw(host.name)
        what = f"{step.probe.id} on {host.name}" if patient else step.probe.id
        raw.failed(what, HostError(error.message, error.help), f"nothing is known of what {step.probe.id} looks at")
        raw.status = ProbeStatus.NOT_RECORDED if isinstance(error, NotRecorded) else ProbeStatus.NO_DATA
    if not raw.items and raw.status is ProbeStatus.PARTIAL:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _parse(store: Store, found: Investigation, step: Step, raw: Raw) -> None:
    store.insert(step.probe.parse(raw))
    known = {missing.what for missing in found.missing}
    found.missing.extend(missing for missing in raw.missing if missing.what not in known)
    found.results.append(
        ProbeResult(
            probe=step.probe.id,
            status=raw.status,
            summary="",
            searched=raw.searched,
            problems=raw.problems,
        )
    )


def _analyse(store: Store, found: Investigation, plan: Sequence[Step], progress: Progress) -> None:
    for step in {step.probe.id: step for step in plan}.values():
        progress(f"comparing {step.probe.title.lower()}")
        findings = step.probe.analyse(store) if store.holds_any(step.probe.rests_on) else []
        found.findings.extend(findings)
        worst_first = sorted(findings, key=lambda finding: _BY_SEVERITY[finding.severity])
        results = [result for result in found.results if result.probe == step.probe.id]
        for result in results:
            result.findings = worst_first
            result.summary = "; ".join(f.summary for f in worst_first[:3]) or "nothing to report"
            _show_rows(store, step.probe, result)
        _write_exports(store, step, findings, results, progress)


def _show_rows(store: Store, of: Probe[Any], result: ProbeResult) -> None:
    """The probe's table, cut to what one can read; what was left out is said."""
    if not of.table or not store.holds_any(of.rests_on):
        return
    rows = store.query(of.table) if isinstance(of.table, str) else of.table(store)
    result.table = rows[: of.most_rows]
    if len(rows) > of.most_rows:
        result.truncated.append(Truncation(shown=of.most_rows, total=len(rows), how=of.rest))


def _write_exports(
    store: Store, step: Step, findings: list[Finding], results: Sequence[ProbeResult], progress: Progress
) -> None:
    seen = any(result.status in (ProbeStatus.OK, ProbeStatus.PARTIAL) for result in results)
    for name, out in step.exports.items():
        if seen:
            write_pieces(out, step.probe.exports[name].write(store, findings), progress)
            continue
        for result in results:
            result.problems.append(f"{out} was not written: there is nothing to put into it")


def run_probe(
    step: Step,
    progress: Progress = lambda _: None,
    save: Path | None = None,
    *,
    machine: Machine = _this_machine,
    reach: Reach | None = None,
) -> tuple[ProbeResult, Investigation]:
    """One probe alone, live on this host or on many (`reach`), or (if the target is a bundle) recorded."""
    target = step.args["target"]
    for out in step.exports.values():
        refuse_unwritable(out)

    def as_asked(manifest: Manifest) -> list[tuple[str, Step]]:
        """As it was asked at capture, unless told otherwise; a probe that did not run then, of every host."""
        runs = [(run.host, run.args) for run in manifest.probes if run.probe == step.probe.id]
        asked = runs or [(name, {"target": manifest.target}) for name in manifest.hosts]
        return [(name, replace(step, args={**step.args, **args, **_told(step)})) for name, args in asked]

    asking = _gathered(reach, [step], target, save, progress) if reach else nullcontext(_the_bundle(target))
    with asking as bundle:
        if bundle:
            found = _replay(bundle, as_asked, progress)
        else:
            absolute = _absolute(target)
            found = _capture(_parted(step, absolute), absolute, save, progress, machine)
    if not found.results:
        raise UnreadableInput(f"{target[0]} names no host: there is nothing to look at")
    result = _as_one(found.results) if reach or not bundle else found.results[0]
    result.problems += found.unanswered
    cited = {evidence.source for finding in result.findings for evidence in finding.evidence}
    result.origins = {source: origin for source in sorted(cited) if (origin := origin_of(source, found.origins))}
    result.next = _next(found, step.probe)
    return result, found


def _as_one(results: Sequence[ProbeResult]) -> ProbeResult:
    """What one probe says of what runs and of what was brought."""
    first, *others = results
    for other in others:
        first.searched += other.searched
        first.problems += other.problems
        if first.status in (ProbeStatus.NO_DATA, ProbeStatus.NOT_RECORDED):
            first.status = other.status
    return first


def _parted(step: Step, target: Sequence[str]) -> list[Step]:
    """A step about pids and files is two: what runs is asked of this machine, what was brought of no host."""
    paths, pids = _paths_and_pids(target)
    if not (paths and pids):
        return [replace(step, args={**step.args, "target": list(target)})]
    about_files = {name: value for name, value in step.args.items() if name in step.probe.about_files}
    live = {name: value for name, value in step.args.items() if name not in about_files}
    return [
        replace(step, args={**live, "target": pids}),
        replace(step, args={**about_files, "target": paths}, exports={}),
    ]


def _told(step: Step) -> dict[str, Any]:
    """Arguments, other than what to look at, that are not what they are if nobody says anything."""
    fields = step.probe.args.model_fields
    return {
        name: value
        for name, value in step.args.items()
        if name != "target" and value != fields[name].get_default(call_default_factory=True)
    }


def _next(found: Investigation, done: Probe[Any]) -> list[NextProbe]:
    """The probe that would best go on from what one probe saw, if the playbooks know one."""
    check = found.diagnose().next_check if found.findings else None
    if check is None or check.probe in ("ask", done.id):
        return []
    return [NextProbe(probe=check.probe, args=check.args, why=check.question)]


def probe_run(step: Step, raw: Raw) -> ProbeRun:
    """What a bundle's manifest tells of a capture."""
    return ProbeRun(
        probe=step.probe.id,
        host=raw.host,
        args=step.args,
        status=raw.status,
        problems=raw.problems,
        missing=raw.missing,
    )


@contextmanager
def _bundle_directory(save: Path | None) -> Iterator[Path]:
    """Where the bundle is written: kept if somebody named a place, else gone at the end."""
    if save is None or save.name.endswith(".tar.zst"):
        with temporary_directory("capture") as directory:
            yield Path(directory) / "bundle"
            if save is not None and (Path(directory) / "bundle").is_dir():
                pack(Path(directory) / "bundle", save)
        return
    yield save
