"""Rounds per second of Apple's ``pfl``: the same maths as a query, written with its own seams. Needs pfl, not tacit."""

import asyncio
import json
import statistics
import sys
import time

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedAlgorithm
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.internal.ops import numpy_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

ROWS, D, K, ROUNDS = 50, 200, 5, 3
set_framework_module(numpy_ops)


class Step(FederatedAlgorithm):
    """A user's head by least squares, and what it asks the basis to change."""

    def __init__(self, basis):
        super().__init__()
        self.basis = basis

    def get_next_central_contexts(self, *_, **__):
        """Do nothing: rounds are asked for one by one here."""
        raise NotImplementedError

    def process_aggregated_statistics(self, *_, **__):
        """Do nothing: what the server does with a sum is not part of the race."""
        raise NotImplementedError

    def simulate_one_user(self, model, user_dataset, central_context):
        """Return the user's statistic; pfl clips it, adds up and adds the noise."""
        X, y = user_dataset.raw_data
        projected = X @ self.basis
        head = np.linalg.solve(projected.T @ projected, projected.T @ y)
        gradient = np.outer(X.T @ (y - projected @ head) / (ROWS - K), head)
        return MappedVectorStatistics({"gradient": gradient}, weight=1.0), Metrics()


def main() -> None:
    users = int(sys.argv[1])
    rng = np.random.default_rng(0)
    X = rng.standard_normal((users, ROWS, D), dtype=np.float32)
    y = rng.standard_normal((users, ROWS), dtype=np.float32)
    basis = np.linalg.qr(rng.normal(size=(D, K)))[0].astype(np.float32)
    ids = list(range(users))
    data = FederatedDataset(
        lambda user: Dataset((X[user], y[user]), user_id=str(user)), get_user_sampler("minimize_reuse", ids)
    )
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1.0))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism])
    context = CentralContext(
        current_central_iteration=0,
        do_evaluation=False,
        cohort_size=users,
        population=Population.TRAIN,
        model_train_params=None,
        model_eval_params=None,
        algorithm_params=None,
        seed=0,
    )
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        asyncio.run(backend.async_gather_results(model=None, training_algorithm=Step(basis), central_context=context))
        times.append(time.perf_counter() - start)
    print(json.dumps({"rounds per second": 1 / statistics.median(times)}))


if __name__ == "__main__":
    main()
