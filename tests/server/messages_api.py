"""A stand-in for the Anthropic Messages API on loopback: real HTTP, JSON and SSE, and a script that answers.

The script is a function from a request to what the model says. It chooses by what the request holds (its messages,
its tools), never by a count of calls, so that it serves any client: the SDK, `ddx ask`, the Claude Code binary
(`ANTHROPIC_BASE_URL`). Format: Messages API, version 2023-06-01, as anthropic 2.11.0 reads it.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

Block = Mapping[str, Any]
"""A content block. A `tool_use` holds `input` (an object) or `json` (text that need not be valid)."""

Ending = Literal["whole", "cut", "quiet", "error", "held"]
"""How a stream ends: as it should; with a dropped connection; properly but in the middle of the message; with an
`error` event; or not at all, until the client goes away or the server closes."""

_PIECE_CHARS = 7
_HELD_S = 60.0


def text(words: str) -> Block:
    """The model says something."""
    return {"type": "text", "text": words}


def call(name: str, **arguments: Any) -> Block:
    """The model calls a tool."""
    return {"type": "tool_use", "name": name, "input": arguments}


def raw_call(name: str, json_text: str) -> Block:
    """The model calls a tool with arguments as it happened to write them."""
    return {"type": "tool_use", "name": name, "json": json_text}


@dataclass(frozen=True)
class Message:
    """One message of the model. `stop_reason` follows from the blocks unless given."""

    blocks: list[Block]
    stop_reason: str | None = None
    ending: Ending = "whole"

    @property
    def why_stopped(self) -> str:
        """The stop reason: `tool_use` if a tool is called."""
        called = any(block["type"] == "tool_use" for block in self.blocks)
        return self.stop_reason or ("tool_use" if called else "end_turn")


@dataclass(frozen=True)
class Failure:
    """An HTTP error in place of a message."""

    status: int
    type: str = "api_error"
    message: str = "scripted failure"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """A request for a message. `attempt` counts the earlier requests with the same messages: 0, or it is a retry."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    attempt: int = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation, each message's content as blocks."""
        return [{**message, "content": _blocks(message["content"])} for message in self.body["messages"]]

    @property
    def turn(self) -> int:
        """How many times the model has spoken before."""
        return sum(message["role"] == "assistant" for message in self.messages)

    @property
    def results(self) -> list[dict[str, Any]]:
        """The tool results of the last message, in their order."""
        return [block for block in self.messages[-1]["content"] if block["type"] == "tool_result"]

    @property
    def user_text(self) -> str:
        """Everything the user's side said in words."""
        mine = (block for message in self.messages if message["role"] == "user" for block in message["content"])
        return "\n".join(block["text"] for block in mine if block["type"] == "text")

    def tool(self, name: str) -> str:
        """What the client calls a tool: some put the server's name in front. Raises LookupError if it is not there."""
        names: list[str] = [tool["name"] for tool in self.body.get("tools", [])]
        for candidate in names:
            if candidate == name or candidate.endswith(f"__{name}"):
                return candidate
        raise LookupError(f"{name} is not among the tools: {names}")

    def result_of(self, name: str) -> str | None:
        """The text of the last result of a tool, None if it was not called yet."""
        used = {
            block["id"]: block["name"]
            for message in self.messages
            for block in message["content"]
            if block["type"] == "tool_use"
        }
        found = None
        for message in self.messages:
            for block in message["content"]:
                if block["type"] == "tool_result" and used[block["tool_use_id"]].split("__")[-1] == name:
                    found = result_text(block)
        return found


def result_text(block: Mapping[str, Any]) -> str:
    """What the model reads of a tool result."""
    return "".join(part["text"] for part in _blocks(block.get("content", "")) if part["type"] == "text")


Reply = list[Block] | Message | Failure
Script = Callable[[Request], Reply]


