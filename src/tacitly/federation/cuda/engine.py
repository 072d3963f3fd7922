"""The engine and its federation: a local federation whose shard keeps its rows on a device."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from tacitly.data.cohort import Cohort
from tacitly.federation.local import LocalFederation, LocalPopulation
from tacitly.privacy.ledger import Run

if TYPE_CHECKING:
    import torch

NO_DEVICE = "engine='cuda' needs PyTorch with a CUDA device; found none. Use engine='local'."
NO_PYTORCH = "engine='cuda' needs PyTorch: pip install 'tacitly[cuda]'. Or use engine='local'."


@dataclass(frozen=True, kw_only=True)
class CudaEngine:
    """Run an estimator on a GPU: ``PrivateFedRep(..., engine="cuda")``, or ``engine=CudaEngine(device="cuda:1")``.

    Parameters
    ----------
    device
        A device of PyTorch. ``"cpu"`` runs the device forms in plain PyTorch, for tests: the local engine is faster.
    resident
        Whether all rows are kept on the device; otherwise every release reads them from the host. None: if there is
        room for 64 rows per user, because how many rows there are is private. With many more, say False.

    Examples
    --------
    >>> import tacitly
    >>> from tacitly.federation.cuda.engine import CudaEngine
    >>> tacitly.PrivateFedRep(rank=2, epsilon=1.0, engine=CudaEngine(device="cuda:1")).engine.device
    'cuda:1'
    """

    device: str = "cuda"
    resident: bool | None = None

    def population(self, source: Any) -> LocalPopulation:
        """Return the users of ``source``, whose rows go to the device with the first release."""
        if source is None:
            raise ValueError("fit was called without rows, and engine='cuda' knows no users. Give rows or a cohort.")
        return CudaPopulation(source, device=self.checked_device(), resident=self.resident)

    def checked_device(self) -> torch.device:
        """Return the device; raise where there is none."""
        if find_spec("torch") is None:
            raise ModuleNotFoundError(NO_PYTORCH, name="torch")
        import torch

        device = torch.device(self.device)
        if device.type != "cpu" and not torch.cuda.is_available():
            raise RuntimeError(NO_DEVICE)
        return device


@dataclass(frozen=True)
class CudaPopulation(LocalPopulation):
    """A cohort in this process whose rows go to a device."""

    device: Any = None
    resident: bool | None = None

    def federation(self, run: Run, **options: Any) -> LocalFederation:
        """Put the users behind the doors; sparse rows stay on the host."""
        if not isinstance(self.cohort, Cohort) or not isinstance(self.cohort.X, np.ndarray):
            return LocalFederation(self.cohort, run, **options)
        return CudaFederation(self, run, **options)


class CudaFederation(LocalFederation):
    """A cohort behind the doors, with its rows on a device."""

    def __init__(self, population: CudaPopulation, run: Run, *, threads: int | None = None, **options: Any) -> None:
        from tacitly.federation.cuda.shard import DeviceShard

        super().__init__(population.cohort, run, threads=threads, **options)
        self._shard = DeviceShard(population.cohort, population.device, threads=threads, resident=population.resident)
