"""Functions are compiled when they are first called, for whoever calls them."""

from __future__ import annotations

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
