"""A message of the model: streamed, requested again if the stream is cut, and only ever returned whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ddx_tools.model.errors import UsageError

if TYPE_CHECKING:
    from anthropic import APIStatusError, AsyncAnthropic
    from anthropic.lib.streaming import AsyncMessageStreamManager
    from anthropic.types import Message, MessageParam, TextBlockParam, ToolParam

    from ddx_server.ask.budget import Usage
    from ddx_server.ask.display import Display

_TRIES = 3
PAUSE_S = 1.0  # pause before a cut turn is requested again; it doubles
_MAX_TOKENS = 16_000
_MESSAGE_CHARS = 500

# The SDK retries by itself until a stream has begun, with growing pauses or after the delay that the API asks for.
SDK_RETRIES = 4

# Error types of the API (platform.claude.com, Errors) that may come in the middle of a stream and are temporary.
_PASSING = frozenset({"api_error", "overloaded_error", "rate_limit_error", "timeout_error"})
_REFUSED = {401: "the key was refused", 403: "the key has no access to this model", 404: "there is no such model"}


class ModelGone(Exception):
    """The model does not answer, even after retries. The message says why."""


@dataclass(frozen=True)
class ModelToolCall:
    """A tool call that the model requests. `arguments` is whatever it wrote, an object or not."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True)
class Turn:
    """One complete message of the model, and why it stopped."""

    content: list[dict[str, Any]]
    calls: list[ModelToolCall]
    stop_reason: str


@dataclass
class Model:
    """A model that is called through the Messages API."""

    client: AsyncAnthropic
    name: str
    usage: Usage
    display: Display

    async def turn(
        self,
        system: list[TextBlockParam],
        tools: list[ToolParam],
        messages: list[dict[str, Any]],
        tokens_left: int,
    ) -> Turn:
        """Request the next message. Raises ModelGone, or UsageError if the key or the model is wrong.

        If a stream ends before its message does, the whole message is requested again: nothing in it was acted on.
        """
        import anyio

        self.usage.turns += 1
        for attempt in range(_TRIES):
            if attempt:
                self.usage.retries += 1
                self.display.note("the connection to the model was lost; asking again")
                await anyio.sleep(PAUSE_S * 2 ** (attempt - 1))
            stream = self.client.messages.stream(
                model=self.name,
                max_tokens=min(_MAX_TOKENS, tokens_left),
                system=system,
                tools=tools,
                messages=cast("list[MessageParam]", messages),
            )
            message = await self._whole(stream)
            if message is not None:
                return _turn(message)
        raise ModelGone(f"the model's answer was cut off {_TRIES} times")

    async def _whole(self, request: AsyncMessageStreamManager[None]) -> Message | None:
        """The message, or None if it was cut off. The tokens of a cut message are counted, too."""
        import httpx2
        from anthropic import APIConnectionError, APIStatusError

        opened, message = False, None
        try:
            async with request as stream:
                opened = True
                async for event in stream:
                    if event.type == "message_start":
                        message = stream.current_message_snapshot
                    elif event.type == "text":
                        self.display.words(event.text)
        except APIStatusError as error:
            if opened and error.type in _PASSING:
                return None
            raise _explained(error, self.name) from error
        except APIConnectionError as error:
            raise ModelGone(f"the API cannot be reached: {_short(error.message)}") from error
        except (httpx2.TransportError, ValueError):
            # ValueError: the SDK could not parse an event or a tool's arguments.
            return None
        finally:
            self.display.end_of_words()
            if message:
                self._count(message)
        return message if message and message.stop_reason else None

    def _count(self, message: Message) -> None:
        used = message.usage
        self.usage.input_tokens += used.input_tokens
        self.usage.cache_creation_input_tokens += used.cache_creation_input_tokens or 0
        self.usage.cache_read_input_tokens += used.cache_read_input_tokens or 0
        self.usage.output_tokens += used.output_tokens


def _turn(message: Message) -> Turn:
    calls = [ModelToolCall(b.id, b.name, b.input) for b in message.content if b.type == "tool_use"]
    return Turn(list(_sent_back(message.content)), calls, str(message.stop_reason))


def _sent_back(blocks: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """The blocks for the next request: the API accepts no empty text, and only an object as arguments."""
    for block in blocks:
        if block.type == "tool_use":
            arguments = block.input if isinstance(block.input, dict) else {}
            yield {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}
        elif block.type != "text" or block.text.strip():
            yield block.to_dict(mode="json")


def _explained(error: APIStatusError, model: str) -> UsageError | ModelGone:
    said = _short(error.api_message or error.message)
    if error.status_code in _REFUSED:
        return UsageError(
            f"{_REFUSED[error.status_code]} (model {model}): {said}",
            "Check ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL and --model; or diagnose without a model: ddx why",
        )
    return ModelGone(f"the API returned error {error.status_code}: {said}")


def _short(words: str) -> str:
    return words if len(words) <= _MESSAGE_CHARS else words[: _MESSAGE_CHARS - 1] + "…"
