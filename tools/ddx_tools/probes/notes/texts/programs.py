"""Facts from a program's syntax tree: calls that depend on the rank, on a clock, or on one rank's value.

Excerpts and diffs need not parse as a whole: lines that do not parse are left out. A fact is not a fault by itself: the
playbooks combine it with what the job did.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any, TypeGuard

from ddx_tools.analysis.program.python_source import asks_for_the_rank
from ddx_tools.knowledge.program_names import called_name
from ddx_tools.probes.notes.texts.text_fact import TextFact, seen

_PYTHON = re.compile(r"^\s*(?:def \w+\(|class \w+|import \w|from [\w.]+ import |for .+ in .+:|if .+:|with .+:)", re.M)
_DIFF = re.compile(r"^diff --git |^@@ -\d+", re.M)
_NUMBERED = re.compile(r"^\s{0,6}(?P<number>\d{1,6})(?:[:|]|(?= )|$)")
_HEADER = re.compile(r"expected an indented block after .* on line (\d+)")
_MOST_REPAIRS = 24
_LONGEST_LINE = 500


class ProgramText:
    """A program, an excerpt of one, or the new version of a diff."""

    def __init__(self, lines: list[str], tree: ast.Module, *, whole: bool) -> None:
        self.lines = lines
        self.tree = tree
        self.whole = whole
        """Whether the text is a program, not a diff."""
        self.nodes = list(ast.walk(tree))
        self.calls = sorted((n for n in self.nodes if isinstance(n, ast.Call)), key=lambda call: call.lineno)
        self.called = {called_name(call) or "" for call in self.calls}

    @cached_property
    def blocks(self) -> list[list[ast.stmt]]:
        """All lists of statements that run in sequence."""
        fields = ("body", "orelse", "finalbody")
        found = [getattr(node, field, None) for node in self.nodes for field in fields]
        return [block for block in found if isinstance(block, list) and block]

    @cached_property
    def by_one_rank(self) -> set[int]:
        """Return the `id()`s of the syntax nodes that run on some ranks only.

        These are all nodes of `if` statements that test the rank or the part of the model.
        """
        guards = [node for node in self.nodes if isinstance(node, ast.If) and asks_which_rank(node.test)]
        return {id(inner) for guard in guards for inner in ast.walk(guard)}

    def seen(self, code: str, node: ast.expr | ast.stmt, summary: str, **attributes: Any) -> TextFact:
        """Return a fact that quotes the program line on which a syntax node begins.

        `code` and `summary` are those of the finding; `attributes` are passed on to `text_fact.seen`.
        """
        line = self.lines[node.lineno - 1] if node.lineno <= len(self.lines) else ""
        return seen(code, node.lineno, line, summary, **attributes)


def read_as_program(name: str, text: str) -> ProgramText | None:
    """Return the program in a text, recognised by name or by its statements; None for any other text."""
    lines = text.splitlines()
    whole = not name.endswith((".diff", ".patch")) and not _DIFF.search(text)
    if not whole:
        lines = ["" if line.startswith(("-", "@", "+++", "diff --git ")) else line[1:] for line in lines]
    else:
        lines = _unnumbered(lines)
        # A program under another name is an excerpt.
        if not name.endswith(".py") and len(_PYTHON.findall("\n".join(lines))) < 2:
            return None
    lines = [line[:_LONGEST_LINE] for line in lines]
    tree = _tree(lines)
    return ProgramText(lines, tree, whole=whole) if tree and tree.body else None


def _unnumbered(lines: list[str]) -> list[str]:
    """The lines without the numbers that an editor, a pager or `cat -n` put before them."""
    numbers = [_NUMBERED.match(line) for line in lines if line.strip()]
    told = [int(number["number"]) for number in numbers if number]
    if len(told) < 2 or len(told) < len(numbers) or told != sorted(set(told)):
        return lines
    return [_NUMBERED.sub("", line) for line in lines]


def _tree(lines: list[str]) -> ast.Module | None:
    """The syntax tree without the lines that do not parse."""
    kept = ["" if line.lstrip().startswith("#") else line for line in lines]
    for _ in range(_MOST_REPAIRS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are about the user's program
                return ast.parse(textwrap.dedent("\n".join(kept)))
        except SyntaxError as error:
            if header := _HEADER.match(error.msg or ""):
                kept[int(header[1]) - 1] += " pass"
            else:
                kept[min(error.lineno or 1, len(kept)) - 1] = ""
        except (ValueError, RecursionError, MemoryError):
            return None
    return None


def read_program(program: ProgramText) -> Iterator[TextFact]:
    """Yield all facts found in a program, each at most once per line."""
    told: set[tuple[str, int]] = set()
    try:
        for one in chain.from_iterable(reader(program) for reader in _READERS):
            if (one.code, one.line) not in told:
                told.add((one.code, one.line))
                yield one
    except RecursionError:
        return  # too deep to follow


# --- what names and calls mean

_PART = re.compile(
    r"\bis_(?:pipeline_|pp_)?(?:first|last)_(?:stage|rank)\b|\bget_(?:tensor|pipeline|data|context|expert)\w*_rank\(\)"
)
"""Conditions that distinguish parts of a model or of the data, each with a group of its own."""
_COLLECTIVE = re.compile(
    r"(?:all_reduce|broadcast|all_gather|reduce_scatter|all_to_all|gather|scatter|barrier|reduce)\w*"
)
_GUARDED = {
    "new_group": re.compile(r"new_group|init_device_mesh|new_subgroups"),
    "save": re.compile(r"save_model|save_checkpoint|save_and_keep_only|save_state|save_pretrained"),
    "state_dict": re.compile(r"(?:get_model_)?state_dict"),
    "evaluation": re.compile(r"evaluate|validate|validation_loop"),
}
_TOGETHER = re.compile(r"\w*(?:save|checkpoint|ckpt|abort|run_on_main|evaluate|stop)\w*", re.I)
_REDUCES = re.compile(r"(?:\w*_)?(?:reduce|gather)\w*|average_across\w*")
_RANK_OR_CHANCE = re.compile(r"(?:\w*_)?rank\b|get_rank\(\)|time\.time|random", re.I)
_METRIC = re.compile(r"\w*(?:loss|acc|metric|score|auc|norm)\w*")
_REDUCED_NAME = re.compile(r"global_|reduced_|avg_|mean_|args\.|cfg\.")
_SAME_EVERYWHERE = re.compile(
    r"is_initialized|is_available|world_size|is None|is not None|\bargs\.|\bcfg\.|config|isinstance|not enabled"
    r"|__name__|\bmode\b|debug"
)
_MODULE_CALL = re.compile(r"\w*(?:train|main|run|fit|launch|spawn|init|LLM)\w*")
_NO_FORWARD = re.compile(
    r"state_dict|load_|named_|param|buffers|modules|children|train$|eval$|save|to$|cuda$|half$|float$|get_|generate"
)
_DATA = re.compile(r"\w*(?:dataset|data|set|ds)$")


def asks_which_rank(test: ast.expr) -> bool:
    """Return whether a condition treats ranks or parts of the model differently."""
    words = ast.unparse(test)
    return asks_for_the_rank(words) or _PART.search(words) is not None


def _is_collective(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    module = ast.unparse(call.func.value).rpartition(".")[2]
    return module in ("dist", "distributed") and _COLLECTIVE.fullmatch(call.func.attr) is not None


def _calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    return (inner for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Call))


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _leaves(block: list[ast.stmt]) -> bool:
    return any(isinstance(statement, (ast.Return, ast.Continue, ast.Break)) for statement in block[:3])


def _assigned(program: ProgramText) -> Iterator[tuple[str, ast.expr]]:
    for node in program.nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield ast.unparse(target), node.value


# --- calls that only some ranks make


def _breakpoints(program: ProgramText) -> Iterator[TextFact]:
    for call in program.calls:
        if called_name(call) in ("breakpoint", "set_trace"):
            rank = _keyword(call, "rank")
            ranks = [rank.value] if isinstance(rank, ast.Constant) and isinstance(rank.value, int) else ()
            yield program.seen("program.breakpoint", call, "The program stops for a debugger here", ranks=ranks)


def _guarded(program: ProgramText) -> Iterator[TextFact]:
    """Calls that a condition on the rank restricts to some ranks: its block and, if that returns or breaks, the code
    after it."""
    for block in program.blocks:
        for place, guard in enumerate(block):
            if isinstance(guard, ast.If) and asks_which_rank(guard.test):
                kept = [*guard.body, *(block[place + 1 :] if _leaves(guard.body) else ())]
                yield from _kept_for_some(program, guard, kept)


def _kept_for_some(program: ProgramText, guard: ast.If, kept: list[ast.stmt]) -> Iterator[TextFact]:
    test = ast.unparse(guard.test)
    for call in _calls(kept):
        name = called_name(call) or ""
        kind = next((kind for kind, names in _GUARDED.items() if names.fullmatch(name)), None)
        if ast.unparse(call.func) == "torch.state_dict":
            continue
        if _is_collective(call) and _PART.search(test):
            if "group" not in ast.unparse(call):
                yield program.seen(
                    "program.group_left_out", call,
                    f"only some ranks call {name}, on the group of all: if {test}",
                    call=name, severity="warning",
                )  # fmt: skip
        elif kind or _is_collective(call):
            yield program.seen(
                "program.guarded_call", call, f"only some ranks call {name}: if {test}",
                call=name, kind=kind or "collective",
            )  # fmt: skip


def _early_leaves(program: ProgramText) -> Iterator[TextFact]:
    """Functions left early on a condition on the rank's own values, before a collective."""
    functions = [node for node in program.nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for body in [program.tree.body, *(function.body for function in functions)]:
        inner = [node for statement in body for node in ast.walk(statement)]
        later = sorted((call for call in _calls(body) if _is_collective(call)), key=lambda call: call.lineno)
        for node in inner:
            if not isinstance(node, ast.If) or not _leaves(node.body[:2]) or asks_which_rank(node.test):
                continue
            behind = next((call for call in later if call.lineno > (node.end_lineno or node.lineno)), None)
            if behind and not _SAME_EVERYWHERE.search(ast.unparse(node.test)):
                yield program.seen(
                    "program.leaves_before_collective", node,
                    f"A rank on which this holds leaves the function here, before {ast.unparse(behind)[:60]}",
                )  # fmt: skip


# --- decisions that each rank makes by itself


def _decisions(program: ProgramText) -> Iterator[TextFact]:
    code = "program.rank_local_decision"
    sets = {name for name, value in _assigned(program) if _is_set(value)}
    for node in program.nodes:
        if isinstance(node, ast.If):
            inside = list(_calls(node.body))
            clocks = {ast.unparse(call.func) for call in _calls([node.test])}
            if clocks & {"time.time", "time.monotonic", "time.perf_counter"} and any(
                _is_collective(call) or _TOGETHER.fullmatch(called_name(call) or "") for call in inside
            ):
                yield program.seen(
                    code,
                    node,
                    "Each rank decides by its own clock whether to make a call that all must make",
                    by="clock",
                )
            own = _own_value(node.test)
            if own and any(map(_is_collective, inside)) and not _is_reduced(program, own, node.lineno):
                yield program.seen(
                    code, node, f"Each rank decides by its own {own} whether to enter a collective", by="metric"
                )
        elif _walks_a_set(node, sets) and any(map(_is_collective, _calls([node]))):
            yield program.seen(
                code, node,
                "A collective is called for each member of a set, and the order of strings differs between processes",
                by="set_order",
            )  # fmt: skip
    yield from _monitored(program)


def _walks_a_set(node: ast.AST, sets: set[str]) -> TypeGuard[ast.For]:
    return isinstance(node, ast.For) and (_is_set(node.iter) or ast.unparse(node.iter) in sets)


def _is_set(value: ast.expr) -> bool:
    return isinstance(value, (ast.Set, ast.SetComp)) or (
        isinstance(value, ast.Call) and called_name(value) in ("set", "frozenset") and bool(value.args)
    )


def _own_value(test: ast.expr) -> str:
    """The metric that a condition tests with < or >; empty if it is reduced or a setting."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return ""
    left = test.left
    if isinstance(left, ast.Call) and isinstance(left.func, ast.Attribute):
        left = left.func.value
    name = ast.unparse(left).rpartition(".")[2]
    return name if _METRIC.fullmatch(name) and not _REDUCED_NAME.search(ast.unparse(test)) else ""


def _is_reduced(program: ProgramText, name: str, before: int) -> bool:
    """Whether a value was reduced before a line."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    together = [call for call in program.calls if re.search("reduce|gather|broadcast", called_name(call) or "")]
    if any(call.lineno < before and word.search(ast.unparse(call)) for call in together):
        return True
    return any(
        "reduce" in ast.unparse(v) for target, v in _assigned(program) if word.search(target) and v.lineno < before
    )


def _monitored(program: ProgramText) -> Iterator[TextFact]:
    logs = [call for call in program.calls if called_name(call) == "log" and call.args]
    logged = {ast.unparse(log.args[0]): log for log in logs if not _is_true(_keyword(log, "sync_dist"))}
    for call in program.calls:
        what, monitored = called_name(call), _keyword(call, "monitor")
        name = ast.unparse(monitored) if monitored else ""
        if what in ("ModelCheckpoint", "EarlyStopping", "ReduceLROnPlateau") and name in logged:
            yield program.seen(
                "program.rank_local_decision", logged[name],
                f"{what} decides by {name}, which is logged without sync_dist: each rank has its own", by="metric",
            )  # fmt: skip


# --- data, devices and random numbers


def _data(program: ProgramText) -> Iterator[TextFact]:
    dealt = any(re.search("sampler|Sampler|Lightning", line) for line in program.lines) or program.called & {
        "prepare", "prepare_data_loader", "split_dataset_by_node", "shard", "Trainer"
    }  # fmt: skip
    for call in program.calls:
        seed = _keyword(call, "seed") if called_name(call) == "DistributedSampler" else None
        if seed is not None and _RANK_OR_CHANCE.search(ast.unparse(seed)):
            yield program.seen(
                "program.sampler_seed_by_rank", seed,
                "The sampler's seed depends on the rank: each rank takes its share of a different shuffle",
            )  # fmt: skip
        if called_name(call) == "DataLoader" and _is_true(_keyword(call, "shuffle")) and not dealt:
            yield program.seen(
                "program.no_sampler", call,
                "A data loader shuffles by itself, and nothing divides its samples among the ranks",
            )  # fmt: skip
    yield from _uneven_splits(program)
    yield from _random_states(program)


def _uneven_splits(program: ProgramText) -> Iterator[TextFact]:
    text = "\n".join(program.lines)
    trains = re.search(r"DistributedDataParallel|\bDDP\b|\bFSDP|fully_shard|all_reduce", text)
    if not trains or re.search(r"drop_last\s*=\s*True|even_batches|\bJoin\b", text) or "join" in program.called:
        return
    for node in program.nodes:
        if not isinstance(node, ast.Subscript):
            continue
        index, whole = node.slice, ast.unparse(node.value)
        by_rank = _is_rank(index.lower if isinstance(index, ast.Slice) and index.step is not None else index)
        pieces = isinstance(node.value, ast.Call) and re.search(r"split\(.*(?:ceil|//)|array_split\(|chunk\(", whole)
        if by_rank and (isinstance(index, ast.Slice) or pieces):
            yield program.seen(
                "program.uneven_split",
                node,
                "Each rank takes a piece of the data, and the pieces may differ in length",
            )


def _is_rank(node: ast.expr | None) -> bool:
    name = ast.unparse(node).removeprefix("self.") if node is not None else ""
    return re.fullmatch(r"(?:\w*_)?rank|(?:\w+\.)*get_rank\(\)|proc_id", name, re.I) is not None


def _random_states(program: ProgramText) -> Iterator[TextFact]:
    if not any(re.search("set_rng_state|setstate|set_state", name) for name in program.called):
        return
    for node in program.nodes:
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            taken = isinstance(value, ast.Call) and re.match(r"get_(?:rng_)?state", called_name(value) or "")
            if taken and isinstance(key, ast.Constant) and "rng" in str(key.value):
                yield program.seen(
                    "program.rng_of_one_rank", value,
                    "The random generator state of one rank is saved, and every rank restores it",
                    severity="warning",
                )  # fmt: skip


_DEVICE = re.compile(r"map_location|torch_device|device|cpu")


def _calls_alone(program: ProgramText) -> Iterator[TextFact]:
    """Facts from the arguments of single calls."""
    thrown = {id(n.value) for n in program.nodes if isinstance(n, ast.Expr)}
    for call in program.calls:
        name, words = called_name(call) or "", ast.unparse(call)
        function = ast.unparse(call.func)
        if name in ("isend", "irecv") and id(call) in thrown:
            yield program.seen(
                "program.unwaited_transfer", call, f"Nothing waits for the transfer that {name} starts", operation=name
            )
        loads = function in ("PeftModel.from_pretrained", "torch.load") or name == "load_file"
        if loads and not _DEVICE.search(words):
            yield program.seen(
                "program.load_without_device", call,
                f"{function} names no device: every rank loads tensors saved on cuda:0 to cuda:0", call=function,
            )  # fmt: skip
        bucket = _keyword(call, "bucket_cap_mb")
        if isinstance(bucket, ast.Constant) and isinstance(bucket.value, int) and bucket.value >= 1000:
            yield program.seen(
                "program.one_bucket", call,
                f"A bucket of {bucket.value} MiB holds all gradients: their reduction starts only after backward",
                mb=str(bucket.value), severity="warning",
            )  # fmt: skip
        variable, default, *_ = [*(ast.unparse(arg).strip("'\"") for arg in call.args), "", ""]
        asks = "environ" in function and name in ("get", "setdefault") and default in ("0", "1")
        if asks and variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            yield program.seen(
                "program.rank_by_default", call,
                f"Without {variable} in its environment a process runs as rank 0 of 1", variable=variable,
            )  # fmt: skip


# --- numbers and gradients


def _metrics(program: ProgramText) -> Iterator[TextFact]:
    if any(_REDUCES.fullmatch(name) for name in program.called) or "metric.compute" in {
        ast.unparse(call.func) for call in program.calls
    }:
        return
    if any(_is_true(_keyword(call, "sync_dist")) for call in program.calls):
        return
    lengths = {name for name, value in _assigned(program) if _is_length_of_data(value)}
    for node in program.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if _is_length_of_data(node.right) or ast.unparse(node.right) in lengths:
                yield program.seen(
                    "program.metric_of_one_rank", node,
                    "This rank's count is divided by the length of the whole data set",
                    how="share", severity="warning",
                )  # fmt: skip
        elif isinstance(node, ast.Call) and id(node) in program.by_one_rank:
            printed = re.fullmatch(r"print|log\w*|add_scalar|info", called_name(node) or "")
            if printed and re.search("loss|acc|metric|score", " ".join(map(ast.unparse, node.args))):
                yield program.seen(
                    "program.metric_of_one_rank", node,
                    "One rank logs its own value, which is not reduced first", how="logged",
                )  # fmt: skip


def _is_length_of_data(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and called_name(node) == "float" and node.args:
        node = node.args[0]
    if not isinstance(node, ast.Call) or called_name(node) != "len" or not node.args:
        return False
    return _DATA.fullmatch(ast.unparse(node.args[0]).rpartition(".")[2]) is not None


def _gradients(program: ProgramText) -> Iterator[TextFact]:
    code, text = "program.sync_left_out", "\n".join(program.lines)
    divides = any(isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) for node in program.nodes)
    divides |= any(re.fullmatch("div_?|mul_?", name) for name in program.called) or "ReduceOp.AVG" in text
    divides |= re.search(r"/ *(?:\w+\.)*(?i:world|n_?gpus|get_world_size|size)", text) is not None
    backwards = [call for call in program.calls if called_name(call) == "backward"]
    for call in program.calls:
        if (
            called_name(call) == "all_reduce"
            and call.args
            and ast.unparse(call.args[0]).endswith(".grad")
            and not divides
        ):
            yield program.seen(
                "program.sum_not_divided",
                call,
                "Gradients are summed over the ranks and never divided",
                severity="warning",
            )
    for node in program.nodes:
        entered = [called_name(call) for call in _calls(node.items)] if isinstance(node, ast.With) else []
        alone = len(backwards) == 1 and backwards[0] in _calls(node.body if isinstance(node, ast.With) else ())
        if isinstance(node, ast.With) and entered[:1] == ["no_sync"] and alone:
            yield program.seen(
                code, node, "Every backward runs under no_sync: no gradient is ever reduced", severity="warning"
            )
    if backwards:
        yield from _past_wrapper(program)


def _past_wrapper(program: ProgramText) -> Iterator[TextFact]:
    """Programs that call the module inside DDP but never the wrapper, whose forward prepares the reduction."""
    functions = {ast.unparse(call.func) for call in program.calls}
    for name, value in _assigned(program):
        wrapped = isinstance(value, ast.Call) and called_name(value) in ("DDP", "DistributedDataParallel")
        if not wrapped or functions & {name, f"{name}.forward"}:
            continue
        for _, used in _assigned(program):
            function = ast.unparse(used.func) if isinstance(used, ast.Call) else ""
            part = function.removeprefix(f"{name}.module").lstrip(".")
            if function.startswith(f"{name}.module") and not (part and _NO_FORWARD.match(part)):
                yield program.seen(
                    "program.sync_left_out", used,
                    f"The module inside {name} is called, but {name} never is: no gradient is "
                    "reduced", severity="warning",
                )  # fmt: skip
                return


def _main_guard(program: ProgramText) -> Iterator[TextFact]:
    if not program.whole or any("__main__" in line for line in program.lines):
        return
    values = [one.value for one in program.tree.body if isinstance(one, ast.Expr)]
    told = [call for call in values if isinstance(call, ast.Call) and _MODULE_CALL.fullmatch(called_name(call) or "")]
    for call in told[-1:]:
        name = called_name(call)
        yield program.seen(
            "program.no_main_guard", call,
            f"{name} is called on import of the module, without a __main__ guard", call=name,
        )  # fmt: skip


_READERS: tuple[Callable[[ProgramText], Iterator[TextFact]], ...] = (
    _calls_alone, _data, _metrics, _gradients, _breakpoints, _guarded, _decisions, _early_leaves, _main_guard,
)  # fmt: skip
