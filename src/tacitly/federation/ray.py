"""The Ray engine: each actor of a cluster holds a shard of the users, and the driver keeps the doors.

A round broadcasts the query (a name and numbers, :mod:`tacitly.federation.wire`) and collects one vector of integers
from each shard, added in a tree. Partial sums are integers on the grid, so the total does not depend on the number of
shards or on the order of their answers. Shards end at block boundaries, so even the rounding equals that of a single
process. Noise is drawn once, by the driver, after the ledger's debit.

Failures. A lost actor is restarted, reads its shard again and answers with the same integers. If it cannot, or finds
different users, its users contribute nothing to this release, with a warning; below a quorum of users there is no
release.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows
from tacitly.data.cohort import Cohort
from tacitly.data.fingerprint import rows_fingerprint
from tacitly.data.sparse_cohort import SparseCohort
from tacitly.data.validation import DataError
from tacitly.extras import advice
from tacitly.federation import wire
from tacitly.federation.base import Chosen, Federation, Query
from tacitly.federation.bounds import BoundExceeded
from tacitly.federation.query import BLOCK
from tacitly.federation.shard import Shard
from tacitly.heads.base import HeadWork
from tacitly.privacy.ledger import Run

TRUST = (
    "central: the machines of the Ray cluster hold the rows and their driver adds the noise and keeps the heads; "
    "everybody else sees the billboard only, and a user their own head (joint differential privacy)."
)
_TREE = 8  # partial sums added by one task
_RESTARTS = 3
_START_SECONDS = 180.0
_RESTART_SECONDS = 60.0  # for lost shards to be read again


class ShardsLost(RuntimeError):
    """Too few users could be reached; nothing was drawn."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Users whose rows one actor reads itself: a saved cohort (or a range of its users), or a table."""

    path: str
    user: str | None = None
    target: str | None = None
    features: tuple[str, ...] | None = None
    first: int = 0
    last: int | None = None

    def read(self) -> Cohort:
        """Read the part; rows of a saved cohort stay on disk until they are used."""
        if os.path.exists(os.path.join(self.path, "cohort.json")):
            cohort = Cohort.open(self.path)
            last = cohort.n_users if self.last is None else self.last
            return cohort if (self.first, last) == (0, cohort.n_users) else cohort.take(np.arange(self.first, last))
        if self.user is None:
            raise DataError(f"{self.path} is a table. Name the column of user ids: Part(path=..., user=...).")
        # Read within a fit, which raises on no private cell, and for either unit of privacy: a bad row stays, as NaN.
        columns: dict[str, Any] = {"user": self.user, "target": self.target, "features": self.features}
        return Cohort.from_table(self.path, **columns, on_bad_rows="blank")


@dataclass(frozen=True, kw_only=True)
class RayEngine:
    """Run an estimator on a Ray cluster: ``PrivateFedRep(..., engine=RayEngine())``.

    Parameters
    ----------
    address
        Address of a running cluster, as for ``ray.init`` (``"auto"``: whichever runs here; anyone who can reach it can
        read what it holds). None starts a new one on this machine, which ends with this process.
    workers
        Number of shards to divide a cohort into; None for one shard per core of the cluster.
    parts
        One :class:`Part` per actor, if rows must not pass through this process (``fit()`` without rows). No user may
        have rows in two parts; this is checked.
    quorum
        Fraction of the users that must be reached in every release; below it nothing is drawn.
    timeout
        Seconds after which a shard that does not answer counts as lost.
    gpus
        GPUs of each shard, for networks: 1, or a fraction that shards share.

    Examples
    --------
    >>> import tacitly
    >>> from tacitly.federation.ray import RayEngine
    >>> model = tacitly.PrivateFedRep(rank=2, epsilon=1.0, engine=RayEngine(workers=2))
    >>> model.engine.workers
    2
    """

    address: str | None = None
    workers: int | None = None
    parts: tuple[Part, ...] = ()
    quorum: float = 0.5
    timeout: float = 3600.0
    gpus: float = 0.0

    def population(self, source: Cohort | SparseCohort | None) -> RayPopulation:
        """Distribute the users of ``source`` (or of ``parts``) over actors."""
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(advice(error) or str(error), name=error.name) from None

        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # "local" rather than None, which would join any cluster that is running, or RAY_ADDRESS.
            ray.init(
                address=self.address or "local", include_dashboard=False, log_to_driver=False, configure_logging=False
            )
        cores = ray.cluster_resources().get("CPU", 1)  # type: ignore[no-untyped-call]
        workers = self.workers or max(1, int(cores))
        actor = _actor_class(self.gpus)
        if source is None:
            if not self.parts:
                raise ValueError("fit was called without rows, and the engine has no parts to read. Give one of them.")
            actors = [actor.remote(part) for part in self.parts]
            return RayPopulation(actors, cut=False, quorum=self.quorum, timeout=self.timeout)
        # Kept as long as the population, so that a restarted actor finds its shard in the object store.
        held = [ray.put(_slice(source, first, last)) for first, last in cuts(source.n_users, workers)]
        actors = [actor.remote(shard) for shard in held]
        return RayPopulation(actors, cut=True, cohort=source, held=held, quorum=self.quorum, timeout=self.timeout)


