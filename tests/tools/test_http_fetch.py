"""An endpoint of a job: its answer, none, one that never ends, and one that leads elsewhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ddx_tools.model.errors import HostError, NotFound, TimedOut
from ddx_tools.sources.hosts.local import LocalHost

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@contextmanager
def endpoint(first: bytes, dribble: bytes = b"") -> Iterator[str]:
    """Says something, then a byte every 50 ms for as long as somebody listens."""
    done = threading.Event()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            try:
                connection.sendall(first)
                while dribble and not done.wait(0.05):
                    connection.sendall(dribble)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        done.set()
        thread.join()


def test_an_answer_is_read_to_its_end_or_as_far_as_it_may_go() -> None:
    with endpoint(HEAD + b"twelve bytes") as url:
        assert LocalHost("vm").fetch(f"{url}/x?y=1").data == b"twelve bytes"
    with endpoint(HEAD + b"twelve bytes") as url:
        reply = LocalHost("vm").fetch(url, max_bytes=6)
        assert (reply.data, reply.truncated) == (b"twelve", True)


@pytest.mark.parametrize(("first", "dribble"), [(HEAD, b"x"), (b"HTTP/1.1 200 OK\r\nX-", b"a"), (b"", b"")])
def test_an_answer_has_one_deadline_however_slowly_it_comes(first: bytes, dribble: bytes) -> None:
    with endpoint(first or b"H", dribble or b"T") as url, pytest.raises(TimedOut, match=r"within 0\.3 s"):
        LocalHost("vm").fetch(url, timeout_s=0.3)


def test_a_redirection_and_an_error_are_no_answer() -> None:
    for status in (b"302 Found\r\nLocation: http://127.0.0.1:1/", b"404 Not Found", b"500 Oh"):
        with endpoint(b"HTTP/1.1 " + status + b"\r\n\r\n") as url, pytest.raises(NotFound, match=status[:3].decode()):
            LocalHost("vm").fetch(url)
    for wrong in ("http://127.0.0.1:1", "http://127.0.0.1:x", "ftp://x"):
        with pytest.raises(HostError):
            LocalHost("vm").fetch(wrong)
