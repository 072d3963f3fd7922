"""Many canaries in one run."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from tacitly import neural
from tacitly.audit.one_run import _one_run
from tacitly.neural.centaur import audit_network
from tacitly.privacy.accounting import mu_of


def test_canaries_of_a_wide_network_are_nearly_as_loud_as_the_claim_allows() -> None:
    """With more inputs than canaries. Mean of twelve: two whose rows switch all units off contribute nothing."""
    model = neural.Centaur(epsilon=1.0, **audit_network(60))
    *_, delta, power = _one_run(model, 12, 60, np.random.default_rng(0), 1.0)
    assert 0.8 * mu_of(1.0, delta) < power < 1.0001 * mu_of(1.0, delta)
