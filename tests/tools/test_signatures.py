"""Known messages: each is matched by its own examples and by no noise, and no expression can be made to hang."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from each_of import each_of
from expression_attacks import Expression, attack, expressions, not_attacked_before
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.analysis.log_events.fingerprint import message_values, parse_mismatch
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.knowledge.known_messages import Signature, match_signatures, needles, signature, signatures
from ddx_tools.model.quantities import size_bytes
from ddx_tools.parsers.logs.log_lines import LINE_LIMIT

# Messages that rightly say two things.
TOGETHER = (
    {"driver_xid", "driver_gpu_off_bus"},
    {"no_route_to_host", "store_client_retry"},
    {"torch_watchdog_rethrown", "cuda_device_fault"},
    {"dataloader_worker_died", "dataloader_worker_shm"},
)
# What jobs say that fare well: nobody must be told of it.
NOISE = (
    "errors: 0, timeouts: 0",
    "closing connections",
    "rank 3 has 10 params",
    "step 3 loss nan",
    "Epoch 3:  41%|████      | 412/1000 [03:12<04:34,  2.14it/s, loss=2.31]",
    "{'loss': 1.2345, 'grad_norm': 0.71, 'learning_rate': 1e-05, 'epoch': 0.12}",
    "node-01:1896279:1896279 [0] NCCL INFO AllReduce: opCount 1e sendbuff 0x7f recvbuff 0x7f count 4194304 datatype 7 "
    "op 0 root 0 comm 0x7f8a [nranks=8] stream 0x7f",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0",
    "NCCL INFO Connected all rings, use ring PXN 0 GDR 1",
    "ncclCommInitRankConfig comm 0x55 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9f2c - Init START",
    "NCCL INFO Using network Socket",
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being "
    "overloaded",
    "UserWarning: The given NumPy array is not writable",
    "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.",
    "wandb: Network error (ConnectionError), entering retry loop.",
    "Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.3s/it]",
    "GPU 0: NVIDIA H100 80GB HBM3, memory 41231 MiB / 81559 MiB, no errors",
    "Connected to the store at 10.0.0.5:29500",
    "found 0 unused parameters",
    "Timeout of the process group is 0:10:00",
    "batch size 8 is divisible by the number of ranks",
    "killed 0 processes; 3 processes finished",
    "Link up, 100000 Mbps",
)


@each_of(signatures(), lambda known: known.id)
def test_examples_are_matched_by_their_signature_and_hardly_another(known: Signature) -> None:
    for example in known.examples:
        # Facts about the job, which raise nothing by themselves, stand in many messages.
        told = {match.signature.id for match in match_signatures(example) if match.signature.findings}
        if known.findings:
            assert known.id in told
            assert told == {known.id} or told in TOGETHER
        else:
            assert known.id in {match.signature.id for match in match_signatures(example)}
    assert all(is_registered(code) for code in known.findings)


@each_of(NOISE, str)
def test_words_of_a_healthy_job_match_nothing(line: str) -> None:
    assert match_signatures(line) == []


def test_ids_are_unique() -> None:
    assert len({known.id for known in signatures()}) == len(signatures())


def test_groups_do_not_hide_what_findings_say_anyway() -> None:
    taken = {"signatures", "signature", "count", "role", "basis", "all_ranks", "steps_done", "quote", "stream"}
    for known in signatures():
        assert not taken & {*known.group_names, *known.attributes}, known.id


def test_every_message_holds_a_needle_for_a_first_look() -> None:
    for known in signatures():
        assert all(any(needle in example for needle in needles()) for example in known.examples)


def test_named_groups_come_with_the_match() -> None:
    (match,) = match_signatures("Timed out waiting 4000ms for recv operation to complete")
    assert match.groups == {"timeout_ms": "4000", "direction": "recv"}


def test_alternatives_bind_the_same_group() -> None:
    (bound,) = match_signatures(
        "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)"
    )
    (listed,) = match_signatures(
        "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    assert bound.groups["port"] == listed.groups["port"] == "29500"


def test_a_special_message_replaces_the_general_one_in_it() -> None:
    line = "Error while creating shared memory segment /dev/shm/nccl-a (size 9), error: No space left on device (28)"
    assert [match.signature.id for match in match_signatures(line)] == ["nccl_shm_create"]
    (other,) = match_signatures(line.replace("No space left on device (28)", "Permission denied (13)"))
    assert (other.signature.id, other.groups) == ("nccl_shm_attach", {"error": "Permission denied "})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5.50 GiB", 5_905_580_032),
        ("512.00 MiB", 536_870_912),
        ("20 bytes", 20),
        ("64M", 67_108_864),
        ("1048576", 1_048_576),
        ("much", None),
        ("", None),
    ],
)
def test_sizes_are_bytes(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


def values_of(line: str) -> dict[str, Any]:
    (match,) = match_signatures(line)
    return message_values(match.signature, match.groups)


def test_values_have_their_types() -> None:
    line = "Timed out after 6 seconds waiting for clients. 1/2 clients joined."
    assert values_of(line) == {"timeout_s": 6, "joined": 1, "expected": 2, "stage": "store"}
    assert values_of("RuntimeError: DataLoader worker (pid(s) 7, 9) exited unexpectedly")["pids"] == [7, 9]
    line = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 98000"
    assert values_of(line)["devices"] == ["98000"], "a bus id is no number"


def test_texts_of_a_group_stand_for_values() -> None:
    line = "Got completion from peer 10.0.0.1<4> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
    on_roce = values_of(f"{line} localGid ::ffff:10.0.0.2 remoteGids::ffff:10.0.0.1 hca mlx5_1")
    assert (on_roce["status_name"], on_roce["status"], on_roce["device"]) == ("RETRY_EXC_ERR", 12, "mlx5_1")
    assert on_roce["roce"] is True
    assert "roce" not in values_of(f"{line} hca mlx5_1"), "InfiniBand prints no GIDs"
    line = "Connect to 10.0.0.6<45678> failed : "
    assert values_of(f"{line}No route to host")["how"] == "no_route"
    assert "how" not in values_of(f"{line}Function not implemented")


@given(st.text(max_size=300), st.sampled_from(sorted(known.id for known in signatures())))
def test_any_text_gives_values_or_none(text: str, name: str) -> None:
    known = signature(name)
    for match in match_signatures(f"{known.examples[0][:40]}{text}{known.examples[-1]}"):
        for value in message_values(match.signature, match.groups).values():
            assert isinstance(value, str | int | float | bool | list)


# --- no expression can be made to hang


_REPEATS = {"MAX_REPEAT", "MIN_REPEAT"}


def unbounded_repeats(parsed: Any, inside: bool = False) -> Iterator[str]:
    """Repetitions without an end of more than one character, or inside another repetition: they can explode."""
    for operation, argument in parsed:
        name = str(operation)
        if name in _REPEATS:
            _, most, body = argument
            endless = most >= LINE_LIMIT
            if endless and (inside or len(body) != 1 or str(body[0][0]) not in ("IN", "LITERAL", "NOT_LITERAL", "ANY")):
                yield f"{name} of {body}"
            yield from unbounded_repeats(body, inside or most > 1)
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from unbounded_repeats(branch, inside)
        elif name == "SUBPATTERN":
            yield from unbounded_repeats(argument[-1], inside)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from unbounded_repeats(argument[1], inside)


def test_a_dangerous_expression_is_recognised() -> None:
    parse: Any = importlib.import_module("re._parser").parse
    assert list(unbounded_repeats(parse(r"(a+)+b")))
    assert list(unbounded_repeats(parse(r"(?:a|b\d+){0,9}c")))
    assert not list(unbounded_repeats(parse(r"rank (\d+) in .{0,80}? of (?:x|y)")))


@each_of(signatures(), lambda known: known.id)
def test_repetitions_in_messages_cannot_multiply(known: Signature) -> None:
    parse: Any = importlib.import_module("re._parser").parse
    assert not list(unbounded_repeats(parse(known.regex)))
    assert ".*" not in known.regex
    assert ".+" not in known.regex


@pytest.mark.parametrize(
    "attacked",
    [
        pytest.param(not_attacked_before, id="those that are new or changed"),
        pytest.param(expressions, id="all", marks=pytest.mark.long),
    ],
)
def test_no_expression_can_be_made_to_backtrack_for_ever(attacked: Callable[[], Iterable[Expression]]) -> None:
    for expression in attacked():
        attack(expression)


# --- reports of mismatches


def test_a_mismatch_report_without_tensors_is_read() -> None:
    found = parse_mismatch(
        "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint("
        "SequenceNumber=4, OpType=BARRIER), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=4, "
        "OpType=GATHER).Collectives differ in the following aspects: \t Op type: BARRIERvs GATHER"
    )
    assert found is not None and found.peer is not None
    assert (found.own.operation, found.peer.operation, found.own.shape) == ("barrier", "gather", None)
    assert found.aspects == {"operation"}


def test_a_cut_mismatch_report_is_none() -> None:
    assert parse_mismatch("Detected mismatch between collectives on ranks. Rank 1 is running collective: Coll") is None
