"""A playbook page for a person: what a machine executes, in words, and the text of the page."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from ddx_tools.playbook import Cause, Playbooks, Symptom


def list_pages(playbooks: Playbooks, console: Console) -> None:
    """All pages: symptoms, then causes by category."""
    table = Table(box=None, pad_edge=False)
    for title in ("id", "kind", "title"):
        table.add_column(title, overflow="fold")
    for symptom in playbooks.symptoms.values():
        table.add_row(symptom.id, "symptom", symptom.title)
    for cause in sorted(playbooks.causes.values(), key=lambda cause: (cause.category, cause.id)):
        table.add_row(cause.id, cause.category, cause.title)
    console.print(table)
    console.print("read one: ddx playbook ID", style="dim")


def show_page(page: Symptom | Cause, console: Console) -> None:
    """One page: drawn on a terminal, as plain Markdown into a pipe or a file."""
    text = page_markdown(page)
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        console.file.write(text)


def page_markdown(page: Symptom | Cause) -> str:
    """A page as Markdown: its text, then what to do, and what not to."""
    parts = [f"# {page.title}", page.text]
    if isinstance(page, Cause):
        lists = {"Fix": page.fix, "Verify": page.verify, "Prevent": page.prevent, "Tempting, and harmful": page.harmful}
        for title, items in lists.items():
            if items:
                parts.append(f"## {title}\n\n" + "\n".join(f"- {item}" for item in items))
    return "\n\n".join(parts) + "\n"
