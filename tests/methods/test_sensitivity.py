"""Every release respects its sensitivity, attains it, and its mutations are caught."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from adversary import Rows, attacked, clipped, neighbour_violations, placed, violations
from tacitly.arrays import read_only
from tacitly.audit.sensitivity import SensitivityReport
from tacitly.federation.base import Query
from tacitly.federation.forms import OfStatistics
from tacitly.heads.losses import Loss
from tacitly.linalg import orthonormal
from tacitly.methods.altmin.queries import NormalEquations
from tacitly.methods.centaur.as_printed import HeadGradient, PowerStatistic
from tacitly.methods.centaur.queries import PowerVote
from tacitly.methods.fedpower.gram import CentreVote, GramAgain, ShiftedGram
from tacitly.methods.fedpower.power import DeviceStep, PowerStep
from tacitly.methods.fedrep.as_printed import BasisGradient, PairStatistic
from tacitly.methods.fedrep.queries import BasisStep, LossStep
from tacitly.methods.low_rank_sparse.as_printed import ClippedGram, ClippedRight, Clips, TargetMoment
from tacitly.methods.low_rank_sparse.heads import Sparsity
from tacitly.methods.low_rank_sparse.queries import SparseEquations, SparseStep
from tacitly.methods.low_rank_sparse.thresholds import Thresholds
from tacitly.methods.mixed_effects.posterior import Prior, Slopes
from tacitly.methods.mixed_effects.variance_queries import MeasuredSpread
from tacitly.methods.shared.batch import BatchQuery
from tacitly.methods.shared.central import CentralStep, Correction
from tacitly.methods.shared.column_scales import ColumnScales
from tacitly.methods.shared.direction_votes import ClassVote, DirectionVote
from tacitly.methods.shared.norm_histogram import NormHistogram
from tacitly.methods.shared.typical_norm import TypicalNorm
from tacitly.methods.shared.whitening import FeatureMoment, ScaledMoment, Whitening
from tacitly.methods.trace_regression.centering import LabelSum, ObservationSum
from tacitly.methods.trace_regression.curvature import StepEnergy
from tacitly.methods.trace_regression.designs import Centre, Design
from tacitly.methods.trace_regression.effects import EffectSum, Shifted
from tacitly.methods.trace_regression.queries import DesignEnergy, LabelledSum, Scales, TangentSum
from tacitly.privacy.clipping import GUARD, clip
from tacitly.privacy.guarantee import Unit

D, K = 7, 2
RNG = np.random.default_rng(1)
BASIS = orthonormal(RNG.normal(size=(D, K)))[0]
WHITENING = Whitening(RNG.uniform(0.5, 2.0, D), orthonormal(RNG.normal(size=(D, 3)))[0], np.array([0.5, -0.4, 2.0]))
CENTRE = RNG.normal(size=D)
METRIC = np.array([[1.2, 0.3], [0.3, 0.8]])
TWO = np.eye(D)[:, :K]
ONE, AUTO = Sparsity(1), Sparsity(2, chosen=True)
CENTRAL = SparseStep(BASIS[:, :1], np.eye(1), 0.5, WHITENING, sparsity=ONE, shared_weight=True)
CLIPS = Clips(rows=0.5, targets=0.1, sparse_part=1e-6, weights=0.01, count=12)
THRESHOLDS = Thresholds(distance=1.0, spread=1.0)
PRINTED = (np.array([BASIS, BASIS[::-1]]), 1, CLIPS, THRESHOLDS)
THREE = Loss("logistic", (0, 1, 2))
HEADS = MeasuredSpread(Slopes(np.zeros(D), np.ones(D), 0.0, 1.0), Prior(np.zeros(D), np.eye(D), 1.0), 0.5)


def coded(y: np.ndarray) -> np.ndarray:
    """Code any targets as three classes, so that adversarial users have some of each."""
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(y), np.floor(np.abs(y) * 1e3) % 3, y)


@dataclass(frozen=True)
class CodedStep(LossStep):
    """The step of three classes on users whose targets are any numbers."""

    def contribution(self, X, y):  # type: ignore[no-untyped-def]
        return super().contribution(X, coded(y))

    def block_sums(self, X, y, offsets, bound, size):  # type: ignore[no-untyped-def]
        return super().block_sums(X, coded(y), offsets, bound, size)


@dataclass(frozen=True)
class CodedVote(ClassVote):
    """The vote of three classes on users whose targets are any numbers."""

    def contribution(self, X, y):  # type: ignore[no-untyped-def]
        return super().contribution(X, coded(y))

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, coded(y), offsets, bound)


DESIGNS = (Design("dense", 3, 4), Design("rank-one", 4, 3), Design("entries", 4, 3), Design("tasks", 3, 6))


def tangent(design: Design, unit: Unit, sides: str = "both", tracked: float = 0.0) -> TangentSum:
    rng = np.random.default_rng(6)
    left, right = (orthonormal(rng.normal(size=(size, 2)))[0] for size in (design.d1, design.d2))
    return TangentSum(design, scaled(design), left, right, np.array([2.0, 0.5]), sides, tracked, 3.0, unit)


def scaled(design: Design) -> Scales:
    rng = np.random.default_rng(7)
    return Scales(rng.uniform(0.5, 2.0, design.d1), rng.uniform(0.5, 2.0, design.d2))


TANGENT = ("design", "scales", "left", "right", "values")
MIDDLE = Centre(np.random.default_rng(8).normal(size=(3, 4)), level=0.3, weight=0.7)


def of_centred() -> dict[str, tuple[Query, float]]:
    """Every query of a centred dense design."""
    dense, queries = DESIGNS[0], {}
    for unit in (Unit.ROW, Unit.USER):
        query = tangent(dense, unit)
        queries |= {
            f"tangent sum, tracked, centred, {unit}": (replace(tangent(dense, unit, tracked=0.05), centre=MIDDLE), 3.0),
            f"tangent sum, centred, {unit}": (replace(query, centre=MIDDLE), 3.0),
            f"right product, centred, {unit}": (replace(tangent(dense, unit, "right"), centre=MIDDLE), 3.0),
            f"labelled sum, centred, {unit}": (LabelledSum(dense, scaled(dense), unit, MIDDLE), 3.0),
            f"design energy, centred, {unit}": (DesignEnergy(dense, unit, MIDDLE), 3.0),
            f"step energy, centred, {unit}": (StepEnergy(dense, query.left, query.right, 0.1, unit, MIDDLE), 1.0),
            f"sum of observations, {unit}": (ObservationSum(dense, unit), 3.0),
            f"sum of observations, centred, {unit}": (ObservationSum(dense, unit, MIDDLE), 3.0),
        }
    return queries | {
        "sum of labels": (LabelSum(), 3.0),
        "norms of observations": (NormHistogram(ObservationSum(dense)), 1.0),
        "sizes of labels": (NormHistogram(LabelSum()), 1.0),
    }


def of_traces() -> dict[str, tuple[Query, float]]:
    queries: dict[str, tuple[Query, float]] = {}
    for design, unit in itertools.product(DESIGNS, (Unit.ROW, Unit.USER)):
        name = f"{design.kind}, {unit}"
        queries[f"tangent sum, tracked, {name}"] = tangent(design, unit, tracked=0.05), 3.0
    for unit in (Unit.ROW, Unit.USER):
        queries[f"tangent sum, {unit}"] = tangent(DESIGNS[0], unit), 3.0
        queries[f"design energy, dense, {unit}"] = DesignEnergy(DESIGNS[0], unit), 3.0
        queries[f"design energy, entries, {unit}"] = DesignEnergy(DESIGNS[2], unit), 1.0
        queries[f"left product, {unit}"] = tangent(DESIGNS[0], unit, "left"), 3.0
        queries[f"right product, {unit}"] = tangent(DESIGNS[1], unit, "right"), 3.0
        for design in (DESIGNS[0], DESIGNS[1], DESIGNS[2]):
            query = tangent(design, unit)
            mean = 1e-9 if design.kind == "entries" else 0.1  # the energy of an entry is that entry's of left·rightᵀ
            energy = StepEnergy(design, query.left, query.right, mean, unit)
            queries[f"step energy, {design.kind}, {unit}"] = energy, 1.0
    queries["design energy, rank-one"] = DesignEnergy(DESIGNS[1]), 3.0
    for design in DESIGNS:
        queries[f"labelled sum, {design.kind}"] = LabelledSum(design, scaled(design)), 3.0
    queries["labelled sum, user"] = LabelledSum(DESIGNS[0], scaled(DESIGNS[0]), Unit.USER), 3.0
    queries["tangent sum, label"] = tangent(DESIGNS[0], Unit.LABEL, tracked=0.05), 3.0
    shift = np.linspace(-1.0, 1.0, DESIGNS[2].d1), np.linspace(0.0, 2.0, DESIGNS[2].d2)
    queries["effects of rows and columns"] = EffectSum(DESIGNS[2], 0.5), 3.0
    queries["effects, shifted"] = Shifted(EffectSum(DESIGNS[2], 0.5), DESIGNS[2], *shift), 3.0
    queries["labelled sum, shifted"] = Shifted(LabelledSum(DESIGNS[2], scaled(DESIGNS[2])), DESIGNS[2], *shift), 3.0
    queries["norms of tangent sum, row"] = NormHistogram(tangent(DESIGNS[0], Unit.ROW), 8), 1.0
    queries["norms of labelled sum, entries"] = NormHistogram(LabelledSum(DESIGNS[2], scaled(DESIGNS[2])), 8), 1.0
    return queries


def features(query: Query) -> int:
    design = getattr(getattr(query, "query", query), "design", None)
    return D if design is None else int(design.n_features)


QUERIES: dict[str, tuple[Query, float]] = (
    of_traces()
    | of_centred()
    | {
        "feature moment": (FeatureMoment(D), 1.0),
        "feature moment, some rows": (FeatureMoment(D, most_rows=3), 1.0),
        "feature moment, centred": (FeatureMoment(D, centered=True), 1.0),
        "feature moment, scaled": (ScaledMoment(D, gains=np.geomspace(1e-3, 1e3, D)), 1.0),
        "scales of columns": (ColumnScales(D), math.sqrt(D)),
        "scales of columns, centred": (ColumnScales(D, centered=True), math.sqrt(D)),
        "one model": (CentralStep(Correction(CENTRE, WHITENING), 0.5), 1.0),
        "one model, centred": (CentralStep(Correction(CENTRE, WHITENING, centered=True), 0.5), 1.0),
        "norm of a correction": (TypicalNorm(Correction(CENTRE, WHITENING), 30.0), 1.0),
        "norm of a gram matrix": (TypicalNorm(ShiftedGram(CENTRE, 0.5, Unit.USER), 12.0, around=7.0), 1.0),
        "norm of a row": (TypicalNorm(ShiftedGram(CENTRE, 0.5), 60.0), 1.0),
        "spread of heads without levels": (HEADS, HEADS.bound),
        "direction votes": (DirectionVote(WHITENING), 1.0),
        "direction votes, some rows": (DirectionVote(WHITENING, most_rows=3), 1.0),
        "direction votes, centred": (DirectionVote(WHITENING, centered=True), 1.0),
        "basis step": (BasisStep(BASIS, METRIC, 0.5, WHITENING), 1.0),
        "basis step, centred": (BasisStep(BASIS, METRIC, 0.5, WHITENING, centered=True), 1.0),
        "logistic step": (LossStep(BASIS, METRIC, 0.5, WHITENING, Loss("logistic")), 1.0),
        "logistic step, level": (LossStep(BASIS, METRIC, 0.5, WHITENING, Loss("logistic"), intercept=True), 1.0),
        "hinge step": (LossStep(BASIS, METRIC, 0.5, WHITENING, Loss("hinge")), 1.0),
        "poisson step": (LossStep(BASIS, METRIC, 0.5, WHITENING, Loss("poisson"), intercept=True), 1.0),
        "step of classes": (CodedStep(BASIS, METRIC, 0.5, WHITENING, THREE), 1.0),
        "vote of two classes": (ClassVote(WHITENING, loss=Loss("hinge")), 1.0),
        "vote of classes": (CodedVote(WHITENING, loss=THREE), 1.0),
        "normal equations": (NormalEquations(BASIS, WHITENING, 0.3, 0.7), 1.0),
        "power vote": (PowerVote(BASIS, WHITENING), 1.0),
        "power vote, centred": (PowerVote(BASIS, WHITENING, centered=True), 1.0),
        "power statistic": (PowerStatistic(BASIS, 1, 5), 3.0),
        "head gradient": (HeadGradient(BASIS, 1, 5), 3.0),
        "sparse step": (SparseStep(BASIS, METRIC, 0.5, WHITENING, sparsity=Sparsity(2)), 1.0),
        "sparse step, centred": (SparseStep(BASIS, METRIC, 0.5, WHITENING, True, sparsity=ONE), 1.0),
        "sparse step, chosen sparsity": (SparseStep(BASIS, METRIC, 0.5, WHITENING, sparsity=AUTO), 1.0),
        "central step": (CENTRAL, 1.0),
        "norms of central step": (NormHistogram(CENTRAL), 1.0),
        "sparse equations": (SparseEquations(BASIS, WHITENING, ONE, 0.3, 0.7), 1.0),
        "sparse equations, centred": (SparseEquations(BASIS, WHITENING, ONE, 0.3, 0.7, centered=True), 1.0),
        "norms of sparse equations": (NormHistogram(SparseEquations(BASIS, WHITENING, ONE, parts="right")), 1.0),
        "target moment": (TargetMoment(D), 1.0),
        "clipped gram": (ClippedGram(*PRINTED), CLIPS.gram),
        "clipped right": (ClippedRight(*PRINTED), CLIPS.right),
        "clipped right, one weight": (ClippedRight(PRINTED[0][:, :, :1], *PRINTED[1:], True), CLIPS.right),
        "norm histogram": (NormHistogram(PairStatistic(D)), 1.0),
        "pair statistic": (PairStatistic(D), 10.0),
        "basis gradient": (BasisGradient(BASIS, 1, 5), 10.0),
        "centre vote, row": (CentreVote(CENTRE, 2.0), 1.0),
        "centre vote, user": (CentreVote(CENTRE, 2.0, Unit.USER), 1.0),
        "gram, row": (ShiftedGram(CENTRE, 0.5), 3.0),
        "gram, user": (ShiftedGram(CENTRE, 0.5, Unit.USER), 3.0),
        "gram again, row": (GramAgain(CENTRE, 0.5), 3.0),
        "power step, row": (PowerStep(BASIS, CENTRE, 0.5), 3.0),
        "power step, user": (PowerStep(BASIS, CENTRE, 0.5, Unit.USER), 3.0),
        "device step": (DeviceStep(BASIS, 3), 3.0),
        "device step, signs": (DeviceStep(BASIS, 2, "signs"), 3.0),
        "norms of gram, row": (NormHistogram(ShiftedGram(CENTRE, 0.5), 8), 1.0),
        "norms of power step, row": (NormHistogram(PowerStep(BASIS, CENTRE, 0.5), 8), 1.0),
        "norms of gram, user": (NormHistogram(ShiftedGram(CENTRE, 0.5, Unit.USER), 8), 1.0),
    }
)
COMPILED = ("one model", "one model, centred", "norm of a correction")
QUERIES |= {
    f"{name}, many users": (OfStatistics(QUERIES[name][0], QUERIES[name][0].statistics), QUERIES[name][1])
    for name in COMPILED
}
FEW = [name for name, (query, _) in QUERIES.items() if query.form_for(2, D) is not query]
QUERIES |= {f"{name}, few users": (QUERIES[name][0].form_for(2, D), QUERIES[name][1]) for name in FEW}


def row(direction: int, target: float) -> Rows:
    X = np.zeros((1, D))
    X[0, direction] = 1.0
    return X, np.array([target])


def turned_user(sign: float) -> Rows:
    """A user whose head is tiny next to its correction; ``sign`` flips the correction."""
    outside = np.linalg.svd(BASIS, full_matrices=True)[0][:, K]
    rows = np.vstack([np.repeat(BASIS.T, 8, axis=0), np.tile(sign * outside, (16, 1))])
    rows[16:] += np.tile(BASIS[:, 0] * 1e-3, (16, 1)) * np.where(np.arange(16) % 2, 1, -1)[:, None]
    targets = np.concatenate([np.full(16, 1e-3), np.full(16, 1.0)])
    return rows, targets


@cache
def attack(name: str) -> SensitivityReport:
    query, bound = QUERIES[name]
    return attacked(query, bound, features(query))


@pytest.mark.parametrize("name", QUERIES)
def test_no_user_moves_a_release_by_more_than_its_sensitivity(name: str) -> None:
    assert attack(name).violations == ()


@pytest.mark.parametrize("name", QUERIES)
def test_no_unit_among_others_moves_the_sum_by_more_than_its_sensitivity(name: str) -> None:
    query, bound = QUERIES[name]
    X = placed(query, 3 * np.random.default_rng(5).normal(size=(40, features(query))))
    assert neighbour_violations(query, bound, X, np.array([0, 8, 9, 20, 40])) == []


@pytest.mark.parametrize("name", QUERIES)
def test_some_user_reaches_the_clip(name: str) -> None:
    assert 0.999 < attack(name).zero_out <= 1 - GUARD / 2


@pytest.mark.parametrize("name", [name for name in QUERIES if QUERIES[name][0].unit is Unit.USER])
def test_blocks_of_one_user_are_what_each_user_adds(name: str) -> None:
    """The auditor computes what many canaries add at once."""
    query, bound = QUERIES[name]
    rng, offsets = np.random.default_rng(6), np.array([0, 8, 9, 20, 40])
    X, y = read_only(placed(query, rng.normal(size=(40, features(query))))), read_only(rng.normal(size=40))
    at_once = query.block_sums(X, y, offsets, bound, 1)
    alone = [query.block_sum(X[a:b], y[a:b], np.array([0, b - a]), bound) for a, b in itertools.pairwise(offsets)]
    np.testing.assert_allclose(at_once, alone, rtol=0, atol=1e-9 * bound)


@pytest.mark.parametrize("name", ["feature moment", "direction votes"])
def test_replacing_a_user_reaches_root_two_clips_for_acute_releases(name: str) -> None:
    query = QUERIES[name][0]
    if isinstance(query, DirectionVote):
        query = DirectionVote(Whitening.identity(D))
    apart = np.linalg.norm(clipped(query, row(0, 1.0), 1.0) - clipped(query, row(1, 1.0), 1.0))
    assert 0.999 * math.sqrt(2.0) < apart <= math.sqrt(2.0)


@pytest.mark.parametrize("kind", [BasisStep, SparseStep])
def test_replacing_a_user_reaches_two_clips_for_the_basis_step(kind: type[BasisStep]) -> None:
    query = kind(BASIS, np.eye(K), 1e-3, Whitening.identity(D))
    apart = np.linalg.norm(clipped(query, turned_user(1.0), 1.0) - clipped(query, turned_user(-1.0), 1.0))
    assert 0.999 * 2.0 < apart <= 2.0


@pytest.mark.parametrize("loss", [Loss("logistic"), Loss("hinge"), THREE])
def test_replacing_a_user_comes_near_two_clips_for_steps_of_losses(loss: Loss) -> None:
    """Rows that differ off the basis decide every label; flipping them flips the correction."""
    query = LossStep(BASIS, np.eye(K), 1e-3, Whitening.identity(D), loss)
    outside = np.linalg.svd(BASIS, full_matrices=True)[0][:, K]
    added = []
    for sign in (1.0, -1.0):
        labels = np.arange(40) % 2
        rows = np.outer(np.where(labels, 1.0, -1.0), sign * outside) + 0.3 * BASIS[:, 0]
        rows[:10] += 0.3 * BASIS[:, 0]
        added.append(clipped(query, (rows, np.where(np.arange(40) < 13, 1.0, labels)), 1.0))
    assert 1.99 < np.linalg.norm(added[0] - added[1]) <= 2.0


@pytest.mark.parametrize("unit", [Unit.ROW, Unit.USER])
def test_replacing_a_unit_reaches_root_two_clips_for_the_gram_matrix(unit: Unit) -> None:
    query = ShiftedGram(np.zeros(D), 1e-6, unit)
    huge = [(100.0 * row(j, 1.0)[0], np.ones(1)) for j in (0, 1)]
    apart = np.linalg.norm(clipped(query, huge[0], 3.0) - clipped(query, huge[1], 3.0))
    assert 0.999 * math.sqrt(2.0) * 3.0 < apart <= math.sqrt(2.0) * 3.0


@pytest.mark.parametrize("make", [lambda: PowerStep(TWO, np.zeros(D), 1e-9), lambda: DeviceStep(TWO)])
def test_replacing_a_unit_comes_near_two_clips_for_steps(make) -> None:  # type: ignore[no-untyped-def]
    """(x + small e₁)(…)ᵀe₁ points along ±x: almost opposite."""
    first, second = (100.0 * (row(3, 1.0)[0] + sign * 0.02 * row(0, 1.0)[0]) for sign in (1.0, -1.0))
    query = make()
    apart = np.linalg.norm(clipped(query, (first, np.ones(1)), 3.0) - clipped(query, (second, np.ones(1)), 3.0))
    assert 0.999 * 6.0 < apart <= 6.0


def opposed() -> tuple[Rows, Rows]:
    """Rows long in the first direction against rows short in it: y²(xxᵀ − I)Q of either sign."""
    along, across = np.zeros((4, D)), np.zeros((4, D))
    along[:, 0], across[:, 3] = 1.0, 1.0
    return (along, np.ones(4)), (across, np.ones(4))


def test_replacing_a_user_comes_near_two_clips_for_the_power_vote() -> None:
    query = PowerVote(TWO[:, :1], Whitening.identity(D))
    first, second = (clipped(query, user, 1.0) for user in opposed())
    assert 0.999 * 2.0 < np.linalg.norm(first - second) <= 2.0


def test_replacing_a_user_reaches_two_clips_for_the_central_step() -> None:
    query = SparseStep(np.zeros((D, 1)), np.eye(1), 1e-9, Whitening.identity(D), sparsity=ONE, shared_weight=True)
    X, y = np.random.default_rng(5).normal(size=(30, D)), np.ones(30)
    apart = np.linalg.norm(clipped(query, (X, y), 1.0) - clipped(query, (X, -y), 1.0))
    assert 0.999 * 2.0 < apart <= 2.0


def test_replacing_a_user_reaches_two_clips_for_one_model() -> None:
    query = CentralStep(Correction(np.zeros(D), Whitening.identity(D)), 1e-9)
    X, y = np.random.default_rng(5).normal(size=(30, D)), np.ones(30)
    apart = np.linalg.norm(clipped(query, (X, y), 1.0) - clipped(query, (X, -y), 1.0))
    assert 0.999 * 2.0 < apart <= 2.0


def test_replacing_a_user_comes_near_two_clips_for_the_scales_of_columns() -> None:
    """From one end of the circle to where it is opposite."""
    bound, tiny = math.sqrt(D), np.full((4, D), 2.0**-50)
    far = max(
        np.linalg.norm(clipped(ColumnScales(D), (tiny, np.ones(4)), bound) - clipped(ColumnScales(D), other, bound))
        for other in ((np.full((4, D), 2.0**k), np.ones(4)) for k in range(50))
    )
    assert 0.99 * 2.0 * bound < far <= 2.0 * bound


def test_replacing_a_user_reaches_two_clips_for_the_sparse_equations() -> None:
    query = SparseEquations(BASIS, Whitening.identity(D), Sparsity(0), 1e3, 1e-6)
    apart = np.linalg.norm(clipped(query, turned_user(1.0), 1.0) - clipped(query, turned_user(-1.0), 1.0))
    assert 0.999 * 2.0 < apart <= 2.0


def test_replacing_a_user_reaches_two_clips_for_the_pair_statistic() -> None:
    x = np.zeros((4, D))
    x[:, 0] = 100.0
    apart = np.linalg.norm(
        clipped(PairStatistic(D), (x, np.array([1.0, 1, 0, 0])), 10.0)
        - clipped(PairStatistic(D), (x, np.array([1.0, -1, 0, 0])), 10.0)
    )
    assert 0.999 * 20.0 < apart <= 20.0


@pytest.mark.parametrize("name", QUERIES)
def test_the_fused_form_equals_the_plain_one(name: str) -> None:
    query, bound = QUERIES[name]
    rng = np.random.default_rng(2)
    counts = np.array([1, 2, 3, 4, 9, 30, 5])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X, y = placed(query, rng.normal(size=(offsets[-1], features(query)))), rng.normal(size=offsets[-1])
    plain = Query.block_sum(query, X, y, offsets, bound)
    np.testing.assert_allclose(query.block_sum(X, y, offsets, bound), plain, rtol=1e-8, atol=1e-10 * bound)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_users_are_summed_as_the_definition_says(name: str, dtype: type) -> None:
    (query, bound), (form, _), rng = QUERIES[name], QUERIES[f"{name}, many users"], np.random.default_rng(11)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 20, 60))])
    X, y = rng.normal(size=(offsets[-1], D)).astype(dtype), rng.normal(size=offsets[-1]).astype(dtype)
    found, expected = (each.block_sums(X, y, offsets, bound, 32) for each in (form, query))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_users_are_summed_as_many_are(name: str, dtype: type) -> None:
    """By array operations instead of compiled code; moments in single precision reserve 2^-16 √d of their norm."""
    (query, bound), rng = QUERIES[name], np.random.default_rng(9)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 20, 60))])
    X, y = rng.normal(size=(offsets[-1], D)).astype(dtype), rng.normal(size=offsets[-1]).astype(dtype)
    many, some = (form.block_sums(X, y, offsets, bound, 32) for form in (query, query.form_for(60, D)))
    assert query.form_for(100_000, D) is query
    close = 1e-11 if dtype is np.float64 else 2.0**-16 * math.sqrt(D) + 1e-5
    np.testing.assert_allclose(some, many, rtol=close, atol=close * bound)


@pytest.mark.parametrize("name", [f"{name}, few users" for name in FEW] + [f"{name}, many users" for name in COMPILED])
def test_no_bit_of_a_user_depends_on_others(name: str) -> None:
    query, bound = QUERIES[name]
    rng = np.random.default_rng(10)
    rows = [(rng.normal(size=(m, D)), rng.normal(size=m)) for m in (4, 9, 1, 12, 5)]
    others = [
        (np.zeros((0, D)), np.zeros(0)),
        (np.full((3, D), math.nan), np.ones(3)),
        (1e200 * np.ones((40, D)), rng.normal(size=40)),
        (rng.normal(size=(300, D)), np.full(300, math.inf)),
    ]
    found = []
    for other in others:
        users = [*rows[:2], other, *rows[2:]]
        X, y = (read_only(np.concatenate([user[part] for user in users])) for part in (0, 1))
        offsets = np.concatenate([[0], np.cumsum([len(user[1]) for user in users])])
        with np.errstate(all="ignore"):
            found.append(np.delete(query.block_sums(X, y, offsets, bound, 1), 2, axis=0))
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])


@pytest.mark.parametrize("parts", ["gram", "right", "both"])
@pytest.mark.parametrize("kind", [NormalEquations, SparseEquations])
def test_the_cheap_norm_is_the_norm(parts: str, kind: type) -> None:
    scales = {"gram_scale": 0.3, "right_scale": 0.7, "parts": parts}
    query = kind(BASIS, WHITENING, **scales, **({"sparsity": ONE} if kind is SparseEquations else {}))
    rng = np.random.default_rng(4)
    for rows in (1, 3, 9, 40):
        X, y = rng.normal(size=(rows, D)), rng.normal(size=rows)
        expected = np.linalg.norm(query.contribution(X, y))
        assert query.norms(X, y, np.array([0, rows]))[0] == pytest.approx(float(expected))


@pytest.mark.parametrize("name", QUERIES)
def test_a_bad_user_changes_nothing_but_its_own_summand(name: str) -> None:
    query, bound = QUERIES[name]
    rng = np.random.default_rng(3)
    X, y = placed(query, rng.normal(size=(36, features(query)))), rng.normal(size=36)
    offsets = np.array([0, 12, 24, 36])
    alone = clipped(query, (X[:12], y[:12]), bound) + clipped(query, (X[24:], y[24:]), bound)
    X[12:24] = math.nan
    with np.errstate(all="ignore"):
        together = query.block_sum(X, y, offsets, bound)
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-12)


def test_replacing_an_observation_reaches_two_clips_for_the_tangent_sum() -> None:
    """Opposite labels, same bin: 2C√(1 − t) apart, which is 2C if norms are not tracked."""
    x = 100.0 * np.random.default_rng(5).normal(size=(1, 12))
    for tracked in (0.0, 0.05):
        query = tangent(DESIGNS[0], Unit.LABEL, tracked=tracked)
        apart = np.linalg.norm(clipped(query, (x, np.array([1e9])), 3.0) - clipped(query, (x, np.array([-1e9])), 3.0))
        reached = 6.0 * math.sqrt(1.0 - tracked)
        assert 0.999 * reached < apart <= reached


def test_replacing_an_observation_reaches_root_two_clips_for_the_energy() -> None:
    query = DesignEnergy(DESIGNS[2])
    first, second = (clipped(query, (np.array([[i, i]], dtype=float), np.ones(1)), 0.5) for i in (0, 1))
    assert 0.999 * math.sqrt(0.5) < np.linalg.norm(first - second) <= math.sqrt(0.5)


def test_a_right_product_inside_the_basis_cannot_slip_past_the_clip() -> None:
    """‖B‖² − ‖VᵀB‖² is rounding error here; a norm that relies on it would let a huge B through."""
    query, U, V = tangent(DESIGNS[0], Unit.ROW), *(getattr(tangent(DESIGNS[0], Unit.ROW), s) for s in ("left", "right"))
    for seed in range(50):
        rng = np.random.default_rng(seed)
        inner = U @ rng.normal(size=(2, 2)) @ V.T / query.scales.matrix * 10.0 ** rng.integers(0, 12)
        outside = rng.normal(size=(3, 4)) * 10.0 ** rng.integers(-12, 12)
        for matrix in (inner, inner + outside):
            for dtype in (np.float32, np.float64):
                user = matrix.reshape(1, -1), np.array([1e9])
                assert np.linalg.norm(clipped(query, user, 3.0, dtype)) <= 3.0


@dataclass(frozen=True)
class Unclipped(FeatureMoment):
    """Mutation: forgets to normalise."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return sum(
            (3.0 * self.contribution(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)),
            np.zeros(self.coordinates),
        )


