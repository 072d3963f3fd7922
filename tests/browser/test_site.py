"""The documentation site in a browser, where ``make docs`` has built it: each kind of page, two widths, two schemes."""

from __future__ import annotations

import http.server
import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from browser import DESKTOP, PHONE, Browser

SITE = Path(os.environ.get("TACITLY_SITE", "not built"))
"""Where the site is: minutes of looking at it are not part of every run of the tests."""
PAGES = [
    *(
        "index",
        "tutorial",
        "which-method",
        "reading-epsilon",
        "threat-models",
        "sharp-edges",
        "mixed-effects",
        "benchmarks",
    ),
    *("architecture", "api", "commands", "reference/privacy", "examples/index", "examples/wages", "contributing"),
    "source/src/tacitly/privacy/noise.py",
]

ALLOWED = re.compile(r"label: .*<input class=\"md-option\"")
"""The theme's switch of colour schemes: axe wants the button's label to be visible, and it has an ``aria-label``."""

pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no TACITLY_SITE: make docs builds one")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve the site on this machine: its search needs a server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def forget_scheme(browser: Browser, address: str) -> None:
    """Make the browser forget which colours were chosen, so that the reader's preference decides."""
    browser.driver.get("about:blank")
    forget = {"origin": address, "storageTypes": "local_storage"}
    browser.driver.execute_cdp_cmd("Storage.clearDataForOrigin", forget)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_readable_and_asks_nobody_else(browser: Browser, address: str, page: str) -> None:
    for size, dark in ((DESKTOP, False), (PHONE, False), (DESKTOP, True), (PHONE, True)):
        forget_scheme(browser, address)
        seen = browser.look(f"{address}/{page}.html", size, dark=dark)
        assert browser.script("return document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
        assert [url for url in seen.requests if not url.startswith(address)] == []
        assert seen.complaints == ()
        assert seen.too_wide <= 0
        assert [line for line in browser.violations() if not ALLOWED.match(line)] == []


def test_search_finds_a_page(browser: Browser, address: str) -> None:
    browser.look(f"{address}/index.html")
    browser.script("document.querySelector('[data-md-toggle=search]').click()")
    field = browser.driver.find_element("css selector", ".md-search__input")
    field.send_keys("ledger")
    browser.driver.implicitly_wait(30)
    assert (
        browser.driver.find_element("css selector", ".md-search-result__link").get_attribute("href").startswith(address)
    )
    browser.driver.implicitly_wait(0)


def test_pages_open_from_a_folder_too(browser: Browser) -> None:
    assert all(url.startswith("file:") for url in browser.look(SITE / "tutorial.html").requests)


def test_the_copy_button_takes_commands_without_prompts_and_outputs(browser: Browser, address: str) -> None:
    browser.look(f"{address}/tutorial.html")
    copied = browser.script(
        "const code = document.querySelectorAll('code:has(.gp)')[1]; code.setAttribute('data-md-copying', '');"
        "return code.innerText.trimEnd()"
    )
    assert copied == "tacitly fit visits.csv --user patient --target score --epsilon 1 --range age=18:110"
