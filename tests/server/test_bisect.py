"""`ddx bisect`: the rounds as a person runs them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddx_server.cli import app
from ddx_tools.model.errors import UsageError

RUNNER = CliRunner()


def run(*words: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, ["bisect", *words], catch_exceptions=False)
    return result.exit_code, result.stdout


def test_the_first_round_is_all_hosts_and_the_bounds_are_told() -> None:
    code, text = run("node[0-4095]")
    assert code == 3
    assert "1  node[0-4095]" in text
    assert "at most 28 rounds and 178 runs" in text


def test_a_bad_host_is_found_round_by_round(tmp_path: Path) -> None:
    bad, told = "n7", list[str]()
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# the cluster\n" + "".join(f"n{number} slots=8\n" for number in range(30)), encoding="utf-8")
    for _ in range(10):
        code, text = run(str(hostfile), "--json", *told)
        answer = json.loads(text)
        if code != 3:
            break
        numbers = [str(number) for number, group in enumerate(answer["groups"], 1) if bad in group]
        told += ["--bad", ",".join(numbers) or "none"]
    assert (code, answer["bad_hosts"], answer["bad_pairs"]) == (1, [bad], [])
    assert run(str(hostfile), *told)[1] == "bad: n7\n"


def test_nothing_bad_is_healthy() -> None:
    assert run("a,b,c", "--bad", "none") == (0, "nothing is bad\n")


def test_two_hosts_alone_stay_undecided() -> None:
    code, text = run("a,b", "--bad", "1")
    assert code == 3
    assert "undecided among" in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["node[0-"], "not a list of hosts"),
        (["one"], "1 host"),
        (["a,b,c", "--bad", "x"], "not group numbers"),
        (["a,b,c", "--bad", "2"], "round 1 has groups 1 to 1"),
        (["a,b,c", "--bad", "none", "--bad", "1"], "ended after 1 rounds"),
    ],
)
def test_what_cannot_be_is_refused_with_help(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        run(*words)
    assert refused.value.help
