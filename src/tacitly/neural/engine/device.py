"""Properties of the device that do not depend on the data: failures, threads, deterministic kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceFailure(MemoryError):
    """The device failed (it is out of memory, or stopped), not a user's values. The federation does not catch this."""


@contextmanager
def device_failures() -> Iterator[None]:
    """Raise :class:`DeviceFailure` for errors of the device; errors caused by a user's values pass unchanged."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in text or "CUDA error" in text:
            raise DeviceFailure(f"{text.splitlines()[0]} Use a smaller chunk, or fewer rows_per_user.") from None
        raise


class _OneThread:
    """Number of threads inside the context, and PyTorch's number of threads before the first of them entered."""

    lock, inside, before = threading.Lock(), 0, 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep PyTorch from starting threads inside worker threads, until the last of them has left the context."""
    with _OneThread.lock:
        if not _OneThread.inside:
            _OneThread.before = torch.get_num_threads()
            torch.set_num_threads(1)
        _OneThread.inside += 1
    try:
        yield
    finally:
        with _OneThread.lock:
            _OneThread.inside -= 1
            if not _OneThread.inside:
                torch.set_num_threads(_OneThread.before)


@contextmanager
def deterministic(tf32: bool = False) -> Iterator[None]:
    """Select kernels whose result does not depend on timing, with (unless ``tf32``) full float32 products."""
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.deterministic, convolutions.benchmark, convolutions.allow_tf32, products.allow_tf32
    convolutions.deterministic, convolutions.benchmark = True, False
    convolutions.allow_tf32 = products.allow_tf32 = tf32
    try:
        yield
    finally:
        convolutions.deterministic, convolutions.benchmark, convolutions.allow_tf32, products.allow_tf32 = before
