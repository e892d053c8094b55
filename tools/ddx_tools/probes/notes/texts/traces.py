"""Facts from frames and NCCL lines in any text: gdb stacks, a main module that runs again, hosts that share a name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ddx_tools.analysis.collectives.wait_solver import components
from ddx_tools.probes.notes.texts.text_fact import Lines, TextFact, matches, seen

_THREAD = re.compile(r"^\s*\(gdb\) t(?:hread)? (?P<id>\d+)\s*$|^Thread (?P<id_>\d+) [\"(]")
_WAITS_FOR_GIL = re.compile(r"\b(?:take_gil|PyEval_RestoreThread|PyGILState_Ensure|gil_scoped_acquire)\b")
_HOLDS_STILL = re.compile(
    r"\b(?:nanosleep|sleep_for|usleep|pthread_cond_(?:timed)?wait|poll|epoll_wait|futex_\w+|pthread_mutex_lock)\b"
)
_FROM_PYTHON = re.compile(
    r"\b(?:_PyMethodDef_RawFastCallKeywords|cpp_function::dispatcher|cfunction_call|_PyObject_Vectorcall|PyCFunction\w*)\b"
)
_RELEASED = re.compile(r"\b(?:PyEval_SaveThread|gil_scoped_release|drop_gil)\b")
_RUN_PATH = re.compile(r"\bin (?:run_path|_fixup_main_from_path)\s*$")
_MODULE = re.compile(r"File \"(?P<file>[^\"]+)\", line \d+, in <module>")
_SPAWNED = re.compile(r"\bmultiprocessing/(?:spawn|forkserver)\.py\b")
_FORMS_GROUP = re.compile(
    r"\bin (?:init_process_group|init_distributed|_?\w*rendezvous_handler|_create_c10d_store)\b|\binit_process_group\("
)
_WITHIN_FRAMES = 14

_ASKS_STATUS = re.compile(r"[$#%>] ?echo \$\?\s*$")
_NCCL = re.compile(r"(?P<host>[\w.-]+):\d+:\d+ \[\w+\] (?:NCCL )?INFO (?P<said>.*)")
_EDGE = re.compile(r"(?P<one>\d+)(?:\[(?P<a>\w+)\])? -> (?P<other>\d+)(?:\[(?P<b>\w+)\])? via (?:P2P|SHM|direct)")
_ADDRESS = re.compile(r"(?:Using|OOB)\b.*?\b(?P<interface>[a-z]\w+):(?P<address>\d+\.\d+\.\d+\.\d+)<")


def read_traces(lines: Lines) -> Iterator[TextFact]:
    """Yield the facts that stacks and NCCL lines in a text show."""
    yield from _threads(lines)
    yield from _again(lines)
    yield from _names(lines)
    yield from _status(lines)


def _status(lines: Lines) -> Iterator[TextFact]:
    """A shell prints exit status 0 at the end of a text."""
    told = [(number, line) for number, line in enumerate(lines, 1) if line.strip()][-2:]
    if len(told) == 2 and _ASKS_STATUS.search(told[0][1]) and told[1][1].strip() == "0":
        yield seen("job.exited_zero", *told[0], "A shell printed that the job exited with status 0", severity="info")


def _threads(lines: Lines) -> Iterator[TextFact]:
    """In one process, a thread waits for the GIL while another sleeps in native code that Python called."""
    for block in _by_thread(lines) if any(matches(_WAITS_FOR_GIL, lines)) else ():
        text = "\n".join(line for _, line in block)
        top = next(((number, line) for number, line in block if _HOLDS_STILL.search(line)), None)
        if top and _FROM_PYTHON.search(text) and not _WAITS_FOR_GIL.search(text) and not _RELEASED.search(text):
            yield seen(
                "rank.gil_held",
                *top,
                "A thread sleeps in native code that Python called, and another waits for the GIL",
                severity="failure",
            )


def _by_thread(lines: Lines) -> list[list[tuple[int, str]]]:
    """Numbered lines, one list per thread; the lines before the first thread form the first list."""
    blocks: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(lines, 1):
        if _THREAD.match(line):
            blocks.append([])
        blocks[-1].append((number, line))
    return blocks


def _again(lines: Lines) -> Iterator[TextFact]:
    """The main module runs a second time, in an interpreter that was started as a worker."""
    for number, _ in matches(_RUN_PATH, lines):
        below = list(enumerate(lines[number : number + _WITHIN_FRAMES], number + 1))
        for place, (further, line) in enumerate(below):
            if found := _MODULE.search(line):
                # It fails in code meant only for the main program; a debugger also runs that code, but is not a worker.
                spawned = any(_SPAWNED.search(above) for above in lines[max(0, number - _WITHIN_FRAMES) : number])
                begins = any(_FORMS_GROUP.search(inner) for _, inner in below[place:])
                yield seen(
                    "launch.main_reexecuted",
                    further,
                    line,
                    f"A worker imports {found['file'].rpartition('/')[2]} and runs it again",
                    script=found["file"],
                    severity="failure" if spawned and begins else "warning",
                )
                return


def _names(lines: Lines) -> Iterator[TextFact]:
    joined: dict[int, set[int]] = defaultdict(set)
    device: dict[int, str] = {}
    first: tuple[int, str, str] | None = None
    hosts: set[str] = set()
    for number, line in matches(_NCCL, lines):
        if address := _ADDRESS.search(line["said"]):
            yield seen(
                "_address",
                number,
                line.string,
                "",
                name=line["host"],
                interface=address["interface"],
                address=address["address"],
            )
        if edge := _EDGE.search(line["said"]):
            one, other = int(edge["one"]), int(edge["other"])
            joined[one].add(other)
            joined[other].add(one)
            hosts.add(line["host"])
            device |= {
                rank: index for rank, index in ((one, edge["a"]), (other, edge["b"])) if index and len(index) <= 2
            }
            first = first or (number, line.string, line["host"])
    if first is None or len(hosts) > 1:
        return
    number, line_, name = first
    for group in components(joined):
        indices = [device[rank] for rank in group if rank in device]
        if len(set(indices)) < len(indices) and len(set(indices)) > 1:
            yield seen(
                "host.name_shared",
                number,
                line_,
                f"NCCL treats ranks as on one host, {name}, but several have the same device: the GPUs are on several "
                "hosts",
                name=name,
                how="devices_twice",
                severity="failure",
            )
            return
