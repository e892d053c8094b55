"""What a stack says a thread is doing: the rules of knowledge/frames.yaml on stacks as they occur."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.knowledge.frame_classes import Activity, KernelView, frame_rules
from ddx_tools.model.stack_frame import Frame
from ddx_tools.parsers.python.pyspy_json import parse_pyspy
from ddx_tools.probes.stacks.rows import native_frames
from ddx_tools.sources.raw import Raw, RawItem

RULES = frame_rules()
KNOWLEDGE = Path(__file__).parents[2] / "tools/ddx_tools/knowledge/frames.yaml"
C10D = "torch/distributed/distributed_c10d.py"
SLEEPS = KernelView("S", "hrtimer_nanosleep", "clock_nanosleep")
FUTEX = KernelView("S", "futex_do_wait", "futex")


def stack(*calls: str) -> list[Frame]:
    """Frames innermost first, from `file:function` outermost first; what is no absolute path is a library's."""
    frames = []
    for call in calls:
        file, _, function = call.rpartition(":")
        if not file.startswith(("/", "<")):
            root = (
                "/v/lib/python3.11/"
                if file.split("/")[0].removesuffix(".py") in STDLIB
                else "/v/lib/python3.11/site-packages/"
            )
            file = root + file
        frames.append(Frame(file, 10, function))
    return frames[::-1]


STDLIB = {
    "threading",
    "queue",
    "subprocess",
    "multiprocessing",
    "socket",
    "pdb",
    "bdb",
    "concurrent",
    "selectors",
    "importlib",
    "pathlib",
}
USER = "/srv/job/train.py:main"
LOGGED = "torch/distributed/c10d_logger.py:_exception_logger.<locals>.wrapper"


def activity(*calls: str, running: bool = False, code: str | None = None, kernel: KernelView | None = None) -> Activity:
    return RULES.activity(stack(*calls), running, code, kernel)


