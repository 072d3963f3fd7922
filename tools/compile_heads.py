"""Compile the kernel that fits heads and leave it in Numba's cache, for a first run that would compile it later.

Run by ``make demo`` beside the demo. If this comes too late, or fails, the demo compiles the kernel itself.
"""

from __future__ import annotations

import numpy as np

from tacitly.heads.ridge import fit_heads

fit_heads(np.eye(3), np.zeros(3), np.array([0, 3]), np.eye(3)[:, :1])
