"""Frames and NCCL's lines in any text: stacks of gdb, a module that is run again, hosts that share a name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ddx_tools.texts.said import Said, matches, seen

_THREAD = re.compile(r"^\s*\(gdb\) t(?:hread)? (?P<id>\d+)\s*$|^Thread (?P<id_>\d+) [\"(]")
_WAITS_FOR_GIL = re.compile(r"\b(?:take_gil|PyEval_RestoreThread|PyGILState_Ensure|gil_scoped_acquire)\b")
_HOLDS_STILL = re.compile(
    r"\b(?:nanosleep|sleep_for|usleep|pthread_cond_(?:timed)?wait|poll|epoll_wait|futex_\w+|pthread_mutex_lock)\b"
)
_FROM_PYTHON = re.compile(
    r"\b(?:_PyMethodDef_RawFastCallKeywords|cpp_function::dispatcher|cfunction_call|_PyObject_Vectorcall|PyCFunction\w*)\b"
)
_RELEASED = re.compile(r"\b(?:PyEval_SaveThread|gil_scoped_release|drop_gil)\b")
_LOADER_WAITS = re.compile(r"\b(?:_try_get_data|_next_data|_get_data)\b.{0,80}dataloader\.py")
_WORKER = re.compile(r"\bpt_data_worker\b|\b_worker_loop\b")
_LOCKED = re.compile(r"\b(?:__lll_lock_wait\w*|pthread_mutex_lock|futex_wait|sem_wait)\b")
_RUN_PATH = re.compile(r"\bin (?:run_path|_fixup_main_from_path)\s*$")
_MODULE = re.compile(r"File \"(?P<file>[^\"]+)\", line \d+, in <module>")
_BOOTSTRAP = re.compile(r"before the current process has finished its\s*$|finished its bootstrapping phase")
_WITHIN_FRAMES = 14

_NCCL = re.compile(r"(?P<host>[\w.-]+):\d+:\d+ \[\w+\] (?:NCCL )?INFO (?P<said>.*)")
_EDGE = re.compile(r"(?P<one>\d+)(?:\[(?P<a>\w+)\])? -> (?P<other>\d+)(?:\[(?P<b>\w+)\])? via (?:P2P|SHM|direct)")
_ADDRESS = re.compile(r"(?:Using|OOB)\b.*?\b(?P<interface>[a-z]\w+):(?P<address>\d+\.\d+\.\d+\.\d+)<")
_ONE_EACH = re.compile(r"-H\s+(?P<hosts>[\w.-]+:1(?:,[\w.-]+:1)+)\b")
_FQDN = re.compile(
    r"^\s*(?:[\w-]+ )?(?P<short>[a-z][\w-]{2,40})\.(?P<domain>[a-z][\w-]*(?:\.[\w-]+)+)(?=[\s:,]|$)(?!\s+import)", re.I
)
_NOT_NAMES = re.compile(r"\.(?:py|log|txt|json|yaml|yml|sh|cc|cpp|h|so|md)\b")
_GRAPH = re.compile(r"Pattern \d+, crossNic \d+, nChannels \d+, bw [\d./]+, type (?P<within>[A-Z0-9]{2,4})/")
_MULTICAST = re.compile(r"\bnvls\.cc:\d+\S* NCCL WARN (?!.*not supported)")
_MATRIX_ROW = re.compile(
    r"^\s*GPU\d+\s+(?P<links>(?:(?:X|0|XGMI|NV\d+|PIX|PXB|PHB|NODE|SYS|PCIE)\s+){1,15}(?:X|0|XGMI|NV\d+|PIX|PXB|PHB|NODE|SYS|PCIE))\b"
)


def read_traces(lines: Sequence[str]) -> Iterator[Said]:
    """What stacks and NCCL's lines in a text say."""
    yield from _threads(lines)
    yield from _again(lines)
    yield from _names(lines)
    yield from _links(lines)
    for number, found in matches(_MULTICAST, lines):
        yield seen(
            "gpu.nvlink_error",
            number,
            found.string,
            "NCCL cannot use multicast of the NVSwitch fabric on this host",
            what="multicast",
            severity="failure",
        )
        break