class RayPopulation:
    """Actors that hold shards, and what is public about their users."""

    trust: str | None = TRUST

    def __init__(
        self,
        actors: list[Any],
        *,
        cut: bool,
        cohort: Cohort | SparseCohort | None = None,
        held: Sequence[Any] = (),
        quorum: float = 0.5,
        timeout: float = 3600.0,
    ) -> None:
        import ray

        self._actors, self._held = actors, held
        self.sparse = isinstance(cohort, SparseCohort)
        self.quorum, self.timeout = quorum, timeout
        try:
            about = ray.get([actor.about.remote() for actor in actors], timeout=_START_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise RuntimeError(
                f"the cluster did not start {len(actors)} shards within {_START_SECONDS:g} s: each needs a core, and "
                "its share of a GPU where gpus says so. Use fewer workers, or a smaller share."
            ) from None
        self.sizes = [int(facts["users"]) for facts in about]
        self.digests = [str(facts["digest"]) for facts in about]
        self.n_users = sum(self.sizes)
        self.n_rows = sum(int(facts["rows"]) for facts in about)
        first = about[0]
        self.n_features = int(first["features"])
        self.feature_names: tuple[str, ...] = tuple(first["names"])
        self.target_name: str | None = first["target"]
        if any((facts["names"], facts["target"]) != (first["names"], first["target"]) for facts in about):
            raise DataError("every part must have the same columns in the same order. Found different ones.")
        self.users: npt.NDArray[Any] = (
            cohort.users if cohort is not None else np.concatenate(ray.get([a.users.remote() for a in actors]))
        )
        if not cut and (twice := self.n_users - len(np.unique(self.users))):
            raise DataError(
                f"{twice} users have rows in more than one part. Put all rows of a user into one part: users are the "
                "unit of privacy."
            )

    def fingerprint(self, secret: bytes) -> str:
        """Return a keyed fingerprint of the parts that actors read, in their order."""
        import ray

        key = hashlib.blake2b(b"parts", key=secret, digest_size=32).digest()  # the secret itself stays here
        parts = ray.get([actor.fingerprint.remote(key) for actor in self._actors], timeout=self.timeout)
        return hashlib.blake2b("\n".join(parts).encode(), key=key, digest_size=16).hexdigest()

    def federation(self, run: Run, *, threads: int | None = None, **options: Any) -> RayFederation:
        """Put the users behind the doors; ``threads`` is ignored, because every actor uses one."""
        return RayFederation(self, self._actors, run, **options)


class RayFederation(Federation):
    """Shards of users on Ray actors, behind the doors. Created by :meth:`RayPopulation.federation`."""

    def __init__(self, population: RayPopulation, actors: list[Any], run: Run, **options: Any) -> None:
        super().__init__(population, run, **options)
        self._population, self._actors = population, actors
        self.sparse = population.sparse
        self.lost = 0
        """Users who contributed nothing because their actor was lost for good; summed over releases."""

    def _collect(self, query: Query, bound: float, grid: float, chosen: Chosen | None = None) -> npt.NDArray[np.int64]:
        import ray

        message = wire.encode(query)
        # Large queries go through the object store once; small ones are faster inside the call.
        sent = ray.put(message) if len(message) > 100_000 else message
        pieces = (
            [None] * len(self._actors) if chosen is None else np.split(chosen, np.cumsum(self._population.sizes)[:-1])
        )
        answers = [
            actor.exact_sum.remote(sent, bound, grid, None if piece is None else np.ascontiguousarray(piece), digest)
            for actor, piece, digest in zip(self._actors, pieces, self._population.digests, strict=True)
        ]
        return self._added_up(answers, query.coordinates)

    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> Array:
        """Run ``work`` on the actors; it must be a HeadWork. Return one row per user."""
        import ray

        if not isinstance(work, HeadWork):
            raise TypeError(f"work for remote users must be a HeadWork, which is data. Found {type(work).__name__}.")
        message = wire.encode(work)
        asked = zip(self._actors, self._population.digests, strict=True)
        answers = [actor.users_map.remote(message, digest) for actor, digest in asked]
        try:
            return np.concatenate(ray.get(answers, timeout=self._population.timeout))
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
            raise ShardsLost(
                f"a shard is lost, or did not fit its users' heads within {self._population.timeout:g} s. "
                "Nothing was drawn: start the same run again to resume it."
            ) from None

    def _added_up(self, answers: Sequence[Any], coordinates: int) -> npt.NDArray[np.int64]:
        import ray

        level = list(answers)
        try:
            if len(level) > _TREE:
                add = ray.remote(_add)
                while len(level) > _TREE:
                    level = [add.remote(*level[i : i + _TREE]) for i in range(0, len(level), _TREE)]
            return (
                _add(*ray.get(level, timeout=self._population.timeout))
                if level
                else np.zeros(coordinates, dtype=np.int64)
            )
        except (wire.WireError, BoundExceeded):
            raise  # the query cannot be decoded, or breaks its bound: no shard is lost
        except ray.exceptions.RayError:
            return self._sum_of_reachable(answers, coordinates)

    def _sum_of_reachable(self, answers: Sequence[Any], coordinates: int) -> npt.NDArray[np.int64]:
        """Add the answers one by one, leaving out those of lost shards if a quorum is left."""
        import ray

        total, heard = np.zeros(coordinates, dtype=np.int64), 0
        # All shards have had the full timeout already; what is not ready now is lost.
        ready, _ = ray.wait(list(answers), num_returns=len(answers), timeout=_RESTART_SECONDS)
        for answer, size in zip(answers, self._population.sizes, strict=True):
            if answer not in ready:
                continue
            try:
                total += ray.get(answer)
                heard += size
            except (wire.WireError, BoundExceeded):
                raise
            except ray.exceptions.RayError:
                continue
        n_users = self._population.n_users
        self.lost += n_users - heard
        if heard < self._population.quorum * n_users:
            raise ShardsLost(
                f"shards with {n_users - heard} of {n_users} users are lost; the quorum is "
                f"{self._population.quorum:.0%}. Nothing was drawn: {self.recovery_hint}."
            )
        warnings.warn(
            f"shards with {n_users - heard} of {n_users} users are lost: they contribute nothing to this release.",
            RuntimeWarning,
            stacklevel=2,
        )
        return total


def cuts(n_users: int, workers: int) -> list[tuple[int, int]]:
    """Divide users into ranges of about equal size that end at block boundaries, or anywhere if there are few blocks.

    >>> cuts(10_000, 2), cuts(10, 3)
    ([(0, 5120), (5120, 10000)], [(0, 3), (3, 7), (7, 10)])
    """
    step = BLOCK if n_users >= 2 * BLOCK * workers else 1
    edges = [round(n_users * i / workers / step) * step for i in range(workers)] + [n_users]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


class _Actor:
    """A shard on a worker. Only integers on the grid, and heads for the driver, leave it."""

    def __init__(self, source: Any) -> None:
        cohort = source.read() if isinstance(source, Part) else source
        self._shard = Shard(cohort, threads=1)
        content = hashlib.sha256(np.ascontiguousarray(cohort.offsets).tobytes())
        content.update("\n".join(map(repr, cohort.users.tolist())).encode())
        self._digest = content.hexdigest()

    def about(self) -> dict[str, Any]:
        cohort = self._shard.cohort
        return {
            "users": cohort.n_users,
            "rows": cohort.n_rows,
            "features": cohort.n_features,
            "names": cohort.feature_names,
            "target": getattr(cohort, "target_name", None),
            "process": os.getpid(),
            "digest": self._digest,
        }

    def users(self) -> npt.NDArray[Any]:
        return self._shard.cohort.users

    def fingerprint(self, key: bytes) -> str:
        return rows_fingerprint(self._shard.cohort, key)

    def exact_sum(
        self, message: bytes, bound: float, grid: float, chosen: Chosen | None, digest: str
    ) -> npt.NDArray[np.int64]:
        self._check(digest)
        return self._shard.exact_sum(wire.decode(message), bound, grid, chosen)

    def users_map(self, message: bytes, digest: str) -> Array:
        self._check(digest)
        return self._shard.users_map(wire.decode(message))

    def _check(self, digest: str) -> None:
        """Raise if a restarted actor read different users, because a user might be in two shards then."""
        if digest != self._digest:
            raise DataError("the users of this shard differ from those at the start of the run. Restore the data.")


def _actor_class(gpus: float = 0.0) -> Any:
    import ray

    return ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(_Actor)


def _add(*sums: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.asarray(np.sum(sums, axis=0, dtype=np.int64))


def _slice(cohort: Cohort | SparseCohort, first: int, last: int) -> Any:
    if isinstance(cohort, Cohort):
        return cohort.take(np.arange(first, last))
    start, end = int(cohort.offsets[first]), int(cohort.offsets[last])
    offsets = cohort.offsets[first : last + 1] - start
    return SparseCohort(cohort.X[start:end], offsets, cohort.users[first:last], cohort.feature_names)
