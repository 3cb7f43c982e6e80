"""A headless browser, where one is installed: what a page really looks like."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Browser:
    """Chromium, with a profile of its own in `folder`."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder

    def look(self, page: Path, script: str, width: int, *, dark: bool = False) -> Any:
        """The value of a JavaScript expression about the page (`doc`, `win`), laid out `width` pixels wide.

        The page lies in a frame: its own policy holds, and a window has a least width, which a frame has not.
        """
        frame = f'<iframe id="page" src="{page.name}" style="border:0;width:{width}px;height:4000px"></iframe>'
        seen = "const win = page.contentWindow, doc = win.document"
        code = f"onload = () => {{ {seen}; out.textContent = JSON.stringify({script}); }}"
        outer = page.with_name(f"look-{page.stem}.html")
        outer.write_text(f'<!doctype html>{frame}<pre id="out"></pre><script>{code}</script>', encoding="utf-8")
        scheme = f"--blink-settings=preferredColorScheme={int(not dark)}"
        shown = self._run([scheme, "--allow-file-access-from-files", "--dump-dom", outer.as_uri()])
        found = re.search(r'<pre id="out">(.+?)</pre>', shown, re.DOTALL)
        assert found, f"the browser says nothing: {shown[-2000:]}"
        return json.loads(unescape(found[1]))

    def pdf(self, page: Path) -> bytes:
        """The page as it is printed."""
        out = page.with_suffix(".pdf")
        self._run(["--no-pdf-header-footer", f"--print-to-pdf={out}", page.as_uri()])
        return out.read_bytes()

    def _run(self, args: Sequence[str]) -> str:
        command = [self._program, *_QUIET, f"--user-data-dir={self._folder}", *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout


def installed_browser(folder: Path) -> Browser:
    """Skips the test, with the reason, where there is none."""
    return Browser(browser_program(), folder)


def browser_program() -> str:
    """The path of an installed browser. Skips the test, with the reason, where there is none."""
    program = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no headless browser is installed (looked for {', '.join(_NAMES)})")
    return program
