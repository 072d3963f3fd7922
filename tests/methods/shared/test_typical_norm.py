"""The typical norm of a contribution: the compiled form of many users says what the definition says."""

from __future__ import annotations

import numpy as np
import pytest

from tacitly.methods.shared.central import Correction
from tacitly.methods.shared.typical_norm import TypicalNorm
from tacitly.methods.shared.whitening import Whitening


@pytest.mark.parametrize("around", [1.0, 1e-3, 300.0])
def test_octaves_are_counted_from_the_guess_in_both_forms(around: float) -> None:
    rng = np.random.default_rng(0)
    X, y, offsets = rng.normal(size=(60, 3)), rng.normal(size=60), np.arange(0, 61, 4)
    query = TypicalNorm(Correction(np.zeros(3), Whitening.identity(3)), 8.0, around)
    assert query.statistics is not None
    compiled = query.sums_of(query.statistics.of_rows(X, y, offsets), 1.0, 8)
    np.testing.assert_allclose(compiled, query.block_sums(X, y, offsets, 1.0, 8), atol=1e-9)
