"""Checks of the machine: reading processes, pausing them to read stacks, disk space for a bundle."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddx_server.doctor.report import DoctorCheck, State
from ddx_tools.model.errors import HostError, NotFound
from ddx_tools.sources.host import Host
from ddx_tools.sources.hosts.pyspy import PERMISSION_HELP, find_pyspy

_CAP_SYS_PTRACE = 1 << 19  # include/uapi/linux/capability.h
_BUNDLE_BYTES = 1 << 30
"""Required disk space: a bundle of a thousand ranks with long logs is smaller."""


def check_machine(host: Host) -> Iterator[DoctorCheck]:
    """Yield all checks that need no job."""
    if sys.platform == "linux":
        yield _proc(host)
        yield _yama(host)
        yield _capability(host)
        yield _container(host)
    else:
        yield DoctorCheck(
            name="processes",
            state=State.UNKNOWN,
            detail="this is not Linux: thread states are not available, and reading other processes' stacks needs root",
            remedy="For stacks: sudo ddx why. Logs and bundles from a cluster can be read here as anywhere.",
        )
    yield _pyspy(host)
    yield _stacks(host)
    yield _disk()


def _proc(host: Host) -> DoctorCheck:
    try:
        host.read("/proc/1/stat")
    except HostError as error:
        return DoctorCheck(
            name="/proc",
            state=State.GAP,
            detail=f"processes of other users are hidden (hidepid, or /proc is not mounted): {error.message}",
            remedy="ddx can diagnose your own user's jobs; for all others: sudo ddx why",
        )
    return DoctorCheck(name="/proc", state=State.OK, detail="processes of all users are listed")


_YAMA = {
    "0": "0: a user may read the stacks of all of their own processes",
    "1": "1: a process may read only the stacks of processes that it started; root may read all",
    "2": "2: only root may read other processes' stacks",
    "3": "3: nobody may read other processes' stacks, not even root, until the next boot",
}


def _yama(host: Host) -> DoctorCheck:
    try:
        scope = host.read("/proc/sys/kernel/yama/ptrace_scope").data.decode().strip()
    except NotFound:
        return DoctorCheck(name="ptrace scope", state=State.OK, detail="unrestricted (this kernel has no Yama)")
    except HostError as error:
        return DoctorCheck(name="ptrace scope", state=State.UNKNOWN, detail=error.message)
    privileged = _has_capability(host)
    allowed = scope == "0" or (scope in "12" and privileged)
    remedy = "" if allowed else "sudo sysctl kernel.yama.ptrace_scope=0   (until the next boot), or: sudo ddx why"
    if scope == "3":
        remedy = "Set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and reboot; until then only `ddx run` shows stacks."
    state = State.OK if allowed else State.GAP
    return DoctorCheck(name="ptrace scope", state=state, detail=_YAMA.get(scope, scope[:40]), remedy=remedy)


def _capability(host: Host) -> DoctorCheck:
    held = _has_capability(host)
    if held is None:
        return DoctorCheck(name="CAP_SYS_PTRACE", state=State.UNKNOWN, detail="/proc/self/status does not say")
    if held:
        return DoctorCheck(name="CAP_SYS_PTRACE", state=State.OK, detail="held: processes of all users can be read")
    if os.geteuid() != 0:
        user = f"not held: only jobs of this user (uid {os.geteuid()}) can be read"
        return DoctorCheck(name="CAP_SYS_PTRACE", state=State.OK, detail=user)
    return DoctorCheck(
        name="CAP_SYS_PTRACE",
        state=State.GAP,
        detail="not held although this is root: typical of a container started without it",
        remedy="Start the container with --cap-add SYS_PTRACE (Kubernetes: securityContext.capabilities.add), "
        "or run ddx on its host.",
    )


def _has_capability(host: Host) -> bool | None:
    try:
        status = host.read("/proc/self/status").data.decode("utf-8", "replace")
    except HostError:
        return None
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.M)
    return bool(int(found[1], 16) & _CAP_SYS_PTRACE) if found else None


def _container(host: Host) -> DoctorCheck:
    hints = [path for path in ("/.dockerenv", "/run/.containerenv") if host.glob(path)]
    hints += ["KUBERNETES_SERVICE_HOST"] * ("KUBERNETES_SERVICE_HOST" in os.environ)
    try:
        own = host.read("/proc/self/uid_map").data.split() != [b"0", b"0", b"4294967295"]
    except HostError:
        own = False
    hints += ["its own user namespace"] * own
    if not hints:
        return DoctorCheck(
            name="container", state=State.OK, detail="no sign of one: all of the host's processes are visible"
        )
    detail = f"this looks like one ({', '.join(hints)}): only its own processes are visible"
    return DoctorCheck(name="container", state=State.OK, detail=detail)


def _pyspy(host: Host) -> DoctorCheck:
    try:
        version = host.run([find_pyspy(), "--version"]).data.decode("utf-8", "replace").strip()
    except HostError as error:
        return DoctorCheck(
            name="py-spy", state=State.GAP, detail=error.message, remedy=error.help or "pip install py-spy"
        )
    return DoctorCheck(name="py-spy", state=State.OK, detail=version)


def _stacks(host: Host) -> DoctorCheck:
    """Try to read a Python process of our own: nothing else shows what Yama, SELinux, seccomp and containers allow."""
    try:
        with _own_python() as child:
            host.stack(child.pid)
    except HostError as error:
        remedy = error.help or PERMISSION_HELP
        return DoctorCheck(name="stacks", state=State.GAP, detail=error.message, remedy=remedy)
    except OSError as error:
        return DoctorCheck(name="stacks", state=State.UNKNOWN, detail=f"not tested: {sys.executable}: {error.strerror}")
    return DoctorCheck(name="stacks", state=State.OK, detail="py-spy read the stack of a test process")


@contextmanager
def _own_python() -> Iterator[subprocess.Popen[bytes]]:
    """Start a Python process that waits, and kill it at the end of the block."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            if child.stdout:
                child.stdout.readline()
            yield child
        finally:
            child.kill()


def _disk() -> DoctorCheck:
    places = dict.fromkeys([Path.cwd(), Path(tempfile.gettempdir())])
    free = {place: shutil.disk_usage(place).free for place in places}
    detail = ", ".join(f"{size / 2**30:.1f} GiB free in {place}" for place, size in free.items())
    if min(free.values()) >= _BUNDLE_BYTES:
        return DoctorCheck(name="disk", state=State.OK, detail=detail)
    remedy = "Save bundles elsewhere: ddx why --save /some/large/disk/incident.tar.zst; TMPDIR moves temporary files."
    return DoctorCheck(name="disk", state=State.GAP, detail=detail, remedy=remedy)
