"""Every query there is can travel, and arrives as what it was."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest

import tacit.algorithms
import tacit.heads
from algorithms.test_sensitivity import BASIS, QUERIES, D
from tacit.algorithms.paper_fedrep import PaperHeads
from tacit.federation import wire
from tacit.federation.base import Query
from tacit.heads import HeadWork, RidgeHeads


def of_ours(kind: type) -> set[type]:
    for module in pkgutil.iter_modules(tacit.algorithms.__path__, "tacit.algorithms."):
        importlib.import_module(module.name)
    found = {kind}
    while more := {sub for one in found for sub in one.__subclasses__() if sub.__module__.startswith("tacit.")} - found:
        found |= more
    return {one for one in found - {kind} if one.__module__.startswith(("tacit.algorithms", "tacit.heads"))}


def test_every_query_and_every_work_at_home_stands_in_the_list() -> None:
    for kind in of_ours(Query) | of_ours(HeadWork):
        if not getattr(kind, "clipped", True):
            assert kind.__name__ not in wire.KNOWN, f"{kind.__name__} is not clipped"
            continue
        assert wire.KNOWN.get(kind.__name__) == kind.__module__, f"{kind.__name__} is missing in wire.KNOWN"


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_that_travelled_asks_the_same(name: str) -> None:
    query, bound = QUERIES[name]
    arrived = wire.decode(wire.encode(query))
    assert type(arrived) is type(query)
    rng = np.random.default_rng(0)
    X, y, offsets = rng.normal(size=(24, D)), rng.normal(size=24), np.array([0, 12, 24])
    np.testing.assert_array_equal(arrived.block_sum(X, y, offsets, bound), query.block_sum(X, y, offsets, bound))


@pytest.mark.parametrize("work", [RidgeHeads(BASIS), RidgeHeads(BASIS, True), PaperHeads(BASIS)], ids=repr)
def test_heads_fitted_one_by_one_are_those_fitted_together(work: HeadWork) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, D)), rng.normal(size=30)
    arrived = wire.decode(wire.encode(work))
    together = arrived(X, y, np.array([0, 5, 15, 30]))
    alone = [work.own(X[a:b], y[a:b]) for a, b in ((0, 5), (5, 15), (15, 30))]
    np.testing.assert_allclose(together, alone, atol=1e-10)


def test_sums_by_definition_and_compiled_agree() -> None:
    from tacit.cohort import Cohort
    from tacit.federation.shard import Shard

    rng = np.random.default_rng(1)
    offsets = np.arange(0, 81, 8)
    data = Cohort.from_offsets(rng.normal(size=(80, D)), rng.normal(size=80), offsets)
    for name, (query, bound) in QUERIES.items():
        plain, fused = (
            Shard(data, threads=1, plain=plain).exact_sum(query, bound, 2.0**-40) for plain in (True, False)
        )
        np.testing.assert_allclose(plain * 2.0**-40, fused * 2.0**-40, rtol=1e-8, atol=1e-9 * bound, err_msg=name)
