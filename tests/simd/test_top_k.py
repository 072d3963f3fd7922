"""What is chosen in a lane is what is largest in it, whatever is in the others."""

from __future__ import annotations

import numpy as np

from tacitly.simd.lazy_njit import njit
from tacitly.simd.registers import load, store
from tacitly.simd.top_k import LANES, NOTHING, keep_largest, keyed, position_mask


@njit(error_model="numpy")
def ranked(values, mask, count, out):  # type: ignore[no-untyped-def]
    for a in range(values.shape[0]):
        store(values, a * LANES, keyed(load(values, a * LANES), a, mask))
    keep_largest(values, values.shape[0], count, out)


def test_the_largest_sizes_are_kept_in_order_with_their_positions() -> None:
    rng = np.random.default_rng(0)
    for length, count in ((1, 1), (3, 3), (50, 5), (64, 8), (1000, 30)):
        values = rng.normal(size=(length, LANES)) * np.exp(20 * rng.normal(size=(length, LANES)))
        values[:, 3] = 0.0  # nothing to choose
        values[0, 5], values[-1, 6] = np.nan, -np.inf  # counts as zero
        kept, mask = np.zeros((count + -count % 4, LANES)), position_mask(length)
        ranked(values.copy(), mask, count, kept)
        for lane in range(LANES):
            sizes = np.where(np.isfinite(values[:, lane]), np.abs(values[:, lane]), 0.0)
            right = [a for a in np.argsort(-sizes)[:count] if sizes[a] > 0]
            found = [int(k) & mask for k, v in zip(kept[:count, lane].view(np.int64), kept[:count, lane], strict=True)
                     if v >= NOTHING]  # fmt: skip
            assert found == right
