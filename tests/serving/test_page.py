"""The page to try a model, in a headless Chromium: what a reader sees, hears, copies, and cannot be harmed by."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from browser import CHROMIUM, Browser, browser
from chatserver import FACTS, ChatServer, planted
from served import KEY, Server, chat, post, running, until
from writer import Scripted

from lovec.display import band
from lovec.serving import service
from lovec.serving.page import render_page
from lovec.taggers import Session
from lovec.tagging import ApiModel, ApiTagger
from lovec.tags import TagFormat
from lovec.types import Scale

chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

ANSWER = (
    "Ada ran. <confidence> 9 </confidence>\n\nShe wrote a note. <confidence> 2 </confidence>\n"
    "It was noon. <confidence> 5 </confidence> And then"
)
TEXT = "Ada ran.  She wrote\na note.\n\nIt was noon."
HOSTILE = (
    "<img src=x onerror=alert(1)> </script><script>alert(2)</script> {{7*7}} ${alert(3)}. <confidence> 9 </confidence> "
    '<a href="javascript:alert(4)">x</a> "onfocus=alert(5) autofocus="\u202e\x1b. <confidence> 2 </confidence>'
)
UNITS = "document.querySelectorAll('.lv-u')"
TEXTS = f"[...{UNITS}].map((e) => e.querySelector('.lv-s').textContent)"
TIPS = """[...document.querySelectorAll('.lv-tip')]
    .filter((e) => getComputedStyle(e).clipPath === 'none').map((e) => e.textContent.trim())"""
FADED = "[...document.querySelectorAll('.lv-u')].map((e) => e.classList.contains('lv-faded'))"
IDLE = "!running && document.getElementById('stop').hidden"
CONTRASTS = """(() => {
    const rgb = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => rgb(colour).slice(0, 3).map((c) => c / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (e) => {
        const colour = getComputedStyle(e).backgroundColor;
        return (rgb(colour)[3] ?? 1) === 1 ? colour : ground(e.parentElement);
    };
    const found = [];
    for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!(own || e.matches('textarea, [type=password]')) || !e.checkVisibility()) continue;
        const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
        found.push([e.className || e.id || e.tagName, (a + 0.05) / (b + 0.05)]);
    }
    return found;
})()"""


def words(id_: str) -> str:
    """The expression of an element's text."""
    return f"document.getElementById('{id_}').textContent"


@pytest.fixture(scope="module")
def server(session: Session) -> Iterator[Server]:
    with running(replace(session), key=None, max_waiting=2, max_tokens=400) as server:
        yield server


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def engine(session: Session) -> Scripted:
    engine = session.engine
    assert isinstance(engine, Scripted)
    engine.answer, engine.known, engine.held, engine.written = ANSWER, [], None, 0
    engine.go.clear()
    return engine


@contextmanager
def held(engine: Scripted) -> Iterator[None]:
    """Hold every answer in its second sentence until the block ends."""
    engine.held = len(engine.tokenizer(ANSWER.partition("\n")[0], add_special_tokens=False)["input_ids"]) + 5
    try:
        yield
    finally:
        engine.go.set()


def ask(window: Browser, question: str = "Who was Ada?") -> None:
    """Write a question into the page and press Enter."""
    window.value("document.getElementById('question').value = ''")
    window.click("#question")
    window.type(question)
    window.press("Enter", text="\r")


def asked(window: Browser, server: Server, **options: Any) -> None:
    """Open the page, ask, and wait for the end of the answer."""
    window.open(f"{server.url}/", **options)
    ask(window)
    window.wait_for(f"{IDLE} && {UNITS}.length")


def test_the_page_loads_nothing_and_its_policy_allows_no_more_than_its_own(server: Server) -> None:
    with urllib.request.urlopen(f"{server.url}/", timeout=60) as response:
        page, headers = response.read().decode(), response.headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", policy["script-src"]) and "unsafe" not in str(policy)
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", policy["style-src"])
    assert (headers["X-Content-Type-Options"], headers["X-Frame-Options"]) == ("nosniff", "DENY")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert not re.search(r"(src|href)=[\"'](?!data:)|@import|url\(|innerHTML|\bstyle=|\son\w+=", page)
    assert page.count("<script>") == page.count("</script>") == page.count("<style>") == 1