# (calls outermost first, activity, operation); a test below looks the functions up in torch.
LIBRARY_STACKS: list[tuple[tuple[str, ...], str, str | None]] = [
    ((f"{C10D}:all_reduce",), "collective", "all_reduce"),
    ((f"{C10D}:barrier",), "collective", "barrier"),
    ((f"{C10D}:broadcast_object_list", LOGGED, f"{C10D}:broadcast"), "collective", "broadcast"),
    ((f"{C10D}:all_gather_into_tensor",), "collective", "all_gather_into_tensor"),
    ((f"{C10D}:reduce_scatter_tensor",), "collective", "reduce_scatter_tensor"),
    ((f"{C10D}:all_to_all_single",), "collective", "all_to_all_single"),
    ((f"{C10D}:monitored_barrier",), "collective", "monitored_barrier"),
    (("torch/distributed/_functional_collectives.py:wait_tensor",), "collective", "wait_tensor"),
    (
        ("torch/_tensor.py:backward", "torch/autograd/__init__.py:backward",
         "torch/autograd/graph.py:_engine_run_backward"),
        "collective",
        "gradient_reduction",
    ),
    (
        ("torch/nn/parallel/distributed.py:forward", "torch/nn/parallel/distributed.py:_sync_buffers",
         "torch/nn/parallel/distributed.py:_distributed_broadcast_coalesced"),
        "collective",
        "broadcast_buffers",
    ),
    (
        ("torch/nn/modules/module.py:_call_impl", "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:unshard"),
        "collective",
        "fsdp_unshard",
    ),
    ((f"{C10D}:send",), "p2p", "send"),
    ((f"{C10D}:recv",), "p2p", "recv"),
    ((f"{C10D}:batch_isend_irecv",), "p2p", "batch_p2p"),
    (
        ("torch/distributed/pipelining/schedules.py:step", "torch/distributed/pipelining/schedules.py:_wait_batch_p2p"),
        "p2p",
        "batch_p2p",
    ),
    ((f"{C10D}:init_process_group", f"{C10D}:_store_based_barrier"), "rendezvous", "init_process_group"),
    ((f"{C10D}:new_group", f"{C10D}:_new_group_with_tag", f"{C10D}:barrier"), "rendezvous", "new_group"),
    (
        ("torch/distributed/device_mesh.py:init_device_mesh", f"{C10D}:new_group", f"{C10D}:barrier"),
        "rendezvous",
        "init_device_mesh",
    ),
    (("torch/cuda/__init__.py:synchronize",), "device_sync", "synchronize"),
    (
        ("torch/utils/data/dataloader.py:__next__", "torch/utils/data/dataloader.py:_next_data",
         "torch/utils/data/dataloader.py:_get_data", "torch/utils/data/dataloader.py:_try_get_data", "queue.py:get"),
        "data_wait",
        None,
    ),
    (("torch/_dynamo/convert_frame.py:_compile",), "compile", None),
    (("torch/distributed/checkpoint/filesystem.py:write_data",), "checkpoint_io", None),
    (("torch/serialization.py:save",), "checkpoint_io", None),
    (("threading.py:wait",), "lock_wait", None),
    (("threading.py:join", "threading.py:_wait_for_tstate_lock"), "lock_wait", None),
    (("queue.py:put", "threading.py:wait"), "lock_wait", None),
    (("subprocess.py:run", "subprocess.py:communicate"), "subprocess_wait", None),
    (("multiprocessing/popen_fork.py:wait", "multiprocessing/popen_fork.py:poll"), "child_wait", None),
    (("socket.py:readinto",), "socket_wait", None),
    (("http/client.py:read", "http/client.py:_safe_read", "socket.py:readinto"), "socket_wait", "rest_of_answer"),
    (("requests/models.py:iter_content", "urllib3/response.py:stream", "http/client.py:read", "socket.py:readinto",
      "ssl.py:recv_into"), "socket_wait", "rest_of_answer"),
    (("urllib/request.py:urlopen", "http/client.py:getresponse", "http/client.py:begin", "http/client.py:_read_status",
      "socket.py:readinto"), "socket_wait", "answer"),
    (("http/client.py:_send_output", "http/client.py:send"), "socket_wait", "rest_of_request"),
    (("http/client.py:send", "http/client.py:connect", "socket.py:create_connection"), "socket_wait", "connection"),
    (("pdb.py:set_trace", "bdb.py:trace_dispatch", "pdb.py:interaction"), "breakpoint", None),
    (("threading.py:_shutdown",), "shutdown", None),
    (("pathlib.py:open",), "file_io", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "name", "operation"), LIBRARY_STACKS, ids=lambda v: v[-1] if isinstance(v, tuple) else v
)
def test_a_library_call_names_the_activity(calls: tuple[str, ...], name: str, operation: str | None) -> None:
    assert activity(USER, *calls) == Activity(name, operation)


