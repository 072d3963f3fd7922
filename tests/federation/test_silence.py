"""Nobody's numbers make a library print a line: LAPACK writes to the terminal of whoever runs a site."""

from __future__ import annotations

import numpy as np
import pytest

from federation.test_wire import SENT, WORKS
from methods.test_sensitivity import features
from tacitly.federation.query import Query

OUT_OF_RANGE = (1e300, 1e160, np.inf, np.nan)


@pytest.mark.parametrize("name", [*SENT, *WORKS])
def test_numbers_out_of_range_print_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    thing = SENT[name][0] if name in SENT else WORKS[name]
    d = features(thing) if isinstance(thing, Query) else len(thing.basis)
    work = thing._safely if isinstance(thing, Query) else thing.own
    rng = np.random.default_rng(0)
    for rows in (3, 12):
        for value in OUT_OF_RANGE:
            X, y = rng.normal(size=(rows, d)), rng.normal(size=rows)
            with np.errstate(all="ignore"):
                for own, targets in ((X * value, y), (X, y * value), (np.where(X > 1.0, value, X), y)):
                    try:
                        work(own, targets)
                    except np.linalg.LinAlgError:  # as a site treats it: the head is zero
                        assert name in WORKS
    assert capfd.readouterr() == ("", "")