@dataclass(frozen=True)
class AcuteVote(PowerVote):
    """Mutation: claims that power steps never point against each other."""

    acute = True


@dataclass(frozen=True)
class Acute(BasisStep):
    """Mutation: claims that corrections never point against each other."""

    acute = True


@dataclass(frozen=True)
class _Summed(BatchQuery):
    """A batch query whose clip does not come last."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        rows = self.contributions(X, y, offsets)
        return rows[np.isfinite(rows).all(axis=1)].sum(axis=0)


@dataclass(frozen=True)
class WeightOnTop(CentralStep, _Summed):
    """Mutation: divides the correction by its own norm and adds the weight afterwards."""

    block_sum = _Summed.block_sum

    def contributions(self, X, y, offsets):  # type: ignore[no-untyped-def]
        with np.errstate(all="ignore"):
            joint = super().contributions(X, y, offsets)
            return joint / np.maximum(np.linalg.norm(joint[:, :-1], axis=1, keepdims=True), 1e-9)


@dataclass(frozen=True)
class OnePointForAll(ColumnScales, _Summed):
    """Mutation: claims the bound of one column for all of them."""

    block_sum = _Summed.block_sum


@dataclass(frozen=True)
class AcuteModel(CentralStep):
    """Mutation: claims that corrections never point against each other."""

    acute = True


@dataclass(frozen=True)
class DividesTwice(PairStatistic):
    """Mutation V1: the printed clip, M/‖M‖ · min(1, τ/‖M‖), scales small statistics up to norm one."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        vector = self.contribution(X, y)
        norm = np.linalg.norm(vector)
        return vector / norm * min(1.0, bound / norm) if norm > 0 else vector


