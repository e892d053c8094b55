"""Scripts as people write them: what a variable holds, what is run, and what nobody can know."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.parsers.launch.shell_script import Script, read_script
from ddx_tools.parsers.launch.shell_words import is_known, shown


def value_of(text: str, name: str = "A") -> str | None:
    return next((a.value for a in reversed(read_script(text).assignments) if a.name == name), None)


def commands(text: str) -> list[tuple[str, ...]]:
    return [command.words for command in read_script(text).commands]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N=4\nG=8\nA=$((N * G))", "32"),
        ("N=4\nA=$(( (N + 1) * ${N} - 7 % 4 ))", "17"),
        ("A=$((1 + UNKNOWN))", None),
        ("A=$((7 / 2))", "3"),
        ("A=$((2 ** 3))", None),
        ("A=$((999999999 * 999999999))", None),
        ("A=x\nA+=y", "xy"),
        ("A+=y", None),
        ('B="two  words"\nA="<$B>  $B"', "<two  words>  two  words"),
        ('A="one\n  two"', "one\n  two"),
        (r'A="a \"b\" \$C \n"', r'a "b" $C \n'),
        ("A='$B \"x\"'", '$B "x"'),
        ("A=a'b'\"c\"d", "abcd"),
        ("A=$'plain'", "plain"),
        (r"A=$'tab\t'", None),
        ("A=", ""),
        ("A=/opt/x:$PATH", None),
        ("A=x`hostname`", None),
        ("A=(1 2)\nA=3", "3"),
        ("A=1; f() { A=2; }; B=$A", "2"),
        ("A=1 cmd\nB=$A", None),
        ("A=1 > log", None),
    ],
)
def test_the_value_of_a_variable(text: str, value: str | None) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("A=1\nB=$A", "1"),
        ("A=1\n( A=2 )\nB=$A", "1"),
        ("A=1\n{ A=2; }\nB=$A", "2"),
        ("A=1\nf() { A=2; }\nB=$A", None),
        ("A=1\nfor A in x y; do :; done\nB=$A", None),
        ("A=1\nwhile read x; do A=2; done < f\nB=$A", None),
        ("A=1\ncase $X in y) A=2;; esac\nB=$A", None),
        ("A=1\ntrue && A=2\nB=$A", None),
        ("A=1\nA[2]=3\nB=$A", None),
        ("A=1\nunset A\nB=$A", None),
        ("if true; then A=2; fi\nA=1\nB=$A", "1"),
    ],
)
def test_a_variable_is_known_while_nothing_can_have_changed_it(text: str, known: str | None) -> None:
    assert value_of(text, "B") == known


@pytest.mark.parametrize(
    "text",
    [
        "if [[ -n $X ]]; then srun a; fi",
        "if x; then :; elif y; then srun a; else srun a; fi",
        "for i in 1 2; do srun a; done",
        "for ((i=0; i<2; i++)); do srun a; done",
        "until x; do srun a; done",
        "case $1 in a|b) srun a ;; esac",
        "x && srun a",
        "x || srun a",
        "x | y && srun a",
        "function f { srun a; }",
        "f() { srun a; }",
    ],
)
def test_what_may_not_run_is_not_certain(text: str) -> None:
    found = [command for command in read_script(text).commands if command.words == ("srun", "a")]
    assert found
    assert not any(command.certain for command in found)


@pytest.mark.parametrize(
    "text",
    ["srun a", "srun a && x", "( srun a )", "{ srun a; }", "x; srun a &", "srun a | tee log", "! srun a", "A=1 srun a"],
)
def test_what_runs_in_any_case_is_certain(text: str) -> None:
    (found,) = [command for command in read_script(text).commands if command.words == ("srun", "a")]
    assert found.certain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("srun > out.log a --b 2>&1", ("srun", "a", "--b")),
        ("srun a < in >> out 2> /dev/null &", ("srun", "a")),
        ("srun a \\\n  --b \\\n  --c", ("srun", "a", "--b", "--c")),
        ("srun --na\\\nme=1 a", ("srun", "--name=1", "a")),
        ("srun bash -c 'x; y \"$Z\"'", ("srun", "bash", "-c", 'x; y "$Z"')),
        ('E=""\nsrun $E "$E" a', ("srun", "", "a")),
        ('O=(--a "b c")\nO+=(--d)\nsrun "${O[@]}" x', ("srun", "--a", "b c", "--d", "x")),
        ("O=()\nsrun ${O[@]} x", ("srun", "x")),
        ("L='srun -N 2'\n$L python a.py", ("srun", "-N", "2", "python", "a.py")),
        ("srun a # not --b", ("srun", "a")),
        ("srun a#b x\\ y", ("srun", "a#b", "x y")),
        ("srun é … a", ("srun", "é", "…", "a")),
        ("export A=1\r\nsrun $A\r\n", ("srun", "1")),
    ],
)
def test_the_words_of_a_command(text: str, words: tuple[str, ...]) -> None:
    assert commands(text)[-1] == words


@pytest.mark.parametrize(
    "word", ["$(hostname)", "`hostname -i`", "$1", "$@", "${X:-8}", "${X%%,*}", "${#X}", "<(ls)", "$NOBODY", "$((X<1))"]
)
def test_what_only_running_it_would_tell_stays_open_and_is_shown_as_written(word: str) -> None:
    (found,) = commands(f"srun --x={word}y a" if word[0] != "<" else f"srun {word} a")
    assert not is_known(found[1])
    assert word in shown(found[1])
    assert found[2] == "a"


def test_commands_inside_substitutions_and_here_documents_are_not_the_scripts_own() -> None:
    text = "A=$(srun a)\nB=`srun b`\ncat <<EOF\nsrun c $(srun d)\nEOF\ncat <<-'X' | srun e\n\tsrun f\n\tX\nsrun g"
    assert [words[1] for words in commands(text) if words[0] == "srun"] == ["e", "g"]


def test_lines_are_those_of_the_script() -> None:
    script = read_script("#!/bin/bash\n\nA=1\nsrun \\\n a\nB=\\\n2\nC=3 srun b\n", first_line=10)
    assert {a.name: a.line for a in script.assignments} == {"A": 12, "B": 16}
    assert [(command.line, command.words[1]) for command in script.commands] == [(13, "a"), (17, "b")]
    assert [(one.name, one.value, one.line) for one in script.commands[1].variables] == [("C", "3", 17)]


def test_exported_is_what_the_script_exports_wherever_it_says_so() -> None:
    script = read_script("A=1\nexport A B=2\nC=3\ndeclare -gx D=4\ndeclare E=5\nreadonly F=6\nexport G\nG=7")
    assert {a.name for a in script.assignments if a.exported} == {"A", "B", "D", "G"}
    assert {a.name for a in script.assignments if not a.exported} == {"C", "E", "F"}


def test_directives_have_the_line_and_the_value_that_they_name() -> None:
    script = read_script("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH -c 8 # cores\n#SBATCH --exclusive\n")
    assert [(one.option, one.value, one.line) for one in script.directives] == [
        ("--nodes", "2", 2), ("-c", "8", 3), ("--exclusive", None, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("opening", ["[host ~]$ ls\n", 'echo "never closed\n', "if true; then\n", "x=(\n"])
def test_behind_what_is_never_closed_the_rest_is_read_but_not_certain(opening: str) -> None:
    script = read_script(f"A=1\n{opening}export B=2\nsrun a\n")
    found = {a.name: a.certain for a in script.assignments}
    assert "A" in found
    assert not found.get("B", False)


def _many(piece: str) -> str:
    return piece * (60_000 // len(piece))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [_many(piece) for piece in ("A=(", "$(", "${A", "if x; then ", "(", '"', "<<E ", "a && ", "{ ", "`", "\\\n", "x")]
    + [_many("srun python a.py --x 'y z'\n"), "A=" + _many("1+"), "A=$((" + _many("1+") + "1))", 'A="' + _many("$A")],
    ids=lambda text: text[:6],
)
def test_a_huge_or_hostile_script_comes_to_an_end(text: str) -> None:
    assert len(read_script(text).commands) <= 5_000  # without its limit, the first of these takes many minutes


@given(st.text(alphabet=st.sampled_from("A=$(){}[]'\"`\\\n #<>&|;x1é\ud800\0"), max_size=60))
def test_any_text_is_read(text: str) -> None:
    assert isinstance(read_script(text), Script)


def test_a_script_is_read_alike_whatever_stands_behind_it() -> None:
    whole = "#SBATCH -N 2\nexport A=1\nsrun torchrun --nnodes $SLURM_NNODES a.py\n"
    for _ in range(20):
        tail = "".join(random.Random(_).choices("abc =\n", k=40))
        assert read_script(f"{whole}{tail}\n").commands[0] == read_script(whole).commands[0]
