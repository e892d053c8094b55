"""The page that is forwarded shows what the answer says, asks nothing of anywhere, and keeps a job's text as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unicodedata
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from test_cli import HEALTHY, HUNG, RECORDS, ROOT, run
from test_preflight_nccl_tests import printed as nccl_tests
from test_render import HOSTILE

from ddx_evals.simulator import write_benchmark
from ddx_server.report.page import write_report
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Seat

__all__ = ["run"]  # the fixture

INCIDENTS = ROOT / "evals/incidents"
LATE = INCIDENTS / "dev/6fd073/bundle.tar.zst"
MOST_BYTES = 1_500_000
VOID = {"meta", "rect", "br"}
ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "main", "footer", "section", "nav", "h1", "h2",
    "h3", "p", "div", "span", "strong", "code", "pre", "blockquote", "dl", "dt", "dd", "ul", "ol", "li", "table",
    "thead", "tbody", "tr", "th", "td", "label", "select", "option", "details", "summary", "svg", "text", "rect",
    "script", "br",
}  # fmt: skip


class Page(HTMLParser):
    """What a browser would make of the page: its elements, their attributes, its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.code: list[tuple[str, str]] = []
        self.cells: dict[int, tuple[str, str]] = {}
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        given = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in given.items()]
        if "data-rank" in given:
            self.cells[int(given["data-rank"])] = (given["class"], given["aria-label"])
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("script", "style"):
            self.code.append((given.get("type", tag), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            kind, before = self.code[-1]
            self.code[-1] = (kind, before + data)
        else:
            self.text += data


@pytest.fixture
def page_of(run: Any, tmp_path: Path) -> Any:
    def made(*target: str) -> Page:
        done = run("report", *target, "-o", str(tmp_path / "report.html"))
        assert done.code in (0, 1, 3), done.err
        data = (tmp_path / "report.html").read_bytes()
        assert len(data) <= MOST_BYTES
        page = Page(data.decode())
        assert_sealed(page)
        return page

    return made


def assert_sealed(page: Page) -> None:
    """It loads nothing, runs nothing but its own script, and holds no element that the template has not."""
    policies = [value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "src" in value]
    assert len(policies) == 1
    policy = dict(part.strip().split(" ", 1) for part in policies[0].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    for kind in ("script", "style"):
        allowed = policy[f"{kind}-src"].split(" ")
        digests = [hashlib.sha256(text.encode()).digest() for made, text in page.code if made == kind]
        assert len(digests) <= len(allowed) and (digests or kind == "script"), "without ranks there is nothing to run"
        assert {f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests} <= set(allowed)
    assert set(page.elements) <= ELEMENTS, set(page.elements) - ELEMENTS
    for tag, name, value in page.attributes:
        assert not name.startswith("on") and name not in ("style", "src", "srcset", "srcdoc"), (tag, name)
        assert name != "href" or value.startswith("#"), value
    identifiers = [value for _, name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert {value[1:] for _, name, value in page.attributes if name == "href"} <= set(identifiers)
    hidden = {c for c in page.html if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}
    assert not hidden, hidden


def test_a_hang_shows_who_where_who_waits_and_the_quotes_with_their_lines(page_of: Any) -> None:
    page = page_of(HUNG)
    assert (
        "Rank 3 is waiting for a lock at metrics.py:37 MetricsLog.start_new_file" in page.text
        and "DIAGNOSED" in page.text
    )
    assert "suspect" in page.cells[3][0].split() and "suspect" not in page.cells[0][0].split()
    assert "blocked" in page.cells[0][1]
    assert "gradient_reduction at train.py:37 train_step ranks 0-2 wait in it" in " ".join(page.text.split())
    assert "with self.file_lock:" in page.text
    assert page.elements["details"] >= 3


def test_a_healthy_job_blames_nobody_and_draws_no_waits(page_of: Any) -> None:
    page = page_of(HEALTHY)
    assert "HEALTHY" in page.text and "Who waits for whom" not in page.text
    assert {kind for kind, _ in page.cells.values()} == {"cell seen"}


def test_the_numbers_around_the_divergence_stand_by_the_rank_that_lacks_them(page_of: Any) -> None:
    page = page_of(str(RECORDS))
    text = " ".join(page.text.split())
    assert "rank 3 (suspect)✓complete✓complete✓complete–no record of it" in text
    assert "rank 1✓complete✓complete✓complete●called, not complete" in text
    assert '"mesh_tp": [["ranks 0-1", [0, 1]], ["ranks 2-3", [2, 3]]]' in dict(page.code)["application/json"]


def test_of_two_that_call_different_things_the_suspect_is_the_odd_one(page_of: Any) -> None:
    page = page_of(str(RECORDS.parent / "wrong_operation-fault"))
    rows = re.findall(r"(ranks? [\d, -]+(?: \(suspect\))?)((?:[✓●–≠][a-z ,]+)+)", page.text)
    assert rows and {"(suspect)" in who for who, cells in rows if "≠" in cells} == {True}


def test_a_slow_rank_has_its_time_over_the_steps(page_of: Any) -> None:
    page = page_of(str(LATE))
    assert "Step time, as recorded by the profiler" in page.text
    data = [text for kind, text in page.code if kind == "application/json"]
    assert any('"label": "rank 1"' in text and '"blamed": true' in text for text in data)
    assert any("uPlot" in text for kind, text in page.code if kind == "script")


def test_a_rank_of_which_there_is_only_a_profile_has_its_figures(page_of: Any) -> None:
    page = page_of(str(LATE))
    assert "late" in page.cells[1][1] and "nothing wrong seen" in page.cells[0][1]
    assert "profiler trace: 4 steps, median 452.6 ms" in page.text and "mentions this rank" not in page.text


def test_step_times_of_logs_and_bandwidth_of_nccl_tests_are_charted(page_of: Any, tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "nccl.txt").write_text(nccl_tests())
    for rank in range(2):
        lines = [f"step {step} loss {3 / (step + 1):.4f} step_time: {0.8 + rank / 10}s\n" for step in range(20)]
        (job / f"rank{rank}.log").write_text("".join(lines))
    page = page_of(str(job))
    data = next(text for kind, text in page.code if kind == "application/json")
    steps, bandwidth = json.loads(data)
    assert [(line["label"], set(line["values"])) for line in steps["lines"]] == [("rank 0", {800}), ("rank 1", {900})]
    assert bandwidth["x"] == [1 << 30] and bandwidth["lines"][0] == {
        "label": "all_reduce",
        "values": [460.0],
        "blamed": False,
    }


def test_an_undecided_page_shows_what_there_is_to_read(page_of: Any, tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "notes.txt").write_text("Since Monday it is half as fast as before.\n")
    lines = [f"worker {number} flushed shard {number}\n" for number in range(60)]
    (job / "rank0.log").write_text("".join([*lines[:30], "disk quota notice for project nine\n", *lines[30:]]))
    text = page_of(str(job)).text
    reading = text[text.rindex("What to read") :]
    assert reading.index("Since Monday") < reading.index("disk quota notice for project nine")
    assert "31  disk quota notice" in reading and "26  worker 25" in reading, "with the lines around it"


def test_4096_ranks_are_folded_and_the_odd_one_stands_alone(page_of: Any, tmp_path: Path) -> None:
    stalled = write_benchmark(tmp_path / "dumps", 4096, 2)
    page = page_of(str(tmp_path / "dumps"))
    assert "suspect" in page.cells[stalled][0].split()
    assert "1 not where its peers are" in page.text and "Each cell stands for a host" in page.text
    assert page.elements["a"] < 700


HARMFUL = '<script>alert(1)</script></script></style></title>"><img src=x onerror=alert(1)><a href="http://evil">x</a>'
STACK = f"""\
Process 41: python train.py
Python v3.11.4 (/usr/bin/python3.11)

Thread 41 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2800)
    {HARMFUL.replace("(1)", "")} (/srv/{HARMFUL.replace("/", "").replace("(1)", "")}.py:10)
"""


def test_what_a_job_says_stays_text(page_of: Any, tmp_path: Path) -> None:
    job = tmp_path / "<b>job\u202e"
    job.mkdir()
    (job / "rank0.log").write_text(
        "[rank0]: Traceback (most recent call last):\n"
        f'[rank0]:   File "/srv/{HARMFUL}.py", line 7, in {HARMFUL}\n[rank0]:     {HARMFUL}\n'
        f"[rank0]: RuntimeError: {HARMFUL} {HOSTILE.splitlines()[0]}\n"
    )
    (job / "rank1.pyspy.txt").write_text(STACK)
    page = page_of(str(job))
    assert "<script>alert(1)</script>" in page.text and "onerror=alert" in page.text
    assert not any("evil" in value for _, name, value in page.attributes if name == "href")


def test_hosts_and_notes_stay_text(tmp_path: Path) -> None:
    """With markup, terminal escapes, and characters that turn the direction of text or hide."""
    hostile = f"{HARMFUL}{HOSTILE}".replace("\r", "")  # before it, a terminal shows nothing of a line
    with Store() as store:
        found = investigate([str(RECORDS)], notes=[hostile], store=store)
        found.seats = {rank: Seat(rank=rank, host=f"{rank}{hostile}") for rank in range(4)}
        write_report(tmp_path / "page.html", store, found, found.diagnose(), [str(RECORDS)])
    page = Page((tmp_path / "page.html").read_text())
    assert_sealed(page)
    assert page.text.count("<script>alert(1)</script>") >= 5, "four rows of hosts, and the note under what to read"
    assert "host 3<script>" in page.cells[3][1]


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(run: Any, tmp_path: Path) -> None:
    for command in ("report", "why"):
        option = "-o" if command == "report" else "--report"
        done = run(command, HUNG, option, str(tmp_path / "nowhere/report.html"))
        assert done.code == 2 and "there is no directory" in done.err


def test_why_writes_the_page_beside_its_answer(run: Any, tmp_path: Path) -> None:
    done = run("why", str(RECORDS), "--report", str(tmp_path / "page.html"))
    assert done.code == 3 and f"report: {tmp_path / 'page.html'}" in " ".join(done.out.split("\n"))
    assert "rank 3" in Page((tmp_path / "page.html").read_text()).text
