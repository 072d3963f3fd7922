"""The fit template, the personal models on top of it, and scikit-learn's conventions."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError

import tacitly
from engines import EVERY, users
from tacitly import neural
from tacitly.data.reading import read_cohort, read_rows
from tacitly.federation.engine import Population
from tacitly.heads.losses import Loss
from tacitly.methods import REGISTRY
from tacitly.methods.base import PrivateModel, Procedure, Statement
from tacitly.methods.parameters import PrivacyParameters, RunParameters
from tacitly.methods.personal import PersonalModel
from tacitly.methods.shared.whitening import FeatureMoment
from tacitly.privacy.calibration import Phase, Plan

NEURAL: dict[str, Any] = {
    "neural centaur": lambda **o: neural.Centaur(*neural.mlp(6, (4,), 2), rounds=2, device="cpu", **o),
    "neural centaur, clip": lambda **o: neural.Centaur(*neural.mlp(6, (4,), 2), rounds=2, clip="auto", **o),
    "local heads": lambda **o: neural.LocalHeads(*neural.mlp(6, (4,), 2), **o),
    "neural low rank": lambda **o: neural.LowRankSparse(1, 2, hidden=(4,), rounds=2, clip="auto", **o),
    "prompts": lambda **o: neural.PromptLearning(hidden=(4,), rounds=2, **o),
}
MAKERS: dict[str, Any] = {
    **{name: partial(method.load(), **trial.parameters) for name, (method, trial) in EVERY.items()},
    **NEURAL,
}


def fitted(name: str, **options: Any) -> tuple[PrivateModel, tacitly.Cohort]:
    cohort = users(60, name=name) if name in EVERY else users(60, name="logistic")
    model = MAKERS[name](**{"epsilon": 4.0, "noise_seed": 1} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        model.fit(cohort)
    return model, cohort


@pytest.mark.parametrize("name", [*EVERY, *NEURAL])
def test_a_fit_makes_the_planned_releases_and_planning_writes_nothing(name: str) -> None:
    cohort = users(60, name=name) if name in EVERY else users(60, name="logistic")
    model = MAKERS[name](epsilon=4.0, noise_seed=1)
    before = dict(vars(model))
    planned = model.planned_releases(cohort)
    assert vars(model) == before
    assert len(fitted(name)[0].certificate_.releases) == planned


def test_fit_is_written_once() -> None:
    kinds = {type(make(epsilon=1.0)) for make in MAKERS.values()}
    own = {kind.__name__ for kind in kinds if kind.fit is not PrivateModel.fit}
    assert own == {"FedPower", "Recommender"}  # no target; users, items and ratings: both call the template


@pytest.mark.parametrize("name", [*EVERY, *NEURAL])
def test_a_model_that_is_not_fitted_raises_scikit_learns_error(name: str) -> None:
    model = MAKERS[name](epsilon=1.0)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        model.public_arrays()
    if isinstance(model, tacitly.Recommender):
        with pytest.raises(NotFittedError):
            model.predict([1], [1])
        return
    for method in {"predict", "score", "personalize"} & set(dir(model)):
        arguments = [np.zeros((1, 6)), [0.0], [0]][: 3 if method == "score" and isinstance(model, PersonalModel) else 2]
        arguments = arguments if isinstance(model, PersonalModel) else arguments[: 1 if method == "predict" else 2]
        with pytest.raises(NotFittedError):
            getattr(model, method)(*arguments)


NAMED = [trial.name for trial in REGISTRY["networks"].trials]
"""Networks without a paper's version, so that there is no mode to choose."""


@pytest.mark.parametrize("name", [*EVERY, *NEURAL])
def test_parameters_are_stored_unchanged_and_cloned(name: str) -> None:
    model = MAKERS[name](epsilon=1.0, run="mine")
    parameters = model.get_params(deep=False)
    assert parameters["epsilon"] == 1.0
    assert parameters["run"] == "mine"
    assert all(getattr(model, key) is value for key, value in parameters.items())
    assert type(clone(model)) is type(model)
    common = {
        "epsilon",
        "delta",
        "adjacency",
        *(["mode"] if name not in NAMED else []),
        "random_state",
        "noise",
        "noise_seed",
        "ledger",
        "threads",
        "on_bad_rows",
    }
    assert common | {"on_bad_rows"} <= set(parameters)


def test_tags_follow_the_loss() -> None:
    for loss in ("logistic", "hinge"):
        assert is_classifier(tacitly.PrivateFedRep(1, 1.0, loss=loss))
    for loss in ("squared", "poisson"):
        assert is_regressor(tacitly.PrivateFedRep(1, 1.0, loss=loss))
    assert is_classifier(tacitly.MarginClassifier(1, 1.0))
    assert is_regressor(tacitly.TraceRegression(1, 1.0))
    assert is_regressor(tacitly.LocalModels())
    assert is_classifier(neural.Centaur(*neural.mlp(6, (4,), 2), epsilon=1.0))
    assert is_regressor(neural.PromptLearning(1.0))
    assert tacitly.FedPower(1, 1.0).__sklearn_tags__().transformer_tags is not None


