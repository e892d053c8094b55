"""Starts the launcher and stands in for it: signals reach it, and ddx ends the way it ends.

The launcher stays in our process group, so signals from the terminal (Ctrl-C, Ctrl-Z, hang-up) reach it without us;
signals sent only to us are passed on. The kernel's `si_code` distinguishes the two.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence

from ddx_tools.model.errors import UsageError

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_SI_KERNEL = 0x80
_WAITED_FOR = (*FORWARDED, signal.SIGCHLD, signal.SIGWINCH)


def find_program(name: str) -> str:
    """Find the path of a command as the shell would. Raises UsageError if there is none."""
    program = shutil.which(name)
    if program is None:
        raise UsageError(
            f"{name}: no such command",
            "Type the launcher as you would without ddx: ddx run -- torchrun … train.py",
        )
    return program


class Launcher:
    """The launcher as a child process; signals and exit status pass through."""

    def __init__(
        self, program: str, argv: Sequence[str], environ: Mapping[str, str], descriptors: Mapping[int, int]
    ) -> None:
        """Start `program`; `descriptors` maps its descriptors to ours. Raises UsageError if that fails."""
        # Signals are blocked from here on, so that none is lost before `wait` handles them. The child gets the old
        # mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        self._mask_before = before
        self.stop_asked = False
        try:
            self.pid = os.posix_spawn(
                program,
                list(argv),
                dict(environ),
                file_actions=[(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in descriptors.items()],
                setsigmask=before,
                # Python ignores these two signals, and an ignored signal stays ignored across exec.
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except OSError as error:
            self.release_signals()
            raise UsageError(f"{program}: {error.strerror}", "Is it executable, and built for this machine?") from error

    def wait(
        self,
        on_resize: Callable[[], None],
        on_stop: Callable[[bool], None],
        own: signal.Signals | None = None,
        on_own: Callable[[], object] = lambda: None,
    ) -> int:
        """Pass signals on until the launcher ends; return its exit code, or minus the signal that killed it.

        `on_stop` is called before the first stop signal is passed on, and is told whether the launcher already has it.
        `on_resize` is called when the terminal's size changes. `own` is a signal that is not passed on.
        """
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            info = signal.sigwaitinfo(_WAITED_FOR)
            received = signal.Signals(info.si_signo)
            if received == signal.SIGWINCH:
                on_resize()
            elif received == own:
                on_own()
            elif received != signal.SIGCHLD:
                if received in STOPPING and not self.stop_asked:
                    self.stop_asked = True
                    on_stop(info.si_code == _SI_KERNEL)
                if info.si_code != _SI_KERNEL:
                    os.kill(self.pid, received)

    @staticmethod
    def stop_repeated() -> bool:
        """Whether a second stop signal has arrived while `on_stop` is running."""
        return bool(signal.sigpending() & STOPPING)

    def release_signals(self) -> None:
        """Stop passing signals on; from here on they affect ddx itself."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)


def die_like(code: int) -> int:
    """End the way the launcher did: return the exit code, or die by the same signal."""
    if code >= 0:
        return code
    killer = signal.Signals(-code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if killer not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(killer, signal.SIG_DFL)
    os.kill(os.getpid(), killer)
    return 128 + killer
