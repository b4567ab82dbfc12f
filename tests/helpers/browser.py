"""A headless Chromium for the tests of pages, controlled over its debugging pipe (DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
_TIMEOUT = 90.0  # seconds: a busy machine starts a browser slowly


class Browser:
    """One page of a running browser.

    Attributes:
        events: everything that the page reported since it was opened: console messages, exceptions, requests, dialogs.
    """

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = self._post(method, parameters)
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(
        self,
        page: Path | str,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        script: bool = True,
        reduced_motion: bool = False,
    ) -> None:
        """Open a file, or an address such as "http://127.0.0.1:8080/", and wait until it is loaded.

        Args:
            page: the file or address.
            width: width of the window, in pixels; below 600 it is a phone's.
            height: height of the window, in pixels.
            scheme: "light" or "dark".
            script: whether scripts run.
            reduced_motion: whether the reader asks for less motion.
        """
        self.resize(width, height, scheme, reduced_motion)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.events.clear()
        result = self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        assert "errorText" not in result, result
        self.wait("Page.loadEventFired")

    def resize(self, width: int, height: int, scheme: str = "light", reduced_motion: bool = False) -> None:
        """Change the window and what the reader prefers; see ``open``."""
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        motion = "reduce" if reduced_motion else "no-preference"
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        self.call("Emulation.setEmulatedMedia", features=[{"name": k, "value": v} for k, v in features.items()])

    def wait(self, event: str) -> None:
        """Read messages until the page has reported an event."""
        while not any(message["method"] == event for message in self.events):
            self._next()

    def wait_for(self, expression: str, timeout: float = _TIMEOUT) -> Any:
        """Return the value of a JavaScript expression in the page as soon as it counts as true."""
        end = time.monotonic() + timeout
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"{expression} is still {value!r}; {self.problems()}"
            time.sleep(0.03)
        return value

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, text: str = "", modifiers: int = 0) -> None:
        """Press and release a key such as "Tab", "Enter" (with ``text="\\r"``) or "ArrowRight"; 8 is Shift."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        keys = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0), "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **keys, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def type(self, text: str) -> None:
        """Write a text into what has the focus."""
        self.call("Input.insertText", text=text)

    def place(self, selector: str) -> tuple[float, float]:
        """Scroll to an element and return the middle of its first line box, in pixels of the window."""
        x, y = self.value(
            f"(() => {{const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const b = e.getClientRects()[0]; return [b.x + b.width / 2, b.y + b.height / 2]})()"
        )
        return x, y

    def hover(self, selector: str) -> None:
        """Move the mouse over an element."""
        x, y = self.place(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click on an element."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, selector: str) -> None:
        """Tap on an element with a finger."""
        x, y = self.place(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def scrolls_sideways(self) -> bool:
        """Return whether the page is wider than its window."""
        return bool(self.value("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def screenshot(self, path: Path, whole: bool = False) -> bytes:
        """Write the window, or the whole page, as a PNG, and return its bytes."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path.read_bytes()

    def problems(self) -> list[str]:
        """Return console errors, exceptions and violations of the page's policy."""
        problems = []
        for event in self.events:
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                problems.append(str(parameters["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                problems.append(parameters["entry"]["text"])
            elif event["method"] == "Audits.issueAdded" and "ContentSecurityPolicy" in parameters["issue"]["code"]:
                problems.append(str(parameters["issue"]))
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                problems.append(str(parameters["args"]))
        return problems

    def dialogs(self) -> list[str]:
        """Return the messages of all dialogs that the page has opened; they are closed at once."""
        return [e["params"]["message"] for e in self.events if e["method"] == "Page.javascriptDialogOpening"]

    def requests(self) -> list[str]:
        """Return the addresses of all requests."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def _post(self, method: str, parameters: dict[str, Any]) -> int:
        """Send a command and return its number."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._send, data) :]
        return self._number

    def _next(self) -> dict[str, Any]:
        """Return the next message, and keep it if it is an event."""
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._receive], [], [], _TIMEOUT)
            assert readable, "the browser does not answer"
            data = os.read(self._receive, 1 << 20)
            assert data, "the browser has stopped"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
            if message["method"] == "Page.javascriptDialogOpening":  # the page stands still until it is closed
                self._post("Page.handleJavaScriptDialog", {"accept": True})
        return message


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Run a browser inside the block.

    Args:
        profile: folder for its profile.
    """
    assert CHROMIUM
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={profile}"]  # fmt: skip

    def connect() -> None:  # the browser reads from 3 and writes to 4
        copies = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(copies[0], 3)
        os.dup2(copies[1], 4)

    process = subprocess.Popen(
        [CHROMIUM, *flags], preexec_fn=connect, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
