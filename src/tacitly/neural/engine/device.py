"""What a machine does, as opposed to what a user's numbers do: failures, threads, kernels that repeat themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceFailure(MemoryError):
    """The machine failed, not a user: out of memory, or a device that stopped. The door lets this one out."""


@contextmanager
def machine_failures() -> Iterator[None]:
    """Tell what a machine does from what a user's numbers do."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in text or "CUDA error" in text:
            raise DeviceFailure(f"{text.splitlines()[0]} Take a smaller chunk, or fewer rows_per_user.") from None
        raise


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep PyTorch from starting threads of its own inside ours."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic(tf32: bool = False) -> Iterator[None]:
    """Ask for kernels whose result does not depend on timing, and (unless ``tf32``) for whole float32 products."""
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.deterministic, convolutions.benchmark, convolutions.allow_tf32, products.allow_tf32
    convolutions.deterministic, convolutions.benchmark = True, False
    convolutions.allow_tf32 = products.allow_tf32 = tf32
    try:
        yield
    finally:
        convolutions.deterministic, convolutions.benchmark, convolutions.allow_tf32, products.allow_tf32 = before
