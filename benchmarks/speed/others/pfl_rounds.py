"""Rounds of Apple's ``pfl``: the same computation as tacitly's query, with pfl's interfaces. Needs pfl, not tacitly."""

import asyncio
import json
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
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly
from pfl.stats import MappedVectorStatistics
from same_maths import advance, contribution, read

set_framework_module(numpy_ops)


class Step(FederatedAlgorithm):
    """A user's head by least squares, and its change of the basis."""

    def __init__(self, basis):
        super().__init__()
        self.basis = basis

    def get_next_central_contexts(self, *_, **__):
        """Not used: the caller starts each round."""
        raise NotImplementedError

    def process_aggregated_statistics(self, *_, **__):
        """Not used: the caller processes the sum."""
        raise NotImplementedError

    def simulate_one_user(self, model, user_dataset, central_context):
        """Return the user's statistic; pfl clips and sums it."""
        X, y = user_dataset.raw_data
        return MappedVectorStatistics({"step": contribution(X, y, self.basis)}, weight=1.0), Metrics()


def main() -> None:
    folder, rounds = sys.argv[1], int(sys.argv[2])
    X, y, basis = (np.array(part) for part in read(folder))
    data = FederatedDataset(
        lambda user: Dataset((X[user], y[user]), user_id=str(user)),
        get_user_sampler("minimize_reuse", list(range(len(X)))),
    )
    # Clipped, without noise, so that sums can be compared and pfl has less to do.
    mechanism = CentrallyAppliedPrivacyMechanism(NormClippingOnly(2, 1.0))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism])
    context = CentralContext(
        current_central_iteration=0,
        do_evaluation=False,
        cohort_size=len(X),
        population=Population.TRAIN,
        model_train_params=None,
        model_eval_params=None,
        algorithm_params=None,
        seed=0,
    )
    times, busy, after = [], [], basis
    for _ in range(rounds + 1):
        start, before = time.perf_counter(), time.process_time()
        sums, _ = asyncio.run(
            backend.async_gather_results(model=None, training_algorithm=Step(basis), central_context=context)
        )
        if sums.weight != len(X):
            raise RuntimeError(f"{sums.weight} users took part. Expected {len(X)}.")
        after = advance(basis, sums["step"])
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - before)
    print(json.dumps({"times": times[1:], "busy": busy[1:], "basis": after.tolist()}))


if __name__ == "__main__":
    main()