@dataclass(frozen=True)
class LetsNaNThrough(FeatureMoment):
    """Mutation: NaN in one user's data makes the whole sum NaN."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, y, offsets, bound) + 0.0 * X.sum()


@dataclass(frozen=True)
class ClipsTheRowOnly(PowerStep):
    """Mutation: clips ‖a‖ and forgets the other factor of a(aᵀZ)."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        norms = np.linalg.norm(X, axis=1, keepdims=True)
        rows = X * np.minimum(1.0, bound / np.maximum(norms, 1e-300))
        return sum((self.contribution(r[None], y) for r in rows), np.zeros(self.coordinates))


@dataclass(frozen=True)
class CountsTheRowForMore(ShiftedGram):
    """Mutation P8: a public weight after the clip that the noise does not account for."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return 2.0 * super().block_sum(X, y, offsets, bound)


@dataclass(frozen=True)
class NormOfOneClass(LossStep):
    """Mutation: computes the norm of a contribution of several classes as a product of two norms, which it is not."""

    def block_sums(self, X, y, offsets, bound, size):  # type: ignore[no-untyped-def]
        return math.sqrt(self.loss.columns) * super().block_sums(X, coded(y), offsets, bound, size)


@dataclass(frozen=True)
class ForgetsTheWeights(SparseStep):
    """Mutation: normalises by the correction alone, without the weights' moment."""

    def block_sums(self, X, y, offsets, bound, size):  # type: ignore[no-untyped-def]
        sums = super().block_sums(X, y, offsets, bound, size)
        return sums / max(np.linalg.norm(sums[:, : self.basis.size]), 1e-300)


