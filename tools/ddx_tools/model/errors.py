"""Expected failures, each with the help a person (or an agent) needs to go on.

DdxError
├── UsageError            unusable input or arguments; exit code 2
├── HostError             the host could not answer a question
│   ├── NotFound          no such file, process or command
│   ├── NotPermitted      it exists, but this user may not look at it
│   ├── NotRecorded       a recorded host was asked what nobody asked at capture
│   └── TimedOut          no answer within the deadline
└── UnreadableInput       a file that is not what it should be
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
    """The bundle holds no answer to this question: nobody asked it when the bundle was captured."""


class TimedOut(HostError):
    """The host gave no answer within the deadline."""


class UnreadableInput(DdxError):
    """A file that is not what it should be: truncated, foreign or hostile."""
