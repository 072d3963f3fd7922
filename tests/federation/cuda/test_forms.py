"""Device forms add what the local engine adds, keep the bound, and let nobody's numbers depend on others'."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tacitly.arrays import read_only
from tacitly.audit.sensitivity import check_sensitivity
from tacitly.federation.cuda import basis_step, loss_step, sparse_fits, sparse_step
from tacitly.federation.cuda.forms import FORMS, NORMS, Context, form_of
from tacitly.federation.cuda.rows import row_sums
from tacitly.federation.cuda.shard import OnDevice
from tacitly.federation.query import BLOCK, Query
from tacitly.heads.losses import Loss
from tacitly.linalg import orthonormal
from tacitly.methods.fedpower.gram import CentreVote, ShiftedGram
from tacitly.methods.fedpower.power import PowerStep
from tacitly.methods.fedrep.queries import BasisStep, LossStep
from tacitly.methods.low_rank_sparse.heads import Sparsity
from tacitly.methods.low_rank_sparse.queries import SparseStep
from tacitly.methods.mixed_effects import queries as about
from tacitly.methods.mixed_effects import variance_queries
from tacitly.methods.mixed_effects.advantage import Advantage
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior, Slopes
from tacitly.methods.mixed_effects.unit_queries import Angles, Magnitudes, Shares
from tacitly.methods.shared.central import CentralStep, Correction
from tacitly.methods.shared.column_scales import ColumnScales
from tacitly.methods.shared.direction_votes import ClassVote, DirectionVote
from tacitly.methods.shared.norm_histogram import NormHistogram
from tacitly.methods.shared.typical_norm import TypicalNorm
from tacitly.methods.shared.whitening import FeatureMoment, ScaledMoment, Whitening
from tacitly.privacy.guarantee import Unit

D, K = 5, 2
RNG = np.random.default_rng(3)
BASIS = orthonormal(RNG.normal(size=(D, K)))[0]
WHITENING = Whitening(RNG.uniform(0.5, 2.0, D), orthonormal(RNG.normal(size=(D, 2)))[0], np.array([0.5, -0.4]))
METRIC = np.array([[1.2, 0.3], [0.3, 0.8]])
UNITS = Coordinates(RNG.normal(size=D), np.array([1.0, 0.5, 0.0, 2.0, 1.0]), 0.3, 2.0)
SIZE = UNITS.size
ROOT = np.tril(RNG.normal(size=(SIZE, SIZE))) * 0.3 + np.eye(SIZE)
PRIOR = Prior(RNG.normal(size=SIZE), ROOT, 0.7)
TURN = np.eye(SIZE) + 0.1
SCORE = about.Score(UNITS, PRIOR, TURN, np.eye(SIZE), 0.8)
SPREAD = variance_queries.Spread(UNITS, PRIOR)
GROUPS = np.array([0.0, 1.0, 1.0, 2.0, 1.0])
CONSTANT = np.append(1.0, (np.arange(SIZE - 1) % 3 == 1).astype(float))
SLOPES, FLAT = Slopes(np.zeros(D), np.ones(D), 0.0, 1.0), Prior(np.zeros(D), np.eye(D), 1.0)
ONES = np.ones(D + 1)
CORRECTION = Correction(RNG.normal(size=D), WHITENING)

SPARSE = SparseStep(BASIS, METRIC, 0.4, WHITENING, sparsity=Sparsity(2))
CENTRAL = SparseStep(RNG.normal(size=(D, 1)), np.eye(1), 0.4, WHITENING, sparsity=Sparsity(2), shared_weight=True)
LOSSES = {"logistic": Loss("logistic"), "hinge": Loss("hinge"), "poisson": Loss("poisson")}
LOSSES["three classes"] = Loss("logistic", (0, 1, 2))
MAGNITUDES = Magnitudes(ONES, 0.3 * ONES, 0.5 * ONES, 8.0)
QUERIES: dict[str, tuple[Query, float]] = {
    "basis step": (BasisStep(BASIS, METRIC, 0.4, WHITENING), 1.0),
    "basis step, centred": (BasisStep(BASIS, METRIC, 0.4, Whitening.identity(D), centered=True), 1.0),
    "basis step, half a clip": (BasisStep(BASIS, METRIC, 0.4, WHITENING), 0.5),
    "moment": (FeatureMoment(D, True), 1.0),
    "scaled moment": (ScaledMoment(D, gains=np.linspace(0.5, 2.0, D)), 1.0),
    "moment, some rows": (FeatureMoment(D, True, 3), 1.0),
    "vote": (DirectionVote(WHITENING), 1.0),
    "vote, some rows": (DirectionVote(WHITENING, True, 3), 1.0),
    "vote, centred": (DirectionVote(WHITENING, True), 1.0),
    "column scales": (ColumnScales(D, True), D**0.5),
    "central step": (CentralStep(CORRECTION, 0.7), 1.0),
    "central step, centred": (CentralStep(replace(CORRECTION, centered=True), 0.7), 1.0),
    "norm of a correction": (TypicalNorm(CORRECTION, 30.0), 1.0),
    "norm of a variance": (TypicalNorm(variance_queries.WithinVariance(UNITS), 20.0), 1.0),
    "magnitudes": (MAGNITUDES, MAGNITUDES.bound),
    "angles": (Angles(ONES, 0.1 * ONES, 2.0 * ONES, ONES), Angles(ONES, ONES, ONES, ONES).bound),
    "shares": (Shares(np.ones(D), 2), 2.0**0.5),
    "information": (about.Information(UNITS, PRIOR, TURN), 0.8),
    "norm of information": (TypicalNorm(about.Information(UNITS, PRIOR, TURN), 12.0), 1.0),
    "information shares": (about.InformationShares(UNITS, PRIOR), 1.0),
    "score": (about.MeasuredScore(SCORE, 0.5, CONSTANT), about.MeasuredScore(SCORE, 0.5, CONSTANT).bound),
    "norm of a score": (TypicalNorm(SCORE, 8.0), 1.0),
    "log variances": (variance_queries.LogVariances(UNITS, PRIOR, GROUPS), 3.0**0.5),
    "variances": (variance_queries.Variances(UNITS, PRIOR, GROUPS), 2.2),
    "spread": (variance_queries.MeasuredSpread(UNITS, PRIOR, 0.5), 0.56),
    "norm of spread": (TypicalNorm(SPREAD, 8.0), 1.0),
    "spread of heads": (variance_queries.MeasuredSpread(SLOPES, FLAT, 0.5), 0.56),
    "centre vote": (CentreVote(RNG.normal(size=D), 0.5), 1.0),
    "gram": (ShiftedGram(RNG.normal(size=D), 0.5), 3.0),
    "power step": (PowerStep(BASIS, RNG.normal(size=D), 0.5), 3.0),
    "norms of rows": (NormHistogram(ShiftedGram(RNG.normal(size=D), 0.0)), 1.0),
    "norms of steps": (NormHistogram(PowerStep(BASIS, RNG.normal(size=D), 0.5), 8), 1.0),
    "coverage": (Advantage(UNITS, PRIOR), Advantage(UNITS, PRIOR).bound),
    "sparse step": (SPARSE, 1.0),
    "sparse step, centred": (replace(SPARSE, centered=True, swaps=0), 1.0),
    "sparse step, chosen": (replace(SPARSE, sparsity=Sparsity(2, chosen=True)), 1.0),
    "sparse step, none": (replace(SPARSE, sparsity=Sparsity(0)), 0.5),
    "sparse step, central": (CENTRAL, 1.0),
    "sparse step, central, chosen": (replace(CENTRAL, sparsity=Sparsity(2, chosen=True), centered=True), 1.0),
    "norm of a sparse step": (TypicalNorm(CENTRAL, 30.0), 1.0),
    **{
        f"loss step, {name}": (LossStep(BASIS, METRIC, 0.4, WHITENING, loss, name != "poisson"), 1.0)
        for name, loss in LOSSES.items()
    },
    "loss step, logistic, no intercept": (LossStep(BASIS, METRIC, 0.4, WHITENING, LOSSES["logistic"]), 0.5),
    **{f"class vote, {name}": (ClassVote(WHITENING, name != "hinge", loss=loss), 1.0) for name, loss in LOSSES.items()},
}


def on_device(query: Query) -> OnDevice:
    return OnDevice(query, Context(torch.device("cpu"), True, 0))


def users(
    n: int, seed: int = 0, dtype: type = np.float64, *, query: Query | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ragged users whose targets are classes or counts where the query has a loss."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 12, size=n))])
    X = rng.normal(size=(offsets[-1], D)) * [3, 2, 1, 1, 1] + 0.3
    y = X @ rng.normal(size=D) + rng.normal(size=len(X))
    if loss := getattr(query, "loss", None):
        y = np.clip(np.floor(y / 2) + 1, 0, max(1, loss.columns - 1) if loss.classifies else 9)
    return read_only(X.astype(dtype)), read_only(y.astype(dtype)), offsets


def test_every_form_is_tested() -> None:
    named = {f"{type(query).__module__}.{type(query).__name__}" for query, _ in QUERIES.values()}
    inside = {
        f"{type(query.query).__module__}.{type(query.query).__name__}"
        for query, _ in QUERIES.values()
        if isinstance(query, TypicalNorm)
    }
    assert named == {f"tacitly.methods.{name}" for name in FORMS}
    assert inside == {f"tacitly.methods.{name}" for name in NORMS}


@pytest.mark.parametrize("name", QUERIES)
def test_a_form_adds_what_the_local_engine_adds(name: str) -> None:
    query, bound = QUERIES[name]
    X, y, offsets = users(150, dtype=np.float32, query=query)
    with np.errstate(all="ignore"):
        local = query.block_sum(X, y, offsets, bound)
    found = on_device(query).block_sums(X, y, offsets, bound, 64)
    assert found.shape == (3 if query.unit is Unit.USER else 1, query.coordinates)
    assert np.linalg.norm(found.sum(axis=0) - local) <= 1e-5 * np.linalg.norm(local)


# Every form that weighs contributions itself; of those that share ``clipped_sums``, one.
OWN_WEIGHTS = (
    *("basis step", "basis step, centred", "moment", "scaled moment", "vote, centred"),
    *("centre vote", "gram", "power step", "norms of rows", "score"),
    *("sparse step, centred", "sparse step, central", "loss step, logistic", "class vote, three classes"),
)


@pytest.mark.parametrize("name", OWN_WEIGHTS)
def test_nobody_moves_a_device_sum_further_than_claimed(name: str) -> None:
    query, bound = QUERIES[name]
    report = check_sensitivity(on_device(query), D, bound, exponents=(-160, 0, 18, 160))
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "name", ["basis step", "basis step, centred", "moment", "vote", "central step", "sparse step", "loss step, poisson"]
)
def test_a_contribution_of_norm_one_reaches_the_bound(name: str) -> None:
    query, bound = QUERIES[name]
    X, y, offsets = users(30, query=query)
    longest = np.linalg.norm(on_device(query).block_sums(X, y, offsets, bound, 1), axis=1).max()
    assert 0.999 * bound <= longest <= bound


@pytest.mark.parametrize("name", QUERIES)
def test_a_users_numbers_do_not_depend_on_others_to_the_last_bit(name: str) -> None:
    query, bound = QUERIES[name]
    if query.unit is not Unit.USER:
        return  # rows are units, and their sums are all that there is
    X, y, offsets = users(40, query=query)
    first, last = offsets[7], offsets[8]
    others = offsets.copy()
    others[8:] -= last - first  # user 7 has no rows
    rest = np.r_[0:first, last : len(X)]
    before = on_device(query).block_sums(X, y, offsets, bound, 1)
    after = on_device(query).block_sums(read_only(X[rest]), read_only(y[rest]), others, bound, 1)
    assert np.array_equal(np.delete(before, 7, axis=0), np.delete(after, 7, axis=0))
    assert np.linalg.norm(before[7] - after[7]) <= bound


def test_a_row_is_added_up_alike_however_few_rows_there_are() -> None:
    """The order of a sum on a GPU depends on the shape of all; a last bit may decide whether a row counts as far."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    products = torch.randn((600, 90), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    whole = row_sums(products)
    torch.testing.assert_close(whole, products.sum(dim=1), rtol=1e-12, atol=1e-12)
    for rows in (0, 1, 2, 15, 300):
        assert torch.equal(row_sums(products[:rows]), whole[:rows])


