"""Functions are compiled when they are first called, for whoever calls them."""

from __future__ import annotations

import gc

import numpy as np

from tacitly.simd.lazy_njit import njit


@njit(cache=False)
def twice(x):  # type: ignore[no-untyped-def]
    return 2 * x


@njit(cache=False)
def twice_and_one(x):  # type: ignore[no-untyped-def]
    return twice(x) + 1


def test_python_and_other_kernels_may_call_the_same_function() -> None:
    assert twice_and_one(3) == 7
    assert twice(3) == 6
    assert twice_and_one(0.5) == 2.0
    inside, outside = (twice.dispatcher(inside=inside) for inside in (True, False))
    assert (
        inside.py_func.__qualname__ != outside.py_func.__qualname__
    )  # or one's cached code would be loaded as the other's
    assert len(inside.signatures) == 2
    assert len(outside.signatures) == 1


def test_the_garbage_collector_pauses_while_numba_compiles_and_only_then() -> None:
    from numba.core import event

    seen = []

    class Watching(event.Listener):  # type: ignore[misc]
        def on_start(self, event: object) -> None:
            seen.append(gc.isenabled())

        def on_end(self, event: object) -> None:
            seen.append(gc.isenabled())

    twice(1j)  # pauses are registered with the first function, so before this listener
    with event.install_listener("numba:compile", Watching()):
        twice_and_one(1j)
    assert seen
    assert not any(seen[:-1])  # nested: the last to end is the one around the others
    assert gc.isenabled()
    gc.disable()
    try:
        twice_and_one(np.float32(1))
        assert not gc.isenabled()  # whoever had paused it keeps it paused
    finally:
        gc.enable()