def _threads(lines: Sequence[str]) -> Iterator[Said]:
    """Of one process: a thread waits for the interpreter's lock while another sleeps in code that Python called."""
    blocks: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(lines, 1):
        if _THREAD.match(line):
            blocks.append([])
        blocks[-1].append((number, line))
    waiting = any(_WAITS_FOR_GIL.search(line) for block in blocks for _, line in block)
    for block in blocks:
        text = "\n".join(line for _, line in block)
        top = next(((number, line) for number, line in block if _HOLDS_STILL.search(line)), None)
        if (
            waiting
            and top
            and _FROM_PYTHON.search(text)
            and not _WAITS_FOR_GIL.search(text)
            and not _RELEASED.search(text)
        ):
            yield seen(
                "rank.gil_held",
                *top,
                "A thread sleeps in native code that Python called, and another one waits for the interpreter's lock",
                severity="failure",
            )
    for number, found in matches(_LOADER_WAITS, lines):
        yield seen("_loader_waits", number, found.string, "")
        break
    text = "\n".join(lines)
    for number, found in matches(_LOCKED, lines if _WORKER.search(text) else ()):
        yield seen("_worker_locked", number, found.string, "")
        break


def _again(lines: Sequence[str]) -> Iterator[Said]:
    """The main module is run a second time, by an interpreter that was started to be a worker."""
    for number, _ in matches(_RUN_PATH, lines):
        for further, line in enumerate(lines[number : number + _WITHIN_FRAMES], number + 1):
            if found := _MODULE.search(line):
                yield seen(
                    "launch.main_reexecuted",
                    further,
                    line,
                    f"A worker imports {found['file'].rpartition('/')[2]} and runs it again",
                    script=found["file"],
                    severity="warning",
                )
                return
    for number, found in matches(_BOOTSTRAP, lines):
        yield seen(
            "launch.main_reexecuted",
            number,
            found.string,
            "A process is started while the main module is imported by a worker",
            severity="failure",
        )
        return


def _names(lines: Sequence[str]) -> Iterator[Said]:
    domains: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
    for number, found in matches(_FQDN, lines):
        if not _NOT_NAMES.search(found[0]) and re.search(r"\d", found[0]):
            domains[found["short"]].setdefault(found["domain"], (number, found.string))
    for short, told in domains.items():
        if len(told) > 1:
            yield seen(
                "_same_name", *list(told.values())[-1], f"Hosts of several domains are called {short}", name=short
            )
    one_each = any(_ONE_EACH.search(line) for line in lines)
    joined: dict[int, set[int]] = defaultdict(set)
    device: dict[int, str] = {}
    first: tuple[int, str, str] | None = None
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
            device |= {
                rank: index for rank, index in ((one, edge["a"]), (other, edge["b"])) if index and len(index) <= 2
            }
            first = first or (number, line.string, line["host"])
    if first is None:
        return
    number, line_, name = first
    if one_each:
        yield seen(
            "host.name_shared",
            number,
            line_,
            f"The launch puts one process on each host, and NCCL connects two as of one host, which is called {name}",
            name=name,
            how="one_process_each",
            severity="failure",
        )
    for group in _connected(joined):
        indices = [device[rank] for rank in group if rank in device]
        if len(set(indices)) < len(indices) and len(set(indices)) > 1:
            yield seen(
                "host.name_shared",
                number,
                line_,
                f"NCCL connects ranks as of one host, {name}, and several have the same device: GPUs of several hosts",
                name=name,
                how="devices_twice",
                severity="failure",
            )
            return


def _connected(joined: dict[int, set[int]]) -> Iterator[set[int]]:
    left = set(joined)
    while left:
        group, todo = set(), [left.pop()]
        while todo:
            rank = todo.pop()
            group.add(rank)
            todo += joined[rank] - group
        left -= group
        yield group


def _links(lines: Sequence[str]) -> Iterator[Said]:
    rows = list(matches(_MATRIX_ROW, lines))
    links = {link for _, row in rows for link in row["links"].split()} - {"X", "0"}
    if rows and links and all(link == "XGMI" or link.startswith("NV") for link in links):
        yield seen("_fast_links", rows[0][0], rows[0][1].string, "", links=sorted(links))
    for number, found in matches(_GRAPH, lines):
        if found["within"] in ("SYS", "NODE", "PHB"):
            yield seen("_graph", number, found.string, "", within=found["within"])
            return
