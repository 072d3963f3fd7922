"""The report in both editions, as people see it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tacitly
from browser import DESKTOP, PHONE, Browser

HOSTILE = "<script>alert(1)</script><img src=https://evil.example/x>"
VIEWS = {
    ("public", "phone, light"): (PHONE, False),
    ("public", "desktop, dark"): (DESKTOP, True),
    ("private", "phone, dark"): (PHONE, True),
    ("private", "desktop, light"): (DESKTOP, False),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return both editions of a model whose columns have hostile, long and ordinary names."""
    rng, users = np.random.default_rng(0), np.repeat(np.arange(150), 6)
    X = rng.normal(size=(len(users), 3))
    y = X @ [1.0, -2.0, 0.5] + rng.normal(size=150)[users] + rng.normal(size=len(users))
    names = (HOSTILE, "a_column_whose_name_is_far_longer_than_the_screen_of_any_phone_is_wide", "dose")
    cohort = tacitly.Cohort.from_arrays(X, y, users, feature_names=names)
    model, folder = tacitly.MixedEffects(epsilon=8.0).fit(cohort), tmp_path_factory.mktemp("pages")
    tacitly.report(model, folder / "public.html", name=HOSTILE, audit=HOSTILE)
    tacitly.report(model, folder / "private.html", name=HOSTILE, rows=cohort)
    return {edition: folder / f"{edition}.html" for edition in ("public", "private")}


@pytest.mark.parametrize(("edition", "view"), VIEWS)
def test_it_fits_the_window_asks_for_nothing_and_is_accessible(
    browser: Browser, pages: dict[str, Path], edition: str, view: str
) -> None:
    size, dark = VIEWS[edition, view]
    seen = browser.look(pages[edition], size, dark=dark)
    assert seen.requests == (pages[edition].as_uri(),)
    assert (seen.complaints, seen.too_wide) == ((), 0)
    browser.script("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert browser.violations() == []
    assert browser.seen().too_wide == 0


def test_every_printed_page_of_the_private_edition_is_marked(browser: Browser, pages: dict[str, Path]) -> None:
    shown = "const style = getComputedStyle(document.querySelector('.stamp')); return [style.display, style.position]"
    browser.look(pages["private"])
    assert browser.script(shown)[0] == "none"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.script(shown) == ["block", "fixed"]  # what is fixed is printed on every page
    assert browser.printed().count(b"/Type /Page\n") > 2
