"""The summary of the population as a table: estimates, standard errors, and how much users differ.

All of it is post-processing of releases, so printing or publishing it costs no budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array

_WIDE = 1.959963984540054  # standard deviations of a 95 % interval


@dataclass(frozen=True, repr=False)
class Summary:
    """Population coefficients and variance components, in the units of the data; ``str`` gives a table.

    ``estimates[0]`` and ``spreads[0]`` belong to the intercept: the level of a row with all features zero.
    """

    title: str
    names: tuple[str, ...]
    estimates: Array
    errors: Array  # standard errors: of sampling users and of the privacy noise together
    spreads: Array  # standard deviation of each coefficient across users; of levels, at the centers of the columns
    residual: float  # standard deviation of the noise, of log rates for counts; NaN for classes, which have none
    target: str
    left_out: tuple[str, ...] = ()
    warning: str = ""
    counts: bool = False
    scale: str = ""  # what estimates add up to, if not the target itself: log odds, log rates

    @property
    def intervals(self) -> Array:
        """95 % confidence intervals, one row per coefficient."""
        half = _WIDE * self.errors
        return np.stack([self.estimates - half, self.estimates + half], axis=1)

    def __repr__(self) -> str:
        """Return the table, as a notebook or a prompt shows it."""
        return str(self)

    def __str__(self) -> str:
        width = max(len(name) for name in ("(intercept)", *self.names))
        if not self.names:
            return "\n".join([self.title, f"target: {self.target}", "", self.warning])
        what = "overdispersion (std. dev.)" if self.counts else "residual standard deviation"
        scale = f"; estimates are of {self.scale}" if self.scale else ""
        residual = "" if math.isnan(self.residual) else f"; {what} {self.residual:.4g}"
        lines = [self.title, f"target: {self.target}{scale}{residual}", ""]
        lines.append(f"{'':{width}}  {'estimate':>10}  {'std. err.':>10}  {'95 % interval':^23}  {'users vary by':>13}")
        rows = zip(self.names, self.estimates, self.errors, self.intervals, self.spreads, strict=True)
        for name, estimate, error, (low, high), spread in rows:
            interval = f"[{low:>10.4g}, {high:>10.4g}]"
            lines.append(f"{name:{width}}  {estimate:>10.4g}  {error:>10.4g}  {interval:^23}  {spread:>13.4g}")
        lines += ["", "users vary by: standard deviation between users (intercept: in a typical row)"]
        if self.left_out:
            lines += ["", f"left out (no scale, or no second frequent level, was found): {', '.join(self.left_out)}"]
        if self.warning:
            lines += ["", self.warning]
        if any("#" in name for name in self.names):
            lines.append("NAME#3: a group of values of text column NAME; declared levels have names")
        return "\n".join(lines)
