"""One test of many things alike, which lists all that fail: a test for each would cost more than what it checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def each_of(things: Iterable[Thing], name: Callable[[Thing], str]) -> Callable[[Callable[[Thing], None]], object]:
    """Make a test out of what asserts something of one thing."""

    def decorate(judge: Callable[[Thing], None]) -> Callable[[], None]:
        def test() -> None:
            failed = []
            for thing in things:
                try:
                    judge(thing)
                except AssertionError as error:
                    failed.append(f"{name(thing)}: {error}")
            assert not failed, "\n".join(failed)

        test.__doc__ = judge.__doc__
        return test

    return decorate
