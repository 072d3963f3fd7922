"""AMHT-LRS: routes agree where they must, and the released equations are the documented ones."""

from __future__ import annotations

import numpy as np
import pytest

from tacitly.audit.users import adversarial_users
from tacitly.datasets import make_low_rank_sparse
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.low_rank_sparse import algorithm as low_rank_sparse
from tacitly.methods.low_rank_sparse import as_printed as paper_low_rank_sparse
from tacitly.methods.low_rank_sparse.as_printed import ClippedGram, ClippedRight, Clips, TargetMoment
from tacitly.methods.low_rank_sparse.heads import Sparsity
from tacitly.methods.low_rank_sparse.queries import SparseEquations, SparseStep
from tacitly.methods.low_rank_sparse.thresholds import Thresholds
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.accounting import compose
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Adjacency, Budget

RNG = np.random.default_rng(0)
BASIS = orthonormal(RNG.normal(size=(9, 2)))[0]
WHITENING = Whitening(RNG.uniform(0.5, 2.0, 9), orthonormal(RNG.normal(size=(9, 2)))[0], np.array([0.5, -0.4]))


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_without_own_coordinates_the_step_is_private_fedreps(centered: bool, dtype: type) -> None:
    fields = (BASIS, np.array([[1.2, 0.3], [0.3, 0.8]]), 0.5, WHITENING, centered)
    offsets = np.array([0, 3, 12, 40, 41, 60])
    X, y = RNG.normal(size=(60, 9)).astype(dtype), RNG.normal(size=60).astype(dtype)
    ours, theirs = (query.block_sums(X, y, offsets, 1.0, 2) for query in (SparseStep(*fields), BasisStep(*fields)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9 if dtype is np.float64 else 1e-4, atol=1e-9)


def awkward(d: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Users likely to leave numbers behind in a workspace: of all lengths, extreme, not finite."""
    rng = np.random.default_rng(5)
    plain = [(rng.normal(size=(m, d)), rng.normal(size=m)) for m in (40, 1, 2, 3, 7, 33, 5, 8, 24)]
    mixed = [user for pair in zip(plain * 200, (u for _, u in adversarial_users(d)), strict=False) for user in pair]
    return mixed[::5]


@pytest.mark.parametrize(("own", "noise"), [(0, 1.0), (1, 0.05)])
def test_a_round_subtracts_own_coordinates_where_they_are_plain_and_else_none(own: int, noise: float) -> None:
    data = make_low_rank_sparse(120, 20, 1, 12, sparsity=own, noise=noise, random_state=3)  # the seed: no false alarms
    fields = (data.basis, np.eye(1), 1.0, Whitening.identity(20))
    chosen, none = (SparseStep(*fields, sparsity=sparsity) for sparsity in (Sparsity(4, chosen=True), Sparsity(0)))
    rows = [(data.X[data.users == user], data.y[data.users == user]) for user in range(120)]
    same = np.mean([np.allclose(chosen.contribution(*mine), none.contribution(*mine)) for mine in rows])
    assert same > 0.95 if own == 0 else same < 0.5


def test_wrong_sizes_of_columns_do_not_change_which_coordinates_a_user_subtracts() -> None:
    # At 600 users and ε = 4 a released size is off by a factor of eight in one column of twenty. Users who chose
    # coordinates by it took genres of films for the level of their ratings, and the central model became useless.
    rng = np.random.default_rng(8)
    X = np.column_stack([np.ones(40), rng.random((40, 5)) < 0.3]).astype(np.float64)
    y = 3.0 * X[:, 0] + 0.5 * X[:, 3] + 0.2 * rng.normal(size=40)
    pulls = []
    for scale in (np.ones(6), np.array([0.125, 8.0, 1.0, 8.0, 4.0, 0.25])):
        whitening = Whitening(scale, np.zeros((6, 0)), np.zeros(0))
        step = SparseStep(np.zeros((6, 1)), np.eye(1), 1.0, whitening, sparsity=Sparsity(1), shared_weight=True)
        released = step.contribution(X, y)[:6] / scale  # in raw units, the correction of all that was not subtracted
        pulls.append(released / np.linalg.norm(released))
    np.testing.assert_allclose(*pulls, rtol=0, atol=1e-9)


QUERIES = {
    "step": lambda c, s: SparseStep(BASIS, np.eye(2), 0.5, WHITENING, c, sparsity=s),
    "central": lambda c, s: SparseStep(BASIS[:, :1], np.eye(1), 0.5, WHITENING, c, sparsity=s, shared_weight=True),
    "equations": lambda c, s: SparseEquations(BASIS, WHITENING, s, 0.7, 0.3, "both", c),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("sparsity", [Sparsity(2), Sparsity(3, chosen=True)])
def test_a_user_among_others_adds_what_they_add_alone_to_the_last_bit(
    name: str, centered: bool, sparsity: Sparsity
) -> None:
    query, users = QUERIES[name](centered, sparsity), awkward(9)
    offsets = np.concatenate([[0], np.cumsum([len(y) for _, y in users])])
    X, y = np.concatenate([X for X, _ in users]), np.concatenate([y for _, y in users])
    with np.errstate(all="ignore"):
        among = query.block_sums(X, y, offsets, 1.0, 1)
        norms = query.norms(X, y, offsets)
        for i, (mine, targets) in enumerate(users):
            alone = query.block_sum(mine.copy(), targets.copy(), np.array([0, len(mine)]), 1.0)
            assert np.linalg.norm(alone) <= 1.0 + 1e-9
            np.testing.assert_array_equal(among[i], alone)
            np.testing.assert_array_equal(norms[i], query.norms(mine, targets, np.array([0, len(mine)]))[0])


@pytest.mark.parametrize("centered", [False, True])
def test_long_users_and_short_ones_and_empty_ones_share_a_desk_and_nothing_else(centered: bool) -> None:
    """Users from 128 rows on use all lanes alone; features that do not fill a register are padded."""
    rng, d = np.random.default_rng(7), 50
    counts = [20, 300, 12, 128, 127, 9, 20, 20, 20, 20, 20, 131, 20]
    users = [(rng.normal(size=(m, d)), rng.normal(size=m)) for m in counts]
    users[6][0][:] = 0.0
    users[8][0][3, 4] = np.nan
    users[10][1][:] = np.inf
    basis = orthonormal(rng.normal(size=(d, 3)))[0]
    query = SparseStep(basis, np.eye(3), 0.5, Whitening.identity(d), centered, sparsity=Sparsity(5))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X, y = np.concatenate([X for X, _ in users]), np.concatenate([y for _, y in users])
    with np.errstate(all="ignore"):
        blocks, norms = query.block_sums(X, y, offsets, 1.0, len(counts)), query.norms(X, y, offsets)
        added = np.zeros_like(blocks[0])
        for i, (mine, targets) in enumerate(users):
            alone = query.block_sum(mine, targets, np.array([0, len(mine)]), 1.0)
            assert np.linalg.norm(alone) == pytest.approx(0.0 if i in (6, 8, 10) else 1.0, abs=1e-6)
            kept = (1.0 - GUARD) * query.contribution(mine, targets)
            np.testing.assert_allclose(alone, kept, atol=1e-9)
            np.testing.assert_array_equal(norms[i], query.norms(mine, targets, np.array([0, len(mine)]))[0])
            added += alone
    np.testing.assert_allclose(blocks[0], added, atol=1e-12)


@pytest.mark.parametrize("name", [*QUERIES, "fedrep"])
def test_queries_read_rows_however_they_lie_in_memory(name: str) -> None:
    made = {**QUERIES, "fedrep": lambda c, s: BasisStep(BASIS, np.eye(2), 0.5, WHITENING, c)}
    query, offsets = made[name](False, Sparsity(2)), np.array([0, 20, 40])
    X, y = RNG.normal(size=(40, 18))[::-1, ::2], RNG.normal(size=80)[::2]
    right = query.block_sum(X.copy("C"), y.copy(), offsets, 1.0)
    np.testing.assert_array_equal(query.block_sum(X, y, offsets, 1.0), right)


def test_a_kernel_that_counts_positions_refuses_other_arrays() -> None:
    from numba.core.errors import NumbaError, TypingError

    from tacitly.methods.fedrep.kernels import project_rows
    from tacitly.simd.registers import padded

    out = np.zeros((4, 48))
    with pytest.raises((NumbaError, TypingError, TypeError), match="need C-contiguous arrays"):
        project_rows(RNG.normal(size=(40, 18))[:, ::2], 0, 40, 9, padded(BASIS.T, np.float64), out, 0, 0)


def test_the_step_vanishes_at_the_truth() -> None:
    data = make_low_rank_sparse(50, 40, 2, 80, 2, random_state=1)
    query = SparseStep(data.basis, np.eye(2), 1.0, Whitening.identity(40), sparsity=Sparsity(2))
    step, moment = query.split(query.block_sum(data.X, data.y, np.arange(0, 4001, 80), 1.0))
    assert np.abs(step).max() < 1e-6
    assert np.trace(moment) == pytest.approx(50, rel=1e-5)  # no residual: the weights have all of the norm


def test_one_round_of_exact_equations_is_least_squares_in_the_basis() -> None:
    """Equation 7: their solution minimises Σ‖y − X(U + change)w‖² for fixed weights, computed row by row."""
    data = make_low_rank_sparse(200, 9, 2, 20, 0, noise=0.1, random_state=2)
    offsets = np.arange(0, 4001, 20)
    query = SparseEquations(BASIS, Whitening.identity(9), Sparsity(0))
    matrix, pull = query.split(query.block_sum(data.X, data.y, offsets, 1e9))
    change = np.linalg.solve(matrix, pull).reshape(2, 9).T
    rows, left = [], []
    for i in range(200):
        X, y = data.X[20 * i : 20 * i + 20], data.y[20 * i : 20 * i + 20]
        weights = np.linalg.lstsq(X @ BASIS, y)[0]
        rows.append(np.kron(weights[None], X))
        left.append(y - X @ BASIS @ weights)
    plain = np.linalg.lstsq(np.vstack(rows), np.concatenate(left))[0]
    np.testing.assert_allclose(change, plain.reshape(2, 9).T, atol=1e-8)


def test_noise_on_the_equations_has_their_symmetries() -> None:
    query = SparseEquations(BASIS, Whitening.identity(9), Sparsity(1))
    noise = RNG.normal(size=query.coordinates)
    matrix, _ = query.split(noise)
    blocks = matrix.reshape(2, 9, 2, 9)
    np.testing.assert_allclose(blocks, blocks.transpose(2, 1, 0, 3))
    np.testing.assert_allclose(blocks, blocks.transpose(0, 3, 2, 1))
    assert np.linalg.norm(matrix) == pytest.approx(float(np.linalg.norm(noise[: query.coordinates - 18])))


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("route", ["gradient", "equations", "central"])
def test_every_route_plans_the_budget_and_no_more(route: str, adjacency: Adjacency) -> None:
    budget = Budget(epsilon=1.0, delta=1e-5, adjacency=adjacency)
    settings = low_rank_sparse.Settings(route=route, rounds=5)
    assert compose(settings.events(settings.plan(budget)), adjacency, 1e-5) == pytest.approx(1.0, abs=1e-6)


def test_the_paper_is_given_the_whole_budget_too() -> None:
    clips = Clips(rows=4.0, targets=3.0, sparse_part=2.0, weights=1.5, count=30)
    assert clips.gram == 30 * 16 * 2.25
    assert clips.right == 30 * 4 * 5 * 1.5
    thresholds = Thresholds(distance=1.0, spread=1.0)
    settings = paper_low_rank_sparse.Settings(clips=clips, thresholds=thresholds, rounds=7, start="moments")
    events = settings.events(settings.plan(Budget(epsilon=1.0, delta=1e-5)))
    assert len(events) == 15
    assert compose(events, Adjacency.ZERO_OUT, 1e-5) == pytest.approx(1.0, abs=1e-6)


def test_clips_that_cut_nothing_leave_the_papers_equations() -> None:
    data = make_low_rank_sparse(1, 9, 2, 20, 0, noise=0.1, random_state=3)
    clips = Clips(rows=1e3, targets=1e3, sparse_part=1e3, weights=1e3, count=20)
    public = (BASIS[None], 0, clips, Thresholds(distance=1.0, spread=1.0))
    gram, right = (kind(*public).contribution(data.X, data.y) for kind in (ClippedGram, ClippedRight))
    weights = np.linalg.lstsq(data.X @ BASIS, data.y)[0]
    np.testing.assert_allclose(gram.reshape(18, 18), np.kron(np.outer(weights, weights), data.X.T @ data.X), rtol=1e-8)
    np.testing.assert_allclose(right, np.outer(weights, data.X.T @ data.y).ravel(), rtol=1e-8)


@pytest.mark.parametrize("field", ["rows", "targets", "sparse_part", "weights", "count"])
@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_every_clip_is_a_positive_number(field: str, bad: float) -> None:
    good = {"rows": 1.0, "targets": 1.0, "sparse_part": 1.0, "weights": 1.0, "count": 5}
    with pytest.raises(ValueError, match=f"{field} must be"):
        Clips(**{**good, field: bad})


def test_moments_of_targets_point_to_the_basis() -> None:
    data = make_low_rank_sparse(2000, 9, 1, 20, 0, random_state=4)
    query = TargetMoment(9)
    packed = query.block_sum(data.X, data.y, np.arange(0, 40001, 20), 1.0)
    from tacitly.linalg import subspace_distance, unpack_symmetric

    top = np.linalg.eigh(unpack_symmetric(packed, 9))[1][:, -1:]
    assert subspace_distance(top, data.basis) < 0.2


def test_a_central_model_keeps_what_noise_cannot_have_made() -> None:
    """Columns: varied for sure, small; doubtful, one weight clear of the noise and one not."""
    whitening = Whitening(np.array([2.0, 1.0, 4.0]), np.zeros((3, 0)), np.zeros(0))
    state = low_rank_sparse.Central(np.zeros((3, 1)), sure=np.array([1.0, 0.0, 0.0]))
    for _ in range(10):
        state.advance(np.array([[0.5], [60.0], [1.0]]), np.array([[100.0]]), 1.0, 300, damping=0.5)
    assert state.variances[0] < 0.5 * state.variances[1]
    kept = state.cleaned(whitening)[:, 0]
    np.testing.assert_array_equal(kept != 0, [True, True, False])
    np.testing.assert_allclose(kept[:2], state.model[:2, 0])