@dataclass(frozen=True)
class ClipsApart(SparseEquations):
    """Mutation: clips both parts of the equations separately, and pays for one."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        vector = self.contribution(X, y)
        size = self.coordinates - self.basis.size
        return np.concatenate([clip(vector[:size], bound), clip(vector[size:], bound)])


@dataclass(frozen=True)
class CountsAllRows(ClippedGram):
    """Mutation M3: noise for m rows per user, and no limit on a user's rows."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return replace(self, clips=replace(self.clips, count=len(X))).contribution(X, y)


@dataclass(frozen=True)
class CountsTheCoreTwice(TangentSum):
    """Mutation: underestimates the norm of the coordinates."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        vector = self.contribution(X, y)
        left, right, _ = self.split(vector)
        norm = math.sqrt(max(np.sum(left**2) + np.sum(right**2) - 2 * np.sum((self.left.T @ left) ** 2), 0.0))
        return vector * min(1.0, bound / norm) if norm > 0 and np.isfinite(norm) else np.zeros_like(vector)


@dataclass(frozen=True)
class ClipsTheResidualOnly(TangentSum):
    """Mutation R3: bounds the residual and not the design."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return self.contribution(X, np.clip(y, -bound, bound))


@dataclass(frozen=True)
class BinOnTop(TangentSum):
    """Mutation: the gradient takes the whole clip and the bin is not counted."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return super().block_sum(X, y, offsets, bound) / math.sqrt(1.0 - self.tracked)


@dataclass(frozen=True)
class EveryLevelWhole(StepEnergy):
    """Mutation: every level is scaled as if it were the only one."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return 2.0 * super().block_sum(X, y, offsets, bound)


