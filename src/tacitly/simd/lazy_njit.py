"""Compiled functions that load their compiler when they are first called.

A node that answers for a handful of users runs the plain NumPy form of a query and never needs Numba, whose import
takes longer than the answer. So modules that define queries mark kernels with :func:`njit` from here instead of
Numba's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

_LOCK = threading.RLock()


class Compiled:
    """A function that becomes Numba's on its first call, together with those that it calls."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._made: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled form."""
        return (self._made or self.made())(*arguments)

    def made(self) -> Any:
        """Return Numba's dispatcher."""
        from numba import njit as compile_lazily

        with _LOCK:
            if self._made is None:
                # Numba looks names up among the function's globals and knows its own dispatchers only.
                known = self._function.__globals__
                for name in self._function.__code__.co_names:
                    if isinstance(known.get(name), Compiled):
                        known[name] = known[name].made()
                self._made = compile_lazily(**self._options)(self._function)
        return self._made


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's ``njit``, put off until the function is called.

    >>> @njit(cache=False)
    ... def double(x):
    ...     return 2 * x
    >>> double(21)
    42
    """

    def mark(function: Callable[..., Any]) -> Compiled:
        return Compiled(function, options)

    return mark
