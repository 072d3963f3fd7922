"""Leaks other than releases: errors, warnings and terminal output that depend on a user's values."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np

from tacitly.audit.attack import Attacker
from tacitly.audit.users import adversarial_users
from tacitly.audit.worlds import FEATURES, worlds
from tacitly.methods.base import PrivateModel
from tacitly.privacy.guarantee import Adjacency, TooFewUsersWarning, UncertifiedWarning, Unit

_EXPONENTS = (-322.0, 154.5, 308.0)
_HOSTILE = (
    "features 9.88131e-323",
    "features 1e+308",
    "both 3.16228e+154",
    "targets 1e+308",
    "feature nan",
    "feature inf",
    "all nan",
    "all -inf",
    "target nan",
    "zeros",
    "zero targets",
    "rank one",
    "duplicates",
    "one row",
    "one huge row",
)


def side_channels(estimator: PrivateModel, unit: Unit) -> Iterator[str]:
    """Fit once with each of a few adversarial users; yield effects that are visible besides the releases."""
    labels = estimator.audit_labels
    users = dict(adversarial_users(FEATURES, exponents=_EXPONENTS))
    for name in _HOSTILE:
        X, y = users[name]
        if labels is not None:
            y = np.where(y > 0, labels[1], labels[0])  # estimators reject other labels before they learn anything
        pair = worlds(unit, Adjacency.ZERO_OUT, ((X, y), (X, y)), labels=labels)
        attacker = Attacker(estimator, pair)
        with _terminal() as output, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                attacker.run(pair.inside)
            except Exception as error:
                yield f"a user's values ({name}) raise {type(error).__name__}"
                continue
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
            output.seek(0)
            text = output.read()
        public = (UncertifiedWarning, TooFewUsersWarning)  # these depend only on parameters and released values
        warned = [str(w.category.__name__) for w in caught if not issubclass(w.category, public)]
        if warned:
            yield f"a user's values ({name}) cause the warning {warned[0]}"
        if text.strip():
            yield f"a user's values ({name}) cause terminal output: {text.strip().splitlines()[0][:60]!r}"


@contextmanager
def _terminal() -> Iterator[IO[str]]:
    """Capture what is written to the terminal, including by compiled libraries."""
    sys.stdout.flush()
    sys.stderr.flush()
    originals = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile("w+") as file:
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield file
        finally:
            for number, original in zip((1, 2), originals, strict=True):
                os.dup2(original, number)
                os.close(original)