@dataclass(frozen=True)
class LevelsNotCut(StepEnergy):
    """Mutation: energies above a level are not clipped."""

    def _shares(self, energies):  # type: ignore[no-untyped-def]
        usable = energies[np.isfinite(energies)]
        return np.array([np.sum(usable / level) for level in self.levels]) / len(self.levels)


@dataclass(frozen=True)
class LevelOnTop(TangentSum):
    """Mutation: the level is not part of the norm."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        vector = self.contribution(X, y)
        products = clip(vector[:-1], bound)
        return np.append(products, np.clip(vector[-1], -bound, bound))


@dataclass(frozen=True)
class CentredAfterTheClip(ObservationSum):
    """Mutation: clips the uncentred X, then subtracts the centre once per unit."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        there = np.isfinite(X).all(axis=1).sum()
        return (
            ObservationSum(self.design, self.unit).block_sum(X, y, offsets, bound) - there * self.centre.matrix.ravel()
        )


@dataclass(frozen=True)
class AcuteLabels(LabelSum):
    """Mutation: claims that labels never point against each other."""

    acute = True


@dataclass(frozen=True)
class LabelsNotCut(LabelSum):
    """Mutation: labels without a clip."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        return np.array([np.sum(y[np.isfinite(y)], dtype=np.float64)])


@pytest.mark.parametrize("unit", [Unit.ROW, Unit.LABEL])
def test_replacing_an_observation_reaches_two_clips_for_the_sums_of_a_centre(unit: Unit) -> None:
    x = np.random.default_rng(5).normal(size=(1, 12))
    for query in (ObservationSum(DESIGNS[0], unit), LabelSum(unit)):
        first, second = (clipped(query, (sign * 100.0 * x, np.array([sign * 100.0])), 3.0) for sign in (1.0, -1.0))
        assert 0.999 * 6.0 < np.linalg.norm(first - second) <= 6.0


@pytest.mark.parametrize(
    "mutant",
    [
        LevelOnTop(*(getattr(tangent(DESIGNS[0], Unit.ROW), name) for name in TANGENT), centre=MIDDLE),
        CentredAfterTheClip(DESIGNS[0], centre=Centre(4.0 * MIDDLE.matrix)),
        AcuteLabels(),
        LabelsNotCut(),
    ],
    ids=type,
)
def test_a_broken_sum_of_a_centre_is_caught(mutant: Query) -> None:
    opposite = [(np.full((1, 12), sign), np.array([sign])) for sign in (1e3, -1e3)]
    assert violations(mutant, 3.0, features(mutant), pairs=[(opposite[0], opposite[1])])


@pytest.mark.parametrize("mutant", [EveryLevelWhole, LevelsNotCut])
def test_a_broken_step_energy_is_caught(mutant: type[StepEnergy]) -> None:
    query = tangent(DESIGNS[0], Unit.ROW)
    assert violations(mutant(DESIGNS[0], query.left, query.right, 0.1), 1.0, 12)


@pytest.mark.parametrize("unit", [Unit.ROW, Unit.LABEL, Unit.USER])
@pytest.mark.parametrize("exponent", [-30, 24, 28, 30])
def test_large_scales_do_not_bring_lost_squares_back(unit: Unit, exponent: int) -> None:
    """Squares of 1.57e-162 underflow; a squared scale of 1e60 must not turn the remainder into a norm."""
    root = 10.0 ** (exponent / 2)
    design, scales = Design("dense", 20, 20), Scales(np.full(20, root), np.full(20, root))
    x = np.full((1, 400), 1.57e-162)
    x[0, 0] = 2e-162
    for label in (1e140, 1e165, 1e180):
        for query in (LabelledSum(design, scales, unit), tangent_at(design, scales, unit)):
            assert np.linalg.norm(clipped(query, (x, np.array([label])), 1.0)) <= 1.0


def tangent_at(design: Design, scales: Scales, unit: Unit) -> TangentSum:
    one = np.ones((design.d1, 1)) / math.sqrt(design.d1), np.ones((design.d2, 1)) / math.sqrt(design.d2)
    return TangentSum(design, scales, *one, np.ones(1), clip=1.0, unit=unit)


def mutated(mutant: type[TangentSum], tracked: float = 0.0) -> TangentSum:
    query = tangent(DESIGNS[0], Unit.ROW)
    return mutant(query.design, query.scales, query.left, query.right, query.values, "both", tracked, 3.0)


@pytest.mark.parametrize(
    "mutant", [mutated(CountsTheCoreTwice), mutated(ClipsTheResidualOnly), mutated(BinOnTop, 0.05)], ids=type
)
def test_a_broken_tangent_sum_is_caught(mutant: Query) -> None:
    assert violations(mutant, 3.0, 12)


@pytest.mark.parametrize(
    ("mutant", "bound"),
    [
        (NormOfOneClass(BASIS, METRIC, 0.5, WHITENING, THREE), 1.0),
        (ForgetsTheWeights(BASIS, METRIC, 0.5, WHITENING, sparsity=ONE), 1.0),
        (ClipsApart(BASIS, WHITENING, ONE, 0.3, 0.7), 1.0),
        (CountsAllRows(*PRINTED), CLIPS.gram),
        (ClipsTheRowOnly(BASIS, CENTRE, 0.5), 3.0),
        (CountsTheRowForMore(CENTRE, 0.5), 3.0),
        (Unclipped(D), 1.0),
        (WeightOnTop(Correction(CENTRE, WHITENING), 0.5), 1.0),
        (OnePointForAll(D), 1.0),
        (AcuteModel(Correction(np.zeros(D), Whitening.identity(D)), 1e-3), 1.0),
        (AcuteVote(TWO, Whitening.identity(D)), 1.0),
        (Acute(BASIS, np.eye(K), 1e-3, Whitening.identity(D)), 1.0),
        (DividesTwice(D), 0.1),
        (LetsNaNThrough(D), 1.0),
    ],
)
def test_a_broken_query_is_caught(mutant: Query, bound: float) -> None:
    assert violations(mutant, bound, D, pairs=[(turned_user(1.0), turned_user(-1.0)), opposed()])