@pytest.mark.needs("torch")
def test_the_functions_of_these_stacks_exist_in_torch() -> None:
    """Rules that nothing can match any more are found when torch moves its functions."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    site = Path(spec.origin).parents[1]
    unknown = []
    for calls, _, _ in LIBRARY_STACKS:
        for call in calls:
            file, _, function = call.rpartition(":")
            name = function.rsplit(".", 1)[-1]
            if file.startswith("torch/") and not re.search(rf"def {name}\(", (site / file).read_text(encoding="utf-8")):
                unknown.append(call)
    assert not unknown


@pytest.mark.parametrize(
    ("name", "kernel", "code", "running"),
    [
        ("sleep", SLEEPS, None, False),
        ("sleep", None, "time.sleep(60)", False),
        ("pipe_write", KernelView("S", "anon_pipe_write", "write", "pipe:[17]"), "print(line)", False),
        ("pipe_write", KernelView("S", None, "write", "pipe:[17]"), None, False),
        ("pipe_read", KernelView("S", "pipe_read", "read", "pipe:[17]"), "stream.read()", False),
        ("file_io", KernelView("S", "folio_wait_bit", "read", "/mnt/data/shard"), "data = file.read()", False),
        ("file_io", KernelView("D"), None, False),
        ("file_io", KernelView("S", "wait_for_partner", "openat"), "with path.open() as lines:", False),
        ("file_io", KernelView("S", "rpc_wait_bit_killable", "newfstatat"), "os.stat(path)", False),
        ("lock_wait", FUTEX, "with self.lock:", False),
        ("lock_wait", FUTEX, "self.condition.acquire()", False),
        ("lock_wait", FUTEX, None, False),
        ("collective", FUTEX, "work.wait()", False),
        ("input", KernelView("S", None, "read", "/dev/pts/0"), "answer = input('go on? ')", False),
        ("device_sync", KernelView("R", None, "sched_yield"), "total += loss.item()", True),
        ("running", KernelView("R"), "counts[pair] += 1", True),
        ("running", None, None, True),
        ("idle", None, None, False),
    ],
)  # fmt: skip
def test_in_the_users_own_code_kernel_and_text_tell(
    name: str, kernel: KernelView | None, code: str | None, running: bool
) -> None:
    assert activity(USER, running=running, code=code, kernel=kernel).name == name


def test_a_call_of_a_library_does_not_colour_what_the_user_does_inside_it() -> None:
    """A dataset's __getitem__ runs inside the data loader: the innermost user frame is what counts."""
    calls = (
        "torch/utils/data/dataloader.py:__next__",
        "torch/utils/data/_utils/fetch.py:fetch",
        "/srv/job/data.py:read",
    )
    assert activity(USER, *calls, running=True).name == "running"
    assert activity(USER, *calls, kernel=SLEEPS).name == "sleep"


def test_a_program_that_imports_from_slow_storage_still_starts() -> None:
    opening = KernelView("S", "rpc_wait_bit_killable", "openat")
    assert activity(USER, "importlib/__init__.py:import_module", kernel=opening).name == "import"
    assert activity(USER, "pathlib.py:open", running=True).name == "running"


def test_a_worker_that_waits_for_work_is_idle() -> None:
    loop = (
        "torch/utils/data/_utils/worker.py:_worker_loop",
        "multiprocessing/queues.py:get",
        "multiprocessing/connection.py:poll",
    )
    assert activity(*loop).name == "worker_idle"
    assert activity(*loop[:1], "/srv/job/data.py:read", kernel=FUTEX, code="with LOCK:").name == "lock_wait"


def test_a_rank_that_computes_in_backward_is_not_taken_for_one_that_waits() -> None:
    backward = ("torch/autograd/graph.py:_engine_run_backward",)
    assert activity(USER, *backward, running=True).name not in RULES.waits_for_peers
    assert activity(USER, *backward, running=False).name in RULES.waits_for_peers


def test_an_empty_stack_runs_or_idles() -> None:
    assert RULES.activity([], False, None).name == "idle"
    assert RULES.activity([], True, None).name == "running"


@pytest.mark.parametrize(
    ("calls", "functions", "contexts"),
    [
        ((f"{C10D}:all_reduce",), ["main"], []),
        (("torch/distributed/checkpoint/state_dict_saver.py:save", f"{C10D}:all_reduce"), ["main"], ["checkpoint"]),
        (("torch/nn/parallel/distributed.py:forward",), ["main", "Trainer.evaluate"], ["ddp", "evaluation"]),
        ((), ["main", "save_checkpoint"], ["checkpoint"]),
        ((), ["main", "MetricsLog.log"], ["logging"]),
        (("torch/distributed/fsdp/_fully_shard/_fsdp_state.py:x",), ["main", "finish"], ["fsdp", "finished"]),
        ((), ["Trainer.fit", "logits", "evaluator", "testing"], []),
    ],
)
def test_what_encloses_a_call_is_named(calls: tuple[str, ...], functions: list[str], contexts: list[str]) -> None:
    assert RULES.contexts(stack(USER, *calls), functions) == contexts


