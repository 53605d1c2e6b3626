"""A real browser, driven over chromedriver's plain HTTP (the W3C WebDriver protocol): no library needed for seven commands."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
]

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")


class Browser:
    def __init__(self, profile: Path) -> None:
        assert CHROMEDRIVER is not None
        self._driver = subprocess.Popen([CHROMEDRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._driver.stdout is not None
        self._address = ""
        try:
            port = next(found[1] for line in self._driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
            self._address = f"http://127.0.0.1:{port}/session"
            options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"}}
            self._address += "/" + self._send("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self.close()
            raise

    def open(self, page: Path, fragment: str = "") -> str:
        """Open a page from the disk, and return what it says of itself."""
        self._send("POST", "/url", {"url": "about:blank"})  # a change of the fragment alone would load nothing
        self.console(), self.requests()
        self._send("POST", "/url", {"url": page.as_uri() + fragment})
        return self.run("return document.documentElement.dataset.ready")

    def run(self, script: str):
        return self._send("POST", "/execute/sync", {"script": script, "args": []})

    def count(self, selector: str) -> int:
        return self.run(f"return document.querySelectorAll({json.dumps(selector)}).length")

    def text(self, selector: str) -> str:
        return self.run(f"return document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector: str) -> None:
        self._send("POST", f"/element/{self._find(selector)}/click", {})
        self._settle()

    def hover(self, selector: str) -> None:
        origin = {"element-6066-11e4-a52e-4f735466cecf": self._find(selector)}
        move = {"type": "pointerMove", "duration": 0, "origin": origin, "x": 0, "y": 0}
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        self._send("POST", "/actions", {"actions": [pointer]})
        self._settle()

    def width(self, pixels: int) -> None:
        size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._send("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})

    def console(self) -> list[str]:
        return [entry["message"] for entry in self._send("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        messages = (json.loads(entry["message"])["message"] for entry in self._send("POST", "/se/log", {"type": "performance"}))
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        try:
            if self._address:
                self._send("DELETE", "", None)
        finally:
            self._driver.terminate()
            self._driver.communicate()

    def _settle(self) -> None:
        """Wait for what a click has set going: some events follow it by a frame."""
        script = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))"
        self._send("POST", "/execute/async", {"script": script, "args": []})

    def _find(self, selector: str) -> str:
        found = self._send("POST", "/element", {"using": "css selector", "value": selector})
        return next(iter(found.values()))

    def _send(self, method: str, path: str, body: dict | None):
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, content, {"Content-Type": "application/json"}, method=method)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=60) as answer:
            return json.load(answer)["value"]
