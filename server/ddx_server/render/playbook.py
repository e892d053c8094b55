"""A playbook page for a person: its machine-readable part in words, and its text."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from ddx_tools.diagnosis.playbook import Cause, Playbooks, Symptom, load_playbooks


def list_pages(playbooks: Playbooks, console: Console) -> None:
    """Print the list of all pages: symptoms, then causes by category."""
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
    """Print one page: rendered on a terminal, as plain Markdown into a pipe or a file."""
    text = page_markdown(page)
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        console.file.write(text)


def page_markdown(page: Symptom | Cause) -> str:
    """A page as Markdown: its text, then what to do and what not to do."""
    parts = [f"# {page.title}", page.text, _leads_on(page)]
    if isinstance(page, Cause):
        lists = {"Fix": page.fix, "Verify": page.verify, "Prevent": page.prevent, "Tempting, and harmful": page.harmful}
        for title, items in lists.items():
            if items:
                parts.append(f"## {title}\n\n" + "\n".join(f"- {item}" for item in items))
    return "\n\n".join(part for part in parts if part) + "\n"


def _leads_on(page: Symptom | Cause) -> str:
    """The list of causes that a page leads to: those of a symptom, or the special cases of a cause."""
    causes = load_playbooks().causes.values()
    if isinstance(page, Cause):
        title, further = "Special cases", [cause for cause in causes if page.id in cause.refines]
    else:
        title, further = "Causes", [cause for cause in causes if page.id in cause.symptoms]
    return f"## {title}\n\n" + "\n".join(f"- `{cause.id}`: {cause.title}" for cause in further) if further else ""
