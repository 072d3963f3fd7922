"""One browser for all tests that look at pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser import MISSING, Browser, opened


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a running browser; skip the test where there is none."""
    if MISSING:
        pytest.skip(f"not installed: {MISSING}")
    with opened() as found:
        yield found
