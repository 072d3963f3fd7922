"""The public prefix of a body: leading modules without trainable parameters, run once before the rounds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from tacitly.data.cohort import Cohort
from tacitly.neural.engine.layers import evaluation_copy
from tacitly.neural.engine.module_properties import dtype_of, output_width
from tacitly.neural.engine.windows import ForwardPass


def split_body(body: nn.Module, width: int, *, whole: bool = False) -> tuple[nn.Module, nn.Module]:
    """Split a body into its public prefix and the rest; with ``whole`` the prefix is empty."""
    if not isinstance(body, nn.Sequential) or whole:
        return nn.Identity(), body
    parts = list(body)
    first = next((i for i, part in enumerate(parts) if any(p.requires_grad for p in part.parameters())), len(parts))
    first = min(first, max(0, len(parts) - 1))
    prefix = nn.Sequential(*parts[:first])
    with torch.no_grad():
        sample = torch.zeros(1, width, dtype=dtype_of(body))
        flat = evaluation_copy(prefix)(sample).ndim == 2 if first else False
    return (prefix, nn.Sequential(*parts[first:])) if flat else (nn.Identity(), body)


def apply_prefix(prefix: nn.Module, cohort: Cohort, window: int, device: torch.device) -> Cohort:
    """Return the cohort with every user's rows after the prefix, one user at a time: nothing is released."""
    if not list(prefix.children()):
        return cohort
    width = output_width(prefix, cohort.n_features)
    rows = np.full((cohort.n_rows, width), np.nan, dtype=np.float32)
    forward = ForwardPass(prefix, device, window)
    for first, last in itertools.pairwise(cohort.offsets.tolist()):
        # Rows that overflow or fail stay NaN, so their user's updates become zero; a warning would reveal it.
        if (found := forward.or_none(cohort.X[first:last])) is not None:
            with np.errstate(all="ignore"):
                rows[first:last] = found
    y = None if cohort.y is None else cohort.y.astype(np.float32)
    return replace(cohort, X=rows, y=y, feature_names=tuple(f"feature {j}" for j in range(width)))
