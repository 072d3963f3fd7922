"""Made-up users have the shape they were asked for, and the noise of simulated fits is the plan's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tacitly
from tacitly.data.schema import Schema
from tacitly.heads.losses import Loss
from tacitly.methods import REGISTRY
from tacitly.planning.components import Components
from tacitly.planning.made_up import FRESH, Described, MadeUp
from tacitly.planning.sample import Sampled
from tacitly.planning.sample_losses import SampledLoss
from tacitly.planning.shape import Shape
from tacitly.planning.simulation import Simulation
from tacitly.privacy.accounting import mu_of, total_mu
from tacitly.privacy.guarantee import Adjacency

SHAPE = Shape(users=4000, rows=(2, 8), features=5, noise=0.3, levels=0.25, slopes=0.15, between=0.4)


@pytest.fixture(scope="module")
def drawn() -> MadeUp:
    return Described(SHAPE).draw(4000, np.random.default_rng(0))


def test_targets_have_variance_one_and_fresh_ones_no_noise(drawn: MadeUp) -> None:
    assert np.var(drawn.train.y) == pytest.approx(1.0, abs=0.05)
    assert np.var(drawn.test.y) == pytest.approx(1.0 - SHAPE.noise, abs=0.05)


def test_levels_are_what_users_differ_by_beside_their_features(drawn: MadeUp) -> None:
    assert drawn.test.y is not None
    products = [np.outer(y, y)[np.triu_indices(FRESH, 1)].mean() for y in drawn.test.y.reshape(-1, FRESH)]
    # What two rows of a user have in common: the level, and the part of features that lies between users.
    expected = SHAPE.levels + SHAPE.between * (SHAPE.common + SHAPE.slopes)
    assert np.mean(products) == pytest.approx(expected, abs=0.05)


def test_users_have_as_many_rows_as_they_were_said_to(drawn: MadeUp) -> None:
    counts = np.diff(drawn.train.offsets)
    assert (counts.min(), counts.max()) == (2, 8)
    assert (np.diff(drawn.test.offsets) == FRESH).all()


def test_slopes_differ_in_as_many_directions_as_were_asked_for() -> None:
    shape = Shape(users=50, rows=3, features=6, directions=2)
    _, personal = Described(shape)._weights(50, np.random.default_rng(0))
    assert np.linalg.matrix_rank(personal) == 2


def test_a_schema_makes_columns_as_it_declares_them() -> None:
    declared = {"age": {"range": [0, 120]}, "smoker": {"kind": "boolean"}, "town": {"levels": ["a", "b", "c"]}}
    schema = Schema.declared(declared)
    made = Described(Shape(users=200, rows=3, features=4), schema).draw(200, np.random.default_rng(0)).train
    assert made.schema is schema
    assert 0 <= made.X[:, 0].min() < made.X[:, 0].max() <= 120
    assert set(np.unique(made.X[:, 1:])) == {0.0, 1.0}
    assert made.X[:, 2:].sum(axis=1).max() == 1.0


def test_a_sample_tells_where_the_variance_comes_from() -> None:
    made = Described(Shape(users=1, rows=10, features=3, noise=0.3, levels=0.4, slopes=0.1, between=0.0))
    public = made.draw(150, np.random.default_rng(1)).train
    found = Sampled.of(public, 1000).shape
    # Variances of 150 users are known to about a ninth of themselves; the seed is fixed.
    assert (found.noise, found.levels, found.slopes) == pytest.approx((0.3, 0.4, 0.1), abs=0.09)
    assert (found.users, found.rows, found.features) == (1000, 10, 3)


def test_users_made_from_a_sample_have_its_features_and_new_targets() -> None:
    public = Described(Shape(users=1, rows=4, features=2)).draw(30, np.random.default_rng(1)).train
    made = Sampled.of(public, 1000).draw(80, np.random.default_rng(2))
    known = {row.tobytes() for row in public.X}
    assert all(row.tobytes() in known for row in (*made.train.X, *made.test.X))
    assert made.train.n_rows + made.test.n_rows == 80 * 4
    assert not np.isin(made.train.y, public.y).any()


def test_a_sample_needs_users_with_two_rows() -> None:
    X = np.ones((30, 2))
    with pytest.raises(tacitly.DataError, match="at least ten users with two rows each"):
        Sampled.of(tacitly.Cohort.from_arrays(X, X[:, 0], np.arange(30)), 100)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("mixed-effects", {}),
        ("mixed-effects", {"loss": "logistic"}),
        ("mixed-effects", {"loss": "poisson"}),
        ("fedrep", {}),
        ("centaur", {}),
        ("low-rank-sparse", {}),
        ("svd", {"target": False, "directions": 1, "levels": 0.0, "slopes": 0.0}),
    ],
)
def test_fewer_users_have_the_releases_and_the_noise_of_the_many_they_stand_for(
    method: str, more: dict[str, Any]
) -> None:
    """Of the mean over users, release by release: what the estimator itself plans for the many, divided by them."""
    shape = Shape(users=400, rows=3, features=2, **more)
    population = Components(shape) if method == "svd" else Described(shape)
    parameters = REGISTRY[method].simulated(shape.to_dict())
    assert not isinstance(parameters, str)
    simulation = Simulation(population=population, n_users=100, repeats=1, delta=1e-6, adjacency="zero-out")
    level = simulation.level(2.0, 400)
    simulation.errors(REGISTRY[method], parameters, level)
    fewer = [release.event for release in simulation.certificates[method, level].releases]

    many = population.draw(400, np.random.default_rng(0)).train
    planned = REGISTRY[method].build(epsilon=2.0, delta=1e-6, **parameters).plan(many)[1]
    precise = [sorted(total_mu([event], Adjacency.ZERO_OUT) for event in events) for events in (fewer, planned)]
    assert 100 * np.array(precise[0]) == pytest.approx(400 * np.array(precise[1]), rel=1e-5)
    assert 100 * total_mu(fewer, Adjacency.ZERO_OUT) == pytest.approx(400 * mu_of(2.0, 1e-6), rel=1e-5)


@pytest.mark.parametrize(("loss", "more"), [("logistic", {}), ("logistic", {"classes": 3}), ("poisson", {})])
def test_classes_and_counts_have_the_noise_they_were_said_to(loss: str, more: dict[str, Any]) -> None:
    """The best predictions that there are leave more over where there is more noise; counts have their mean."""
    left = {}
    for noise in (0.2, 0.6):
        shape = Shape(
            users=1, rows=4, features=3, noise=noise, levels=0.2, slopes=0.1, loss=loss, mean_count=2.0, **more
        )
        population = Described(shape)
        drawn = population.draw(1500, np.random.default_rng(0))
        best = drawn.truth.argmax(axis=1) if loss == "logistic" else drawn.truth
        left[noise] = population._error(drawn, best)
        if loss == "poisson":
            assert np.mean(drawn.train.y) == pytest.approx(2.0, rel=0.25)
        else:
            assert set(np.unique(drawn.train.y)) == set(range(shape.classes))
    assert left[0.2] < 0.7 * left[0.6] if loss == "logistic" else left[0.6] == pytest.approx(1.1, abs=0.15)


def test_a_sample_of_classes_tells_how_users_differ() -> None:
    shape = Shape(users=1, rows=8, features=2, noise=0.3, levels=0.4, slopes=0.1, between=0.0, loss="logistic")
    public = Described(shape).draw(200, np.random.default_rng(1)).train
    loss = Loss("logistic", (0, 1))
    sampled = SampledLoss.of(public, 900, loss, REGISTRY.default("fit"))
    assert (sampled.shape.noise, sampled.shape.levels) == pytest.approx((0.3, 0.4), abs=0.15)
    made = sampled.draw(60, np.random.default_rng(2))
    assert set(np.unique(made.train.y)) <= {0.0, 1.0}
    assert made.truth.shape == (made.test.n_rows, 2)
