"""The certificate's label, as people see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser import DESKTOP, PHONE, Browser
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity
from tacitly.privacy.label import label
from tacitly.privacy.release import Release

HOSTILE = "<script>alert(1)</script><img src=https://evil.example/x>"


def certificate(**words: str) -> Certificate:
    event = GaussianEvent(sigma=8.0, sensitivity=Sensitivity.of_clip(1.0))
    release = Release(
        run="r",
        index=0,
        name="sum",
        event=event,
        noise="exact",
        grid=0.001,
        coordinates=3,
        state="published",
        attempts=1,
    )
    return Certificate(
        algorithm="MixedEffects",
        mode="certified",
        budget=Budget(epsilon=1.0, delta=1e-6),
        releases=(release,),
        n_users=2000,
        trust="central: whoever runs this process holds the rows",
        **words,
    )


@pytest.mark.parametrize(("size", "dark"), [(PHONE, True), (DESKTOP, False)], ids=["phone, dark", "desktop, light"])
def test_a_label_is_readable_and_asks_for_nothing(
    browser: Browser, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    page = tmp_path / "label.html"
    page.write_text(label(certificate(curator=HOSTILE, purpose=HOSTILE), HOSTILE), encoding="utf-8")
    seen = browser.look(page, size, dark=dark)
    assert seen.requests == (page.as_uri(),)
    assert (seen.complaints, seen.too_wide) == ((), 0)
    assert browser.violations() == []
