"""A headless Chromium that is driven: pages are opened, clicked, typed into and looked at.

It is spoken to by its own protocol over two pipes (`--remote-debugging-pipe`), which needs neither
a port nor a library. Every wait is for something on the page.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.browser import CHROMIUM

PATIENCE_S = 300.0
"""How long a page may take to show what is waited for, on a machine that does much else."""


class Chromium:
    """One tab.

    Attributes:
        said: what the page wrote to its console, and what it threw.
        asked: addresses of everything that it asked for.
    """

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process, self._to, self._back = process, to, back
        self._left, self._count, self._session = b"", 0, ""
        self.said: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Call the browser; return its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._heard(answer)

    def open(self, address: str) -> None:
        """Open an address."""
        self.call("Page.navigate", url=address)

    def leave(self) -> None:
        """Leave the page, and then forget what it said and asked for."""
        self.open("about:blank")
        self.wait("location.href === 'about:blank'")
        self.said.clear()
        self.asked.clear()

    def run(self, script: str) -> Any:
        """Return the value of a script's last expression; a promise is waited for."""
        given = {"expression": script, "awaitPromise": True, "returnByValue": True}
        found = self.call("Runtime.evaluate", **given)
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, condition: str, patience_s: float = PATIENCE_S) -> Any:
        """Wait until a script gives something true, and return that."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            with contextlib.suppress(AssertionError):  # the page is just being loaded
                found = self.run(condition)
                if found:
                    return found
            time.sleep(0.05)
        raise AssertionError(f"the page never came to {condition}; it said {self.said[-5:]}")

    def click(self, selector: str) -> None:
        """Click an element, once it is there."""
        self.wait(f"!!document.querySelector({json.dumps(selector)})")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        """Type text into an element as a keyboard does."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key: "Tab", "Enter", " "."""
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27}
        shared = {"key": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 * shift}
        text = {"Enter": "\r", " ": " "}.get(key)
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", **shared, **({"text": text} if text else {})
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def give(self, selector: str, path: Path) -> None:
        """Choose a file in an input of files."""
        found = self.call(
            "Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})"
        )
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=found["result"]["objectId"])

    def size(self, width: int, height: int, *, scheme: str = "light") -> None:
        """Set how large the window is, in pixels, and which colours the user likes."""
        mobile = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=mobile,
        )  # fmt: skip
        liked = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=liked)

    def downloads(self, folder: Path) -> None:
        """Let downloads go to a folder."""
        session, self._session = self._session, ""
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self._session = session

    def picture(self, path: Path, *, quality: int = 0) -> Path:
        """Take a picture of the window: PNG, or JPEG of a quality."""
        kind = {"format": "jpeg", "quality": quality} if quality else {"format": "png"}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **kind)["data"]))
        return path

    def close(self) -> None:
        """End it."""
        self._session = ""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        for end in (self._to, self._back):
            os.close(end)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _heard(self, event: dict[str, Any]) -> None:
        given = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(given["request"]["url"])
        elif event.get("method") == "Log.entryAdded":
            self.said.append(f"{given['entry']['level']}: {given['entry']['text']}")
        elif event.get("method") == "Runtime.exceptionThrown":
            self.said.append(f"error: {json.dumps(given['exceptionDetails'])[:500]}")
        elif event.get("method") == "Runtime.consoleAPICalled":
            values = [str(o.get("value", o.get("description"))) for o in given["args"]]
            self.said.append(f"{given['type']}: {' '.join(values)}")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._back], [], [], 2 * PATIENCE_S)
            part = os.read(self._back, 1 << 20) if ready else b""
            if not part:
                raise AssertionError("the browser has ended, or says nothing")
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Chromium]:
    """Start one, with its profile in a folder."""
    assert CHROMIUM
    read_there, write_here = os.pipe()
    read_here, write_there = os.pipe()
    options = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update",
    )  # fmt: skip

    def numbered() -> None:
        low, high = os.dup(read_there), os.dup(write_there)
        os.dup2(low, 3)
        os.dup2(high, 4)

    process = subprocess.Popen(
        [CHROMIUM, *options],
        preexec_fn=numbered,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_there)
    os.close(write_there)
    browser = Chromium(process, write_here, read_here)
    try:
        yield browser
    finally:
        browser.close()
