"""The files that make the repository a plugin: they agree with the package, with the server, and with each other."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import anyio
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from mcp.client import Client

from ddx_server.serve.app import build_server
from ddx_server.serve.config import ServeConfig

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skill/debug-distributed/SKILL.md"
TEXT = {"type": "string", "minLength": 1}
REGISTRY = {
    "type": "object",
    "additionalProperties": False,
    "required": ["$schema", "name", "description", "version"],
    "properties": {
        "$schema": {"pattern": r"^https://static\.modelcontextprotocol\.io/schemas/2025-12-11/server\.schema\.json$"},
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "minLength": 3, "maxLength": 200},
        "title": {**TEXT, "maxLength": 100},
        "description": {**TEXT, "maxLength": 100},
        "version": {**TEXT, "maxLength": 255, "pattern": r"^\d+\.\d+\.\d+$"},
        "packages": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["registryType", "identifier", "version", "transport"],
                "properties": {
                    "registryType": {"const": "pypi"},
                    "identifier": TEXT,
                    "version": {**TEXT, "not": {"const": "latest"}},
                    "runtimeHint": TEXT,
                    "transport": {"type": "object", "required": ["type"], "properties": {"type": {"const": "stdio"}}},
                    "packageArguments": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "value"],
                            "properties": {"type": {"const": "positional"}, "value": TEXT},
                        },
                    },
                },
            },
        },
    },
}
"""What server.json may hold of what we say: from server.schema.json of modelcontextprotocol/registry."""
CASES = sorted((ROOT / "evals/plugin").glob("*/case.yaml"))


def json_of(path: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return parsed


def test_all_manifests_have_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert json_of(".claude-plugin/plugin.json")["version"] == version
    assert json_of("gemini-extension.json")["version"] == version
    registered = json_of("server.json")
    assert {registered["version"], *(package["version"] for package in registered["packages"])} == {version}


def test_the_entry_of_the_registry_is_valid_and_names_what_there_is() -> None:
    """As the registry checks it when it is published: its schema, the package's name and script, the mark in README."""
    registered = json_of("server.json")
    jsonschema.validate(registered, REGISTRY)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (package,) = registered["packages"]
    assert package["identifier"] == project["name"]
    assert project["scripts"][package["identifier"]] == project["scripts"]["ddx"], "uvx starts the script of that name"
    assert [argument["value"] for argument in package["packageArguments"]] == json_of(".mcp.json")["mcpServers"]["ddx"][
        "args"
    ]
    assert f"mcp-name: {registered['name']}" in (ROOT / project["readme"]).read_text(encoding="utf-8")
    for broken in ({"name": "ddx"}, {"description": "x" * 101}, {"packages": [{**package, "version": "latest"}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**registered, **broken}, REGISTRY)


def test_every_host_starts_the_same_server() -> None:
    server = {"ddx": {"command": "ddx", "args": ["serve"]}}
    assert json_of(".mcp.json")["mcpServers"] == server
    assert json_of("gemini-extension.json")["mcpServers"] == server


def test_the_marketplace_offers_this_plugin_with_this_skill() -> None:
    plugin = json_of(".claude-plugin/plugin.json")
    (offered,) = json_of(".claude-plugin/marketplace.json")["plugins"]
    assert (offered["name"], offered["source"]) == (plugin["name"], "./")
    assert [ROOT / skill for skill in plugin["skills"]] == [SKILL.parent]
    assert ROOT / plugin["experimental"]["evals"] == ROOT / "evals/plugin"


def test_the_tools_that_the_skill_names_are_those_of_the_server(tmp_path: Path) -> None:
    async def names() -> set[str]:
        async with Client(build_server(ServeConfig.at([tmp_path]))) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    table = SKILL.read_text(encoding="utf-8").partition("| step |")[2].partition("\n\n")[0]
    tools = [re.findall(r"`(\w+)`", row.split("|")[2]) for row in table.splitlines() if row.count("|") >= 4]
    named = {name for row in tools for name in row}
    assert named == anyio.run(names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.parent.name)
def test_an_eval_case_grades_the_outcome_and_whether_the_skill_fired(case: Path) -> None:
    parsed = yaml.safe_load(case.read_text(encoding="utf-8"))
    assert parsed["name"] == case.parent.name
    fires = "fires" in parsed["tags"]
    assert fires != ("stays-silent" in parsed["tags"])
    graders = parsed["graders"]
    assert any(grader["type"] == "regex" for grader in graders)
    skill = [grader for grader in graders if grader.get("tool") == "Skill"]
    assert [(grader["min"], grader.get("max")) for grader in skill] == [(1, None) if fires else (0, 0)]


def test_the_suite_holds_near_misses_too() -> None:
    tags = [tag for case in CASES for tag in yaml.safe_load(case.read_text(encoding="utf-8"))["tags"]]
    assert tags.count("fires") >= 3
    assert tags.count("stays-silent") >= 2
