"""Pages of the manual that are made of what they describe: commands, causes, findings, tables, the JSON of an answer.

mkdocs calls `on_files` and `on_page_markdown` (`mkdocs.yml`, hooks).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SKILL = ROOT / "skill/debug-distributed"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)(#[^)\s]*)?(?=\))")
_PIPE = re.compile(r"(?<!\\)\|")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and those that lie elsewhere in the repository."""
    made = {
        "reference/commands.md": "\n".join(_commands()),
        "reference/causes.md": "\n".join(_causes()),
        "reference/findings.md": "\n".join(_findings()),
        "reference/evidence.md": "\n".join(_evidence()),
        "reference/diagnosis.md": "\n".join(_diagnosis()),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
    }
    for page in sorted(SKILL.rglob("*.md")):
        made[f"skill/{page.relative_to(SKILL).as_posix()}"] = _without_matter(page.read_text("utf-8"))
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave the manual into links to the page that is made of their goal, or into its name."""
    if "{{ first_run }}" in markdown:
        markdown = markdown.replace("{{ first_run }}", _first_run())
    at = Path(page.file.src_uri)

    def goal(match: re.Match[str]) -> str:
        return _goal(at, match[1], match[2] or "", files)

    return _LINK.sub(goal, markdown)


def _goal(at: Path, link: str, anchor: str, files: Files) -> str:
    """Where a link that is right in the repository leads in the manual; as it is, where that is the same."""
    up = "../" * len(at.parent.parts)
    if at.parts[0] == "reference":  # made for the manual
        return link + anchor
    target = (_origin(at) / link).resolve()
    if not target.is_relative_to(ROOT):
        return link + anchor
    path = target.relative_to(ROOT).as_posix()
    if target.is_relative_to(SKILL):
        path = f"skill/{target.relative_to(SKILL).as_posix()}"
    elif path == "CONTRIBUTING.md":
        path = "contributing.md"
    elif path == "README.md":
        path = "index.md"
    elif path.startswith("playbooks/"):
        return f"{up}reference/causes.md#{target.stem}"
    elif path.startswith("docs/"):
        path = path.removeprefix("docs/")
    return up + path + anchor if files.get_file_from_path(path) else f"{up}contributing.md#where-things-are"


def _origin(at: Path) -> Path:
    """The folder in the repository that a page of the manual lies in."""
    if at.parts[0] == "skill":
        return SKILL.joinpath(*at.parent.parts[1:])
    return ROOT if at.name == "contributing.md" else ROOT / "docs" / at.parent


def _first_run() -> str:
    """The table of the first run, as the page on scores has it."""
    text = (ROOT / "docs/evals.md").read_text("utf-8")
    table = text.partition("On the first run, once, before anybody looked at an answer:")[2].strip()
    return table.partition("\n\n")[0]


def _without_matter(text: str) -> str:
    return text.split("---\n", 2)[2] if text.startswith("---\n") else text


def _cell(text: object) -> str:
    return _PIPE.sub(r"\\|", " ".join(str(text).split())).replace("<", "&lt;")


def _commands() -> Iterator[str]:
    from typer.main import get_command

    from ddx_server.cli import app

    yield "# Commands\n"
    yield "Exit codes: 0 healthy, 1 diagnosed, 3 undecided, 2 wrong usage or unusable input, 70 an error of `ddx`.\n"
    group: Any = get_command(app)
    for name, command in sorted(group.commands.items()):
        if not command.hidden:
            yield from _command(f"ddx {name}", command)


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{_plain(command.help)}\n"
    for inner, one in sorted(getattr(command, "commands", {}).items()):
        yield f"- `{name} {inner}`: {_cell(_plain(one.help).partition(chr(10))[0])}"
    shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    if shown:
        yield "\n| option | what it does |\n|---|---|"
        for one in shown:
            opts = ", ".join(f"`{opt}`" for opt in one.opts if opt.startswith("-")) or f"`{one.name.upper()}`"
            yield f"| {opts} | {_cell(getattr(one, 'help', '') or '')} |"
    yield ""


def _plain(text: str | None) -> str:
    return re.sub(r"\[/?(?:bold|dim)\]", "", (text or "").replace("\\[", "[").replace("\b", "")).strip()


def _causes() -> Iterator[str]:
    from ddx_tools.diagnosis.playbook import load_playbooks

    known = load_playbooks()
    yield "# Causes\n"
    yield "Every cause that `ddx` knows, by symptom. `ddx playbook ID` prints its page with all of the clauses.\n"
    for symptom in known.symptoms.values():
        yield f"## {symptom.title} {{ #{symptom.id} }}\n"
        for cause in known.causes.values():
            if symptom.id in cause.symptoms:
                yield f"- [{_cell(cause.title)}](#{cause.id})"
        yield ""
    for cause in sorted(known.causes.values(), key=lambda one: one.id):
        yield f"## {cause.id} {{ #{cause.id} }}\n"
        yield f"{cause.title[:1].upper()}{cause.title[1:]}. Category: {cause.category}.\n"
        for title, lines in (
            ("Fix", cause.fix),
            ("Verify", cause.verify),
            ("Prevent", cause.prevent),
            ("Harmful", cause.harmful),
        ):
            if lines:
                yield f"**{title.capitalize()}**\n"
                yield from (f"- {_cell(line)}" for line in lines)
                yield ""


def _findings() -> Iterator[str]:
    yield "# Findings\n"
    yield "What was seen, whatever source saw it. The pages of causes name these codes.\n"
    yield "| code | what was seen |\n|---|---|"
    known = yaml.safe_load((ROOT / "tools/ddx_tools/knowledge/findings.yaml").read_text("utf-8"))
    for code, sentence in known.items():
        yield f"| `{code}` | {_cell(sentence)} |"


def _evidence() -> Iterator[str]:
    from ddx_tools.evidence.schema import columns, tables

    yield "# Tables of evidence\n"
    yield "What the tool `query_evidence` reads by SQL. Units stand in the names.\n"
    for table in tables():
        yield f"## {table}\n\n| column | type | |\n|---|---|---|"
        for name, (kind, comment) in columns(table).items():
            yield f"| `{name}` | {kind} | {_cell(comment)} |"
        yield ""


def _diagnosis() -> Iterator[str]:
    from ddx_tools.model.diagnosis import Diagnosis

    schema = Diagnosis.model_json_schema(by_alias=True)
    yield "# The JSON of an answer\n"
    yield "What `ddx why --json` prints. It has every field of `Diagnosis`, also without a value; its parts leave out"
    yield "fields without a value. `ddx schema` prints this as a JSON Schema; what scripts can rely on is on"
    yield "[unattended jobs](../unattended.md#what-a-script-can-rely-on).\n"
    for title, part in (("Diagnosis", schema), *sorted(schema["$defs"].items())):
        if "enum" in part:
            values = ", ".join(f"`{value}`" for value in part["enum"])
            yield f"## {title}\n\n{_cell(part.get('description', ''))} One of: {values}.\n"
        if "properties" in part:
            yield f"## {title}\n\n{_cell(part.get('description', ''))}\n\n| field | type | |\n|---|---|---|"
            for name, field in part["properties"].items():
                yield f"| `{name}` | {_cell(_type(field))} | {_cell(field.get('description', ''))} |"
            yield ""


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return str(name)
    if "anyOf" in field:
        return " or ".join(map(_type, field["anyOf"]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", field.get("const", "any")))
