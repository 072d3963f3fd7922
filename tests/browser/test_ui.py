"""The local page, as people see it: from the table to the slider, and a fit under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from browser import DESKTOP, PHONE, Browser

pytest.importorskip("starlette", reason="not installed: the extra ui")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a folder with one table; plans and fits are not run."""
    import uvicorn

    from tacitly.cli.ui import server
    from tacitly.cli.ui.work import Desk, Job, PlanKey

    def plan(self: Desk, key: PlanKey) -> None:
        self._plans[key] = "no plan here"

    def fit(self: Desk, job: Job) -> None:
        job.planned, job.released, job.latest, job.spent = 4, 3, "<b>score</b>", 0.5

    folder = tmp_path_factory.mktemp("tables")
    (folder / "rows.csv").write_text("who,x,y\n" + "".join(f"u{i // 3},{i},{i % 5}\n" for i in range(60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Desk, "_simulate", plan)
        patch.setattr(Desk, "_fit", fit)
        settings = uvicorn.Config(server.application(folder, "token"), port=0, log_level="error", lifespan="off")
        running = uvicorn.Server(settings)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/token/"
        running.should_exit = running.force_exit = True
        thread.join()


def checked(browser: Browser, address: str) -> None:
    seen = browser.seen()
    assert all(url.startswith(address) for url in seen.requests)
    assert (seen.complaints, seen.too_wide) == ((), 0)
    for size, dark in ((PHONE, False), (DESKTOP, True)):
        browser.resize(size, dark=dark)
        assert browser.violations() == []
    assert browser.seen().too_wide == 0


def test_from_the_table_to_a_fit_under_way(browser: Browser, address: str) -> None:
    browser.look(address)
    checked(browser, address)
    browser.script("document.querySelector('.choices a').click()")
    browser.script("document.getElementById('user').value = 'who'; document.getElementById('target').value = 'y'")
    checked(browser, address)
    browser.script("document.querySelector('button').click()")
    wait_for(browser, "return !!document.getElementById('stop')")
    move = "const slider = document.getElementById('stop'); slider.value = arguments[0]; "
    browser.script(move + "slider.dispatchEvent(new Event('input'))", 0)
    assert browser.script("return document.getElementById('epsilon').textContent") == "ε = 0.1"
    assert browser.script("return document.getElementById('value').value") == "0.1"
    checked(browser, address)
    browser.script("document.querySelector('button').click()")
    wait_for(browser, "return document.getElementById('count')?.textContent === '3 of 4'")
    assert browser.script("return document.getElementById('latest').textContent") == "<b>score</b>"
    checked(browser, address)


def wait_for(browser: Browser, condition: str) -> None:
    until = time.monotonic() + 60
    while not browser.script(condition):
        assert time.monotonic() < until, condition
        time.sleep(0.05)