class MessagesApi:
    """The API while the block runs: `with MessagesApi(script) as api:` a client is pointed at `api.base_url`.

    `requests` holds what was asked for, in order. A script that raises answers with status 500 and its words, and
    `failures` keeps them: assert that it is empty.
    """

    def __init__(self, script: Script) -> None:
        self.requests: list[Request] = []
        self.failures: list[Exception] = []
        self._script = script
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def base_url(self) -> str:
        """What `ANTHROPIC_BASE_URL` is to be."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> Message | Failure:
        """What the script says to a request."""
        with self._lock:
            attempt = sum(earlier.body["messages"] == body["messages"] for earlier in self.requests)
            request = Request(body, headers, attempt)
            self.requests.append(request)
        try:
            reply = self._script(request)
        except Exception as error:
            self.failures.append(error)
            return Failure(500, message=f"{type(error).__name__}: {error}", headers={"x-should-retry": "false"})
        return Message(reply) if isinstance(reply, list) else reply

    def content(self, message: Message) -> list[dict[str, Any]]:
        """The blocks of a message as the API gives them, each call with an id of its own."""
        shown = []
        for block in message.blocks:
            whole = dict(block)
            if whole["type"] == "tool_use":
                whole["id"] = f"toolu_{next(self._ids):04}"
            shown.append(whole)
        return shown

    def wait_until_closed(self) -> None:
        """Hold a stream open."""
        self._closing.wait(_HELD_S)


def _handler(api: MessagesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.api = api
    return Handler


class _Handler(BaseHTTPRequestHandler):
    api: MessagesApi
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._send_json({})

    def do_GET(self) -> None:
        if self._route == "/v1/models":
            self._send_json({"data": [], "has_more": False, "first_id": None, "last_id": None})
        else:
            self._send_failure(Failure(404, "not_found_error", f"nothing at {self._route}"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if self._route == "/v1/messages/count_tokens":
            self._send_json({"input_tokens": _tokens(body)})
        elif self._route != "/v1/messages":
            self._send_failure(Failure(404, "not_found_error", f"nothing at {self._route}"))
        else:
            reply = self.api.answer(body, dict(self.headers.items()))
            if isinstance(reply, Failure):
                self._send_failure(reply)
            elif body.get("stream"):
                self._send_stream(body, reply)
            else:
                content = [_with_input(block) for block in self.api.content(reply)]
                self._send_json(_envelope(body) | {"content": content, "stop_reason": reply.why_stopped})

    @property
    def _route(self) -> str:
        return self.path.partition("?")[0]

    def _send_json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        sent = json.dumps(value).encode()
        self.send_response(status)
        for name, header in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, header)
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)

    def _send_failure(self, failure: Failure) -> None:
        error = {"type": "error", "error": {"type": failure.type, "message": failure.message}}
        self._send_json(error, failure.status, failure.headers)

    def _send_stream(self, body: dict[str, Any], message: Message) -> None:
        events = list(_events(body, message, self.api.content(message)))
        if message.ending != "whole":  # in the middle of the last block
            events = events[: len(events) - 4]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            self._send_event(event)
        if message.ending == "error":
            self._send_event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
        if message.ending == "held":
            self.api.wait_until_closed()
        if message.ending in ("cut", "held"):
            self.close_connection = True
            return
        self._send_chunk(b"")

    def _send_event(self, event: dict[str, Any]) -> None:
        self._send_chunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def handle(self) -> None:
        """A client that goes away in the middle of an answer is no error of ours."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on standard error."""


def _events(body: dict[str, Any], message: Message, content: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": _envelope(body) | {"content": [], "stop_reason": None}}
    yield {"type": "ping"}
    for index, block in enumerate(content):
        if block["type"] == "tool_use":
            start = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
            whole = block["json"] if "json" in block else json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(whole)]
        else:
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": message.why_stopped, "stop_sequence": None},
        "usage": {"output_tokens": sum(len(json.dumps(block)) for block in content) // 4},
    }
    yield {"type": "message_stop"}


def _envelope(body: dict[str, Any]) -> dict[str, Any]:
    usage = {
        "input_tokens": _tokens(body),
        "output_tokens": 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    named = {"id": "msg_scripted", "type": "message", "role": "assistant", "model": body["model"]}
    return {**named, "stop_sequence": None, "usage": usage}


def _with_input(block: dict[str, Any]) -> dict[str, Any]:
    if "json" not in block:
        return block
    return {key: value for key, value in block.items() if key != "json"} | {"input": json.loads(block["json"])}


def _tokens(body: dict[str, Any]) -> int:
    return len(json.dumps(body)) // 4


def _pieces(whole: str) -> list[str]:
    return [whole[at : at + _PIECE_CHARS] for at in range(0, len(whole), _PIECE_CHARS)]


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
