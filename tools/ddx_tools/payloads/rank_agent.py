"""Answer questions about one rank of a distributed PyTorch job from inside it, even while the rank hangs.

`ddx run` loads this file into every Python process of a job (through `site/sitecustomize.py`). Most processes are left
alone: see `part_of`. In a rank it opens a unix socket `$DDX_RUN_DIR/ranks/rank-<rank>.<pid>.sock` (mode 0600), on which
a daemon thread waits. The files that a dying rank leaves are beside the socket:

    rank-<rank>.<pid>.fault.txt     after a fatal signal: faulthandler's stacks of all threads
    ….<label>.json                  the header of `records` below, and `reason`; written when an exception
                                    ends the rank (label `exception`), or on a `save` request
    ….<label>.<part>.pickle         the flight records for it, without frames
    ….<label>.stacks.txt            Python stacks of all threads at that moment, unless it had already raised
    ….exit.json                     the interpreter exited by itself: where sys.exit and the last collective were called

Each connection carries one request: one line of JSON, at most 4 KiB, sent within a second. The answer is one line of
JSON, the header, followed by `header["bytes"]` bytes of payload.

    {"op": "status"}    rank, clocks, versions, process groups with their members, counters, recorder settings
    {"op": "records", "stacks": bool, "only_active": bool}
                        status; torch's own pickles, divided by `parts: [{part, api, bytes}]`,
                        part: fr or nccl
    {"op": "stacks"}    faulthandler's text of all threads
    {"op": "memory"}    resident set, and the CUDA allocator's counters if the process already uses CUDA
    {"op": "profile", "seconds": s}
                        torch's profiler on all threads for this long; the trace is `file`, beside the socket
    {"op": "save", "label": "peer-died", "reason": {}}  write these files now

It must not change the job: it needs only the standard library and looks for torch in `sys.modules`, starts no
collective, waits for none of the job's locks (except the recorder's own and, for `memory`, the CUDA allocator's),
prints nothing and swallows its own errors. Python 3.8, torch 2.0.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

PROTOCOL = 1
REQUEST_BYTES = 4096
REQUEST_SECONDS = 1.0
ANSWER_SECONDS = 10.0
POLL_SECONDS = 0.5
TEXT_CHARS = 16000
PROFILE_SECONDS = 60.0

# The mark of the process that is a rank, `<pid>:<RANK>/<LOCAL_RANK>`: its children inherit it.
OWNER = "DDX_RANK_OWNER"

# Programs that inherit a rank's environment, or start ranks, but are never a rank.
HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "multiprocessing.forkserver",
    "torch/_inductor/compile_worker",
    "torch._inductor.compile_worker",
)
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands", "deepspeed.launcher")
LAUNCHER_SCRIPTS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "ray")

# torch 2.8 renamed these variables; it still reads the old names, but every rank then prints a warning
# (c10d/Utils.hpp).
OLD_NAMES = (
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
    ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
)
SETTINGS = (
    *(name for pair in OLD_NAMES for name in pair),
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_FR_DUMP_ON_TIMEOUT",
    "TORCH_DISTRIBUTED_DEBUG",
)
# Up to torch 2.7, NCCL's recorder is the only one; since then, the other backends share a second one.
RECORDERS = (("fr", "_dump_fr_trace"), ("nccl", "_dump_nccl_trace"))
MEMORY_COUNTERS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "inactive_split_bytes.all.current",
    "num_alloc_retries",
    "num_ooms",
)

Header = Dict[str, Any]
Answer = Tuple[Header, bytes]


def part_of(argv: Sequence[str], environ: Mapping[str, str], pid: int) -> str:
    """The role of the process with this command line in the job.

    "rank": the environment gives it a rank, and it is the one process that the launcher started for that rank.
    "candidate": it becomes a rank if it initialises torch.distributed (mp.spawn, MPI, Slurm, Ray, a wrapper's child); a
    data loader worker never does, and stays a candidate. "helper": it never becomes a rank.
    """
    kind, program = program_of(argv)
    if any(name in program for name in HELPERS):
        return "helper"
    if kind == "module" and program.startswith(LAUNCHERS):
        return "helper"
    if kind == "script" and os.path.basename(program) in LAUNCHER_SCRIPTS:
        return "helper"
    if not (environ.get("RANK", "").isdigit() and environ.get("WORLD_SIZE", "").isdigit()):
        return "candidate"
    if kind == "code" and "multiprocessing.spawn" in program:
        return "candidate"
    owner, _, identity = environ.get(OWNER, "").partition(":")
    # The identity matters: if a pod has its own RANK, the ranks inside it have different ones.
    inherited = owner not in ("", str(pid)) and identity == _identity(environ)
    return "candidate" if inherited else "rank"


def program_of(argv: Sequence[str]) -> tuple[str, str]:
    """The program that a Python command line runs: ("module" | "code" | "script" | "", its name or text)."""
    words = iter(argv[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            return "script", word
        if word.startswith("--"):
            continue
        for end, letter in enumerate(word[1:], 2):
            if letter in "mcWX":
                value = word[end:] or next(words, "")
                if letter in "mc":
                    return {"m": "module", "c": "code"}[letter], value
                break
    return "", ""


def _identity(environ: Mapping[str, str]) -> str:
    return "{}/{}".format(environ.get("RANK", ""), environ.get("LOCAL_RANK", ""))


def _command_line() -> list[str]:
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def _or_none(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:
        return None


# ---- torch's state, without importing torch


def _is_initialized() -> bool:
    return bool(_or_none(getattr(sys.modules.get("torch.distributed"), "is_initialized", None)))


def _groups() -> list[Header]:
    """The process groups that this rank belongs to, under torch's names, with global ranks."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    names = getattr(getattr(c10d, "_world", None), "pg_names", {})
    return [
        {
            "name": name,
            "desc": getattr(group, "group_desc", None),
            "backend": _or_none(c10d.get_backend, group),
            "ranks": _or_none(c10d.get_process_group_ranks, group),
            "last_enqueued": _or_none(getattr(group, "_get_sequence_number_for_group", None)),
            "timeout_s": _or_none(_timeout_s, group),
        }
        for group, name in list(names.items())
    ]


def _timeout_s(group: Any) -> float:
    """The timeout of a collective in this group: the shortest timeout of its backends."""
    backends = [group._get_backend(device) for device in group._device_types]
    return min(float(backend.options._timeout.total_seconds()) for backend in backends)


def _joining_s() -> float | None:
    """The timeout of the running init_process_group call; None if the program is not in one."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "init_process_group" and "timeout" in frame.f_locals:
            return float(frame.f_locals["timeout"].total_seconds())
        frame = frame.f_back
    return None


def _recorders(groups: list[Header]) -> list[tuple[str, str]]:
    """Pairs (part, function name) of the recorders that may hold records of this process."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    found = [(part, name) for part, name in RECORDERS if hasattr(c10d, name)]
    uses_nccl = any("nccl" in str(group["backend"]) for group in groups)
    return found if uses_nccl else found[:1]


def _dump(name: str, stacks: bool, only_active: bool) -> bytes:
    function = getattr(sys.modules["torch._C._distributed_c10d"], name)
    try:
        return bytes(function(True, stacks, only_active))
    except TypeError:  # torch 2.2 and 2.3 take no arguments
        return bytes(function())


def _last_call() -> List[List[Any]]:
    """The frames [file, line, function] of the last recorded operation, innermost first."""
    pickle: Any = sys.modules["pickle"]  # torch has imported it
    calls = (call for _, name in _recorders(_groups()) for call in pickle.loads(_dump(name, True, False))["entries"])
    last = max(calls, key=lambda call: call["time_created_ns"])
    return [[frame["filename"], frame["line"], frame["name"]] for frame in last["frames"]]


def _counters(groups: list[Header]) -> Header:
    """The `pg_status` of each recorder, keyed by pg_id, which is a counter in this process, not a group name."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    status = {}
    for part, name in _recorders(groups):
        # With its two arguments (since 2.5) it omits the entries, which makes it cheap.
        text = _or_none(getattr(c10d, name + "_json", None), False, True)
        status[part] = (_or_none(json.loads, text) or {}).get("pg_status", {})
    return status


# ---- the agent


class RankAgent:
    """The agent of one rank: its socket, the thread that serves it, and the files that it writes."""

    def __init__(self, run_dir: str) -> None:
        self.directory = os.open(os.path.join(run_dir, "ranks"), os.O_RDONLY | os.O_DIRECTORY)
        self.pid = os.getpid()
        self.rank: int | None = None
        self.stem = ""
        self.listener: socket.socket | None = None
        self.fault_fd: int | None = None
        self.saved: set[str] = set()
        self.failed = False
        self.left_at = ""
        self.has_left_note = False
        self.started_at_ns = time.time_ns()
        self.wake_reader, self.wake_writer = os.pipe()
        self.thread = threading.Thread(target=self._run, name="ddx-rank-agent", daemon=True)

    def start(self) -> None:
        """Start serving, or waiting until this process becomes a rank."""
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._in_fork_child)
        self.thread.start()

    def become(self, rank: int) -> None:
        """Open the socket and prepare for a crash: from here on, this process is `rank`."""
        self.stem = "rank-%d.%d" % (rank, self.pid)
        # A unix socket's path is limited to 107 bytes; through the directory's descriptor, any depth works.
        name = "/proc/self/fd/%d/%s.sock" % (self.directory, self.stem)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(name)
        os.chmod(name, 0o600)
        listener.listen(8)
        listener.setblocking(False)
        self.rank, self.listener = rank, listener
        if not faulthandler.is_enabled():
            self.fault_fd = self._beside_socket(self.stem + ".fault.txt", os.O_WRONLY | os.O_CREAT)
            faulthandler.enable(self.fault_fd, all_threads=True)
        self._wrap_excepthook()
        self._wrap_exit()

    def _run(self) -> None:
        try:
            # The job's signal handlers run where they always did: only faults of this thread itself reach it.
            faults = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP")
            signal.pthread_sigmask(signal.SIG_BLOCK, [s for s in signal.Signals if s.name not in faults])
            self._serve()
        except Exception:
            pass

    def _serve(self) -> None:
        """Answer requests until the interpreter ends. Polls only until torch.distributed is initialised."""
        initialized = False
        while True:
            if not initialized and _is_initialized():
                initialized = True
                # Before torch closes its sockets: after that, the launcher may end this process as well.
                atexit.register(_or_none, self._leave_note)
                if self.rank is None:
                    self.become(sys.modules["torch.distributed"].get_rank())
                else:
                    # Code that has replaced the hook since (rich, a trainer) need not call ours.
                    self._wrap_excepthook()
            poll = select.poll()
            poll.register(self.wake_reader, select.POLLIN)
            if self.listener is not None:
                poll.register(self.listener, select.POLLIN)
            ready = [fd for fd, _ in poll.poll(None if initialized else POLL_SECONDS * 1000)]
            if self.wake_reader in ready:
                return
            if ready and self.listener is not None:
                _or_none(self._answer_one, self.listener)

    def _answer_one(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[1] not in (0, os.geteuid()):
                return
            request = _read_request(connection)
            try:
                header, payload = OPERATIONS[request["op"]](self, request)
                header.update(ok=True, op=request["op"])
            except Exception as error:
                header, payload = {"ok": False, "error": repr(error)[:500]}, b""
            header.update(protocol=PROTOCOL, bytes=len(payload))
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(json.dumps(header).encode() + b"\n" + payload)

    def status(self, request: Header) -> Answer:
        """Answer with this rank's identity and the progress of each of its groups."""
        dist: Any = sys.modules.get("torch.distributed")
        initialized = _is_initialized()
        groups = _groups()
        environ = os.environ
        header = {
            "rank": dist.get_rank() if initialized else self.rank,
            "local_rank": _or_none(int, environ.get("LOCAL_RANK")),
            "world_size": dist.get_world_size() if initialized else _or_none(int, environ.get("WORLD_SIZE")),
            "pid": self.pid,
            "host": socket.gethostname(),
            "taken_at_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
            "started_at_ns": self.started_at_ns,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "torch": _or_none(lambda: str(sys.modules["torch"].__version__)),
            "initialized": initialized,
            "backend": _or_none(lambda: dist.get_backend()),
            "groups": groups,
            "joining_s": None if initialized else _or_none(_joining_s),
            "pg_status": _counters(groups),
            "recorders": [name for _, name in _recorders(groups)],
            "settings": {name: environ[name][:500] for name in SETTINGS if name in environ},
            "process_cpu_s": time.process_time(),
        }
        if threading.current_thread() is self.thread:
            header["agent_cpu_s"] = time.thread_time()
        return header, b""

    def records(self, request: Header) -> Answer:
        """Answer with everything in `status`, and torch's flight records byte for byte."""
        header, _ = self.status({})
        payload = b""
        header["parts"], header["errors"] = [], {}
        for part, name in _recorders(header["groups"]):
            try:
                data = _dump(name, bool(request.get("stacks")), bool(request.get("only_active")))
            except Exception as error:
                header["errors"][name] = repr(error)[:500]
                continue
            header["parts"].append({"part": part, "api": name, "bytes": len(data)})
            payload += data
        if not header["recorders"]:
            header["errors"]["none"] = "torch is not imported yet, or older than 2.2: no flight recorder"
        return header, payload

    def stacks(self, request: Header) -> Answer:
        """Answer with the Python stacks of all threads."""
        # faulthandler writes only to a real file.
        name = self.stem + ".stacks.part"
        with open(name, "wb+", opener=self._beside_socket) as file:
            os.unlink(name, dir_fd=self.directory)
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            text = file.read()
        # threading.enumerate() would wait for one of the job's locks; a copy of its table does not.
        threads = dict(getattr(threading, "_active", {}))
        names = [{"ident": "0x%016x" % ident, "name": str(t.name)[:200]} for ident, t in threads.items()]
        return {"rank": self.rank, "pid": self.pid, "taken_at_ns": time.time_ns(), "threads": names}, text

    def memory(self, request: Header) -> Answer:
        """Answer with the bytes that this process uses on the host and, if CUDA is initialised, on each used device."""
        with open("/proc/self/status") as file:
            lines = dict(line.split(":", 1) for line in file)
        header: Header = {"rank": self.rank, "pid": self.pid, "taken_at_ns": time.time_ns(), "cuda": {}}
        for name, key in (("rss_bytes", "VmRSS"), ("peak_rss_bytes", "VmHWM"), ("shared_bytes", "RssShmem")):
            header[name] = int(lines[key].split()[0]) * 1024 if key in lines else None
        header["open_files"] = len(os.listdir("/proc/self/fd"))
        cuda: Any = sys.modules.get("torch.cuda")
        for device in range(cuda.device_count() if cuda is not None and cuda.is_initialized() else 0):
            counters = cuda.memory_stats(device)
            if counters.get("reserved_bytes.all.peak"):
                header["cuda"][device] = {name: counters.get(name) for name in MEMORY_COUNTERS}
        return header, b""

    def profile(self, request: Header) -> Answer:
        """Start profiling all threads of this process. The trace appears beside the socket once it is complete."""
        seconds = min(max(float(request["seconds"]), 0.1), PROFILE_SECONDS)
        torch: Any = sys.modules["torch"]
        everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        taken = torch.profiler.profile(record_shapes=True, experimental_config=everywhere)
        name = "%s.%d.trace.json" % (self.stem, time.time_ns())

        def take() -> None:
            with taken:
                time.sleep(seconds)
            taken.export_chrome_trace("/proc/self/fd/%d/%s.part" % (self.directory, name))
            os.rename(name + ".part", name, src_dir_fd=self.directory, dst_dir_fd=self.directory)

        threading.Thread(target=_or_none, args=(take,), name="ddx-profile", daemon=True).start()
        return {"rank": self.rank, "file": name}, b""

    def save(self, request: Header) -> Answer:
        """Write this rank's flight records, groups and Python stacks to files beside the socket.

        The request's `label` is part of the file names. A second request with the same label writes nothing, so that
        the first moment is kept.
        """
        label = str(request.get("label", ""))
        if not label.replace("-", "").isalpha() or len(label) > 40:
            raise ValueError("label: letters and hyphens, at most 40")
        if label in self.saved:
            return {"files": []}, b""
        self.saved.add(label)
        header, payload = self.records({})
        header["reason"] = request.get("reason")
        for part in header["parts"]:
            part["file"] = "{}.{}.{}.pickle".format(self.stem, label, part["part"])
            data, payload = payload[: part["bytes"]], payload[part["bytes"] :]
            self._write(part["file"], data)
        if not self.failed:  # the traceback shows where it was; by now, its stack is ours
            self._write("{}.{}.stacks.txt".format(self.stem, label), self.stacks({})[1])
        self._write("{}.{}.json".format(self.stem, label), json.dumps(header).encode())
        return {"files": [part["file"] for part in header["parts"]]}, b""

    def _write(self, name: str, data: bytes) -> None:
        # Renamed last, so that a file under this name is complete.
        with open(name + ".part", "wb", opener=self._beside_socket) as file:
            file.write(data)
        os.rename(name + ".part", name, src_dir_fd=self.directory, dst_dir_fd=self.directory)

    def _beside_socket(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=self.directory)

    def _wrap_excepthook(self) -> None:
        previous = sys.excepthook

        def excepthook(kind: Any, value: Any, trace: Any) -> None:
            try:
                _or_none(self._save_exception, kind, value, trace)
            finally:
                previous(kind, value, trace)

        sys.excepthook = excepthook

    def _wrap_exit(self) -> None:
        """Record where the program calls sys.exit, since no traceback shows it."""
        previous = sys.exit

        def exit(status: Any = None) -> Any:
            _or_none(self._note_exit, status)
            previous(status)

        sys.exit = exit

    def _note_exit(self, status: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            import traceback

            stack = "".join(traceback.format_stack(sys._getframe(3), 100))
            self.left_at = ("Traceback (most recent call last):\n%sSystemExit: %s" % (stack, status))[-TEXT_CHARS:]

    def _save_exception(self, kind: Any, value: Any, trace: Any) -> None:
        """Save the records before the launcher notices: torchrun stops the peers within 0.1 s."""
        if os.getpid() != self.pid:
            return
        self.failed = True
        import traceback  # imported here to keep the start of every Python process short

        self.save(
            {
                "label": "exception",
                "reason": {
                    "kind": "exception",
                    "type": kind.__name__,
                    "message": str(value)[:TEXT_CHARS],
                    "frames": [[f.filename, f.lineno, f.name] for f in traceback.extract_tb(trace)[-100:]],
                    "traceback": "".join(traceback.format_exception(kind, value, trace))[-TEXT_CHARS:],
                },
            }
        )

    def _at_exit(self) -> None:
        """Leave a note and let the thread end first: native code that outlives the interpreter aborts."""
        if os.getpid() != self.pid:
            return
        try:
            os.write(self.wake_writer, b"x")
            self.thread.join(ANSWER_SECONDS)
            self._leave_note()
            if self.listener is not None:
                self.listener.close()
                os.unlink(self.stem + ".sock", dir_fd=self.directory)
        except Exception:
            pass

    def _leave_note(self) -> None:
        if os.getpid() != self.pid or self.listener is None or self.has_left_note:
            return
        self.has_left_note = True
        note: Header = {"rank": self.rank, "pid": self.pid, "at_ns": time.time_ns(), "failed": self.failed}
        note.update(host=socket.gethostname(), initialized=_is_initialized(), left_at=self.left_at)
        note["last_call"] = _or_none(_last_call) if note["initialized"] else None
        self._write(self.stem + ".exit.json", json.dumps(note).encode())

    def _in_fork_child(self) -> None:
        """In a forked child, close the rank's socket and stop writing crashes into the rank's file."""
        try:
            if self.listener is not None:
                self.listener.close()
            if self.fault_fd is not None:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fault_fd, inheritable=False)
                os.close(nowhere)
        except Exception:
            pass


OPERATIONS: Dict[str, Callable[[RankAgent, Header], Answer]] = {
    "status": RankAgent.status,
    "records": RankAgent.records,
    "stacks": RankAgent.stacks,
    "memory": RankAgent.memory,
    "profile": RankAgent.profile,
    "save": RankAgent.save,
}


def _read_request(connection: socket.socket) -> Header:
    """Read one line of JSON within the limits on bytes and time. Raises OSError or ValueError if there is none."""
    deadline = time.monotonic() + REQUEST_SECONDS
    data = b""
    while b"\n" not in data:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        more = connection.recv(REQUEST_BYTES)
        data += more
        if not more or len(data) > REQUEST_BYTES:
            raise OSError("no request line")
    request = json.loads(data.split(b"\n")[0].decode())
    return request if isinstance(request, dict) else {"op": None}


# ---- installation


class _TorchDistributedImport:
    """An import finder that finds nothing; it runs its actions once, just before torch.distributed is imported."""

    def __init__(self, actions: List[Callable[[], None]]) -> None:
        self.actions = actions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        # It stays in sys.meta_path: removing it while importlib walks that list would skip the next finder.
        if name == "torch.distributed":
            while self.actions:
                _or_none(self.actions.pop())


def _name_settings_for_old_torch() -> None:
    """Set the variable names of torch before 2.8, and the dump on timeout that torch before 2.7 lacks by default."""
    version = str(sys.modules["torch"].__version__).split(".")
    if (int(version[0]), int(version[1])) >= (2, 8):
        return
    for old, new in OLD_NAMES:
        if new in os.environ:
            os.environ.setdefault(old, os.environ[new])
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def _flush_log_by_line(run_dir: str) -> None:
    """Flush output line by line if it goes to a log file of `ddx run` instead of a terminal."""
    if os.readlink("/proc/self/fd/1").startswith(os.path.join(run_dir, "")):
        stdout: Any = sys.stdout
        stdout.reconfigure(line_buffering=True)


def install() -> None:
    """Start the agent; called once at interpreter start, before any code of the job."""
    run_dir = os.environ.get("DDX_RUN_DIR", "")
    part = part_of(_command_line(), os.environ, os.getpid())
    if part == "helper" or not os.path.isdir(os.path.join(run_dir, "ranks")):
        return
    agent = RankAgent(run_dir)
    at_import = [_name_settings_for_old_torch]
    if part == "rank":
        os.environ[OWNER] = "%d:%s" % (os.getpid(), _identity(os.environ))
        _or_none(_flush_log_by_line, run_dir)
        agent.become(int(os.environ["RANK"]))
        agent.start()
    else:
        at_import.append(agent.start)
    finder: Any = _TorchDistributedImport(at_import)
    sys.meta_path.insert(0, finder)
