"""The same problems in other libraries: diffprivlib's PCA and statsmodels' MixedLM. Needs these, not tacitly.

``python libraries.py FOLDER``: reads ``pca.npy`` and ``panel.npz``, prints one JSON object with times and results.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    print(json.dumps({"diffprivlib": components(folder), "statsmodels": mixed_model(folder)}))


def components(folder: Path) -> dict[str, object]:
    """Find principal components of rows of norm at most one, at ε = 1."""
    import diffprivlib
    from diffprivlib.models import PCA

    X = np.load(folder / "pca.npy")
    model = PCA(2, epsilon=1.0, data_norm=1.0, centered=True, random_state=0)
    taken = timed(lambda: model.fit(X))
    return {**taken, "version": diffprivlib.__version__, "components": model.components_.tolist()}


def mixed_model(folder: Path) -> dict[str, object]:
    """Fit a mixed model with a random intercept and random slopes, by restricted likelihood; not private."""
    import statsmodels
    from statsmodels.regression.mixed_linear_model import MixedLM

    data = np.load(folder / "panel.npz")
    design = np.column_stack([np.ones(len(data["y"])), data["X"]])
    model = MixedLM(data["y"], design, data["users"], exog_re=design)
    found: list[Any] = []
    taken = timed(lambda: found.append(model.fit()))
    return {**taken, "version": statsmodels.__version__, "effects": np.asarray(found[0].fe_params).tolist()}


def timed(work: Callable[[], object]) -> dict[str, float]:
    start, used = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - start, "processor": time.process_time() - used}


if __name__ == "__main__":
    main()