def test_a_name_is_text() -> None:
    page, _ = render_page("</title><script>alert(1)</script>\u202e", guarded=False)
    assert "<script>alert" not in page and "\u202e" not in page and page.count("&lt;script&gt;") == 2


@chromium
def test_sentences_arrive_one_by_one(window: Browser, server: Server, engine: Scripted) -> None:
    window.open(f"{server.url}/")
    with held(engine):
        ask(window)
        assert window.wait_for(f"{UNITS}.length") == 1 and not window.value(IDLE)
        assert window.value("[passage.getAttribute('aria-busy'), passage.getAttribute('aria-live')]") == [
            "true",
            "polite",
        ]
        assert window.value(f"send.disabled && {words('status')}") == "Writing …"
    window.wait_for(IDLE)
    entries = post(server, chat())[1]["choices"][0]["message"]["confidence"]
    assert window.value(TEXTS) == [entry["text"] for entry in entries]
    assert (
        window.value("passage.querySelectorAll('p').length") == 2
        and window.value("passage.querySelectorAll('br').length === 1 && asked.textContent") == "Who was Ada?"
    )
    classes = window.value(f"[...{UNITS}].map((e) => e.firstChild.className)")
    assert classes == [f"lv-s lv-{band(entry['confidence'])}" for entry in entries]
    numbers = window.value(f"[...{UNITS}].map((e) => e.children[1].textContent)")
    assert numbers == ["-" if e["confidence"] is None else f"{e['confidence']:.2f}" for e in entries]
    assert re.fullmatch(r"4 sentences · mean confidence 0\.\d\d", window.value(words("status")))
    assert "not calibrated" in window.value(words("note"))
    assert window.problems() == [] and window.dialogs() == []
    assert {url.split("/v1")[0].rstrip("/") for url in window.requests() if url[:5] != "data:"} == {server.url}


@chromium
def test_items_of_inner_lists_are_indented(window: Browser, server: Server) -> None:
    asked(window, server)
    items = [["Two:", "\n\n"], ["- three", "\n"], ["- four", "\n  "], ["- five", "\n\n  "]]
    window.value(f"{json.dumps(items)}.forEach(([text, before]) => addSentence({{text, kind: 'label'}}, before))")
    assert window.value("passage.innerText").endswith("\n\nTwo:\n- three\n  - four\n\n  - five")


@chromium
def test_bands_are_those_of_all_pages(window: Browser, server: Server) -> None:
    window.open(f"{server.url}/")
    values = [at / 1000 for at in range(1001)]
    assert window.value(f"{json.dumps(values)}.map(band)") == list(map(band, values))
    assert window.value("band(null)") == band(None)


@chromium
def test_the_numbers_appear_on_hover_focus_and_tap(window: Browser, server: Server) -> None:
    asked(window, server)
    second = window.value(f"{UNITS}[1].querySelector('.lv-tip').textContent.trim()")
    assert re.fullmatch(r"confidence 0\.\d\d, stated score 2 of 10", second)
    assert window.value(TIPS) == []
    window.value(f"{UNITS}[1].id = 'second'")
    window.hover("#second")
    assert window.value(TIPS) == [second]
    window.hover("h1")
    window.value("document.getElementById('threshold').focus()")
    for _ in range(3):  # the switch of colours, and two sentences
        window.press("Tab")
    assert window.value(TIPS) == [second]
    asked(window, server, width=390, height=844)
    window.value(f"{UNITS}[0].id = 'first'")
    window.tap("#first")
    assert window.wait_for(TIPS)[0].endswith("stated score 9 of 10")
    left, right = window.value(
        "((b) => [b.left, b.right])(document.querySelector('#first .lv-tip').getBoundingClientRect())"
    )
    assert 0 <= left < right <= 390