FITTED = tuple(name for name in QUERIES if name.startswith(("sparse step", "loss step", "class vote")))


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308, 1e-300])
def test_a_user_with_absurd_numbers_adds_what_the_definition_does(name: str, value: float) -> None:
    query, bound = QUERIES[name]
    X, y, offsets = (np.array(each) for each in users(9, query=query))
    most = int(np.argmax(np.diff(offsets)))
    own = slice(offsets[most], offsets[most + 1])
    with np.errstate(all="ignore"):
        X[own] *= value
        defined = query.contribution(read_only(X[own]), read_only(y[own]))
        found = on_device(query).block_sum(read_only(X[own]), read_only(y[own]), np.array([0, len(X[own])]), bound)
    assert np.linalg.norm(found - bound * defined) <= 1e-5


@pytest.mark.parametrize("name", FITTED)
def test_nothing_that_a_user_has_moves_others_in_the_last_bit(name: str) -> None:
    """Neither many rows, which lengthen arrays, nor a system that has no solution."""
    query, bound = QUERIES[name]
    X, y, offsets = users(12, query=query)
    first, last = offsets[7], offsets[8]
    rng, found = np.random.default_rng(1), []
    for own in (X[first:last], rng.normal(size=(700, D)), np.full((40, D), 1e200), np.zeros((3, D)), X[:0]):
        rows, targets = np.r_[X[:first], own, X[last:]], np.r_[y[:first], np.ones(len(own)), y[last:]]
        theirs = np.where(np.arange(13) > 7, offsets + len(own) - (last - first), offsets)
        sums = on_device(query).block_sums(read_only(rows), read_only(targets), theirs, bound, 1)
        assert np.linalg.norm(sums[7]) <= bound
        found.append(np.delete(sums, 7, axis=0))
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_a_step_that_reads_rows_of_others_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = sparse_fits.Users.total
    monkeypatch.setattr(
        sparse_fits.Users, "total", lambda own, values: honest(own, values) + 1e-12 * values.nan_to_num().mean()
    )
    with pytest.raises(AssertionError):
        test_nothing_that_a_user_has_moves_others_in_the_last_bit("sparse step, chosen")


