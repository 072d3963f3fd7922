"""A second measurement along the components: what it may cost, and that it pays."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tacitly
from tacitly.data.cohort import Cohort
from tacitly.federation.local import LocalFederation
from tacitly.methods.fedpower import algorithm as fedpower
from tacitly.methods.fedpower import refinement
from tacitly.methods.fedpower.algorithm import Settings
from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Adjacency, Budget, Unit
from tacitly.privacy.ledger import Ledger

D, K = 30, 2
NARROW, WIDE = (math.inf, True), (0.0, True)


def spiked(n: int, d: int = D, size: float = 10.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)) * np.sqrt([size] * K + [1.0] * (d - K))


@pytest.mark.parametrize("unit", [Unit.ROW, Unit.USER])
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    ("limits", "second"),
    [
        (NARROW, "components"),
        (WIDE, "second gram matrix"),
        ((math.inf, False), "second gram matrix"),
    ],
)
def test_either_second_release_costs_what_was_planned(
    unit: Unit, adjacency: Adjacency, limits: tuple[float, bool], second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refinement, "_NARROW", limits[0])
    monkeypatch.setattr(fedpower, "stands_apart", lambda *_: limits[1])
    data = Cohort.from_offsets(spiked(60), None, np.arange(0, 61, 3))
    budget = Budget(epsilon=1.0, delta=1e-6, unit=unit, adjacency=adjacency)
    settings = Settings(unit=unit, refined=True)
    plan = settings.plan(budget)
    run = Ledger(ceiling=budget).run("test", config={}, planned=settings.events(plan))
    fedpower.learn(LocalFederation(data, run), plan, settings, K)
    run.finish()
    assert run.releases[-1].name == second
    assert compose([release.cost for release in run.releases], adjacency, 1e-6) == pytest.approx(1.0, rel=1e-6)


def test_the_choice_between_both_depends_on_the_first_release_alone() -> None:
    flat, steep = np.diag([1.0] * 10 + [0.01]), np.diag([100.0] + [1.0] * 10)
    along = np.eye(11)[:, [0, 10]]
    assert refinement.narrowness(flat, along) < refinement._NARROW < refinement.narrowness(steep, along)


def test_components_that_do_not_stand_apart_are_not_measured_alone() -> None:
    values = np.array([10.0, 6.0, 5.5, 1.0])
    assert refinement.stands_apart(values, 2, 0.1)
    assert not refinement.stands_apart(values, 2, 0.3)  # 0.5 apart, and noise moves an eigenvalue by 0.6
    assert not refinement.stands_apart(values, 4, 0.1)


def test_without_noise_both_measurements_are_the_matrix() -> None:
    rng = np.random.default_rng(0)
    truth = np.cov(rng.normal(size=(50, 6)).T)
    along = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    found, noise = refinement.combined(truth, 0.0, truth @ along, 0.0, along)
    np.testing.assert_allclose(found, truth, atol=1e-12)
    assert noise == 0.0


def test_measurements_are_weighted_by_their_precision() -> None:
    """Two measurements of an entry with noise s/√2 and t have together 1/√(2/s² + 1/t²)."""
    along, first = np.eye(4)[:, :1], np.diag([4.0, 1.0, 1.0, 1.0])
    product = first @ along + np.array([[0.0], [1.0], [0.0], [0.0]])
    found, noise = refinement.combined(first, math.sqrt(2) * 3.0, product, 4.0, along)
    assert found[1, 0] == pytest.approx(9 / 25)
    assert noise == pytest.approx(12 / 5)


def test_a_product_that_was_clipped_more_is_brought_to_the_same_scale() -> None:
    along, truth = np.eye(4)[:, :2], np.diag([8.0, 4.0, 1.0, 1.0])
    found, _ = refinement.combined(truth, 1.0, 0.5 * truth @ along, 1.0, along)
    np.testing.assert_allclose(found[:, :2], truth[:, :2], atol=1e-12)


def test_what_is_noise_alone_is_shrunk_to_nothing() -> None:
    """The share kept of 200·201/2 squares of noise is below 0.1; its standard deviation is 0.01."""
    rng, size = np.random.default_rng(0), 200
    noise = rng.normal(size=(size, size)) * math.sqrt(2)
    block = 5 * np.eye(size) + (noise + noise.T) / 2
    shrunk = refinement._shrunk(block, 1.0)
    assert np.linalg.norm(shrunk - np.trace(block) / size * np.eye(size)) < 0.1 * np.linalg.norm(
        block - 5 * np.eye(size)
    )


def test_it_pays_where_most_of_a_row_lies_outside_the_components(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of 0.24 and 0.14 with a spread of 0.02 over draws: five deviations apart."""
    X, truth = spiked(4000, d=100), np.eye(100)[:, :K]
    errors = {}
    for refined in (False, True):
        monkeypatch.setattr(tacitly.FedPower, "_worth_refining", lambda self, d, refined=refined: refined)
        model = tacitly.FedPower(K, epsilon=1.0).fit(X)
        errors[refined] = tacitly.subspace_distance(model.components_.T, truth)
    assert errors[True] < errors[False]


def test_few_features_or_an_unknown_rank_are_measured_once() -> None:
    assert tacitly.FedPower(2, epsilon=1.0)._worth_refining(40)
    assert not tacitly.FedPower(2, epsilon=1.0)._worth_refining(39)
    assert not tacitly.FedPower("auto", epsilon=1.0)._worth_refining(1000)
