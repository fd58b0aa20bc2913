"""A headless Chromium for tests of pages, and texts that try to become markup or code there."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = [
    "<script>document.title='owned'</script>",
    "</script><img src=x onerror=\"document.title='owned'\">",
    "\"><svg onload=document.title='owned'>",
    "&lt;b&gt; \u2028 \x1b[31m red",
]


class Browser:
    """A headless Chromium that is spoken to over a pipe (DevTools protocol, messages end in NUL)."""

    def __init__(self, page: Path, profile: Path) -> None:
        assert CHROMIUM is not None
        reads, self._writes = os.pipe()
        self._reads, writes = os.pipe()

        def pass_pipes() -> None:
            # Those that the browser expects; copies of higher numbers first, as one of ours may be 3 or 4.
            high = os.dup(reads), os.dup(writes)
            for number, copy in zip((3, 4), high, strict=True):
                os.dup2(copy, number, inheritable=True)

        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        self._process = subprocess.Popen(
            [CHROMIUM, *arguments, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=pass_pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._number, self._left = 0, b""
        target = self._ask("Target.createTarget", {"url": page.as_uri()})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        while not self.run("location.protocol === 'file:' && document.readyState === 'complete'"):
            pass

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        asked = {"expression": script, "returnByValue": True}
        return self._ask("Runtime.evaluate", asked, sessionId=self._session).get("result", {}).get("value")

    def choose(self, control: str, value: str) -> list[str]:
        """Set a filter, and return the headings that are shown then."""
        stated = f"{{const c = document.getElementById({json.dumps(control)}); c.value = {json.dumps(value)};"
        self.run(stated + "c.dispatchEvent(new Event('input', {bubbles: true}));}")
        return self.run("[...document.querySelectorAll('article h2')].map(each => each.textContent)")

    def emulate(self, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> None:
        """Give the page a window of some size, in light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", size, sessionId=self._session)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._ask("Emulation.setEmulatedMedia", {"features": [scheme]}, sessionId=self._session)

    def screenshot(self) -> bytes:
        """Return the window as PNG."""
        found = self._ask("Page.captureScreenshot", {"format": "png"}, sessionId=self._session)
        return base64.b64decode(found["data"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._reads)
        os.close(self._writes)

    def _ask(self, method: str, asked: dict[str, Any], **more: str) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": asked, **more}
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._left:
                read = os.read(self._reads, 65536)
                assert read, "the browser ended"
                self._left += read
            text, _, self._left = self._left.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                # While a page is left, a script there has no result.
                result: dict[str, Any] = answer.get("result", {})
                return result
