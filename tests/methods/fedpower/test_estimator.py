"""The estimator as a stranger meets it: manners, answers, refusals, what is kept and what is said."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError

import tacitly
from tacitly.data.sparse_cohort import SparseCohort
from tacitly.data.validation import DataError
from tacitly.methods.fedpower.algorithm import _all_turns
from tacitly.methods.fedpower.route import best_rounds, choose_route, predicted_error
from tacitly.privacy.guarantee import Adjacency, Budget, TooFewUsersWarning, Unit
from tacitly.privacy.verification import verify

N, D, K = 6000, 12, 3


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(D, D)))[0]
    return (rng.normal(size=(N, D)) * np.r_[6.0, 5.0, 4.0, np.ones(D - 3)]) @ turn.T + 2 * rng.normal(size=D)


def top(X: np.ndarray, k: int = K) -> np.ndarray:
    return np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :k]


def fit(X: object, users: object = None, **options: object) -> tacitly.FedPower:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        return tacitly.FedPower(**{"n_components": K, "epsilon": 2.0, **options}).fit(X, users=users)  # type: ignore[arg-type]


def test_without_noise_it_is_scikit_learns_pca(X: np.ndarray) -> None:
    ours, theirs = fit(X, epsilon=math.inf, center=True), PCA(K).fit(X)
    np.testing.assert_allclose(np.abs(ours.components_), np.abs(theirs.components_), atol=1e-6)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-6)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, atol=1e-6)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-6)
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_, rel=1e-6)
    assert ours.score(X) == pytest.approx(theirs.score(X), rel=1e-6)
    np.testing.assert_allclose(np.abs(ours.transform(X)), np.abs(theirs.transform(X)), atol=1e-4)
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(X)), theirs.inverse_transform(theirs.transform(X)), atol=1e-4
    )


ROUTES = {
    "gram": {},
    "gram, range": {"feature_range": (-30.0, 30.0)},
    "gram, replace-one": {"adjacency": "replace-one"},
    "gram, centred": {"center": True},
    "power": {"route": "power", "random_state": 0},
    "user gram": {"unit": "user"},
    "user power": {"unit": "user", "route": "power", "random_state": 0},
    "device": {"unit": "user", "local_steps": 2, "rounds": 3, "random_state": 0},
    "device, in turns": {"unit": "user", "local_steps": 2, "rounds": 3, "participants": 250, "random_state": 0},
    "local trust": {"unit": "row", "trust": "local", "epsilon": 20.0},
    "local noise": {"unit": "row", "local_steps": 2, "rounds": 3, "random_state": 0, "epsilon": 20.0},
}


@pytest.mark.parametrize("name", ROUTES)
def test_every_route_is_certified_and_finds_the_components(X: np.ndarray, name: str) -> None:
    options = {"epsilon": 8.0, **ROUTES[name]}
    users = None
    if options.get("unit"):
        users = np.arange(N) % (10 if options["unit"] == "row" else 1000)
    model = fit(X, users, **options)
    certificate = model.certificate_
    assert certificate.certified
    assert certificate.epsilon == pytest.approx(options["epsilon"], rel=1e-6)
    assert certificate.unit == (options.get("unit") or "row")
    truth = top(X - X.mean(axis=0)) if model.center else top(X)
    assert tacitly.subspace_distance(model.components_.T, truth) < 0.35
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(K), atol=1e-9)


def test_the_predicted_error_is_about_the_error(X: np.ndarray) -> None:
    models = [fit(X, feature_range=(-20.0, 20.0), epsilon=0.5) for _ in range(8)]
    errors = [tacitly.subspace_distance(model.components_.T, top(X)) for model in models]
    assert 0.4 < np.mean(errors) / np.mean([model.predicted_error_ for model in models]) < 2.5


def test_auto_keeps_what_stands_above_the_noise_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 20)) * np.r_[10.0, 8.0, np.full(18, 0.05)]
    model = fit(X, n_components="auto", epsilon=1.0, center=True)
    assert model.n_components_ == 2
    assert (model.confidence_ > 0.5).all()
    noise = fit(rng.normal(size=(50, 20)), n_components="auto", epsilon=0.05)
    assert noise.n_components_ <= 3
    assert noise.predicted_error_ > 0.5


def test_singular_values_have_the_noise_subtracted() -> None:
    rng = np.random.default_rng(2)
    X = 0.1 * rng.normal(size=(4000, 40))
    X[:, 0] = rng.choice([-3.0, 3.0], size=4000)
    values = [fit(X, n_components=1, epsilon=0.3, center=True).singular_values_[0] for _ in range(6)]
    assert np.mean(values) == pytest.approx(np.linalg.svd(X - X.mean(0), compute_uv=False)[0], rel=0.08)


def test_sparse_rows_are_never_written_out(X: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = scipy.sparse.csr_matrix(X * (np.random.default_rng(3).random(X.shape) < 0.3))
    dense = sparse.toarray()

    def whole(self: object, *_: object, **__: object) -> None:
        raise AssertionError("the rows were written out")

    real = scipy.sparse.csr_matrix.toarray
    for route in ("gram", "power"):
        with monkeypatch.context() as patch:
            patch.setattr(
                scipy.sparse.csr_matrix,
                "toarray",
                lambda self, *a, **k: whole(self) if self.shape[0] > 100 else real(self, *a, **k),
            )
            model = fit(sparse, route=route, epsilon=40.0, random_state=0)
        # Power steps: 0.045 ± 0.016, log-normal, so above the limit with probability below 1e-8.
        assert tacitly.subspace_distance(model.components_.T, top(dense)) < 0.35
        assert model.transform(sparse).shape == (N, K)


def test_paper_mode_says_why_it_is_not_certified(X: np.ndarray) -> None:
    users = np.arange(N) % 6
    with pytest.warns(tacitly.UncertifiedWarning, match="P1"):
        model = tacitly.FedPower(K, epsilon=1.0, mode="paper", local_steps=4).fit(X, users=users)
    certificate = model.certificate_
    assert certificate.mode == "paper"
    assert certificate.nominal_epsilon == 2.0
    assert math.isinf(certificate.epsilon)
    assert [reason[:2] for reason in certificate.reasons] == [f"P{i}" for i in range(1, 9)]
    assert tacitly.subspace_distance(model.components_.T, top(X)) < 0.3


@pytest.mark.parametrize("alignment", ["procrustes", "signs", "none"])
@pytest.mark.parametrize("options", [{}, {"participants": 5, "scheme": 1}, {"participants": 5, "scheme": 2}])
def test_the_paper_runs_without_noise(X: np.ndarray, alignment: str, options: dict) -> None:  # type: ignore[type-arg]
    users = np.arange(N) % 6
    model = fit(X, users, mode="paper", epsilon=math.inf, local_steps=2, alignment=alignment, random_state=0, **options)
    assert tacitly.subspace_distance(model.components_.T, top(X)) < 0.2


def test_decaying_local_steps_reach_the_exact_components(X: np.ndarray) -> None:
    users = np.arange(N) % 6
    model = fit(X, users, mode="paper", epsilon=math.inf, local_steps=4, decay=True, rounds=10, iteration_rank=6)
    assert tacitly.subspace_distance(model.components_.T, top(X)) < 1e-8


def test_estimator_manners(X: np.ndarray) -> None:
    model = tacitly.FedPower(K, epsilon=1.0, center=True)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError, match="not fitted"):
        model.transform(X)
    assert model.fit_transform(X).shape == (N, K)
    with pytest.raises(DataError, match="expecting 12 features"):
        model.transform(X[:, :3])


def test_saved_loaded_published_verified(X: np.ndarray, tmp_path: Path) -> None:
    ledger = tacitly.Ledger()
    model = tacitly.FedPower(K, epsilon=1.0, feature_range=(-30.0, 30.0), ledger=ledger).fit(X)
    folder = tacitly.save(model, tmp_path / "model")
    assert sorted(path.name for path in folder.iterdir()) == [
        "billboard.safetensors",
        "certificate.json",
        "config.json",
    ]
    again = tacitly.load(folder)
    assert isinstance(again, tacitly.FedPower)
    assert (again.route_, again.predicted_error_) == ("gram", model.predicted_error_)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    assert again.certificate_.epsilon == model.certificate_.epsilon
    verdict = verify(
        (folder / "certificate.json").read_text(),
        files={path.name: path.read_bytes() for path in folder.iterdir() if path.name != "certificate.json"},
        ledger=ledger,
    )
    assert verdict.ok


def test_a_ledger_that_cannot_pay_says_so_before_anything_is_drawn(X: np.ndarray) -> None:
    ledger = tacitly.Ledger(ceiling=Budget(epsilon=0.5, delta=1e-6, unit=Unit.ROW))
    with pytest.raises(tacitly.BudgetExceeded):
        tacitly.FedPower(K, epsilon=1.0, ledger=ledger).fit(X)
    assert ledger.releases() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": D + 1}, "n_components must be"),
        ({"n_components": 0}, "n_components must be"),
        ({"n_components": "many"}, "n_components must be"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
        ({"delta": 2.0}, "delta must lie"),
        ({"unit": "user"}, "needs users"),
        ({"unit": "world"}, "unit must be"),
        ({"mode": "magic"}, "mode must be"),
        ({"trust": "nobody"}, "trust must be"),
        ({"route": "magic"}, "route must be"),
        ({"feature_range": (1.0, -1.0)}, "feature_range"),
        ({"feature_range": (np.zeros(3), np.ones(3))}, "feature_range"),
        ({"participants": 7}, "participants must lie"),
        ({"scheme": 3}, "scheme must be"),
        ({"scheme": 1, "participants": 1}, "paper mode"),
        ({"mode": "paper", "n_components": "auto"}, "paper mode"),
        ({"mode": "paper", "center": True}, "does not centre"),
        ({"feature_range": (0.0, 1e-30)}, "Rescale the features"),
    ],
)
def test_bad_parameters_are_named(X: np.ndarray, options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=message):
        fit(X, **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.filterwarnings("ignore::tacitly.data.bad_rows.SideChannelWarning")
def test_holes_are_refused_without_telling_what_is_around_them(bad: float, sparse: bool) -> None:
    X = np.full((50, 4), 1234.5)
    X[3, 1] = bad
    with pytest.raises(DataError) as caught:
        fit(scipy.sparse.csr_matrix(X) if sparse else X, n_components=2, on_bad_rows="raise")
    assert "1234" not in str(caught.value)


def test_a_sparse_cohort_protects_its_users_unless_told_otherwise(X: np.ndarray) -> None:
    cohort = SparseCohort.from_matrix(scipy.sparse.csr_matrix(X), np.arange(N) % 500)
    assert fit(cohort).certificate_.unit == "user"
    assert fit(cohort, unit="row").certificate_.unit == "row"


def test_coins_and_groups_together_are_refused_before_anything_is_paid(X: np.ndarray) -> None:
    ledger = tacitly.Ledger()
    with pytest.raises(ValueError, match="do not go together"):
        fit(X, np.arange(N) % 100, sampling_rate=0.5, participants=20, ledger=ledger)
    assert ledger.releases() == []


def test_a_run_that_is_gone_on_with_starts_where_it_started(X: np.ndarray) -> None:
    """Stored products belong to the basis they were asked with."""
    ledger = tacitly.Ledger()
    options: dict[str, object] = {"route": "power", "rounds": 3, "iteration_rank": K, "epsilon": math.inf}

    def stop(name: str) -> None:
        if name == "step 2":
            raise KeyboardInterrupt

    with pytest.warns(tacitly.UncertifiedWarning), pytest.raises(KeyboardInterrupt):
        tacitly.FedPower(K, **options, ledger=ledger).fit(X, on_release=stop)  # type: ignore[arg-type]
    resumed = fit(X, **options, ledger=ledger)
    start = ledger.runs()[0].config["start"]
    np.testing.assert_array_equal(resumed.components_, fit(X, **options, random_state=start).components_)
    assert not np.array_equal(resumed.components_, fit(X, **options, random_state=start + 1).components_)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_the_predicted_error_of_power_steps_is_about_the_error(X: np.ndarray, epsilon: float) -> None:
    models = [fit(X, route="power", feature_range=(-20.0, 20.0), epsilon=epsilon, random_state=i) for i in range(8)]
    errors = [tacitly.subspace_distance(model.components_.T, top(X)) for model in models]
    assert 0.4 < np.mean(errors) / np.mean([model.predicted_error_ for model in models]) < 2.0


def test_route_and_rounds_follow_features_units_and_budget() -> None:
    def budget(epsilon: float, adjacency: str = "zero-out") -> Budget:
        return Budget(epsilon=epsilon, delta=1e-6, adjacency=Adjacency(adjacency), unit=Unit.ROW)

    known = {"d": 200, "units": 10_000, "rank": 5}
    base = {route: predicted_error(route, budget(1.0), **known, rounds=8) for route in ("gram", "power")}
    for route, error in base.items():
        assert predicted_error(route, budget(3.0), **known, rounds=8) < error
        assert predicted_error(route, budget(1.0), **{**known, "units": 40_000}, rounds=8) < error
        assert predicted_error(route, budget(1.0), **{**known, "d": 800}, rounds=8) > error
        assert predicted_error(route, budget(1.0, "replace-one"), **known, rounds=8) > error
        assert predicted_error(route, budget(1.0), **known, rounds=8, messages=100) > error
    assert base["gram"] < base["power"]
    assert choose_route(budget(1.0), **known) == "gram"
    assert choose_route(budget(1.0), **{**known, "d": 5000}) == "power"
    rounds = [best_rounds(budget(1.0), **{**known, "units": n}) for n in (1000, 10_000, 100_000, 10**7)]
    assert rounds == sorted(set(rounds))
    assert best_rounds(budget(0.1), **known) < best_rounds(budget(10.0), **known)


def test_groups_that_take_turns_find_what_everybody_at_once_finds(X: np.ndarray) -> None:
    users = np.arange(N) % 300
    model = fit(X, users, route="power", participants=60, epsilon=50.0, rounds=3, random_state=0)
    assert len(model.certificate_.releases) == 8  # scale, centre, and a clip and five turns in one for every round
    assert tacitly.subspace_distance(model.components_.T, top(X)) < 0.2


def test_all_turns_count_and_not_only_the_last() -> None:
    """Products of five groups: the noise of their sum is √5 times one group's, not five times."""
    rng = np.random.default_rng(0)
    matrices = [np.diag([9.0, 5.0, 1.0, 1.0]) + 0.01 * rng.normal(size=(4, 4)) for _ in range(5)]
    bases = [np.linalg.qr(np.eye(4)[:, :2] + 0.01 * rng.normal(size=(4, 2)))[0] for _ in matrices]
    bases[1] = bases[1] @ np.array([[0.0, -1.0], [1.0, 0.0]])  # a basis may arrive turned
    products = [matrix @ basis for matrix, basis in zip(matrices, bases, strict=True)]
    product, noise = _all_turns(bases, products, 2.0)
    assert noise == pytest.approx(2.0 * math.sqrt(5.0))
    np.testing.assert_allclose(product, np.sum(matrices, axis=0) @ bases[-1], atol=2.0)
    assert np.linalg.norm(products[1] - products[-1]) > 5.0  # without turning back they would cancel


