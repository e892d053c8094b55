from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ddx_tools.sources.hosts.syscalls import name_of
from ddx_tools.sources.hosts.threads import read_threads

pytestmark = pytest.mark.needs("linux")


@contextmanager
def blocked_reader(target: int) -> Iterator[int]:
    """A thread that waits in read(2) of a pipe; its native id."""
    started: list[int] = []
    ready = threading.Event()

    def read() -> None:
        started.append(threading.get_native_id())
        ready.set()
        os.read(target, 1)

    thread = threading.Thread(target=read)
    thread.start()
    ready.wait()
    yield started[0]
    thread.join()


def threads(*tids: int, pid: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(read_threads(pid or os.getpid(), tids))["threads"]
    return found


def in_read(tid: int) -> dict[str, Any]:
    """The thread once it sleeps in its call: between its start and the call, and from there, are some instructions."""
    for _ in range(100_000):
        (thread,) = threads(tid)
        if thread["state"] == "S" and (thread["syscall"] or {}).get("name") == "read" and thread["wchan"]:
            break
    return thread


def test_a_thread_that_waits_for_a_pipe_says_so() -> None:
    receive, send = os.pipe()
    with blocked_reader(receive) as tid:
        thread = in_read(tid)
        os.write(send, b"x")
    assert thread["syscall"]["fd"] == receive
    assert thread["syscall"]["target"] == f"pipe:[{os.fstat(receive).st_ino}]"
    assert thread["wchan"]
    assert thread["voluntary_switches"] >= 1
    assert thread["cpu_ns"] > 0
    os.close(receive)
    os.close(send)


def test_a_thread_that_waits_has_been_idle_for_longer_than_one_that_works() -> None:
    receive, send = os.pipe()
    own = threading.get_native_id()
    with blocked_reader(receive) as tid:
        first = in_read(tid)["blocked_s"]
        sum(range(2_000_000))
        by_tid = {thread["tid"]: thread for thread in threads(tid, own)}
        os.write(send, b"x")
    if first is None:
        pytest.skip("this kernel does not say when a thread ran last (/proc/<pid>/sched)")
    assert by_tid[tid]["blocked_s"] > first
    assert by_tid[tid]["blocked_s"] > by_tid[own]["blocked_s"] >= 0
    os.close(receive)
    os.close(send)


def test_reading_threads_leaves_the_own_affinity_as_it_was() -> None:
    before = os.sched_getaffinity(0)
    threads()
    assert os.sched_getaffinity(0) == before


def test_all_threads_are_read_unless_some_are_named() -> None:
    receive, send = os.pipe()
    with blocked_reader(receive) as tid:
        everyone = {thread["tid"] for thread in threads()}
        named = [thread["tid"] for thread in threads(tid)]
        os.write(send, b"x")
    assert {tid, threading.get_native_id()} <= everyone
    assert named == [tid]
    os.close(receive)
    os.close(send)


def test_a_process_that_is_gone_has_no_threads_and_a_reason() -> None:
    report = json.loads(read_threads(2**22 + 1))
    assert report["threads"] == []
    assert "no such file" in report["reason"]


def test_a_thread_that_is_gone_is_left_out() -> None:
    assert threads(2**22 + 1) == []


@pytest.mark.parametrize(
    ("number", "machine", "name"),
    [
        (202, "x86_64", "futex"),
        (98, "aarch64", "futex"),
        (63, "arm64", "read"),
        (0, "x86_64", "read"),
        (1, "riscv64", None),
    ],
)
def test_system_calls_are_named_by_machine(number: int, machine: str, name: str | None) -> None:
    assert name_of(number, machine) == name
