"""The page in a real browser: on a phone and on a desk, light, dark and in print."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from phaseline.lab.report import read_records, report_page
from support.browser import Browser, installed_browser
from support.lab_records import Record
from support.report_page import poison

# Texts of a plot that cover each other by more than a hair, and those that stick out of the page.
LAYOUT = """(() => {
  const box = e => e.getBoundingClientRect();
  const width = doc.documentElement.clientWidth;
  const overlaps = [], outside = [], small = [];
  for (const svg of doc.querySelectorAll('svg[role=img]')) {
    const texts = [...svg.querySelectorAll('text')].filter(e => box(e).width > 0);
    texts.forEach((a, n) => texts.slice(n + 1).forEach(b => {
      const [p, q] = [box(a), box(b)];
      const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (across > 2 && down > 3)
        overlaps.push([svg.getAttribute('aria-label').slice(0, 30), a.textContent, b.textContent]);
    }));
    for (const e of texts) {
      if (box(e).left < -1 || box(e).right > width + 1) outside.push(e.textContent);
      if (parseFloat(win.getComputedStyle(e).fontSize) < 12) small.push(e.textContent);
    }
  }
  return {
    overlaps, outside, small,
    sideways: doc.documentElement.scrollWidth - width,
    flat: [...doc.querySelectorAll('svg[role=img]')].filter(e => box(e).width < 200 || box(e).height < 30).length,
    plots: doc.querySelectorAll('svg[role=img]').length,
    loaded: win.performance.getEntriesByType('resource').map(e => e.name),
    scripts: doc.scripts.length,
  };
})()"""
COLOURS = """[win.getComputedStyle(doc.body).backgroundColor, win.getComputedStyle(doc.body).color,
  ...['prefill', 'decode'].map(name => win.getComputedStyle(doc.querySelector('.phase.' + name)).color)]"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return installed_browser(tmp_path_factory.mktemp("profile"))


def write(folder: Path, *records: Record) -> Path:
    source, page = folder / "records.jsonl", folder / "report.html"
    source.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    page.write_text(report_page(read_records([source])), encoding="utf-8")
    return page


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_cut_off_or_covered(
    browser: Browser, records: dict[str, Record], tmp_path: Path, width: int
) -> None:
    seen = browser.look(write(tmp_path, *records.values()), LAYOUT, width)
    assert seen.pop("plots") > 25
    assert seen == {
        "overlaps": [],
        "outside": [],
        "small": [],
        "sideways": 0,
        "flat": 0,
        "loaded": [],
        "scripts": 0,
    }


def test_light_and_dark_both_have_contrast(browser: Browser, records: dict[str, Record], tmp_path: Path) -> None:
    page = write(tmp_path, records["measure"])
    light, dark = (browser.look(page, COLOURS, 1200, dark=dark) for dark in (False, True))
    assert luminance(light[0]) > 0.9 and luminance(dark[0]) < 0.02
    for background, *inks in (light, dark):
        for ink in inks:
            assert contrast(ink, background) >= 4.5, (ink, background)


def test_hostile_records_run_nothing(browser: Browser, records: dict[str, Record], tmp_path: Path) -> None:
    page = write(tmp_path, *(poison(record) for record in records.values()))
    seen: dict[str, Any] = browser.look(page, f"{{win: win.win ?? null, ...{LAYOUT}}}", 360)
    assert (seen["win"], seen["scripts"], seen["loaded"], seen["sideways"]) == (None, 0, [], 0)


def test_it_prints(browser: Browser, records: dict[str, Record], tmp_path: Path) -> None:
    pdf = browser.pdf(write(tmp_path, records["measure"]))
    assert pdf.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3


def luminance(colour: str) -> float:
    """Relative luminance of rgb(...), as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
