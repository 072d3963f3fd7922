"""Whether the device has memory for a user's rows is private: it must not change what others add."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacitly.arrays import read_only
from tacitly.data.cohort import Cohort
from tacitly.federation.cuda import shard as device
from tacitly.federation.cuda import sums
from tacitly.methods.shared.direction_votes import DirectionVote
from tacitly.methods.shared.whitening import Whitening

N, D, GRID = 200, 5, 2.0**-40


def cohort(rows_of_last: int) -> Cohort:
    """Return users of whom half have rows that are all alike, and a last one with this many."""
    rng = np.random.default_rng(1)
    offsets = np.append(np.arange(N) * 8, (N - 1) * 8 + rows_of_last)
    X, y = rng.normal(size=((N + 500) * 8, D)) * 3 + 0.3, rng.normal(size=(N + 500) * 8)
    X[: 4 * N] = np.repeat(X[: 4 * N : 8], 8, axis=0)
    some = slice(0, int(offsets[-1]))
    return Cohort(read_only(X[some]), read_only(y[some]), offsets, np.arange(N), tuple("abcde"), "y")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_user_whose_rows_do_not_fit_moves_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(rows, *rest, **options):  # type: ignore[no-untyped-def]
        if len(rows.X) > 8 * N:
            raise torch.OutOfMemoryError("out of memory")
        return sums.integer_sums(rows, *rest, **options)

    monkeypatch.setattr(device, "integer_sums", small)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    others = np.arange(N) < N - 1
    query, found = DirectionVote(Whitening.identity(D), True), []
    for rows in (8, 400):
        shard = device.DeviceShard(cohort(rows), torch.device("cpu"), threads=1)
        shard._plain = True  # the host's definition: no compiler is needed
        try:
            found.append(shard.exact_sum(query, 1.0, GRID, others) * GRID)
        except (MemoryError, RuntimeError):
            return  # an error is a property of the machine, as on the host
    assert np.linalg.norm(found[0] - found[1]) < 2.0**-20