@pytest.mark.parametrize(("name", "home"), [("basis step", basis_step), ("sparse step", sparse_step)])
def test_a_form_that_forgets_the_clip_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, home: object) -> None:
    query, bound = QUERIES[name]
    honest = basis_step.block_sums
    monkeypatch.setattr(
        home,
        "block_sums",
        lambda steps, public, *rest: honest(steps, public._replace(limits=1.01 * public.limits), *rest),
    )
    assert not check_sensitivity(on_device(query), D, bound, exponents=(0,)).ok


def test_a_subclass_has_no_form_because_it_may_compute_something_else() -> None:
    @dataclass(frozen=True)
    class Other(BasisStep):
        pass

    assert form_of(Other(BASIS, METRIC, 0.4, WHITENING), Context(torch.device("cpu"), True, 0)) is None


def test_many_columns_are_solved_as_few_are() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 9, 5)))
    rows[3, 0, 0], rows[4] = torch.nan, 0.0  # neither number in the system, nor an inverse
    systems = (rows.mT @ rows).permute(1, 2, 0)[:, :-1].contiguous()
    few, many = sparse_fits.solved(systems), sparse_fits._solved_at_once(systems)
    assert torch.isfinite(few).all(dim=1).tolist() == torch.isfinite(many).all(dim=1).tolist() == [1, 1, 1, 0, 0, 1]
    assert torch.allclose(few[[0, 1, 2, 5]], many[[0, 1, 2, 5]], rtol=1e-9)


