"""Expected failures, each with the help that a person (or an agent) needs to proceed.

DdxError
├── UsageError            unusable input or arguments; exit code 2
├── HostError             the host could not answer a question
│   ├── NotFound          no such file, process or command
│   ├── NotPermitted      it exists, but this user may not read it
│   ├── NotRecorded       a recorded host was asked something that was not captured
│   └── TimedOut          no answer within the deadline
└── UnreadableInput       a file with unexpected content
"""


class DdxError(Exception):
    """An expected failure. `message` says what happened and where, `help` the next thing to type."""

    exit_code = 2

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help

    def __str__(self) -> str:
        return f"{self.message}\n{self.help}" if self.help else self.message


class UsageError(DdxError):
    """The arguments or the input cannot be used."""


class HostError(DdxError):
    """A host could not answer a question."""


class NotFound(HostError):
    """No such file, process or command on the host."""


class NotPermitted(HostError):
    """It exists, but this user may not read it."""


class NotRecorded(HostError):
    """The bundle holds no answer to this question because it was not asked at capture."""


class TimedOut(HostError):
    """The host gave no answer within the deadline."""


class UnreadableInput(DdxError):
    """A file with unexpected content: truncated, in another format, or hostile."""
