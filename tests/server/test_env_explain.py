"""`ddx env --explain NAME` says what a variable is for, and looks at nothing."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from ddx_server.cli import app
from ddx_tools.knowledge.variables import nonexistent, variables
from ddx_tools.model.errors import UsageError
from ddx_tools.probes.env.explain import explained


def ddx(*words: str) -> str:
    done = CliRunner().invoke(app, ["env", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_purpose_of_a_variable_is_printed() -> None:
    told = ddx("--explain", "NCCL_IB_TIMEOUT")
    assert variables()["NCCL_IB_TIMEOUT"].purpose in told
    assert "0 to 31" in told and "NOT a collective or job timeout" in told


def test_every_described_variable_and_every_name_that_nothing_reads_is_explained() -> None:
    for name, known in variables().items():
        assert explained(name)[0] == f"{name}: {known.purpose or 'its purpose is not documented here'}"
    for name, unread in nonexistent().items():
        if name not in variables():
            assert unread.why in explained(name)[0]


def test_several_names_and_json() -> None:
    told = json.loads(ddx("--explain", "NCCL_DEBUG", "--explain", "NCCL_ALGO", "--json"))
    assert set(told) == {"NCCL_DEBUG", "NCCL_ALGO"} and told["NCCL_DEBUG"][0].startswith("NCCL_DEBUG: ")


def test_a_name_that_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as refused:
        explained("NCCL_IB_TIMEOUTS")
    assert "NCCL_IB_TIMEOUT" in refused.value.help
