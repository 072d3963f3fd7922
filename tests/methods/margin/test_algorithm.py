"""Algorithm 3 of Private FedRep: scores, selection, and that only the selection is released."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest

import tacitly
from tacitly.audit.users import adversarial_users
from tacitly.data.validation import DataError
from tacitly.linalg import orthonormal
from tacitly.methods.margin import algorithm as margin
from tacitly.methods.margin import queries as margin_losses
from tacitly.methods.margin.queries import MarginLosses, head_dictionary
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.verification import verify
from tacitly.simd.projections import project_each

D, K = 7, 2
RNG = np.random.default_rng(1)
CANDIDATES = np.array([orthonormal(RNG.normal(size=(D, K)))[0] for _ in range(5)])
QUERIES = {
    "all rows": MarginLosses(CANDIDATES, head_dictionary(K), 0.05),
    "half": MarginLosses(CANDIDATES, head_dictionary(K), 0.05, half=True),
    "centred": MarginLosses(CANDIDATES, head_dictionary(K), 0.05, centered=True),
    "rank one": MarginLosses(CANDIDATES[:, :, :1], head_dictionary(1), 0.0),
    "rank three": MarginLosses(np.concatenate([CANDIDATES, CANDIDATES[:, :, :1]], axis=2), head_dictionary(3), 0.1),
}


def separable(n: int, m: int, d: int, seed: int = 0, *, inner: int = 8, rank: int = 2):  # type: ignore[no-untyped-def]
    """Rows near a space of ``inner`` dimensions in d, labelled by personal boundaries in a shared plane of it."""
    rng, inner = np.random.default_rng(seed), min(inner, d)
    frame = orthonormal(rng.normal(size=(d, inner)))[0]
    basis = orthonormal(rng.normal(size=(inner, rank)))[0]
    heads = rng.normal(size=(n, rank))
    users = np.repeat(np.arange(n), m)
    points = rng.normal(size=(n * m, inner)) / math.sqrt(inner)
    y = (np.einsum("nk,nk->n", points @ basis, heads[users]) > 0).astype(int)
    return points @ frame.T + 0.1 * rng.normal(size=(n * m, d)) / math.sqrt(d), y, users


def coded(y: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(y), (np.abs(y) * 1e3) % 2 >= 1, y).astype(float)


@pytest.mark.parametrize("name", QUERIES)
def test_losses_of_any_user_lie_between_zero_and_one_and_both_are_reached(name: str) -> None:
    query = QUERIES[name]
    low, high = 1.0, 0.0
    for label, (X, y) in adversarial_users(D):
        with np.errstate(all="ignore"):
            found = query.block_sum(X, coded(y), np.array([0, len(X)]), math.inf)
        assert ((found >= 0) & (found <= query.steps) & (found == np.rint(found))).all(), label
        low, high = min(low, found.min() / query.steps), max(high, found.max() / query.steps)
    right = np.tile(CANDIDATES[0, :, 0], (6, 1))
    sure = query.block_sum(right, np.ones(6), np.array([0, 6]), math.inf) / query.steps
    if name != "centred":
        assert sure[0] == 0.0
    assert high == 1.0  # a row of zeros has no margin


@pytest.mark.parametrize("name", QUERIES)
def test_the_fused_losses_equal_the_plain_ones(name: str) -> None:
    query, rng = QUERIES[name], np.random.default_rng(2)
    offsets = np.array([0, 0, 1, 3, 12, 40])
    X, y = rng.normal(size=(40, D)), rng.integers(0, 2, size=40).astype(float)
    plain = np.array([query.losses(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)])
    np.testing.assert_array_equal(query.block_losses(X, y, offsets), plain)
    assert (plain[0] == 0).all()  # a user without rows


def test_many_candidates_are_scored_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    X, y, offsets = rng.normal(size=(40, D)), rng.integers(0, 2, size=40).astype(float), np.array([0, 3, 12, 40])
    whole = QUERIES["all rows"].block_losses(X, y, offsets)
    monkeypatch.setattr(margin_losses, "_CHUNK", 2)
    query = MarginLosses(CANDIDATES, head_dictionary(K), 0.05)
    assert [part.shape[2] for part in query._chunks] == [2, 2, 1]
    np.testing.assert_array_equal(query.block_losses(X, y, offsets), whole)


def test_a_large_cover_takes_little_memory_and_a_larger_one_is_refused() -> None:
    cover = margin.frobenius_cover(2, 2, 0.35)
    assert 10_000 < len(cover) < 200_000
    X, y = np.random.default_rng(8).normal(size=(600, 2)), np.ones(600)
    query = MarginLosses(cover, head_dictionary(2), 0.05)
    query.block_sum(X[:2], y[:2], np.array([0, 2]), math.inf)
    tracemalloc.start()
    query.block_sum(X, y, np.arange(0, 601, 2), math.inf)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20  # all users' losses at once would take eight times as much
    with pytest.raises(ValueError, match="too many to list"):
        margin.frobenius_cover(2, 2, 0.15)


def test_one_users_losses_do_not_depend_on_others() -> None:
    query, rng = QUERIES["all rows"], np.random.default_rng(3)
    X, y = rng.normal(size=(30, D)).astype(np.float32), rng.integers(0, 2, size=30).astype(np.float32)
    alone = query.block_losses(X[10:20], y[10:20], np.array([0, 10]))
    for offsets in ([0, 10, 20, 30], [0, 3, 10, 20, 30]):
        together = query.block_losses(X, y, np.array(offsets))
        np.testing.assert_array_equal(together[offsets.index(10)], alone[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_projected_row_depends_on_that_row_alone(dtype: type) -> None:
    rng = np.random.default_rng(4)
    X, signs = rng.normal(size=(300, 37)).astype(dtype), margin.sign_matrix(10, 37, 0)
    whole = project_each(X, signs)
    np.testing.assert_allclose(whole, X @ signs.T, rtol=1e-4, atol=1e-5)
    for a, b in ((0, 1), (7, 8), (100, 131), (255, 300)):
        np.testing.assert_array_equal(project_each(X[a:b], signs), whole[a:b])
    X[5] = math.nan
    np.testing.assert_array_equal(np.delete(project_each(X, signs), 5, axis=0), np.delete(whole, 5, axis=0))


def test_signs_of_lemma_15s_dimension_keep_inner_products() -> None:
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(20, 3000))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for seed in range(5):
        signs = margin.sign_matrix(margin.target_dimension(20, 0.4), 3000, seed)
        kept = (vectors @ signs.T) @ (vectors @ signs.T).T
        assert np.abs(kept - vectors @ vectors.T).max() < 0.4
    assert set(np.unique(signs * math.sqrt(len(signs))).round(9)) == {-1.0, 1.0}


@pytest.mark.parametrize(("shape", "radius"), [((2, 1), 0.3), ((2, 2), 0.8), ((3, 1), 0.4)])
def test_a_cover_is_one(shape: tuple[int, int], radius: float) -> None:
    cover = margin.frobenius_cover(*shape, radius).reshape(-1, shape[0] * shape[1])
    rng = np.random.default_rng(6)
    points = rng.normal(size=(500, cover.shape[1]))
    points *= math.sqrt(2 * shape[1]) * rng.random((500, 1)) ** 0.2 / np.linalg.norm(points, axis=1, keepdims=True)
    furthest = max(np.linalg.norm(cover - point, axis=1).min() for point in points)
    assert furthest <= radius
    with pytest.raises(ValueError, match="too many to list"):
        margin.frobenius_cover(50, 2, 0.1)


@pytest.mark.parametrize(("mode", "delta"), [("cover", 0.0), ("random", 0.0), ("search", 0.0), ("gradient", 1e-6)])
def test_every_mode_spends_exactly_what_was_asked_for_and_verifies(mode: str, delta: float) -> None:
    X, y, users = separable(300, 8, 4, rank=1, inner=3)
    model = tacitly.MarginClassifier(
        rank=1, epsilon=1.0, delta=delta, mode=mode, dimension=3, candidates=20, choices=5, radius=0.8
    ).fit(X, y, users)
    assert model.certificate_.epsilon == pytest.approx(1.0, rel=1e-6)
    assert model.certificate_.epsilon <= 1.0 + 1e-9
    assert len(model.certificate_.releases) == {"search": 5, "gradient": 19}.get(mode, 1)
    if mode != "gradient":
        assert model.certificate_.delta == 0
        assert model.certificate_.epsilon_replace_one == pytest.approx(2.0)
    assert verify(model.certificate_.to_json()).ok


def test_a_basis_is_found_under_pure_epsilon_and_beats_what_users_have_alone() -> None:
    X, y, users = separable(4000, 16, 60)
    late = np.tile(np.arange(16) >= 8, 4000)
    parts = (X[~late], y[~late], users[~late])
    model = tacitly.MarginClassifier(rank=2, epsilon=2.0, dimension=16, candidates=100, choices=12).fit(*parts)
    some = users < 500
    local = tacitly.LocalModels(loss="hinge").fit(*(part[(users < 500)[~late]] for part in parts))
    alone = local.score(X[late & some], y[late & some], users[late & some])
    assert model.mode_ == "search"
    assert model.score(X[late & some], y[late & some], users[late & some]) > alone + 0.02


def test_heads_can_be_kept_to_the_second_half_as_printed() -> None:
    X, y, users = separable(200, 9, 5)
    model = tacitly.MarginClassifier(rank=2, epsilon=4.0, mode="random", candidates=10, heads="second half")
    model.fit(X, y, users)
    changed = y.copy()
    changed[np.tile(np.arange(9) < 4, 200)] ^= 1  # the first half of each user's rows
    again = tacitly.MarginClassifier(rank=2, epsilon=4.0, mode="random", candidates=10, heads="second half")
    again.fit(X, changed, users)
    again.basis_ = model.basis_
    offsets = np.arange(0, 1801, 9)
    np.testing.assert_array_equal(again._home_work()(X, changed.astype(float), offsets)[:, 0], model.heads_[:, 0])


def test_a_classifier_with_a_pure_certificate_survives_its_folder(tmp_path) -> None:  # type: ignore[no-untyped-def]
    X, y, users = separable(200, 8, 5)
    words = np.where(y > 0, "yes", "no")
    model = tacitly.MarginClassifier(
        rank=2, epsilon=1.0, mode="random", candidates=10, classes=("no", "yes"), loss="logistic"
    ).fit(X, words, users)
    again = tacitly.load(tacitly.save(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(X, users), model.predict_proba(X, users))
    assert set(again.predict(X, users)) <= {"no", "yes"}
    head = again.personalize(X[:8], words[:8])
    np.testing.assert_array_equal(head.predict(X[:8]), model.predict(X[:8], users[:8]))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"classes": (0, 1, 2)}, ValueError, "two classes"),
        ({"classes": (0, 5), "on_bad_rows": "raise"}, DataError, "outside classes"),
        ({"loss": "squared"}, ValueError, "loss must be 'hinge' or 'logistic'"),
        ({"margin": 1.0}, ValueError, "margin must lie"),
        ({"heads": "none"}, ValueError, "heads must be"),
        ({"dimension": 1}, ValueError, "dimension must be at least the rank"),
        ({"mode": "gradient"}, ValueError, "need delta > 0"),
        ({"mode": "cover", "radius": 0.01}, ValueError, "too many to list"),
        ({"mode": "magic"}, ValueError, "mode must be one of"),
        ({"random_state": None}, ValueError, "random_state must be a whole number"),
    ],
)
def test_what_cannot_be_is_said(change: dict[str, object], error: type[Exception], message: str) -> None:
    X, y, users = separable(20, 6, 5)
    with pytest.raises(error, match=message):
        tacitly.MarginClassifier(**{"rank": 2, "epsilon": 1.0, **change}).fit(X, y, users)  # type: ignore[arg-type]


def test_single_class_users_and_constant_features_are_no_trouble() -> None:
    X, y, users = separable(100, 6, 5)
    y = np.where(users < 50, 1, y)
    X[:, 2] = 3.0
    for intercept in (False, True):
        model = tacitly.MarginClassifier(rank=2, epsilon=2.0, choices=3, candidates=10, fit_intercept=intercept)
        assert np.isfinite(model.fit(X, y, users).heads_).all()
        assert model.score(X[users < 50], y[users < 50], users[users < 50]) > 0.9


def test_a_cover_beyond_all_numbers_is_no_trouble() -> None:
    X, y, users, *_ = tacitly.datasets.make_shared_subspace(30, 60, 4, 6, random_state=0)
    model = tacitly.MarginClassifier(rank=4, epsilon=1.0, choices=1, candidates=4).fit(X, y > 0, users)
    assert model.mode_ == "search"


def test_without_privacy_the_best_candidate_is_taken() -> None:
    X, y, users = separable(100, 10, 5)
    with pytest.warns(tacitly.UncertifiedWarning):
        model = tacitly.MarginClassifier(rank=2, epsilon=math.inf, mode="random", candidates=30).fit(X, y, users)
    assert not model.certificate_.certified
    plan = margin.Settings(proposals="random", dimension=5).plan(Budget(epsilon=math.inf, delta=0.0))
    assert not plan.choice(0).private
