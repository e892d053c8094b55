"""What the text of a program says of a job: calls that depend on the rank, on a clock, on a value of one rank.

Excerpts need not parse, so this goes by lines and their indentation. What is found is no fault by itself: the pages
join it with what the job did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from ddx_tools.knowledge.load import shipped
from ddx_tools.probes.notes.texts.text_fact import Lines, TextFact, matches, seen

_PYTHON = re.compile(r"^\s*(?:def \w+\(|class \w+|import \w|from [\w.]+ import |for .+ in .+:|if .+:|with .+:)", re.M)
_DIFF = re.compile(r"^diff --git |^@@ -\d+", re.M)
_COMMENT = re.compile(r"^\s*#")
_RANK = r"(?:\w*_)?(?:rank|RANK)\b|get_rank\(\)|proc_id"
_PART = re.compile(
    r"\bis_(?:pipeline_|pp_)?(?:first|last)_(?:stage|rank)\b|\bget_(?:tensor|pipeline|data|context|expert)\w*_rank\(\)"
)
"""What tells the parts of a model or of the data apart, each of which has a group of its own."""

_DEBUGGER = re.compile(
    r"^\s*(?:import i?pdb;\s*)?(?:breakpoint\(|i?pdb\.set_trace\(|(?:\w+\.)*(?:dist|distributed)\.breakpoint\()"
)
_RANK_ARGUMENT = re.compile(r"\brank\s*=\s*(\d+)")
_GUARD = re.compile(
    rf"^\s*(?:el)?if\s+.*?(?:(?:{_RANK})\s*(?:==|(?:not )?in\b|!=|<|>)|==\s*(?:{_RANK})|not\s+(?:self\.)?(?:{_RANK})|"
    rf"\bis_main\w*|{_PART.pattern}|\bif_main_process\(|\bis_(?:global_|world_process_|rank_)?zero\b|\bmain_process\b)"
)
_GUARDED = (
    ("new_group", re.compile(r"\b(new_group|init_device_mesh|new_subgroups)\(")),
    (
        "collective",
        re.compile(
            r"\b(?:dist|distributed)\.(all_reduce|broadcast\w*|all_gather\w*|barrier|reduce|gather\w*|scatter\w*)\("
        ),
    ),
    ("save", re.compile(r"\b(save_model|save_checkpoint|save_and_keep_only|save_state|save_pretrained)\(")),
    ("state_dict", re.compile(r"\b(?<!torch\.)((?:get_model_)?state_dict)\(")),
    ("evaluation", re.compile(r"\b(evaluate|validate|validation_loop)\(")),
)
_SAMPLER = re.compile(r"\bDistributedSampler\(")
_SEED = re.compile(rf"\bseed\s*=[^,\n]*(?:{_RANK}|time\.time|random)")
_CLOCK = re.compile(r"\btime\.(?:time|monotonic|perf_counter)\(\)")
_TOGETHER = re.compile(
    r"\b\w*(?:save|checkpoint|ckpt|abort|run_on_main|all_reduce|broadcast|all_gather|barrier|evaluate|stop)\w*\(", re.I
)
_COLLECTIVE = re.compile(
    r"\b(?:dist|distributed)\.(?:all_reduce|broadcast\w*|all_gather\w*|reduce_scatter\w*|all_to_all\w*|barrier|reduce)\("
)
_SET = re.compile(r"^\s*(?P<name>\w+)(?:: ?[\w\[\]]+)? = (?:(?:frozen)?set\(\w|\{[^:{}]*(?:['\"]| for )[^:{}]*\})")
_FOR = re.compile(r"^\s*for [\w, ]+ in (?P<what>(?:frozen)?set\(|\w+\s*:)")
_LEAVES = re.compile(r"^\s*(?:return|continue|break)\b")
_SAME_EVERYWHERE = re.compile(
    r"is_initialized|is_available|world_size|is None|is not None|\bargs\.|\bcfg\.|config|isinstance|not enabled"
    r"|__name__|\bmode\b|debug"
)
_LOGGED = re.compile(r"self\.log\(\s*['\"](?P<name>[\w/]+)['\"](?!.*sync_dist\s*=\s*True)")
_MONITORED = re.compile(
    r"\b(?P<what>ModelCheckpoint|EarlyStopping|ReduceLROnPlateau)\(.*?monitor\s*=\s*['\"](?P<name>[\w/]+)['\"]"
)
_WRAPPED = re.compile(r"^\s*(?P<name>[\w.]{1,60})\s*=\s*(?:\w+\.)*(?:DDP|DistributedDataParallel)\(")
_NO_FORWARD = re.compile(
    r"state_dict|load_|named_|param|buffers|modules|children|train$|eval$|save|to$|cuda$|half$|float$|get_|generate"
)
_OWN_VALUE = re.compile(
    r"\s*(?:el)?if\s+(?!.*(?:\bglobal_|\breduced_|\bavg_|\bmean_|\bargs\.|\bcfg\.))"
    r"(?:\w+\.)*(?P<name>\w*(?:loss|acc|metric|score|auc|norm)\w*)(?:\.item\(\))?\s*(?:<|>)"
)
_NO_SYNC = re.compile(r"^\s*with (?:\w+\.)*no_sync\(\)\s*:")
_NUMBERED = re.compile(r"^\s{0,6}(?P<number>\d{1,6})(?:[:|]|(?= )|$)")
_MODULE_CALL = re.compile(r"^(?:\w+\.)*(\w*(?:train|main|run|fit|launch|spawn|init|LLM)\w*)\(")


def program_lines(name: str, text: str) -> list[str] | None:
    """The lines of a program, of a diff those that it leaves standing; None if the text is no program."""
    if name.endswith((".diff", ".patch")) or _DIFF.search(text):
        return ["" if line[:1] in "-@" else line[1:] for line in text.splitlines()]
    lines = _unnumbered(text.splitlines())
    # Programs of other names are excerpts that somebody cut out.
    return lines if name.endswith(".py") or len(_PYTHON.findall("\n".join(lines))) >= 2 else None


_STATEMENT = re.compile(
    r"""\s*(?:
        (?:import\ \w|from\ [\w.]+\ import\ |@\w|def\ \w+\(|class\ \w+[(:]|return\b|raise\ \w|del\ \w
          |(?:pass|break|continue)$)
      | (?:if|elif|for|while|with|else|try|except|finally)\b.*:\s*(?:\#.*)?$
      | [\w.\[\]"', *]{1,80}\ ?(?:[-+*/|@]?=|:\ ?\w+\ =)\ ?[^=\s](?:.*[\w)\]}"'([{,])?\s*(?:\#.*)?$
      | [\w.]{1,80}\((?:.*[)(,])?\s*(?:;.*)?(?:\#.*)?$
    )""",
    re.VERBOSE,
)
_LOOP = re.compile(r"\s*for [\w., ()]{1,60} in [\w.]{1,60}(?:\(.{0,80}\))?:$")
_WORDS_ON_END = re.compile(r"\b[a-z'’]{2,40} [a-z'’]{2,40} [a-z'’]{2,40} [a-z'’]{2,40}", re.I)
"""Four words in a row: no statement has them outside of a string or a comment."""
_STRING = re.compile(r"""#.*|"[^"]*"|'[^']*'""")
_FEWEST_STATEMENTS = 2
_LONGEST_STATEMENT = 400


def code_in_note(text: str) -> list[str] | None:
    """What somebody pasted of a program into what they wrote, every line at its place and the others empty.

    Fences need not be there: lines that can be statements count, two of them on end at least. None if there are none.
    """
    lines = text.splitlines()
    kept = [""] * len(lines)
    run: list[int] = []
    for number, line in enumerate([*lines, "."]):
        if _is_statement(line) or (run and _goes_on(line, lines[run[-1]])):
            run.append(number)
        elif line.strip() and line.strip() not in (")", "]", "}", "...", "):"):
            statements = [at for at in run if lines[at].strip()]
            for at in statements if len(statements) >= _FEWEST_STATEMENTS else ():
                kept[at] = lines[at]
            run = []
    return kept if any(kept) else None


def _is_statement(line: str) -> bool:
    if len(line) > _LONGEST_STATEMENT or not _STATEMENT.match(line):
        return False
    return bool(_LOOP.match(line)) or not _WORDS_ON_END.search(_STRING.sub("", line))


def _goes_on(line: str, before: str) -> bool:
    """A comment below a statement, or the rest of a call that its line does not close."""
    if len(line) > _LONGEST_STATEMENT:
        return False
    if _COMMENT.match(line):
        return True
    return before.rstrip().endswith(("(", ",", "[", "{")) and bool(line.strip()) and not _WORDS_ON_END.search(line)


def _unnumbered(lines: list[str]) -> list[str]:
    """Without the numbers that an editor, a pager or `cat -n` set before the lines."""
    numbers = [_NUMBERED.match(line) for line in lines if line.strip()]
    told = [int(number["number"]) for number in numbers if number]
    if len(told) < 2 or len(told) < len(numbers) or told != sorted(set(told)):
        return lines
    return [_NUMBERED.sub("", line) for line in lines]


def read_program(lines: Lines) -> Iterator[TextFact]:
    """All that is known of these lines."""
    code = Lines("" if _COMMENT.match(line) else line for line in lines)
    text = "\n".join(code)
    yield from _telling(code, text)
    yield from _debuggers(code)
    yield from _guarded(code)
    yield from _decisions(code)
    yield from _early_leaves(code)
    for number, _ in matches(_SAMPLER, code):
        for further, line in enumerate(code[number - 1 : number + 6], number):
            if _SEED.search(line):
                yield seen(
                    "program.sampler_seed_by_rank", further, line,
                    "The sampler's seed depends on the rank: ranks shuffle in other orders and take shares of them",
                )  # fmt: skip
    if "__main__" not in text:
        for number, found in list(matches(_MODULE_CALL, code))[-1:]:
            yield seen(
                "program.no_main_guard", number, found.string,
                f"{found[1]} is called when the module is imported, with no __main__ guard", call=found[1],
            )  # fmt: skip


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block(code: Lines, start: int) -> Iterator[tuple[int, str]]:
    """The lines below the one at an index that are indented deeper; a condition may have several lines."""
    depth, index = _depth(code[start]), start
    while not code[index].rstrip().endswith(":") and index + 1 < len(code) and index < start + 6:
        index += 1
    for place in range(index + 1, len(code)):
        line = code[place]
        if line.strip() and _depth(line) <= depth:
            return
        yield place + 1, line


def _head(code: Lines, start: int) -> str:
    """A condition, all of its lines."""
    kept = []
    for line in code[start : start + 6]:
        kept.append(line)
        if line.rstrip().endswith(":"):
            break
    return " ".join(kept)


def _debuggers(code: Lines) -> Iterator[TextFact]:
    for number, found in matches(_DEBUGGER, code):
        rank = _RANK_ARGUMENT.search(found.string)
        ranks = [int(rank[1])] if rank else ()
        yield seen("program.breakpoint", number, found.string, "The program stops for a debugger here", ranks=ranks)


def _guarded(code: Lines) -> Iterator[TextFact]:
    for index, line in enumerate(code):
        if not _GUARD.match(line):
            continue
        for number, inner in _kept_for_some(code, index):
            for kind, pattern in _GUARDED:
                if found := pattern.search(inner):
                    if kind == "collective" and _PART.search(line):
                        if "group" not in inner:
                            yield seen(
                                "program.group_left_out", number, inner,
                                f"{found[1]} is called by some ranks only, on the group of all: {line.strip()}",
                                call=found[1], severity="warning",
                            )  # fmt: skip
                        break
                    yield seen(
                        "program.guarded_call",
                        number,
                        inner,
                        f"{found[1]} is called on some ranks only: {line.strip()}",
                        call=found[1],
                        kind=kind,
                    )
                    break


def _kept_for_some(code: Lines, index: int) -> Iterator[tuple[int, str]]:
    """The lines that a condition on the rank keeps for some ranks: its block; where that leaves, the rest besides."""
    block = list(_block(code, index))
    yield from block
    if block and any(_LEAVES.match(inner) for _, inner in block[:3]):
        depth = _depth(code[index])
        for place in range(block[-1][0], len(code)):
            if code[place].strip() and _depth(code[place]) < depth:
                return
            yield place + 1, code[place]


@cache
def _telling_lines() -> list[dict[str, Any]]:
    """`knowledge/programs.yaml`, with its expressions compiled."""
    compiled = ("line", "with", "without")
    return [{k: re.compile(v) if k in compiled else v for k, v in entry.items()} for entry in shipped("programs.yaml")]


def _telling(code: Lines, text: str) -> Iterator[TextFact]:
    """What single lines tell, by what else stands in the program."""
    under_rank = {at for index, line in enumerate(code) if _GUARD.match(line) for at, _ in _block(code, index)}
    for entry in _telling_lines():
        absent, needed = entry.get("without"), entry.get("with")
        if (absent and absent.search(text)) or (needed and not needed.search(text)):
            continue
        for number, found in matches(entry["line"], code):
            if number in under_rank or not entry.get("under_rank"):
                values = found.groupdict()
                more = {"severity": entry.get("severity", "notice"), **entry.get("attributes", {}), **values}
                yield seen(entry["code"], number, found.string, entry["says"].format(**values), **more)
    yield from _past_wrapper(code, text)
    for number, found in matches(_NO_SYNC, code):
        block = "\n".join(line for _, line in _block(code, number - 1))
        if ".backward(" in block and text.count(".backward(") == 1:
            yield seen(
                "program.sync_left_out", number, found.string,
                "Every backward runs under no_sync: no gradient is reduced, in no step", severity="warning",
            )  # fmt: skip


def _past_wrapper(code: Lines, text: str) -> Iterator[TextFact]:
    """A program that trains what DDP wraps, and never calls the wrapper: its forward prepares the reduction."""
    if ".backward(" not in text:
        return
    for _, made in matches(_WRAPPED, code):
        name = re.escape(made["name"])
        if re.search(rf"(?<![\w.]){name}(?:\.forward)?\(", text):
            continue
        for number, found in matches(re.compile(rf"=\s*{name}\.module(?:\.(?P<part>\w+))?\("), code):
            if found["part"] and _NO_FORWARD.match(found["part"]):
                continue
            yield seen(
                "program.sync_left_out", number, found.string,
                f"What {made['name']} wraps is called and {made['name']} never is: no gradient is reduced",
                severity="warning",
            )  # fmt: skip
            return


def _decisions(code: Lines) -> Iterator[TextFact]:
    for index, line in enumerate(code):
        timed = re.match(r"\s*(?:el)?if\b", line) and _CLOCK.search(_head(code, index))
        if timed and any(_TOGETHER.search(inner) for _, inner in _block(code, index)):
            yield seen(
                "program.rank_local_decision", index + 1, line,
                "Each rank decides by its own clock whether to call a collective", by="clock",
            )  # fmt: skip
        own = _OWN_VALUE.match(line)
        if own and any(_COLLECTIVE.search(inner) for _, inner in _block(code, index)):
            reduced = re.compile(
                rf"(?:reduce|gather|broadcast)\w*\([^#]*\b{own['name']}\b|\b{own['name']}\b[^=]*=.*reduce"
            )
            if not any(reduced.search(before) for before in code[:index]):
                yield seen(
                    "program.rank_local_decision", index + 1, line,
                    f"Each rank decides by its own {own['name']} whether to call a collective", by="metric",
                )  # fmt: skip
    sets = {found["name"] for _, found in matches(_SET, code)}
    for number, found in matches(_FOR, code):
        unordered = found["what"].rstrip(": ") in sets or found["what"].endswith("(")
        if unordered and any(_COLLECTIVE.search(inner) for _, inner in _block(code, number - 1)):
            yield seen(
                "program.rank_local_decision", number, found.string,
                "A collective is called for each member of a set, and strings have another order in each process",
                by="set_order",
            )  # fmt: skip
    logged = {found["name"]: (number, found) for number, found in matches(_LOGGED, code)}
    for _, found in matches(_MONITORED, code):
        if found["name"] in logged:
            number, log = logged[found["name"]]
            yield seen(
                "program.rank_local_decision",
                number,
                log.string,
                f"{found['what']} decides by {found['name']}, which is logged without sync_dist: each rank has its own",
                by="metric",
            )


def _early_leaves(code: Lines) -> Iterator[TextFact]:
    """A function is left under a condition of this rank's values, and a collective comes behind that."""
    for index, line in enumerate(code):
        if not re.match(r"\s*if\b.*:\s*$", line) or _SAME_EVERYWHERE.search(line) or _GUARD.match(line):
            continue
        if any(_LEAVES.match(inner) for _, inner in list(_block(code, index))[:2]):
            for place in range(index + 1, min(len(code), index + 60)):
                inner = code[place]
                if re.match(r"\s*def \w+\(", inner):
                    break
                if _COLLECTIVE.search(inner):
                    yield seen(
                        "program.leaves_before_collective",
                        index + 1,
                        line,
                        f"The function is left here if this holds on a rank, before {inner.strip()[:60]}",
                    )
                    break
