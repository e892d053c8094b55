"""Every argument that names a path, of every tool, as the schemas tell them: each is checked against the roots."""

from __future__ import annotations

import re
from typing import Any

import pytest
from mcp.client import Client
from serve_session import ask, call, in_session, refusal

from ddx_server.serve.config import ServeConfig

SECRET = "[rank0]: RuntimeError: the secret of the neighbour\n"
NEEDED: dict[str, dict[str, Any]] = {
    "query_evidence": {"sql": "SELECT 1"},
    "show": {"words": "ranks"},
    "add_finding": {"code": "rank.raised", "quote": "step 1", "source": "material own.log:1"},
}
"""Arguments without which a tool is not called at all."""
MUST_BE_PATHS = {
    ("consistency", "against"),
    ("open_incident", "path"),
    ("diagnose", "target"),
    ("query_evidence", "target"),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ServeConfig:
    """A root beside a neighbour, with links that lead there."""
    directory = tmp_path_factory.mktemp("served")
    root, neighbour = directory / "root", directory / "neighbour"
    for place in (root, neighbour):
        place.mkdir()
    (root / "own.log").write_text("[rank0]: step 1\n")
    (neighbour / "train.log").write_text(SECRET)
    (root / "link").symlink_to(neighbour)
    (root / "link.log").symlink_to(neighbour / "train.log")
    return ServeConfig.at([root])


def schemas(config: ServeConfig) -> dict[str, dict[str, Any]]:
    """The arguments of every tool, as clients are told."""

    async def talk(client: Client) -> dict[str, dict[str, Any]]:
        return {tool.name: tool.input_schema["properties"] for tool in (await client.list_tools()).tools}

    return in_session(config, talk)


def of_paths(config: ServeConfig) -> list[tuple[str, str, bool]]:
    """Tool, argument, and whether it takes several."""
    return [
        (tool, name, schema["type"] == "array")
        for tool, arguments in schemas(config).items()
        for name, schema in arguments.items()
        if schema.get("format") == "path"
    ]


def test_arguments_that_name_paths_say_so(config: ServeConfig) -> None:
    told = {(tool, name) for tool, name, _ in of_paths(config)}
    assert told >= MUST_BE_PATHS
    assert {(tool, "target") for tool, arguments in schemas(config).items() if "target" in arguments} <= told


@pytest.mark.parametrize(
    "path", ["../neighbour/train.log", "../neighbour", "/etc", "link/train.log", "link.log", "link"]
)
def test_no_argument_leads_out_of_the_roots(config: ServeConfig, path: str) -> None:
    for tool, name, several in of_paths(config):
        told = refusal(config, tool, {**NEEDED.get(tool, {}), name: [path] if several else path})
        assert "outside what this server may read" in told, (tool, name, told)


def test_nobody_learns_by_any_argument_what_exists_outside(config: ServeConfig) -> None:
    for tool, name, several in of_paths(config):
        there, missing = (
            refusal(config, tool, {**NEEDED.get(tool, {}), name: [path] if several else path})
            for path in ("../neighbour/train.log", "../neighbour/no.log")
        )
        assert there.replace("train.log", "no.log") == missing, (tool, name)


def test_texts_that_are_no_paths_open_none(config: ServeConfig) -> None:
    """Also as the source of a finding, the thing to show, or where somebody forgot to say that it is a path."""
    outside = config.roots[0].parent / "neighbour"
    for tool, arguments in schemas(config).items():
        for name, schema in arguments.items():
            is_text = schema["type"] == "string" or schema.get("items") == {"type": "string"}
            if not is_text or schema.get("format") == "path" or tool == "report_diagnosis":
                continue
            told = []
            # Their last letters differ: what is echoed of an argument may be cut.
            for path in (f"{outside}/train.log", f"{outside}/train.loX"):
                given = f"material {path}:1" if name in ("words", "source") else path
                value = [given] if schema["type"] == "array" else given
                about = {"target": ["own.log"]} if "target" in arguments else {}
                reply = call(config, tool, {**NEEDED.get(tool, {}), **about, name: value})
                told.append(re.sub(r"inc-[0-9a-f-]+", "inc", str(reply.content)))
            assert SECRET.strip() not in told[0] and "secret" not in told[0], (tool, name)
            assert told[0].replace("train.log", "train.loX") == told[1], (tool, name, told)


def test_what_lies_below_the_roots_is_taken(config: ServeConfig) -> None:
    for tool, name, several in of_paths(config):
        if tool in ("preflight", "network"):  # their target is read only if nothing else is asked of them
            continue
        path = "own.log" if name != "against" else "."
        reply = call(config, tool, {**NEEDED.get(tool, {}), name: [path] if several else path})
        assert "outside what this server may read" not in str(reply.content), (tool, name)
    assert ask(config, "consistency", {"against": "."})["status"] == "no_data"


@pytest.mark.parametrize("target", ["own.log", ["own.log"]])
def test_a_single_target_needs_no_list(config: ServeConfig, target: object) -> None:
    assert ask(config, "job_log", {"target": target})["status"] == "ok"


def test_a_pid_may_be_a_number(config: ServeConfig) -> None:
    as_number, as_text = (refusal(config, "diagnose", {"target": pid}) for pid in (4194304, ["4194304"]))
    assert as_number == as_text and "4194304" in as_number


@pytest.mark.parametrize("target", [{"pid": 3}, [["own.log"]], [{}], [None], True])
def test_a_target_that_is_none_is_refused_in_a_sentence(config: ServeConfig, target: object) -> None:
    told = refusal(config, "job_log", {"target": target})
    assert "target" in told and "pydantic" not in told and "type=" not in told and "\n" not in told
