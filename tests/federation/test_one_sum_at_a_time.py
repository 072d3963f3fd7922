"""Threads that ask one shard take turns: statistics of one sum are written over those that another reads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.data.cohort import Cohort
from tacitly.federation.shard import Shard
from tacitly.methods.mixed_effects.posterior import Coordinates
from tacitly.methods.mixed_effects.variance_queries import WithinVariance


def test_a_sum_waits_for_another_thread_that_reads_the_shard() -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow(X: Rows, y: Rows, offsets: Offsets) -> Array:
        reading.set()
        go_on.wait(60.0)
        return np.zeros((len(offsets) - 1, 1))

    rng = np.random.default_rng(0)
    shard = Shard(Cohort.from_offsets(rng.normal(size=(20, 2)), rng.normal(size=20), np.arange(0, 21, 5)), threads=1)
    query = WithinVariance(Coordinates(np.zeros(2), np.ones(2), 0.0, 1.0))
    alone = shard.exact_sum(query, 1.0, 2.0**-40)
    with ThreadPoolExecutor(2) as pool:
        heads = pool.submit(shard.users_map, slow)
        assert reading.wait(60.0)
        second = pool.submit(shard.exact_sum, query, 1.0, 2.0**-40)
        assert not wait([second], timeout=0.5).done
        go_on.set()
        np.testing.assert_array_equal(second.result(60.0), alone)
        assert heads.result(60.0).shape == (4, 1)