@chromium
def test_a_threshold_fades_what_falls_below(window: Browser, server: Server) -> None:
    asked(window, server)
    assert window.value(FADED) == [False] * 4
    window.value("document.querySelector('input[value=stated]').click()")
    assert window.value(f"[...{UNITS}].map((e) => e.children[1].textContent)") == ["0.90", "0.20", "0.50", "-"]
    assert window.value(f"[...{UNITS}].map((e) => e.firstChild.className.slice(8))") == [
        "high",
        "low",
        "middle",
        "none",
    ]
    window.value("threshold.focus()")
    for _ in range(10):
        window.press("ArrowRight")
    assert window.value(words("shown")) == "0.50"
    assert window.value(FADED) == [False, True, False, True]  # 0.5 is not below 0.5; without a score nothing is sure
    assert window.value(words("status")) == "4 sentences · mean stated score 0.53 · 2 below 0.50"
    window.press("ArrowRight")
    assert window.value(FADED) == [False, True, True, True]
    window.press("Home")
    assert window.value(FADED) == [False] * 4


def pasted(window: Browser) -> str:
    """What the clipboard holds, by pasting it into the page."""
    window.value("question.value = ''; question.focus()")
    window.call("Input.dispatchKeyEvent", type="keyDown", key="v", modifiers=2, commands=["paste"])
    window.call("Input.dispatchKeyEvent", type="keyUp", key="v", modifiers=2)
    return str(window.value("question.value"))


@chromium
def test_copies_are_the_text_that_is_kept_and_all_as_json(window: Browser, server: Server) -> None:
    asked(window, server)
    window.click("#copytext")
    window.wait_for(f"{words('copied')} === 'Copied 4 of 4 sentences.'")
    assert pasted(window) == "Ada ran.\n\nShe wrote a note.\nIt was noon. And then"
    window.value("document.querySelector('input[value=stated]').click()")
    window.value("threshold.value = 0.5; paint()")
    window.click("#copytext")
    window.wait_for(f"{words('copied')} === 'Copied 2 of 4 sentences.'")
    assert pasted(window) == "Ada ran.\n\nIt was noon."  # the paragraph ends, though its break was before another
    window.click("#copyjson")
    window.wait_for(f"{words('copied')} === 'Copied JSON.'")
    data = json.loads(pasted(window))
    entries = post(server, chat())[1]["choices"][0]["message"]["confidence"]
    assert data["sentences"] == [
        {**entry, "kept": kept} for entry, kept in zip(entries, [True, False, True, False], strict=True)
    ]
    assert (data["model"], data["question"], data["readout"]) == ("tiny", "Who was Ada?", "stated")


@chromium
def test_a_given_text_is_scored(window: Browser, server: Server) -> None:
    window.open(f"{server.url}/")
    window.value("document.querySelector('input[value=text]').click()")
    assert window.value("send.textContent") == "Score"
    window.value(f"text.value = {json.dumps(TEXT)}")
    ask(window)
    window.wait_for(f"{IDLE} && {UNITS}.length")
    assert window.value(TEXTS) == ["Ada ran.", "She wrote\na note.", "It was noon."]
    assert window.value("[...passage.querySelectorAll('p')].map((p) => p.children.length)") == [2, 1]
    window.click("#copyjson")
    window.wait_for(words("copied"))
    assert json.loads(pasted(window))["text"] == TEXT and window.problems() == []


@chromium
def test_scores_of_a_text_are_on_the_scale_of_their_method(window: Browser) -> None:
    tags, text = TagFormat(scale=Scale(("no", "yes"))), f"{FACTS[0]}."
    with ChatServer() as provider:
        model = ApiTagger(ApiModel("gpt", provider.url), method="verbal", tags=tags)
        with running(model, key=None) as server:
            window.open(f"{server.url}/")
            window.value("document.querySelector('input[value=text]').click()")
            window.value(f"text.value = {json.dumps(text)}")
            ask(window)
            window.wait_for(f"{IDLE} && {UNITS}.length")
            tip = window.value(f"{UNITS}[0].querySelector('.lv-tip').textContent.trim()")
    assert tip.endswith(f"stated score {planted(text)} of 10")