def test_a_model_of_noise_says_so(X: np.ndarray) -> None:
    said = 0
    for _ in range(12):  # noise alone stands out once in a hundred times: in six of twelve with probability 1e-9
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", TooFewUsersWarning)
            model = fit(X[:50], None, epsilon=0.01)
        said += any("hides all" in str(warning.message) for warning in found)
        assert np.isfinite(model.explained_variance_).all()
    assert said > 6


def test_where_no_error_can_be_predicted_none_is(X: np.ndarray) -> None:
    users = np.arange(N) % 300
    for options in ({"local_steps": 2}, {"route": "power", "participants": 100}, {"local_steps": 2, "unit": "row"}):
        assert fit(X, users, rounds=2, **options).predicted_error_ is None


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize("route", ["gram", "power"])
def test_degenerate_rows_give_an_answer(epsilon: float, route: str) -> None:
    rng = np.random.default_rng(4)
    constant = rng.normal(size=(200, 5))
    constant[:, 2] = 7.0
    for X in (
        np.zeros((200, 5)),
        constant,
        rng.normal(size=(2, 5)),
        np.ones((1, 5)),
        rng.normal(size=(200, 5)) * 1e150,
    ):
        model = fit(X, n_components=2, epsilon=epsilon, route=route)
        assert np.isfinite(model.components_).all()
        assert np.isfinite(model.singular_values_).all()
    exact = fit(constant, n_components=5, epsilon=math.inf, center=True)
    assert exact.singular_values_[-1] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("options", [{}, {"route": "power"}, {"local_steps": 2}, {"mode": "paper", "local_steps": 2}])
