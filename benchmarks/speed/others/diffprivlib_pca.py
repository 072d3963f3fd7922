"""diffprivlib's PCA on rows in a folder. Needs diffprivlib, not tacitly."""

import sys
import warnings
from pathlib import Path

import diffprivlib
import numpy as np
from diffprivlib.models import PCA
from timing import report

warnings.simplefilter("ignore")  # rows beyond the norm are clipped, and that is said


def main() -> None:
    folder, repeats = Path(sys.argv[1]), int(sys.argv[2])
    X, (rank, epsilon, norm) = np.load(folder / "X.npy"), np.load(folder / "public.npy")

    def fit() -> np.ndarray:
        # Centered: the mean of the population is zero, and public, so that nothing is spent on it.
        return PCA(int(rank), epsilon=epsilon, data_norm=norm, centered=True).fit(X).components_

    components = report(fit, repeats, version=f"diffprivlib {diffprivlib.__version__}")
    np.save(folder / "found.npy", components)


if __name__ == "__main__":
    main()
