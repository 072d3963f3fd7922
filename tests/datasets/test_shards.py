"""Users made from labelled rows."""

from __future__ import annotations

import numpy as np
import pytest

from tacitly.datasets import class_shards


@pytest.mark.parametrize(("n", "s"), [(500, 5), (1000, 2), (7, 3)])
def test_shares_are_equal_and_classes_different(n: int, s: int) -> None:
    labels = np.repeat(np.arange(10), 4500)
    shards = class_shards(labels, n, s, random_state=0)
    assert all(len(set(own)) == s for own in shards.classes)
    counts = np.array([[np.count_nonzero(labels[rows] == c) for c in own] for rows, own in zip(*shards, strict=True)])
    assert (counts == counts[0, 0]).all()
    assert len(np.unique(shards.rows)) == shards.rows.size
    if n >= 500:
        assert counts[0, 0] == 4500 // (n * s // 10)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        class_shards([0, 1], users=10, classes_per_user=2)
