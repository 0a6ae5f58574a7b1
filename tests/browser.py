"""A real browser, for tests of pages: Chromium, through its debugging pipe.

with Browser() as browser:
    browser.open("http://127.0.0.1:8000/")
    browser.run("document.title")
"""

import base64
import json
import os
import shutil
import subprocess
from typing import Any

BROWSER = next(filter(shutil.which, ("chromium", "chromium-browser", "google-chrome")), "")
_QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")


class Browser:
    """One page of a browser."""

    def __init__(self, directory: str):
        theirs, self._to = os.pipe()
        self._from, written = os.pipe()
        # It reads from 3 and writes to 4.
        moved = f'exec "$@" 3<&{theirs} 4>&{written}'
        options = [*_QUIET, f"--user-data-dir={directory}", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            ["bash", "-c", moved, "bash", BROWSER, *options],
            pass_fds=(theirs, written),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs), os.close(written)
        self._number, self._session, self._buffer = 0, None, b""
        target = self("Target.createTarget", url="about:blank")["targetId"]
        attached = self("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to), os.close(self._from)

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the debugging protocol and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                self._buffer += os.read(self._from, 1 << 20) or b"\0"
            line, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(line)  # fails if the browser has ended
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page, and wait until its scripts have run."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self("Emulation.setDeviceMetricsOverride", **sizes)
        self("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression of the page, awaited."""
        options = {"awaitPromise": True, "returnByValue": True}
        answer = self("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression of the page is true."""
        self.run(
            "new Promise(done => { const look = () => "
            f"({condition}) ? done() : setTimeout(look, 20); look(); }})"
        )

    def picture(self) -> bytes:
        """Return the page as PNG."""
        return base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=True)["data"])