def test_one_device_and_devices_with_fewer_rows_than_components(options: dict) -> None:  # type: ignore[type-arg]
    rng = np.random.default_rng(5)
    X = rng.normal(size=(40, 6))
    for users in (np.arange(40), np.repeat([0, 1], [39, 1])):
        model = fit(X, users, **options)
        assert model.components_.shape == (K, 6)
        assert np.isfinite(model.components_).all()


def test_float32_rows_and_frames_are_welcome(X: np.ndarray) -> None:
    import pandas as pd

    frame = pd.DataFrame(X.astype(np.float32), columns=[f"f{j}" for j in range(D)])
    model = fit(frame, epsilon=math.inf)
    assert list(model.feature_names_in_[:2]) == ["f0", "f1"]
    assert tacitly.subspace_distance(model.components_.T, top(X)) < 1e-4
    assert model.transform(frame[frame.columns[::-1]]).shape == (N, K)


def test_rows_that_come_in_parts_give_what_they_give_at_once(X: np.ndarray) -> None:
    parts = np.array_split(X, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        added = tacitly.FedPower(K, epsilon=math.inf, center=True, feature_range=(-60.0, 60.0))
        for part in parts:
            added.partial_fit(part)
    at_once = fit(X, epsilon=math.inf, center=True, feature_range=(-60.0, 60.0))
    np.testing.assert_allclose(np.abs(added.components_), np.abs(at_once.components_), atol=1e-6)
    np.testing.assert_allclose(added.explained_variance_, at_once.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(added.mean_, at_once.mean_, atol=1e-6)


def test_every_call_of_partial_fit_is_charged_and_the_certificate_adds_them_up(X: np.ndarray) -> None:
    parts, ledger = np.array_split(X, 3), tacitly.Ledger(ceiling=Budget(epsilon=2.0, delta=1e-6, unit=Unit.ROW))
    model, spent = tacitly.FedPower(K, epsilon=0.5, ledger=ledger), []
    for part in parts:
        model.partial_fit(part)
        spent.append(model.certificate_.budget.epsilon)
    assert spent[0] == 0.5
    assert spent[0] < spent[1] < spent[2] < 1.5
    assert [run.name for run in ledger.runs()] == ["fedpower-1", "fedpower-2", "fedpower-3"]
    assert model.run == "fedpower"
    # 3 % to 8 % of the first call's budget pays for scale, centre and clip; later calls release one matrix each.
    assert [release.run for release in model.certificate_.releases].count("fedpower-2") == 1
    assert verify(model.certificate_.to_json()).ok
    assert model.certificate_.n_users == len(X)
    model.fit(X[:100])
    assert model.certificate_.budget.epsilon == 0.5


def test_noise_of_parts_adds_up_and_more_rows_still_help() -> None:
    """The noise floor of four parts is that of √4 matrices: first calls keep 92 % of the budget for it."""
    rng = np.random.default_rng(1)
    model, floors = tacitly.FedPower(1, epsilon=1.0, feature_range=(-9.0, 9.0)), []
    for _ in range(4):
        floors.append(model.partial_fit(rng.normal(size=(2000, 5)) * [3, 1, 1, 1, 1]).noise_floor_)
    np.testing.assert_allclose(floors[1:], floors[0] * np.sqrt([1.95, 2.9, 3.85]), rtol=0.02)


def test_partial_fit_refuses_what_it_cannot_add(X: np.ndarray) -> None:
    with pytest.raises(ValueError, match="partial_fit adds Gram matrices"):
        tacitly.FedPower(K, epsilon=1.0, route="power").partial_fit(X)
    model = tacitly.FedPower(K, epsilon=1.0).partial_fit(X[:500])
    with pytest.raises(DataError, match="is expecting 12 features as input: those of the first call"):
        model.partial_fit(X[:500, :5])


def test_what_one_device_sends_is_counted(X: np.ndarray) -> None:
    model = fit(X, feature_range=(-60.0, 60.0))
    sizes = {release.name: release.coordinates for release in model.certificate_.releases}
    assert sizes["gram matrix"] == (D + 1) * (D + 2) // 2
    assert model.bytes_sent_ == 8 * sum(sizes.values())
    users = np.arange(N) % 60
    at_once, in_turns = (
        fit(X, users, route="power", rounds=2, random_state=0, feature_range=(-60.0, 60.0), **options).bytes_sent_
        for options in ({}, {"participants": 20})
    )
    assert at_once == in_turns  # every device answers once per round, in whichever group


def test_the_scree_plot_draws_the_floor(X: np.ndarray) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    model = fit(X)
    axes = model.plot_scree()
    released, components, floor = axes.get_lines()
    assert len(released.get_xdata()) == D
    assert len(components.get_xdata()) == K
    assert list(floor.get_ydata()) == [model.noise_floor_] * 2


def test_a_likelihood_needs_the_variance_outside_the_components(X: np.ndarray) -> None:
    model = fit(X, route="power", random_state=0)
    assert math.isnan(model.noise_variance_)
    assert np.isnan(model.explained_variance_ratio_).all()
    with pytest.raises(ValueError, match="does not release"):
        model.score(X)


@pytest.mark.parametrize(
    ("options", "times", "nominal"),
    [
        ({"rounds": 2, "local_steps": 3}, [3, 6], 4.0),
        ({"iterations": 7, "local_steps": 3}, [3, 6], 4.0),
        ({"iterations": 9, "local_steps": 4, "decay": True}, [4, 7, 9], 4.0),
        ({"iterations": 9, "local_steps": 4, "decay": "halve"}, [4, 6, 7, 8, 9], 4.0),
        ({"rounds": 3, "epsilon_central": 0.1}, [1, 2, 3], 2.1),
        ({"rounds": 3, "epsilon_central": 0.1, "per_round": True}, [1, 2, 3], 6.3),
    ],
)
def test_the_papers_options_are_reachable(X: np.ndarray, options: dict, times: list[int], nominal: float) -> None:  # type: ignore[type-arg]
    model = fit(X, np.arange(N) % 5, mode="paper", random_state=0, **options)
    assert model._printed_settings().synchronisations() == times
    assert model.certificate_.nominal_epsilon == pytest.approx(nominal)


@pytest.mark.parametrize(
    "options",
    [
        {"route": "gram", "rounds": 3},
        {"route": "gram", "alignment": "signs"},
        {"route": "power", "decay": True},
        {"mode": "paper", "route": "gram"},
        {"mode": "paper", "feature_range": (-1.0, 1.0)},
        {"mode": "paper", "sampling_rate": 0.5},
    ],
)
def test_parameters_without_effect_are_refused(X: np.ndarray, options: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=f"{list(options)[-1]} has no effect with {next(iter(options))}="):
        tacitly.FedPower(K, epsilon=1.0, **options).fit(X, users=np.arange(N) % 5)


def test_the_papers_options_are_refused_where_they_mean_nothing(X: np.ndarray) -> None:
    for options in ({"iterations": 5}, {"epsilon_central": 1.0}, {"per_round": True}):
        with pytest.raises(ValueError, match="is for mode='paper'"):
            fit(X, **options)
    with pytest.raises(ValueError, match="decay must be one of"):
        fit(X, decay="slowly")