@chromium
@pytest.mark.parametrize("mode", ["ask", "text"])
def test_a_hostile_answer_stays_text(window: Browser, server: Server, engine: Scripted, mode: str) -> None:
    engine.answer = HOSTILE
    window.open(f"{server.url}/")
    window.value(f"document.querySelector('input[value={mode}]').click()")
    window.value(f"text.value = {json.dumps(HOSTILE.replace('<confidence>', '').replace('</confidence>', ''))}")
    ask(window, "<img src=x onerror=alert(6)>")
    window.wait_for(f"{IDLE} && {UNITS}.length")
    shown = " ".join(window.value(TEXTS))
    assert "<img src=x onerror=alert(1)>" in shown and "javascript:alert(4)" in shown and "</script>" in shown
    assert "\u202e" not in shown and "\x1b" not in shown
    window.value(f"[...{UNITS}].forEach((e) => e.focus())")
    assert window.value("document.querySelectorAll('img, a, #answer script').length") == 0
    assert window.value("asked.textContent") == "<img src=x onerror=alert(6)>"
    assert window.dialogs() == [] and window.problems() == []
    assert all(url.startswith((server.url, "data:")) for url in window.requests())


@chromium
def test_the_policy_stops_what_a_mistake_would_let_in(window: Browser, server: Server) -> None:
    window.open(f"{server.url}/")
    mistakes = (
        "document.body.innerHTML = '<img src=x onerror=alert(1)>'",
        "document.body.setAttribute('onclick', 'alert(2)')",
        "eval('alert(3)')",
        "document.body.append(Object.assign(document.createElement('script'), {text: 'alert(4)'}))",
    )
    for mistake in mistakes:
        result = window.call("Runtime.evaluate", expression=mistake, allowUnsafeEvalBlockedByCSP=False)
        assert "exceptionDetails" in result, mistake
    window.value("document.body.append(Object.assign(document.createElement('img'), {src: 'https://a.example/x'}))")
    window.wait_for("1")
    assert window.dialogs() == [] and any("a.example" in problem for problem in window.problems())


@chromium
def test_the_key_is_asked_for(window: Browser, session: Session) -> None:
    with running(replace(session)) as server:
        window.open(f"{server.url}/")
        assert not window.value("keyfield.hidden") and window.value("key.type") == "password"
        ask(window)
        assert window.wait_for(words("message")) == "The server asks for its API key."
        assert window.value("document.activeElement.id") == "key" and window.value(
            "!send.disabled && empty.checkVisibility()"
        )
        window.type("wrong")
        ask(window)
        window.wait_for(f"{words('message')} === 'The server does not know this API key.'")
        window.value("key.value = ''; key.focus()")
        window.type(KEY)
        ask(window)
        window.wait_for(f"{IDLE} && {UNITS}.length")
        assert window.value(words("message")) == "" and KEY not in json.dumps(window.requests())


@chromium
def test_a_reader_can_stop(window: Browser, server: Server, engine: Scripted) -> None:
    for stop in (lambda: window.click("#stop"), lambda: window.press("Escape")):
        engine.written = 0
        engine.go.clear()
        window.open(f"{server.url}/")
        with held(engine):
            ask(window)
            window.wait_for(f"{UNITS}.length")
            stop()
            assert window.wait_for(words("message")) == "Stopped after 1 sentence."
            assert window.value(IDLE) and window.value(f"{UNITS}.length") == 1
        assert server.idle()


@chromium
def test_a_busy_server_says_so(window: Browser, server: Server, engine: Scripted) -> None:
    window.open(f"{server.url}/")
    with held(engine):
        running = [server.send(chat(stream=True))]
        until(lambda: engine.written > (engine.held or 0))
        running += [server.send(chat(temperature=temperature)) for temperature in (0.5, 0.7)]
        until(lambda: server.metric("lovec_waiting") == 2)
        ask(window)
        message = window.wait_for(words("message"))
        for connection in running:
            connection.close()
    assert message.startswith("The server is busy: the queue has no room") and window.value(IDLE)
    assert server.idle()


@chromium
def test_a_refusal_says_why(window: Browser, server: Server) -> None:
    window.open(f"{server.url}/")
    ask(window, "word " * 3000)
    message = window.wait_for(words("message"))
    assert message.startswith("The server refuses this: the messages have") and "context holds 1024" in message


