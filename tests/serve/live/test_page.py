"""The live page in a real browser, over a real server."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from support.browser import browser_program
from support.parrot import write_parrot
from support.server import Server, eventually, serving
from support.tiny import CHAT_TEMPLATE

# What the model says, over and over: it would set win.hacked if any of it were more than text.
WORDS = ["<script>", "hacked=1", "</script>", "<img", " src=x", " onerror=hacked=1>", " and"]
SAID = "".join(WORDS)

# How many pixels of the canvas have a colour of the style sheet.
PIXELS = """name => {
  const canvas = document.querySelector('#lanes'), probe = document.createElement('i');
  document.body.append(probe);
  probe.style.color = `var(--${name})`;
  const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
  let n = 0;
  for (let i = 0; i < data.length; i += 4) n += data[i] === r && data[i + 1] === g && data[i + 2] === b;
  return n;
}"""
# The lengths that the answer has at each painted frame, from now on, in win.lengths.
LENGTHS = """() => {
  window.lengths = new Set();
  const answer = document.querySelector('#answer');
  const look = () => { lengths.add(answer.textContent.length); requestAnimationFrame(look); };
  look();
}"""
# Elements whose text is smaller than 12 pixels, does not stand out from what is behind it, or leaves the window.
FLAWS = """() => {
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const rgba = text => [...text.matchAll(/[\\d.]+/g)].map(Number);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] !== 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!own || !e.checkVisibility() || box.width < 2 || box.right < 0 || e.matches(':disabled')) continue;
    const size = parseFloat(style.fontSize);
    if (size < 12) found.push(`small: ${e.textContent}`);
    if (box.left < 0 || box.right > innerWidth + 1) found.push(`outside: ${e.textContent}`);
    const [a, b] = [light(rgba(e.ownerSVGElement ? style.fill : style.color)), light(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`faint: ${e.textContent} ${contrast.toFixed(2)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page is wider than the window');
  return found;
}"""

expect.set_options(timeout=30_000)  # far beyond what anything here takes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "parrot.gguf"
    return write_parrot(path, WORDS, template=CHAT_TEMPLATE, context=1 << 15, endless=True)


@pytest.fixture(scope="module")
def talker(model: Path) -> Iterator[Server]:
    with serving(model) as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = browser_program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(chromium: Browser, server: Server, *, width: int = 1280, complaints: str | None = None, **like: Any) -> Any:
    """The page of a server: it may ask nobody else, and complain of nothing but `complaints` (a pattern)."""
    with chromium.new_context(viewport={"width": width, "height": 800}, **like) as context:
        page = context.new_page()
        said: list[str] = []
        asked: list[str] = []

        def hear(message: ConsoleMessage) -> None:
            if not (complaints and re.search(complaints, message.text)):
                said.append(message.text)

        page.on("console", hear)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.url)
        yield page
        assert said == []
        assert asked and [url for url in asked if not url.startswith(server.url)] == []


def ask(page: Page, prompt: str = "Where is the sea?", tokens: int = 64) -> None:
    page.fill("#prompt", prompt)
    page.fill("#most", str(tokens))
    page.click("#send")


def test_an_answer_arrives_in_pieces_and_its_lane_is_drawn(chromium: Browser, talker: Server) -> None:
    with opened(chromium, talker) as page:
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("h1")).to_have_text("parrot")
        expect(page.locator("#facts")).to_contain_text("1 thread")
        page.click("text=60 s")
        assert page.evaluate(PIXELS, "decode") == 0
        page.evaluate(LENGTHS)
        with page.expect_response("**/v1/chat/completions") as response:
            ask(page, "Where is the sea? " * 40, 2000)
        assert response.value.status == 200
        expect(page.locator("#spent")).to_contain_text("ended: length")
        text = page.locator("#answer").inner_text()
        assert text == (SAID * 2000)[: len(text)] and text.count("<script>") > 200
        assert len([n for n in page.evaluate("[...lengths]") if 0 < n < len(text)]) >= 2
        assert page.locator("#answer *").count() == 0 and page.evaluate("window.hacked") is None
        spent = page.locator("#spent").inner_text()
        assert re.search(r"^TTFT [\d.,]+ m?s · [\d.,]+ tok/s · worst gap .* · 2,000 tokens · prompt of \d+", spent)
        eventually(lambda: page.evaluate(PIXELS, "decode") > 50 and page.evaluate(PIXELS, "prefill") > 0)
        expect(page.locator("#lanes")).to_have_attribute("aria-label", re.compile(r"1 request drawn"))
        expect(page.locator("#gaps .told")).to_contain_text("1,999 gaps")
        expect(page.locator("#ttft .told")).to_contain_text("of 1 request in the last minute")
        assert page.locator("#gaps svg .minute").count() == 1


def test_it_is_stopped_where_one_asks_for_it(chromium: Browser, talker: Server) -> None:
    with opened(chromium, talker) as page:
        for stop in (lambda: page.click("#stop"), lambda: page.press("#prompt", "Escape")):
            ask(page, tokens=30_000)
            expect(page.locator("#answer")).to_contain_text("and")
            expect(page.locator("#running")).to_have_text("1")
            stop()
            expect(page.locator("#spent")).to_contain_text("ended: stopped here")
            expect(page.locator("#running")).to_have_text("0")
            expect(page.locator("#send")).to_be_enabled()
        assert b'phaseline_requests_ended_total{reason="abort"}' in talker.ask("/metrics").body


def test_the_keyboard_is_enough(chromium: Browser, talker: Server) -> None:
    with opened(chromium, talker) as page:
        expect(page.locator("#link")).to_have_text("live")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # skips to the prompt
        reached = []
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.value"))
        controls = ["prompt", "most", "heat", "send", "answer"]
        assert [name for name in reached if name in controls] == controls
        assert {"15", "pause"} <= set(reached)
        page.focus("#mode input[value=chat]")
        page.keyboard.press("ArrowRight")
        page.fill("#most", "5")
        page.focus("#prompt")
        page.keyboard.type("abc")
        with page.expect_request("**/v1/completions") as request:
            page.keyboard.press("Control+Enter")
        assert request.value.post_data_json["prompt"] == "abc"
        expect(page.locator("#answer")).to_have_text("".join(WORDS[:5]))


def test_a_refusal_is_told(chromium: Browser, talker: Server) -> None:
    with opened(chromium, talker, complaints="400") as page:
        ask(page, "too long " * 9000)
        expect(page.locator("#answer")).to_contain_text("32768")
        expect(page.locator("#answer")).to_have_class(re.compile("failed"))


def test_it_outlives_a_server_and_an_engine(chromium: Browser, model: Path) -> None:
    with serving(model) as first, opened(chromium, first, complaints="ERR_CONNECTION_REFUSED|503") as page:
        ask(page)
        expect(page.locator("#ttft .told")).to_contain_text("of 1 request")
        assert first.stop() == 0
        expect(page.locator("#link")).to_contain_text("connection lost")
        with serving(model, "--port", str(first.address[1])) as second:
            expect(page.locator("#link")).to_have_text("live again: the server was restarted")
            expect(page.locator("#ttft .told")).to_have_text("No request yet.")
            ask(page)
            expect(page.locator("#spent")).to_contain_text("ended: length")
            eventually(lambda: page.evaluate(PIXELS, "decode") > 0)
            (engine,) = second.children
            os.kill(engine, signal.SIGKILL)
            expect(page.locator("#link")).to_have_text(re.compile("model is being loaded|engine has ended"))
            expect(page.locator("#link")).to_have_text("live")
            assert second.children != [engine]
            ask(page)
            expect(page.locator("#spent")).to_contain_text("ended: length")


def test_a_key_is_asked_for_and_kept_in_the_tab(chromium: Browser, model: Path) -> None:
    with serving(model, "--api-key", "sesame") as server, opened(chromium, server, complaints="401") as page:
        for key in ("wrong", "sesame"):
            expect(page.locator("#secret")).to_be_focused()
            assert page.locator("#known").is_hidden()
            page.keyboard.type(key)
            with page.expect_response("**/live"):
                page.keyboard.press("Enter")
        expect(page.locator("#link")).to_have_text("live")
        ask(page)
        expect(page.locator("#spent")).to_contain_text("ended: length")
        page.reload()
        expect(page.locator("#link")).to_have_text("live")
        assert page.evaluate("[document.cookie, Object.keys(localStorage).length]") == ["", 0]
        assert server.ask("/live").status == server.ask("/v1/models").status == 401
        assert server.ask("/metrics").status == server.ask("/page/page.js").status == 200


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_all_of_it_can_be_read(chromium: Browser, talker: Server, width: int, scheme: str) -> None:
    with opened(chromium, talker, width=width, color_scheme=scheme) as page:
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#pages-of")).to_have_text(re.compile(r"of [\d,]+"))
        assert page.evaluate(FLAWS) == []
        ask(page, tokens=200)
        expect(page.locator("#spent")).to_contain_text("ended: length")
        expect(page.locator("#decode-rate")).to_have_text(re.compile(r"\d"))
        assert page.evaluate(FLAWS) == []


def test_rates_stand_beside_ceilings_where_they_are_known(chromium: Browser, talker: Server, model: Path) -> None:
    with opened(chromium, talker) as page:
        expect(page.locator("#decode-hint")).to_contain_text("ceiling not measured (serve with --ceilings)")
        assert page.locator("#decode-bar").is_hidden()
    with serving(model, "--ceilings") as server, opened(chromium, server) as page:
        expect(page.locator("#prefill-hint")).to_have_text(re.compile(r"the ceiling of [\d,.]+ tok/s"))
        ask(page, tokens=2000)
        expect(page.locator("#decode-hint")).to_have_text(
            re.compile(r"\d% of the ceiling of [\d,]+ tok/s at 1 stream$")
        )
        assert page.locator("#decode-bar i").evaluate("e => e.getBoundingClientRect().width") > 0


def test_files_of_the_page_and_no_others(talker: Server) -> None:
    page = talker.ask("/")
    policy = page.headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "connect-src 'self'" in policy
    assert not any("unsafe" in rule or "http" in rule or "data:" in rule for rule in policy)
    assert page.headers["content-type"].startswith("text/html") and page.headers["x-content-type-options"] == "nosniff"
    assert not re.search(rb"<style|<script(?! type=\"module\" src=)| style=| on\w+=", page.body)
    for name in re.findall(r'(?:src|href)="(page/[^"]+)"', page.body.decode()):
        assert talker.ask(f"/{name}").status == 200
    for path in ("/page/", "/page/__init__.py", "/page/../config.py", "/page/%2e%2e/config.py", "/page//etc/passwd"):
        assert talker.ask(path).status == 404


def test_routes_are_counted_and_unknown_ones_together(talker: Server) -> None:
    for path in ("/health", "/nowhere", "/elsewhere"):
        talker.ask(path)
    assert eventually(lambda: b'{route="/health",status="200"}' in talker.ask("/metrics").body) is None
    body = talker.ask("/metrics").body.decode()
    assert int(re.findall(r'responses_total\{route="other",status="404"\} (\d+)', body)[0]) >= 2
    assert "nowhere" not in body
