"""Every query there is can travel, and arrives as what it was."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import numpy as np
import pytest

import tacitly.heads.ridge
import tacitly.methods
from methods.test_sensitivity import BASIS, ONE, QUERIES, THREE, THRESHOLDS, D, features
from tacitly.federation import wire
from tacitly.federation.base import Query
from tacitly.federation.forms import OfStatistics
from tacitly.heads.base import HeadWork
from tacitly.heads.glm import LossHeads
from tacitly.heads.losses import Loss
from tacitly.heads.ridge import RidgeHeads
from tacitly.methods.fedrep.as_printed import PaperHeads
from tacitly.methods.low_rank_sparse.heads import SparseHeadWork
from tacitly.methods.low_rank_sparse.thresholds import PrintedSparseHeads


def of_ours(kind: type) -> set[type]:
    for module in pkgutil.walk_packages(tacitly.methods.__path__, "tacitly.methods."):
        importlib.import_module(module.name)
    found = {kind}
    while (
        more := {sub for one in found for sub in one.__subclasses__() if sub.__module__.startswith("tacitly.")} - found
    ):
        found |= more
    return {
        one
        for one in found - {kind}
        if one.__module__.startswith(("tacitly.methods", "tacitly.heads.ridge", "tacitly.heads.glm"))
    }


def test_every_query_and_every_work_at_home_stands_in_the_list() -> None:
    for kind in of_ours(Query) | of_ours(HeadWork):
        if kind.__name__.startswith("_") or inspect.isabstract(kind):
            continue  # what two of them have in common
        if not getattr(kind, "clipped", True):
            assert kind.__name__ not in wire.KNOWN, f"{kind.__name__} is not clipped"
            continue
        assert wire.KNOWN.get(kind.__name__) == kind.__module__, f"{kind.__name__} is missing in wire.KNOWN"


SENT = {  # not forms, which whoever holds the rows chooses
    name: (query, bound)
    for name, (query, bound) in QUERIES.items()
    if type(query).__module__.startswith("tacitly.")
    and not (type(query).__name__.startswith("_") or isinstance(query, OfStatistics))
}


@pytest.mark.parametrize("name", SENT)
def test_a_query_that_travelled_asks_the_same(name: str) -> None:
    query, bound = SENT[name]
    arrived = wire.decode(wire.encode(query))
    assert type(arrived) is type(query)
    rng = np.random.default_rng(0)
    X, y, offsets = made_up_rows(query, 24, rng), np.abs(rng.normal(size=24)), np.array([0, 12, 24])
    # A last bit may differ: what arrives lies in memory row by row.
    expected = query.block_sum(X, y, offsets, bound)
    np.testing.assert_allclose(arrived.block_sum(X, y, offsets, bound), expected, rtol=1e-13, atol=1e-14)


def made_up_rows(query: Query, count: int, rng: np.random.Generator) -> np.ndarray:
    """Rows that a query's design can read: where one begins with positions, small whole numbers."""
    X = rng.normal(size=(count, features(query)))
    design = getattr(getattr(query, "query", query), "design", None)
    if design is not None and design.hot[0]:
        X[:, : sum(design.hot)] = rng.integers(0, 3, size=(count, sum(design.hot)))
    return X


WORKS = {
    "ridge": RidgeHeads(BASIS),
    "ridge, level": RidgeHeads(BASIS, True),
    "as printed": PaperHeads(BASIS),
    "logistic": LossHeads(BASIS, Loss("logistic"), True),
    "hinge, second half": LossHeads(BASIS, Loss("hinge"), half=True),
    "classes": LossHeads(BASIS, THREE),
    "sparse": SparseHeadWork(BASIS, ONE, True),
    "sparse, as printed": PrintedSparseHeads(BASIS, 2, THRESHOLDS, 3),
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_heads_fitted_one_by_one_are_those_fitted_together(work: HeadWork) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, D)), rng.normal(size=30)
    if isinstance(work, LossHeads):
        y = rng.integers(0, work.loss.columns + (work.loss.columns == 1), size=30).astype(float)
    arrived = wire.decode(wire.encode(work))
    together = arrived(X, y, np.array([0, 5, 15, 30]))
    alone = [work.own(X[a:b], y[a:b]) for a, b in ((0, 5), (5, 15), (15, 30))]
    np.testing.assert_allclose(together, alone, atol=1e-10)
    assert together.shape[1:] == work.shape


def test_a_message_of_another_version_is_refused_in_one_sentence() -> None:
    data = wire.encode(RidgeHeads(BASIS))
    assert data.startswith(b"tacitly1\n")
    with pytest.raises(wire.WireError, match="another format version"):
        wire.decode(data.replace(b"tacitly1\n", b"tacitly2\n", 1))
    with pytest.raises(wire.WireError, match="not a message of tacitly"):
        wire.decode(b"\x80\x04")


def test_labels_stay_at_home() -> None:
    data = wire.encode(LossHeads(BASIS, Loss("logistic", ("ill", "well", "unknown"))))
    assert b"ill" not in data
    assert wire.decode(data).loss == Loss("logistic", (0, 1, 2))


def test_a_message_has_a_thousand_classes_at_most() -> None:
    """A site tries an ask on synthetic rows, and that takes time for each class."""
    assert len(wire.decode(wire.encode(LossHeads(BASIS, Loss("logistic", tuple(range(1000)))))).loss.classes) == 1000
    with pytest.raises(wire.WireError, match="must be a Sequence"):
        wire.decode(wire.encode(LossHeads(BASIS, Loss("logistic", tuple(range(1001))))))


def test_sums_by_definition_and_compiled_agree() -> None:
    from tacitly.data.cohort import Cohort
    from tacitly.federation.shard import Shard

    rng = np.random.default_rng(1)
    for name, (query, bound) in QUERIES.items():
        X, y = made_up_rows(query, 80, rng), rng.integers(0, 2, size=80) * 1.0
        data = Cohort.from_offsets(X, y, np.arange(0, 81, 8))
        plain, fused = (
            Shard(data, threads=1, plain=plain).exact_sum(query, bound, 2.0**-40) for plain in (True, False)
        )
        np.testing.assert_allclose(plain * 2.0**-40, fused * 2.0**-40, rtol=1e-8, atol=1e-9 * bound, err_msg=name)
