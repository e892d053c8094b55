"""An answer as Markdown: short, complete enough to act on, and what a job says is no markup in it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import HEALTHY, HUNG, run
from test_render import HOSTILE, assert_harmless

from ddx_server.render.markdown import MOST_LINES, code, markdown, plain
from ddx_tools.model.diagnosis import Claim, Diagnosis, Location, Missing, Party, Verdict

__all__ = ["run"]  # the fixture


def test_a_hang_says_who_where_why_and_what_to_do(run: Any) -> None:
    done = run("why", HUNG, "--markdown")
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0].startswith("**DIAGNOSED** Rank 3 is waiting for a lock at metrics.py:37")
    assert "- **Who:** rank 3 (node1); blocked: ranks 0-2" in lines
    assert any(line.startswith("- **Where:** `/srv/job/metrics.py:37`") for line in lines)
    assert "**Fix**" in lines and len(lines) <= MOST_LINES


def test_a_healthy_job_has_nobody_to_blame(run: Any) -> None:
    done = run("why", HEALTHY, "--markdown")
    assert done.code == 0 and done.out.startswith("**HEALTHY**") and "**Who:**" not in done.out


def test_two_forms_at_once_are_refused(run: Any) -> None:
    done = run("why", HUNG, "--markdown", "--json")
    assert done.code == 2 and "exclude each other" in done.out + done.err


def full(text: str) -> Diagnosis:
    at = Location(file=f"/srv/{text}.py", line=3, function=text, source=text)
    return Diagnosis(
        verdict=Verdict.UNDECIDED,
        headline=text,
        culprits=Party(ranks=[1], hosts=[text], locations=[at] * 9),
        evidence=[Claim(finding="a.b", claim=text, quote=text, source=f"material {text}")] * 30,
        fix=[text] * 30,
        missing=[Missing(what=text, why_it_matters=text)] * 30,
    )


SPANS = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")


@pytest.mark.parametrize(
    "text", [HOSTILE, "<script>x</script> ![a](http://b) @everyone `rm -rf` ``x` # title\n# title", "*_~|[x](y)"]
)
def test_what_a_job_says_is_no_markup(text: str) -> None:
    page = markdown(full(text))
    assert len(page.splitlines()) <= MOST_LINES
    assert_harmless(page)
    outside = SPANS.sub("", page).replace("**", "")
    assert not re.search(r"[<>`@\[\]|*_]|://", outside), outside
    assert not any(line.startswith("#") for line in page.splitlines())


@given(st.text())
def test_a_code_span_ends_where_it_should(text: str) -> None:
    span = code(text)
    fence = re.match(r"`+", span)
    assert fence and span.endswith(fence[0])
    inside = span[len(fence[0]) : -len(fence[0])]
    assert "\n" not in span and fence[0] not in re.findall(r"`+", inside)
    assert not re.search(r"[<>@\[\]|*_]", SPANS.sub("", plain(text)))
