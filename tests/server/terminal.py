"""A terminal with a command in its foreground, as a person sits before one."""

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Mapping


class Terminal:
    """A terminal of 33 lines and 101 columns; what stood on it is in `output`."""

    def __init__(self, *argv: str, environ: Mapping[str, str]) -> None:
        self.output = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("4H", 33, 101, 0, 0))
            os.execve(argv[0], argv, environ)

    def read_until(self, text: bytes) -> None:
        while text not in self.output and self._read():
            pass
        assert text in self.output

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bytes:
        try:
            data = os.read(self._fd, 1024)
        except OSError:  # the last program on the terminal has ended
            return b""
        self.output += data
        return data
