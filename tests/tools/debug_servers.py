"""A stand-in for torch's debug server on this machine: it answers what a real one answered, or not, as a test wants.

Its answers are those of tests/fixtures/debug_server; only addresses are this machine's.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "fixtures" / "debug_server"


class _Answers(BaseHTTPRequestHandler):
    """Answers from the server's own table: path to what is said the first, the second, … time; None: never."""

    server: _Server

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        texts = self.server.texts.get(self.path.partition("?")[0])
        if texts is None:
            self.server.released.wait()
            return
        seen = self.server.asked[self.path]
        self.server.asked[self.path] += 1
        if not texts:
            self.send_error(404)
            return
        body = texts[min(seen, len(texts) - 1)].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, texts: Mapping[str, list[str] | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.texts: dict[str, list[str] | None] = dict(texts)
        self.asked: Counter[str] = Counter()
        self.released = threading.Event()


@contextmanager
def _serving(texts: Mapping[str, list[str] | None]) -> Iterator[_Server]:
    with _Server(texts) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


@contextmanager
def debug_server(
    case: str,
    *,
    ranks: Mapping[int, str] = {},
    pages: Mapping[str, str | None] = {},
    answers: Mapping[tuple[int, str], str] = {},
) -> Iterator[str]:
    """The address of a debug server that answers as in the recording `case`, or otherwise.

    `ranks`: those that do otherwise: `silent` takes connections and never answers, `held` answers what needs no
    Python, `gone` has nobody listening, `garbage` answers nonsense. `pages`: what the front end says instead.
    `answers`: what a handler of a rank does.
    """
    recorded: dict[str, Any] = json.loads((RECORDED / f"{case}.json").read_text())
    for (rank, handler), text in answers.items():
        for look in recorded["looks"]:
            look[rank][handler] = text
    with ExitStack() as stack:
        urls = {}
        for rank in range(len(recorded["looks"][0])):
            how = ranks.get(rank, "answers")
            urls[rank] = _refused() if how == "gone" else _worker(stack, recorded["looks"], rank, how)
        front: dict[str, list[str] | None] = {}
        front |= {f"/{page}": [_readdressed(text, urls)] for page, text in recorded["pages"].items()}
        front |= {f"/{page}": None if text is None else [text] for page, text in pages.items()}
        yield f"127.0.0.1:{stack.enter_context(_serving(front)).server_port}"


def _worker(stack: ExitStack, looks: list[list[dict[str, str]]], rank: int, how: str) -> str:
    texts: dict[str, list[str] | None] = {
        f"/handler/{name}": [look[rank][name] for look in looks] for name in looks[0][rank]
    }
    if how == "silent":
        texts = dict.fromkeys(texts)
    elif how == "held":
        texts |= {"/handler/dump_traceback": None}
    elif how == "garbage":
        texts = {path: ["\x00\xff{[" * 50] for path in texts}
    return f"http://127.0.0.1:{stack.enter_context(_serving(texts)).server_port}"


def _refused() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def _readdressed(text: str, urls: Mapping[int, str]) -> str:
    known = dict(re.findall(r"rank(\d+): b'(http://[^']+)'", text)) | dict(
        re.findall(r"<h2>Rank (\d+): (http://[^/]+)/", text)
    )
    for rank, url in known.items():
        text = text.replace(url, urls[int(rank)])
    return text
