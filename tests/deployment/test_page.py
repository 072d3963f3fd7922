"""The status page, in a real browser where there is one."""

from __future__ import annotations

import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tacitly.deployment.page import page
from tacitly.deployment.settings import Status

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROUND = {"step": "1.0", "asked": 3, "answered": 2, "silent": ["north"], "verdicts": {"ok": 2}, "seconds": 0.1}


def told(folder: Path) -> Status:
    status = Status(folder)
    status.change(state="running", releases=3, planned=5, spent=0.75, users=90, last_error="<b>none</b>")
    status.round(ROUND)
    return status


def test_status_keeps_what_is_not_named_and_writes_a_line_an_event(tmp_path: Path) -> None:
    status = told(tmp_path)
    status.round(ROUND)
    now = status.read()
    assert (now["state"], now["rounds"], now["verdicts"]) == ("running", 2, {"ok": 4})
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 3


def test_only_the_page_and_its_numbers_are_served_and_only_on_loopback(tmp_path: Path) -> None:
    told(tmp_path)
    (tmp_path / "coordinator.key").write_text("secret")
    with page(tmp_path, 0) as address:
        assert address.startswith("http://127.0.0.1:")
        assert b'"running"' in urllib.request.urlopen(address + "status.json").read()
        for path in ("coordinator.key", "../status.json", "settings.json"):
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(address + path)


def test_a_page_from_elsewhere_is_not_answered_under_another_name(tmp_path: Path) -> None:
    with page(tmp_path, 0) as address:
        asked = urllib.request.Request(address + "status.json", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(asked)


@pytest.mark.skipif(BROWSER is None, reason="no browser here")
def test_a_browser_shows_state_progress_and_errors_as_text(tmp_path: Path) -> None:
    told(tmp_path)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    with page(tmp_path, 0) as address:
        shown = subprocess.run([str(BROWSER), *options, address], capture_output=True, text=True, timeout=120).stdout
    assert 'id="state">running</span>' in shown
    assert 'style="width: 60%;"' in shown
    assert 'id="spent">0.750</dd>' in shown
    assert 'id="silent">north</dd>' in shown
    assert "&lt;b&gt;none&lt;/b&gt;" in shown  # text, not markup
