"""Draws docs/images with the system's Chromium: python docs/report_images.py

The reports are those of a recorded hang, of a recorded slow job, and of simulated records of 4,096 ranks.
"""

from __future__ import annotations

import shutil
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

from ddx_evals.simulator import write_benchmark
from ddx_server.report.page import write_report
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate

Scheme = Literal["light", "dark"]
_ROOT = Path(__file__).parents[1]
_IMAGES = _ROOT / "docs/images"
_HANG, _SLOW = "tests/fixtures/stacks/lock-order.tar.zst", "evals/incidents/dev/6fd073/bundle.tar.zst"


def _report(target: str, out: Path) -> str:
    with Store() as store:
        found = investigate([target], store=store)
        write_report(out, store, found, found.diagnose(), [target])
    return out.as_uri()


def _draw(
    browser: Browser, name: str, address: str, size: tuple[int, int], scheme: Scheme = "light", part: str = ""
) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page.goto(address)
    page.screenshot(path=_IMAGES / name, clip=page.locator(part).bounding_box() if part else None, full_page=bool(part))
    page.close()


def main() -> None:
    """Draw all images again."""
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        here = Path(folder)
        write_benchmark(here / "dumps", 4096, 2)
        hang = _report(_HANG, here / "hang.html")
        slow = _report(_SLOW, here / "slow.html")
        with chdir(here):  # the page names its material as it was given
            large = _report("dumps", here / "large.html")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        _draw(browser, "report-hang.png", hang, (1000, 1240))
        _draw(browser, "report-phone-dark.png", hang, (390, 844), "dark")
        _draw(browser, "report-slow.png", slow, (1000, 900), part="#series")
        _draw(browser, "report-4096-ranks.png", large, (1000, 900))
        browser.close()


if __name__ == "__main__":
    main()
