"""Penalties of ridge regressions, relative to the mean eigenvalue of a user's own system, and when each may be used."""

from __future__ import annotations

import numpy as np

PENALTIES = np.array([1e-9, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1e9])
# Index of the smallest penalty to use if the number of rows beyond the unknowns is zero, and if it is one.
LEAST_NONE, LEAST_ONE = 3, 2
LEAST_TRACE = 2.0**-450  # if the trace is smaller, penalties underflow, and the user is treated as having no data
