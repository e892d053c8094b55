"""Runs the steps of a plan against hosts, live or in a bundle, and keeps the answers in a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from ddx_tools.investigation.session.plan import Step
from ddx_tools.model.diagnosis import ProbeResult, ProbeStatus
from ddx_tools.model.errors import HostError, NotRecorded, UnreadableInput, UsageError
from ddx_tools.sources.bundle import Bundle, BundleWriter, Manifest, ProbeRun
from ddx_tools.sources.host import UNKNOWN_HOST, Host
from ddx_tools.sources.hosts.recorded import RecordedHost, RecordingHost
from ddx_tools.sources.packed_bundle import PACKED_SUFFIX, NameTaken, pack
from ddx_tools.sources.raw import Raw
from ddx_tools.sources.temporary import temporary_directory

Progress = Callable[[str], None]
Machine = Callable[[str | None], Host]
"""Creates the host that answers for this machine, under its own name or the given one."""
IMPORT_SECTION = "import"
_MOST_NAMES = 100
_OTHER_ARCHIVES = {".zip", ".tgz", ".gz", ".tar", ".xz", ".bz2"}


class RecordedHosts:
    """The hosts of a bundle, one per probe section; the user's files are read once for all probes."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._hosts: dict[tuple[str, str], RecordedHost] = {}

    @property
    def all(self) -> Iterable[Host]:
        """All hosts that were asked."""
        return self._hosts.values()

    def of(self, name: str, step: Step) -> Host:
        """The host that answers a step."""
        section = IMPORT_SECTION if name == UNKNOWN_HOST else step.probe.id
        if not any(entry.section for entry in self._bundle.manifest.journal):
            section = ""  # of version 1 has one sequence of answers for all probes
        return self._hosts.setdefault((name, section), RecordedHost(self._bundle, name, section))


class RecordingHosts:
    """The hosts of one capture: this machine, and a host for the user's files, which are read once."""

    def __init__(self, writer: BundleWriter, machine: Machine) -> None:
        self._writer = writer
        self._machine = machine
        self.brought: Host = RecordingHost(machine(UNKNOWN_HOST), writer, IMPORT_SECTION)
        """The host of the user's files: which machine they come from is unknown."""

    def of(self, step: Step) -> Host:
        """The host that answers a step; its answers are recorded."""
        if step.host:
            return RecordingHost(step.host, self._writer, IMPORT_SECTION)
        if any(not item.isdigit() for item in step.args["target"]):
            return self.brought
        return RecordingHost(self._machine(None), self._writer, step.probe.id)


@dataclass
class Captured:
    """The answers of hosts, live or from a bundle, not parsed yet."""

    manifest: Manifest
    """The manifest of the bundle that holds the answers; its journal grows while texts are read."""
    steps: list[Step] = field(default_factory=list)
    """The steps to analyse, including those that no host here answered."""
    raws: list[tuple[Step, Raw]] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)
    """The hosts that were asked, each once."""
    brought: Host | None = None
    """The host of the user's files, at least one of which must be usable."""
    live: bool = False
    kept: bool = True
    """Whether the bundle can be opened later."""
    ask: Callable[[Step], Raw] | None = None
    """Runs one more step here and keeps its answers in the same bundle; None for a recorded capture."""


def run_step(step: Step, host: Host, *, patient: bool = False) -> Raw:
    """Run one probe on a host and return its raw answers.

    If the host cannot answer, the result has status "no data" or "not recorded" and a gap. Raises UsageError for a
    wrong target; with `patient` (one host among many), this is a gap as well.
    """
    try:
        args = step.probe.args.model_validate(step.args)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UnreadableInput(f"invalid arguments for {step.probe.id} ({where}: {first['msg']})") from error
    try:
        raw = step.probe.capture(host, args)
    except (HostError, UsageError) as error:
        if not patient and isinstance(error, UsageError):
            raise
        raw = Raw(host.name)
        what = f"{step.probe.id} on {host.name}" if patient else step.probe.id
        raw.failed(what, HostError(error.message, error.help), f"nothing is known about what {step.probe.id} examines")
        raw.status = ProbeStatus.NOT_RECORDED if isinstance(error, NotRecorded) else ProbeStatus.NO_DATA
    if not raw.items and raw.status is ProbeStatus.PARTIAL:
        raw.status = ProbeStatus.NO_DATA
    return raw


