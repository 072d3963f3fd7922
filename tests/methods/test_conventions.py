"""Estimators are scikit-learn's as soon as scikit-learn plays a part, and a fit does not import it."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIT = """
import sys, numpy as np, tacitly
rng = np.random.default_rng(0)
users, x = np.repeat(np.arange(300), 4), rng.normal(size=(1200, 2))
model = tacitly.MixedEffects(epsilon=8.0).fit(x, x[:, 0] + rng.normal(size=1200), users)
"""


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_fit_imports_neither_scikit_learn_nor_scipy_nor_pandas() -> None:
    program = FIT + "print(sorted({'sklearn', 'scipy', 'pandas', 'numba', 'pyarrow'} & set(sys.modules)))"
    assert printed(program) == "[]"


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("clone(model).get_params() == model.get_params()", "True"),
        ("get_tags(model).estimator_type", "regressor"),
        ("repr(model)", "MixedEffects(epsilon=8.0)"),
        ("model.set_score_request(users=True) is model", "True"),
        ("model.get_metadata_routing().fit.requests['users']", "True"),
        ("model.set_params(epsilon=2.0).epsilon", "2.0"),
        ("'MixedEffects' in model._repr_html_()", "True"),
        ("hasattr(model, 'set_fit_request')", "True"),
    ],
)
def test_a_fitted_model_is_a_base_estimator_once_scikit_learn_asks(asked: str, answer: str) -> None:
    after = "from sklearn.base import BaseEstimator, clone\nfrom sklearn.utils import get_tags\n"
    after += "import sklearn; sklearn.set_config(enable_metadata_routing=True)\n"
    after += f"print({asked}, isinstance(model, BaseEstimator), isinstance(tacitly.FedPower(1, 1.0), BaseEstimator))"
    assert printed(FIT + after) == f"{answer} True True"


def test_estimators_made_after_scikit_learn_was_imported_are_base_estimators_at_once() -> None:
    program = "from sklearn.base import BaseEstimator\nimport tacitly\n"
    assert printed(program + "print(isinstance(tacitly.MixedEffects(1.0), BaseEstimator))") == "True"


def test_parameters_are_those_that_scikit_learn_reads() -> None:
    program = (
        "import tacitly; own = tacitly.LowRankSparse(2, 3, 1.0).get_params(); from sklearn.base import BaseEstimator"
    )
    program += "\nprint(own == BaseEstimator.get_params(tacitly.LowRankSparse(2, 3, 1.0)), len(own) > 10)"
    assert printed(program) == "True True"


def test_an_attribute_that_nobody_has_is_an_error_and_imports_nothing() -> None:
    program = "import sys, tacitly; model = tacitly.MixedEffects(1.0)\n"
    program += "print(hasattr(model, 'prior_'), hasattr(model, 'nonsense'), 'sklearn' in sys.modules)"
    assert printed(program) == "False False False"
