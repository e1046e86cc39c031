"""A real Chromium that tests drive over a pipe, by the DevTools protocol; nothing to install but the browser itself.

Source: chromedevtools.github.io/devtools-protocol; `--remote-debugging-pipe` reads from descriptor 3 and writes to 4,
messages end with a zero byte.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13, "End": 35, " ": 32}
CONTROL = 2  # held down beside a key


class Browser:
    def __init__(self, to: int, back: int) -> None:
        self.to, self.back, self.number, self.rest = to, back, 0, b""
        self.session: str | None = None
        self.faults: list[str] = []  # what the console complained of
        self.requests: list[str] = []  # what was asked for, other than the page itself
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self.to, content) :]
        deadline = time.monotonic() + 60
        while True:
            result = self._read(deadline)
            if result.get("id") == self.number:
                assert "error" not in result, result["error"]
                return dict(result["result"])
            self._note(result)

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.back], [], [], max(0, deadline - time.monotonic()))[0], "the browser is silent"
            part = os.read(self.back, 1 << 20)
            assert part, "the browser is gone"
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        name, about = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(about["exceptionDetails"])[:500])
        elif name == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.faults.append(json.dumps(about["args"])[:500])
        elif name == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.faults.append(about["entry"]["text"])
        elif name == "Network.requestWillBeSent" and about["type"] != "Document":
            self.requests.append(about["request"]["url"][:200])

    def open(self, url: str, width: int = 1200, height: int = 900, *, is_dark: bool = False) -> float:
        """Open a page, wait until its root element says that it is ready, and return the seconds that this took."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=url)
        started = time.monotonic()
        without_script = "(document.readyState === 'complete' && !document.querySelector('script'))"
        failed = "document.querySelector('#failed')?.textContent"
        while not self.ask(f"document.documentElement?.dataset.ready || {failed} || {without_script}"):
            assert time.monotonic() - started < 30, "the page does not say that it is ready"
            time.sleep(0.02)
        return time.monotonic() - started

    def ask(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, modifiers: int = 0) -> None:
        about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        written = {"Enter": "\r", " ": " "}.get(key)
        down = {"type": "keyDown", "text": written} if written else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **down, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def wait(self, expression: str, seconds: float = 20) -> None:
        started = time.monotonic()
        while not self.ask(expression):
            assert time.monotonic() - started < seconds, f"{expression} does not come true"
            time.sleep(0.01)

    def click(self, selector: str) -> None:
        box = self.ask(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}}); "
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def violations(self, axe: str) -> list[str]:
        """Check the page with axe-core, whose script is given: what it finds, and where."""
        self.ask(f"{axe}; 0")
        nodes = "rule.nodes.map((node) => `${rule.id}: ${node.html} ${node.failureSummary}`)"
        return list(self.ask(f"axe.run().then((found) => found.violations.flatMap((rule) => {nodes}))"))

    def picture(self, path: Path, width: int, height: int) -> None:
        """Take a picture of the upper left part of the page."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        result = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(result["data"]))


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Start Chromium with its own profile; skip the test if there is none."""
    program = next((result for name in NAMES if (result := shutil.which(name))), None)
    if program is None:
        pytest.skip("no browser: apt-get install chromium")
    ours, theirs = os.pipe(), os.pipe()  # each (read, write): to the browser, and back
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
    command = [program, *options, "--no-first-run", f"--user-data-dir={folder}", "about:blank"]
    # the shell puts the pipes where the browser looks for them
    places = f'exec 3<&{ours[0]} 4>&{theirs[1]}; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", places, "bash", *command], pass_fds=(ours[0], theirs[1]), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(ours[0])
    os.close(theirs[1])
    try:
        yield Browser(ours[1], theirs[0])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for end in (ours[1], theirs[0]):
            os.close(end)
