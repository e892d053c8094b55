"""A frame of a Python stack."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddx_tools.model.user_frames import is_user_file, module_path


@dataclass(frozen=True)
class Frame:
    """One frame of a Python stack."""

    file: str
    line: int
    function: str
    """As py-spy prints it: a method has the class of its `self` ("DataLoader.__iter__") if py-spy knows it."""
    variables: tuple[tuple[str, str], ...] = ()
    """Local variables with their `repr`, arguments first, if the dump includes them."""
    at: int = field(default=0, compare=False)
    """The line of the dump that shows it, 1-based; 0 in formats without such lines."""
    shown: str = field(default="", compare=False)
    """The frame's text in a dump that is not from py-spy."""
    code: str = field(default="", compare=False)
    """The text of its line, if the dump has it."""

    @property
    def printed(self) -> str:
        """The frame as text, as its dump shows it."""
        if self.shown:
            return self.shown
        return f"{self.function} ({self.file}:{self.line})" if self.line else f"{self.function} ({self.file})"

    @property
    def bare_function(self) -> str:
        """The function name as it appears in the source."""
        return self.function.rsplit(".", 1)[-1]

    @property
    def is_user(self) -> bool:
        """Whether the frame belongs to the user's program."""
        return is_user_file(self.file)

    @property
    def module(self) -> str:
        """The file's path from its package root."""
        return module_path(self.file)
