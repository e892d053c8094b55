"""The skill: it keeps to its format, and everything that it tells an agent to type, open or read exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main
import yaml

from ddx_evals.lab import load_scenarios
from ddx_server.cli import app
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.knowledge import resources
from ddx_tools.knowledge.variables import is_real, nonexistent, variables

SKILL = resources.skill_dir() / "debug-distributed"
REFERENCES = sorted((SKILL / "references").glob("*.md"))
PAGES = [SKILL / "SKILL.md", *REFERENCES]
ROOT = Path(__file__).parents[2]

VARIABLE = re.compile(r"\b(?:TORCH|TORCHELASTIC|TORCHDYNAMO|PYTORCH|NCCL|GLOO|CUDA|CUBLAS)_[A-Z0-9_]+\b")
READ_BY_NOTHING = "### Names that nothing reads"
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def code_of(page: Path) -> Iterator[str]:
    """What is written as code: lines of fenced blocks, and spans."""
    text = text_of(page)
    for _, block in FENCE.findall(text):
        yield from block.splitlines()
    yield from SPAN.findall(FENCE.sub("", text))


def blocks(page: Path, *languages: str) -> list[str]:
    return [block for language, block in FENCE.findall(text_of(page)) if language in languages]


def test_the_validator_of_the_format_accepts_it() -> None:
    validator = Path(sys.executable).with_name("agentskills")
    done = subprocess.run([validator, "validate", SKILL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_discloses_itself_in_steps() -> None:
    assert len(text_of(SKILL / "SKILL.md").splitlines()) < 150
    assert all(len(text_of(page).splitlines()) < 150 for page in REFERENCES)
    below = {file.relative_to(SKILL).as_posix() for file in SKILL.rglob("*") if file.is_file()}
    assert below == {"SKILL.md", *(f"references/{page.name}" for page in REFERENCES)}


@pytest.mark.parametrize("page", REFERENCES, ids=lambda page: page.stem)
def test_a_reference_says_when_to_read_it_and_is_found(page: Path) -> None:
    assert re.search(r"\A# .+\n\nRead when ", text_of(page))
    table = text_of(SKILL / "SKILL.md").partition("## References")[2]
    assert f"| `references/{page.name}` |" in table


@pages
def test_every_file_it_points_at_exists(page: Path) -> None:
    named = [code for code in SPAN.findall(text_of(page)) if re.fullmatch(r"(?:references/)?[\w-]+\.md", code)]
    missing = [name for name in named if not (SKILL / "references" / Path(name).name).is_file()]
    missing += [path for path in SPAN.findall(text_of(page)) if path.startswith("../") and not (SKILL / path).is_dir()]
    assert not missing


@pytest.mark.parametrize(
    "words",
    [
        "hang",
        "stuck",
        "frozen",
        "NCCL timeout",
        "watchdog",
        "ChildFailedError",
        "out of memory",
        "differ",
        "slow",
        "torchrun",
    ],
)
def test_the_description_holds_the_words_people_use(words: str) -> None:
    head = yaml.safe_load(text_of(SKILL / "SKILL.md").split("---\n")[1])
    fires, _, does_not = head["description"].partition("Not for ")
    assert words in fires
    assert "single GPU" in does_not


@pages
def test_every_variable_is_read_by_something(page: Path) -> None:
    text, _, names_to_avoid = text_of(page).partition(READ_BY_NOTHING)
    unread = {name for name in VARIABLE.findall(text) if not is_real(name) or name in nonexistent()}
    typed = VARIABLE.findall("\n".join(blocks(page, "sh")))
    assert not unread
    assert not {name for name in typed if name in variables() and variables()[name].deprecated}
    assert set(VARIABLE.findall(names_to_avoid)) <= nonexistent().keys()


def test_every_command_and_option_exists() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    seen = set()
    for page in [*PAGES, ROOT / "AGENTS.md", ROOT / "docs/agents.md"]:
        for line in code_of(page):
            typed = line.partition(" # ")[0]
            for command in re.findall(r"\bddx (?!run -- )([a-z][a-z-]+)([^|]*)", typed):
                seen.add(command[0])
                wrong = unknown_options(group, *command)
                assert not wrong, f"{page.name}: {line}: {wrong}"
    assert {"why", "capture", "playbook", "run", "env", "host", "doctor"} <= seen


def unknown_options(group: typer.core.TyperGroup, name: str, rest: str) -> list[str]:
    if name not in group.commands:
        return [name]
    known = {
        option for parameter in group.commands[name].params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    given = rest.partition(" -- ")[0]  # behind it stands the user's own command
    return [option for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", given) if option not in known]


@pages
def test_every_page_of_the_playbooks_that_it_names_exists(page: Path) -> None:
    playbooks = load_playbooks()
    known = {*playbooks.symptoms, *playbooks.causes, *load_scenarios(), "debug-distributed"}
    commands = {name.replace("_", "-") for name in ("flight_recorder", "job_log", "nccl_log", "native_stacks")}
    named = {code for code in SPAN.findall(text_of(page)) if re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)+", code)}
    named |= {name for code in code_of(page) for name in re.findall(r"ddx playbook ([a-z-]+)", code)}
    assert named <= known | commands


@pages
def test_its_programs_are_programs(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)
    for block in blocks(page, "sh"):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pages
def test_it_recommends_nothing_that_makes_things_worse(page: Path) -> None:
    typed = "\n".join(line for block in blocks(page, "sh") for line in block.splitlines())
    assert not re.search(r"pkill|killall|kill -9|kill -KILL", typed)
    assert "DETAIL" not in typed
    assert not re.search(r"NCCL_(?:P2P|IB|SHM)_DISABLE=1", typed)


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.needs("torch")
def test_the_known_good_program_passes_on_a_machine_that_works(tmp_path: Path) -> None:
    (program,) = [
        block for block in blocks(SKILL / "references/reproduce.md", "python") if "known good" in block.lower()
    ]
    (tmp_path / "known_good.py").write_text(program, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, "known_good.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank (\d) of 2 on \S+: ok", done.stdout)) == ["0", "1"]