def test_constants_of_sparse_fits_are_those_of_the_local_engine() -> None:
    from tacitly.methods.low_rank_sparse import array_choices, array_fits, queries

    assert (sparse_fits.RIDGE, sparse_fits.ROUNDING) == (array_fits._RIDGE, array_fits.ROUNDING)
    assert array_fits._NOTHING == sparse_fits._NOTHING
    assert (sparse_step.CONSTANT, sparse_step.STAGES) == (array_fits.CONSTANT, queries._STAGES)
    assert (sparse_step.FOLDS, sparse_step.DOUBT) == (array_choices.FOLDS, array_choices.DOUBT)


def test_constants_of_loss_steps_are_those_of_the_local_engine() -> None:
    from tacitly.heads import losses, newton
    from tacitly.methods.fedrep import loss_kernels

    for name in ("LOGISTIC", "HINGE", "POISSON", "LARGEST_SCORE"):
        assert getattr(loss_step, name) == getattr(losses, name)
    assert (loss_step.SWEEPS, loss_step.LONGEST) == (newton.SWEEPS, newton.LONGEST)
    for name in ("INTERCEPT_PENALTY", "PENALTY", "LEAST_CURVATURE", "LEAST_HEAD"):
        assert getattr(loss_step, name) == getattr(loss_kernels, name)


def test_spans_are_whole_blocks() -> None:
    from tacitly.federation.cuda import rows

    assert rows.SPAN % BLOCK == rows.STREAMED % BLOCK == 0
