"""Pictures of the README and docs/report.md: pages of real runs, as a browser shows them.

    python tools/make_pictures.py

Records models/efficientnet_lite0.onnx on the host device, as it is and without fusion; writes
docs/pictures/*.png. Needs Chromium, and bokeh for the pages.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1280, 960
PHONE = 390
MARGIN = 8  # beside an element
SECONDS = 60.0  # to wait for the browser


def find_chromium() -> str | None:
    places = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((place for place in places if place), None)


class Browser:
    """A headless Chromium with one page, driven through two pipes by the DevTools protocol.

    `errors` are the console's, `requests` all addresses that the page asked for, its own apart.
    """

    def __init__(self, width: int = WIDTH, height: int = HEIGHT):
        program = find_chromium()
        if program is None:
            raise FileNotFoundError("Chromium isn't installed")
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._received = b""
        self._folder = tempfile.TemporaryDirectory(prefix="minicnn-browser-", ignore_cleanup_errors=True)
        self._process, self._write, self._read = _start(program, self._folder.name)
        target = self.call("Target.createTarget", url="about:blank")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    _session: str | None = None

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)

    def open(self, path: Path) -> float:
        """Loads a page of ours and waits until it says that all is drawn; seconds that took."""
        start = time.monotonic()
        self.call("Page.navigate", url=path.absolute().as_uri())
        self.wait_for("document.documentElement?.dataset.ready === 'yes'")
        return time.monotonic() - start

    def wait_for(self, condition: str) -> None:
        until = time.monotonic() + SECONDS
        while not self.evaluate(condition):
            if time.monotonic() > until:
                raise TimeoutError(f"{condition} didn't come true; console: {self.errors}")
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40, "ArrowRight": 39}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, selector: str | None = None) -> bytes:
        """A PNG of what is to be seen, or of one element."""
        more: dict[str, Any] = {}
        if selector is not None:
            box = f"document.querySelector({selector!r}).getBoundingClientRect()"
            x, y, width, height = (self.evaluate(f"{box}.{side}") for side in ("x", "y", "width", "height"))
            y += self.evaluate("scrollY")
            x, width = x - MARGIN, width + 2 * MARGIN
            more["clip"] = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
            more["captureBeyondViewport"] = True
        answer = self.call("Page.captureScreenshot", format="png", **more)
        return base64.b64decode(answer["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self._received += part
        message, self._received = self._received.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(part.get("value")) for part in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            address = parameters["request"]["url"]
            if not address.startswith(("file:", "data:", "blob:")):
                self.requests.append(address)


def _start(program: str, folder: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """Chromium reads what it is told at descriptor 3 and answers at 4."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--disable-quic", "--remote-debugging-pipe")  # fmt: skip
    told, write = os.pipe()
    read, answers = os.pipe()
    shell = f'exec "$@" 3<&{told} 4>&{answers}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", program, *flags, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(told, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(told)
    os.close(answers)
    return process, write, read


def smaller(picture: bytes) -> bytes:
    """The same PNG, packed as well as can be. A palette would cost small patches their colour."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main() -> None:
    models = ROOT / "models"
    model = ("infer", models / "efficientnet_lite0.onnx", "--image", models / "cat.jpg", "--device", "host")
    seconds = ("--seconds", "10")
    with tempfile.TemporaryDirectory() as name, Browser() as browser:
        folder = Path(name)
        for command in (
            (*model, *seconds, "--record", folder / "fused.h5"),
            (*model, *seconds, "--fuse", "none", "--record", folder / "unfused.h5"),
            ("report", folder / "fused.h5", "--html", folder / "run.html"),
            ("compare", folder / "fused.h5", folder / "unfused.h5", "--html", folder / "compare.html"),
        ):
            done = subprocess.run([sys.executable, "-m", "minicnn", *map(str, command)], cwd=ROOT)
            if done.returncode not in (0, 1):  # 1: compare found something slower
                raise SystemExit(done.returncode)
        PICTURES.mkdir(parents=True, exist_ok=True)
        browser.open(folder / "run.html")
        browser.evaluate("document.getElementById('in-words').remove()")
        _write("report", browser.screenshot())
        browser.resize(WIDTH, 5000)  # all of it is to be seen, so that all of it is drawn
        drawn = "[...document.querySelectorAll('.chart')].every((c) => c.classList.contains('drawn'))"
        browser.wait_for(drawn)
        browser.evaluate("new Promise((done) => setTimeout(done, 500))")
        for section in ("network", "memory"):
            _write(section, browser.screenshot(f"[aria-labelledby={section}-title]"))
        browser.resize(PHONE, 844)
        browser.open(folder / "run.html")
        browser.evaluate("document.getElementById('theme').click()")
        browser.evaluate("document.getElementById('network').scrollIntoView({block: 'center'})")
        browser.wait_for("document.getElementById('network').classList.contains('drawn')")
        browser.evaluate("new Promise((done) => setTimeout(done, 500))")
        _write("phone", browser.screenshot())
        browser.resize(WIDTH, HEIGHT)
        browser.open(folder / "compare.html")
        _write("compare", browser.screenshot())


def _write(name: str, picture: bytes) -> None:
    path = PICTURES / f"{name}.png"
    path.write_bytes(smaller(picture))
    print(f"wrote {path}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
