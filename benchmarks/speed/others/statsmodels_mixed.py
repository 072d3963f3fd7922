"""statsmodels' MixedLM on a panel in a folder: all coefficients vary over users. Needs statsmodels, not tacitly."""

import sys
import warnings
from pathlib import Path

import numpy as np
import statsmodels
from statsmodels.regression.mixed_linear_model import MixedLM
from timing import report

warnings.simplefilter("ignore")


def main() -> None:
    folder, repeats = Path(sys.argv[1]), int(sys.argv[2])
    X, y, users, new, new_users = (np.load(folder / f"{name}.npy") for name in ("X", "y", "users", "new", "new_users"))
    rows, new = (np.column_stack([np.ones(len(part)), part]) for part in (X, new))

    def fit() -> np.ndarray:
        model = MixedLM(y, rows, groups=users, exog_re=rows).fit()
        own = np.array([model.random_effects[user] for user in range(users.max() + 1)])
        return np.sum(new * (model.fe_params + own[new_users]), axis=1)

    np.save(folder / "found.npy", report(fit, repeats, version=f"statsmodels {statsmodels.__version__}"))


if __name__ == "__main__":
    main()