@contextmanager
def capture_here(
    plan: Sequence[Step],
    directory: Path,
    target: Sequence[str],
    machine: Machine,
    progress: Progress = lambda _: None,
    *,
    patient: bool = False,
    kept: bool = True,
) -> Iterator[Captured]:
    """Run steps against this machine and write the answers to `directory`, which becomes a bundle.

    `patient`: see `run_step`. `kept`: whether the bundle stays.
    """
    writer = BundleWriter(directory, list(target), kept=kept)
    hosts = RecordingHosts(writer, machine)
    captured = Captured(writer.manifest, list(plan), brought=hosts.brought, kept=kept)
    asked = dict.fromkeys([hosts.brought])

    def ask(step: Step) -> Raw:
        progress(step.probe.title.lower())
        host = hosts.of(step)
        raw = run_step(step, host, patient=patient)
        captured.raws.append((step, raw))
        asked[host] = None
        return raw

    captured.ask = ask
    try:
        for step in plan:
            ask(step)
        captured.hosts = list(asked)
        captured.live = any(name != UNKNOWN_HOST for name in writer.manifest.hosts)
        yield captured
    finally:
        # Texts may be read, and found to be damaged, only after all probes have said which lines they want.
        writer.manifest.probes += [probe_run(step, raw) for step, raw in captured.raws]
        writer.close()


@contextmanager
def capture_recorded(
    path: Path,
    choose: Callable[[Manifest], list[tuple[str, Step]]],
    progress: Progress,
    on_top: Sequence[Step] = (),
) -> Iterator[tuple[Captured, Bundle]]:
    """Run steps against the hosts of a bundle; hosts that it does not contain give no answers.

    `choose` selects the steps and their hosts. `on_top` are steps that bring their own host.
    """
    with Bundle(path) as bundle:
        hosts = RecordedHosts(bundle)
        steps = choose(bundle.manifest)
        captured = Captured(bundle.manifest, [*(step for _, step in steps), *on_top])
        for name, step in steps:
            progress(f"{step.probe.id} on {name} (recorded)")
            if name in bundle.manifest.hosts:
                raw = run_step(step, hosts.of(name, step), patient=bool(bundle.manifest.asked))
                captured.raws.append((step, raw))
        captured.raws += [(step, run_step(step, step.host)) for step in on_top if step.host]
        captured.hosts = list(hosts.all)
        yield captured, bundle


def probe_run(step: Step, raw: Raw) -> ProbeRun:
    """The entry for a capture in a bundle's manifest."""
    return ProbeRun(
        probe=step.probe.id,
        host=raw.host,
        args=step.args,
        status=raw.status,
        problems=raw.problems,
        missing=raw.missing,
    )


def result_of(step: Step, raw: Raw) -> ProbeResult:
    """The result of a capture before analysis, without findings."""
    return ProbeResult(probe=step.probe.id, status=raw.status, summary="", searched=raw.searched, problems=raw.problems)


def _pack_under_a_free_name(directory: Path, save: Path) -> None:
    """Write a packed bundle. If another capture has taken the name meanwhile, keep both and raise UsageError."""
    try:
        pack(directory, save)
        return
    except NameTaken as taken:
        stem = save.name.removesuffix(PACKED_SUFFIX)
        for number in range(2, _MOST_NAMES):
            other = save.with_name(f"{stem}-{number}{PACKED_SUFFIX}")
            with suppress(NameTaken):
                pack(directory, other)
                raise UsageError(
                    f"another capture wrote {save} meanwhile; that one stays, and this one was saved as {other}",
                    f"ddx why {other}",
                ) from taken
        raise


@contextmanager
def bundle_directory(save: Path | None) -> Iterator[Path]:
    """Yield the directory of the bundle, deleted at the end unless `save` is given. Never replaces a bundle."""
    if save is not None and save.suffix in _OTHER_ARCHIVES:
        raise UsageError(f"a bundle is a directory or a .tar.zst: {save.name} is neither", "Use such a name.")
    if save is not None and (save.is_file() or (save.is_dir() and any(save.iterdir()))):
        raise UsageError(f"{save} already exists", "Use another name, or replace it: --force")
    if save is None or save.name.endswith(".tar.zst"):
        with temporary_directory("capture") as directory:
            yield Path(directory) / "bundle"
            if save is not None and (Path(directory) / "bundle").is_dir():
                _pack_under_a_free_name(Path(directory) / "bundle", save)
        return
    yield save
