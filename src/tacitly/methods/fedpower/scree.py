"""A scree plot that shows where noise begins: released eigenvalues, corrected ones, and the floor of the noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacitly.arrays import Array


def draw(released: Array, corrected: Array, floor: float, axes: Any = None) -> Any:
    """Draw on matplotlib's ``axes`` (None: a new figure) and return them. Every argument is public."""
    if axes is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError("a scree plot needs matplotlib: pip install matplotlib, or pass axes.") from error
        axes = plt.subplots(figsize=(5.0, 3.2))[1]
    if released.size:
        axes.plot(np.arange(1, released.size + 1), released, ".", color="0.6", label="released, with noise")
    axes.plot(np.arange(1, corrected.size + 1), corrected, "o", color="tab:blue", label="components, noise subtracted")
    axes.axhline(floor, color="tab:red", linestyle="--", label="noise floor")
    axes.set_xlabel("component")
    axes.set_ylabel("eigenvalue")
    axes.legend()
    return axes