@pytest.mark.parametrize("name", ["fedrep", "neural centaur", "neural low rank"])
def test_predict_reads_tables_by_column_name(name: str) -> None:
    model, cohort = fitted(name)
    ids = np.repeat(cohort.users, np.diff(cohort.offsets))
    table = pd.DataFrame(cohort.X, columns=list(cohort.feature_names))
    shuffled = table[table.columns[::-1]].assign(other=1.0)
    np.testing.assert_array_equal(model.predict(shuffled, ids), model.predict(cohort.X, ids))


@pytest.mark.parametrize("name", ["logistic", "neural centaur", "neural low rank"])
def test_personal_models_refuse_the_same_things_in_the_same_words(name: str) -> None:
    model, cohort = fitted(name)
    rows = cohort.X[:2]
    with pytest.raises(tacitly.DataError, match="rows of users who have no"):
        model.predict(rows, [0, 10**6])
    with pytest.raises(tacitly.DataError, match="users must have one id per row"):
        model.predict(rows, [0])
    with pytest.raises(tacitly.DataError, match="y must have one value per row"):
        model.personalize(rows, [0.0])
    with pytest.raises(tacitly.DataError, match="finite"):
        model.personalize(np.full_like(rows, np.nan), [0.0, 1.0])
    with pytest.raises(tacitly.DataError, match="expecting 6 features as input, as at training"):
        model.predict(rows[:, :2], [0, 1])


def test_scores_include_personal_coordinates() -> None:
    model, cohort = fitted("sparse")
    ids = np.repeat(cohort.users, np.diff(cohort.offsets))
    assert np.abs(model.sparse_values_).max() > 0  # type: ignore[attr-defined]
    scores = model.decision_function(cohort.X, ids)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(scores, model.predict(cohort.X, ids))  # type: ignore[attr-defined]


def test_the_reader_names_what_is_missing() -> None:
    X, y = np.ones((2, 1)), np.ones(2)
    with pytest.raises(ValueError, match="fit needs y and users next to X"):
        read_cohort(X, y)
    with pytest.raises(ValueError, match="fit needs y next to X"):
        read_cohort(X, needs_users=False)
    with pytest.raises(ValueError, match="no target"):
        read_cohort(tacitly.Cohort.from_arrays(X, None, [0, 1]))
    with pytest.raises(tacitly.DataError, match="must be numbers") as error:
        read_rows([["secret"]], np.array(["a"]))
    assert "secret" not in str(error.value)


@dataclass(eq=False, repr=False)
class PriorMean(PersonalModel[float], PrivateModel):
    """A public mean as a prior, personal means as posteriors; unseen users get the population's: no basis anywhere."""

    _: KW_ONLY
    weight: float = 3.0
    run: str = "prior-mean"

    _learned = "mean_"

    def _loss(self) -> Loss:
        return Loss()

    def _procedure(self, population: Population, budget: Any) -> Procedure:
        plan = Plan(budget, [Phase(name="moment", share=1.0)])
        event = plan.event("moment", clip=1.0, acute=True)

        def learn(federation: Any) -> dict[str, Any]:
            released = federation.release(FeatureMoment(population.n_features), event, "moment")
            return {"mean": released[:1] / population.n_users}

        return Procedure([event], learn)

    def _statement(self, budget: Any) -> Statement:
        return Statement("central: a test")

    def public_arrays(self) -> dict[str, Any]:
        self._check_fitted()
        return {"mean": self.mean_}

    def take_public_arrays(self, arrays: Any) -> None:
        self.mean_, self.own_ = arrays["mean"], np.zeros((0, 1))

    def _home_work(self) -> Any:
        def posterior(X: Any, y: Any, offsets: Any) -> Any:
            counts = np.diff(offsets)
            return ((np.add.reduceat(y, offsets[:-1]) + self.weight * self.mean_) / (counts + self.weight))[:, None]

        return posterior

    def _take_heads(self, heads: Any) -> None:
        self.own_ = heads

    def _check_known(self, positions: Any) -> None:
        """Unseen users get the population's prediction."""

    def _predictions(self, rows: Any, positions: Any) -> Any:
        return np.where(positions < 0, self.mean_[0], self.own_[positions, 0])

    def _personal_model(self, rows: Any, targets: Any) -> float:
        return float((targets.sum() + self.weight * self.mean_[0]) / (len(targets) + self.weight))


def test_a_model_with_a_prior_instead_of_a_basis_fits_the_template() -> None:
    cohort = users(40)
    model = PriorMean(2.0).fit(cohort)
    assert model.certificate_.certified
    first, target = cohort.rows(0)
    assert model.predict(first[:1], [cohort.users[0]])[0] == pytest.approx(model.personalize(first, target))
    assert model.predict(first[:1], [10**6])[0] == model.mean_[0]
    assert not hasattr(model, "basis_")


def test_shared_parameters_come_after_the_method_s_own_positional_ones() -> None:
    model = tacitly.LowRankSparse(1, 2, 3.0, 1e-5, "replace-one")
    assert (model.rank, model.sparsity, model.epsilon, model.delta, model.adjacency) == (1, 2, 3.0, 1e-5, "replace-one")
    with pytest.raises(TypeError):
        tacitly.PrivateFedRep(1, 1.0, 1e-6, "zero-out", "auto", 0, True)  # type: ignore[misc]
    assert issubclass(PrivacyParameters, RunParameters)