@pytest.mark.parametrize("function", ["load_batch", "loader", "write_summary", "resumed"])
def test_not_everything_that_loads_is_a_checkpoint(function: str) -> None:
    assert RULES.contexts(stack(USER), ["main", function]) == []


# --- the rules as data


def test_every_activity_has_words_and_every_named_one_exists() -> None:
    data = yaml.safe_load(KNOWLEDGE.read_text(encoding="utf-8"))
    raised = {rule["activity"] for rule in data["activities"]} | {"unknown"}
    assert raised == set(data["words"])
    assert set(data["waits_for_peers"]) <= raised
    assert set(data["starting"]) <= raised
    allowed = {"activity", "operation", "module", "function", "outermost", "within", "within_function", "code", "leaf",
               "wchan", "syscall", "blocked_on", "running", "state"}  # fmt: skip
    assert {key for rule in data["activities"] for key in rule} <= allowed
    assert {key for rule in data["contexts"] for key in rule} <= {"context", "module", "function", "user_function"}


names = st.text(st.characters(codec="utf-8"), max_size=40)


@given(
    frames=st.lists(st.builds(Frame, names, st.integers(0, 99), names), max_size=12),
    running=st.booleans(),
    code=st.none() | names,
)
def test_any_stack_has_an_activity(frames: list[Frame], running: bool, code: str | None) -> None:
    found = RULES.activity(frames, running, code, KernelView(code, code, code, code))
    assert RULES.words(found.name)
    RULES.contexts(frames, [frame.function for frame in frames])


NATIVE = json.loads((Path(__file__).parents[1] / "fixtures/stacks/native_h100_torch_2.11.json").read_text())


@pytest.mark.parametrize(
    ("waits_in", "operation"),
    [
        ("item", "cuStreamSynchronize"),
        ("clip", "cuLaunchKernel"),
        ("launch", "cuLaunchKernel"),
        ("event", "synchronize"),
    ],
)
def test_native_frames_tell_a_wait_for_the_gpu(waits_in: str, operation: str) -> None:
    """Recorded with `py-spy dump --native` behind a stream that never ends (H100, driver 580, torch 2.11)."""
    (thread,) = parse_pyspy(json.dumps(NATIVE[waits_in]).encode())
    assert RULES.activity(thread.frames, thread.running, None) == Activity("device_sync", operation)


def test_native_frames_of_a_long_computation_on_the_cpu_are_work() -> None:
    (thread,) = parse_pyspy(json.dumps(NATIVE["numpy"]).encode())
    assert RULES.activity(thread.frames, thread.running, None) == Activity("running")


@pytest.mark.parametrize(
    "line", ["count = torch.tensor([n], device='cuda')", "loss = loss.tolist()", "x = x.to(device)"]
)
def test_a_copy_between_host_and_gpu_waits_for_what_was_asked_before(line: str) -> None:
    assert RULES.activity(stack("/job/train.py:step"), True, line).name == "device_sync"


@pytest.mark.parametrize("line", ["x = torch.ones(4)", "shape = tensor.to_shape()", "ids = tokenizer(text)"])
def test_what_stays_on_the_cpu_is_no_copy(line: str) -> None:
    assert RULES.activity(stack("/job/train.py:step"), True, line).name == "running"


def test_ranks_that_compare_their_parameters_wait_for_their_peers() -> None:
    frames = stack(
        "/job/train.py:main",
        "torch/nn/parallel/distributed.py:DistributedDataParallel.__init__",
        "torch/distributed/utils.py:_verify_param_shape_across_processes",
    )
    assert RULES.activity(frames, True, None) == Activity("collective", "compare_parameters")


def test_a_native_dump_that_cannot_be_read_costs_itself() -> None:
    raw = Raw("node-0")
    for pid, data in ((575, json.dumps(NATIVE["item"]).encode()), (576, b"[{")):
        raw.items.append(RawItem("native", data, "dump", {"pid": pid}))
    assert list(native_frames(raw)) == [575]
