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
    """As py-spy has it: a method carries the class of its `self` ("DataLoader.__iter__") where py-spy can tell."""
    variables: tuple[tuple[str, str], ...] = ()
    """Local variables, arguments first, with what `repr` makes of them; of a dump that was asked for them."""
    at: int = field(default=0, compare=False)
    """The line of the dump that shows it, 1-based; 0 in a form that has no such lines."""
    shown: str = field(default="", compare=False)
    """How a dump shows it that is not py-spy's."""

    @property
    def printed(self) -> str:
        """As the dump shows it, where that is a text."""
        if self.shown:
            return self.shown
        return f"{self.function} ({self.file}:{self.line})" if self.line else f"{self.function} ({self.file})"

    @property
    def bare_function(self) -> str:
        """The name that stands in the program text."""
        return self.function.rsplit(".", 1)[-1]

    @property
    def is_user(self) -> bool:
        """The frame belongs to the user's program."""
        return is_user_file(self.file)

    @property
    def module(self) -> str:
        """The file from its package root."""
        return module_path(self.file)
