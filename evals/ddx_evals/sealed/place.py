"""Runs a command that sees only the system's programs, its given files, and its own directory.

It uses separate Linux namespaces for mounts and processes, entered with util-linux (`enter.sh`); without root, in a
user namespace. The network stays, since an agent must reach its model.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ddx_evals.sealed.program import own_packages
from ddx_tools.model.errors import UsageError

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_CONFIGURATION = (
    *("alternatives", "ca-certificates", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime"),
    *("nsswitch.conf", "passwd", "pki", "resolv.conf", "ssl"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PROGRAMS = ("unshare", "mount", "umount", "pivot_root", "setpriv")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class SealedPlace:
    """The files that a command sees besides the system's, by the paths where they appear."""

    directory: Path
    """Its own writable directory, seen as `/job`."""
    read_only: Mapping[str, Path] = field(default_factory=dict)
    """Read-only files: the path inside, mapped to the path outside."""
    path: tuple[str, ...] = ()
    """Directories put first on PATH."""

    INSIDE = "/job"
    HOME = "/job/home"


@cache
def sealing_fails() -> str | None:
    """The reason why commands cannot be sealed here; None if they can."""
    if sys.platform != "linux":
        return "sealing needs Linux namespaces"
    if lacking := [name for name in _PROGRAMS if not shutil.which(name, path=f"{os.defpath}:{_PATH}")]:
        return f"sealing needs {', '.join(lacking)} (util-linux)"
    with tempfile.TemporaryDirectory(prefix="job-") as own, run_in(SealedPlace(Path(own)), ["true"]) as tried:
        said, _ = tried.communicate()
        return None if tried.returncode == 0 else f"namespaces are not allowed here: {said.decode().strip()[-200:]}"


@contextmanager
def run_in(
    place: SealedPlace,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    stdin: int = subprocess.DEVNULL,
    output: int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a sealed place; `output` receives its output. Everything in it ends with the block.

    It gets only the variables in `environment`. Raises UsageError for a path with unsupported characters.
    """
    with tempfile.TemporaryDirectory(prefix="root-") as scratch:
        root, mounts = Path(scratch, "root"), Path(scratch, "mounts")
        mounts.write_text("".join(f"{line}\n" for line in _furnish(root, place)), encoding="utf-8")
        enter = ["sh", str(Path(__file__).with_name("enter.sh")), str(root), str(mounts), SealedPlace.INSIDE]
        given = {**_environment(place), **(environment or {})}
        # When the first process of its namespace ends, so do all others in it.
        with _running([*_unshare(), *enter, *command], given, "/", stdin, output) as process:
            yield process


@contextmanager
def run_beside(
    place: SealedPlace,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    stdin: int = subprocess.DEVNULL,
    output: int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command unsealed: it works in the same directory, but sees this machine."""
    (place.directory / "home").mkdir(exist_ok=True)
    for target, source in place.read_only.items():
        if target.startswith(f"{SealedPlace.INSIDE}/"):
            (place.directory / target.removeprefix(f"{SealedPlace.INSIDE}/")).symlink_to(source)
    beside = [str(Path(sys.executable).parent)] if place.path else []
    own = {"HOME": str(place.directory / "home"), "PATH": os.pathsep.join([*beside, os.environ.get("PATH", _PATH)])}
    given = {**_environment(place), "TMPDIR": tempfile.gettempdir(), **own, **(environment or {})}
    with _running(command, given, place.directory, stdin, output) as process:
        yield process


@contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path | str, stdin: int, output: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a new session, which ends with the block."""
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=cwd,
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


def _unshare() -> list[str]:
    as_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_user, "--mount", "--pid", "--ipc", "--fork", "--kill-child"]


def _environment(place: SealedPlace) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ", "TERM") if name in os.environ}
    return {**kept, "HOME": SealedPlace.HOME, "TMPDIR": "/tmp", "PATH": ":".join((*place.path, _PATH))}


def _furnish(root: Path, place: SealedPlace) -> Iterator[str]:
    """Create the mount points, and yield the lines that say what is mounted where."""
    for name in ("proc", "outside", "tmp", "dev"):
        (root / name).mkdir(parents=True)
    for name in ("tmp", "home"):
        (place.directory / name).mkdir(exist_ok=True)
    shown: list[tuple[str, Path, str]] = []
    for system in map(Path, _SYSTEM):
        if system.is_symlink():
            (root / system.name).symlink_to(system.readlink())
        elif system.is_dir():
            shown.append(("ro", system, str(system)))
    # Links are resolved: /etc is full of them.
    shown += [("ro", Path("/etc", name).resolve(), f"/etc/{name}") for name in _CONFIGURATION]
    shown += [("rw", Path("/dev", name), f"/dev/{name}") for name in _DEVICES]
    interpreter = Path(sys.base_prefix).resolve()
    directory = place.directory.resolve()
    shown += [
        ("ro", interpreter, str(interpreter)),
        ("rw", directory, SealedPlace.INSIDE),
        ("rw", directory / "tmp", "/tmp"),
    ]
    shown += [("ro", source.resolve(), target) for target, source in place.read_only.items()]
    for mode, source, target in shown:
        if source.exists():
            _make_point(_point(root, place, target), source)
            yield _line(mode, source, target)
    for hidden in own_packages():
        for source, target in [(source, target) for _, source, target in shown if hidden.is_relative_to(source)]:
            yield _line("hidden", hidden, str(Path(target, hidden.relative_to(source))))


def _point(root: Path, place: SealedPlace, target: str) -> Path:
    """The path at which to create a target's mount point: earlier mounts have their own directories."""
    for mounted, directory in ((SealedPlace.INSIDE, place.directory), ("/tmp", place.directory / "tmp")):
        if target.startswith(f"{mounted}/"):
            return directory / target.removeprefix(f"{mounted}/")
    return Path(f"{root}{target}")


def _make_point(point: Path, source: Path) -> None:
    point.parent.mkdir(parents=True, exist_ok=True)
    point.mkdir(exist_ok=True) if source.is_dir() else point.touch()


def _line(mode: str, source: Path, target: str) -> str:
    if any(separator in f"{source}{target}" for separator in "\t\n\\"):
        raise UsageError(f"{source} cannot be shown in a sealed place", "Name a path without tabs and backslashes.")
    return f"{mode}\t{source}\t{target}"
