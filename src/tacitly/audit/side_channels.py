"""Whatever but the releases tells of a user's numbers: an error, a warning, a line on the terminal."""

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
from tacitly.audit.population import FEATURES, worlds
from tacitly.audit.users import adversarial_users
from tacitly.methods.base import PrivateModel
from tacitly.privacy.guarantee import Adjacency, UncertifiedWarning, Unit

_HOSTILE = (
    "features 1e-322",
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
    """Run once with each of a few hostile users; yield what came out beside the releases."""
    labels = estimator.audit_labels
    users = dict(adversarial_users(FEATURES))
    for name in (name for name in _HOSTILE if name in users):
        X, y = users[name]
        if labels is not None:
            y = np.where(y > 0, labels[1], labels[0])  # a cohort refuses others before anything is learned
        pair = worlds(unit, Adjacency.ZERO_OUT, ((X, y), (X, y)), labels=labels)
        attacker = Attacker(estimator, pair)
        with _terminal() as said, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                attacker.run(pair.inside)
            except Exception as error:
                yield f"a user's numbers ({name}) raise {type(error).__name__}"
                continue
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
            said.seek(0)
            text = said.read()
        loud = [str(w.category.__name__) for w in caught if not issubclass(w.category, UncertifiedWarning)]
        if loud:
            yield f"a user's numbers ({name}) warn with {loud[0]}"
        if text.strip():
            yield f"a user's numbers ({name}) print on the terminal: {text.strip().splitlines()[0][:60]!r}"


@contextmanager
def _terminal() -> Iterator[IO[str]]:
    """Catch what is written to the terminal, by compiled libraries too."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile("w+") as file:
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield file
        finally:
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)
