"""Look at a page in a real browser: what it asks for, what it complains about, who can read it.

One headless Chromium serves all tests of a process (the fixture ``browser`` of ``tests/browser/conftest.py``). Tests
are skipped, with the reason in :data:`MISSING`, where it is not installed.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHONE, DESKTOP = (390, 844), (1280, 900)
"""Widths and heights of the two windows that pages are looked at in."""

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")
_LIBRARIES = [name for name in ("selenium", "axe_selenium_python") if importlib.util.find_spec(name) is None]

MISSING = ", ".join(
    [*(["Chromium"] if _CHROMIUM is None else []), *(["chromedriver"] if _DRIVER is None else []), *_LIBRARIES]
)
"""What is not installed of what these tests need; empty where nothing is missing."""

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
_INSIDE = ("data:", "blob:", "about:", "chrome:", "chrome-extension:", "devtools:")


@dataclass(frozen=True)
class Seen:
    """What a browser saw of one page in one window."""

    requests: tuple[str, ...]
    """Addresses that were asked for, the page's own first; addresses inside the page (``data:``) are left out."""
    complaints: tuple[str, ...]
    """What the console says: errors and warnings."""
    too_wide: int
    """Pixels by which the page is wider than the window: 0 for a page that is only scrolled downwards."""


class Browser:
    """A running browser. :meth:`look` opens a page; the other methods ask about the page that is open."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def look(self, address: str | Path, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> Seen:
        """Open a page (an address or a file) in a window of ``size``, light or dark; return what was seen."""
        url = address.resolve().as_uri() if isinstance(address, Path) else address
        self.resize(size, dark=dark)
        self._told("browser")
        self._told("performance")
        self.driver.get(url)
        return self.seen()

    def seen(self) -> Seen:
        """Return what was asked for and complained about since the last call, and how wide the page is now."""
        messages = [json.loads(entry["message"])["message"] for entry in self._told("performance")]
        asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        complaints = [entry["message"] for entry in self._told("browser") if entry["level"] in ("SEVERE", "WARNING")]
        wide = self.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return Seen(tuple(url for url in asked if not url.startswith(_INSIDE)), tuple(complaints), int(wide))

    def resize(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Change the window: its size and whether the reader prefers dark pages."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen", "features": [scheme]})

    def violations(self) -> list[str]:
        """Return what axe's rules for accessibility find on the page that is open, one line per rule and element."""
        from axe_selenium_python import Axe

        axe = Axe(self.driver)
        axe.inject()
        found = axe.run()["violations"]
        return [f"{rule['id']}: {rule['help']}: {node['html']}" for rule in found for node in rule["nodes"]]

    def screenshot(self, path: Path) -> Path:
        """Write a picture (PNG) of the whole page, not only of the window."""
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, **self._whole()})
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def printed(self) -> bytes:
        """Return the page as it is printed on A4 (PDF)."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": False, "printBackground": True}
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", paper)["data"])

    def script(self, code: str, *arguments: Any) -> Any:
        """Run JavaScript in the page and return what it returns."""
        return self.driver.execute_script(code, *arguments)

    def _whole(self) -> dict[str, Any]:
        content = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": content["width"], "height": content["height"], "scale": 1}}

    def _told(self, kind: str) -> list[Any]:
        return list(self.driver.get_log(kind))


@contextlib.contextmanager
def opened() -> Iterator[Browser]:
    """Start a headless browser with an empty profile; end it with the block."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(_CHROMIUM)
        for option in (*_OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(_DRIVER))
        driver.set_page_load_timeout(120)
        try:
            yield Browser(driver)
        finally:
            driver.quit()
