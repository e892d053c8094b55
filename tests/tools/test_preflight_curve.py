"""The bandwidth curve as a picture."""

import xml.etree.ElementTree as ET
from pathlib import Path

from preflight_runs import Ranks, healthy, look

SVG = "{http://www.w3.org/2000/svg}"


def drawn(ranks: Ranks, directory: Path) -> ET.Element:
    ranks.finish()
    out = directory / "curve.svg"
    look(ranks.write(directory / "run"), svg=out)
    return ET.parse(out).getroot()


def test_each_operation_has_a_line_and_each_size_a_mark(tmp_path: Path) -> None:
    ranks = healthy()
    for size in (1 << 12, 1 << 16, 1 << 20):
        ranks.step("all_reduce", size=size, time_s=size / 1e9)
    picture = drawn(ranks, tmp_path)
    assert len(picture.findall(f"{SVG}polyline")) == 4
    titles = [mark.findtext(f"{SVG}title") for mark in picture.findall(f"{SVG}circle")]
    assert "all_reduce, 1 MiB: 1.5 GB/s" in titles
    assert len(titles) == 5 + 3


def test_everything_stays_inside_the_picture(tmp_path: Path) -> None:
    picture = drawn(healthy(), tmp_path)
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for mark in picture.findall(f"{SVG}circle"):
        assert 0 < float(mark.attrib["cx"]) < width
        assert 0 < float(mark.attrib["cy"]) < height


def test_what_should_be_reached_is_a_line_too(tmp_path: Path) -> None:
    ranks = healthy(2, backend="nccl", device_name="NVIDIA H200")
    texts = [text.text for text in drawn(ranks, tmp_path).findall(f"{SVG}text")]
    assert "expected 450 GB/s" in texts


def test_a_hostile_name_is_text(tmp_path: Path) -> None:
    ranks = healthy()
    ranks.step("<script>&", size=1 << 20)
    assert drawn(ranks, tmp_path).find(f"{SVG}script") is None


def test_without_bandwidth_there_is_still_a_picture(tmp_path: Path) -> None:
    ranks = Ranks(2)
    ranks.step("barrier", size=0)
    assert "no bandwidth was measured" in [text.text for text in drawn(ranks, tmp_path).findall(f"{SVG}text")]