class Relay:
    """Passes bytes on to a server, until it is cut."""

    def __init__(self, server: Server) -> None:
        self.target = server
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open: list[socket.socket] = [self.listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for connection in self.open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()

    def _accept(self) -> None:
        try:
            while True:
                near, far = self.listener.accept()[0], self.target.connect()
                self.open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()
        except OSError:
            pass

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@contextmanager
def relayed(server: Server) -> Iterator[Relay]:
    relay = Relay(server)
    try:
        yield relay
    finally:
        relay.cut()


@chromium
def test_a_server_that_dies_is_noticed(window: Browser, server: Server, engine: Scripted) -> None:
    with relayed(server) as relay:
        window.open(f"{relay.url}/")
        with held(engine):
            ask(window)
            window.wait_for(f"{UNITS}.length")
            relay.cut()
            message = window.wait_for(words("message"))
        assert message == "The connection broke off after 1 sentence. Is the server still running?"
        assert window.value(IDLE) and window.value("!copytext.disabled") and window.value(f"{UNITS}.length") == 1
        ask(window)
        window.wait_for(f"{words('message')} === 'The server cannot be reached. Is it still running?'")
        assert window.value(f"{IDLE} && empty.checkVisibility()")


@chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_it_fits_and_can_be_read(window: Browser, server: Server, engine: Scripted, width: int, scheme: str) -> None:
    engine.answer = f"{'Long' * 40} word. <confidence> 1 </confidence>" + ANSWER
    asked(window, server, width=width, height=844, scheme=scheme, reduced_motion=True)
    assert not window.scrolls_sideways()
    window.value("document.querySelector('input[value=stated]').click()")
    window.value("message.textContent = 'A message.'; keyfield.hidden = given.hidden = false")
    for threshold in (0, 0.6):
        window.value(f"threshold.value = {threshold}; paint()")
        contrasts = window.value(CONTRASTS)
        names = {name for name, _ in contrasts}
        assert {"lv-s lv-high", "message", "question"} <= names
        assert not [(name, ratio) for name, ratio in contrasts if ratio < 4.5]
    assert window.value(FADED) == [True, False, True, True, True]
    assert window.value(f"getComputedStyle({UNITS}[0]).animationName") == "none"
    assert not window.scrolls_sideways()


@chromium
def test_every_control_has_a_name_and_a_size_for_fingers(window: Browser, server: Server) -> None:
    asked(window, server, width=390, height=844)
    window.call("Accessibility.enable")
    nodes = window.call("Accessibility.getFullAXTree")["nodes"]
    window.call("Accessibility.disable")
    roles = ("textbox", "button", "radio", "slider")
    named = {
        node["role"]["value"]: node["name"].get("value", "")
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles
    }
    assert set(named) == set(roles) and all(named.values())
    heights = window.value("[...document.querySelectorAll('button, .switch label')].filter((e) => e.checkVisibility())"
                           ".map((e) => e.getBoundingClientRect().height)")  # fmt: skip
    assert min(heights) >= 24  # WCAG 2.5.8
    assert window.value("document.querySelectorAll('h1').length") == 1


@chromium
def test_a_phone_shows_what_happens(window: Browser, server: Server, engine: Scripted) -> None:
    window.open(f"{server.url}/", width=390, height=700)
    inside = (
        "(({top, bottom}) => top >= 0 && bottom <= innerHeight)(document.getElementById('%s').getBoundingClientRect())"
    )
    with held(engine):
        ask(window)
        window.wait_for(f"{UNITS}.length")
        assert window.value(inside % "asked") and not window.value(inside % "question")
        window.press("Escape")
        window.wait_for(words("message"))
        assert window.value(inside % "message")


@chromium
def test_keys_are_told_to_those_who_have_them(window: Browser, server: Server) -> None:
    shown = "document.getElementById('hint').checkVisibility()"
    window.open(f"{server.url}/")
    assert window.value(shown)
    window.call("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        window.open(f"{server.url}/", width=390)
        assert not window.value(shown)
    finally:
        window.call("Emulation.setTouchEmulationEnabled", enabled=False)


@chromium
def test_a_stream_may_say_that_it_is_alive(
    window: Browser, server: Server, engine: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SILENCE", 0.02)
    monkeypatch.setattr(engine, "pause", 0.005)
    asked(window, server)
    assert window.value(f"{UNITS}.length") == 4 and window.value(words("message")) == "" and window.problems() == []


@chromium
def test_without_scripts_it_says_so(window: Browser, server: Server) -> None:
    window.open(f"{server.url}/", script=False)
    assert "needs JavaScript" in window.value("document.querySelector('noscript p').textContent")
