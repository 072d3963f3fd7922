"""A lazy ``njit``: Numba is imported when a compiled function is first called.

A node that answers for a handful of users runs the plain NumPy form of a query and never needs Numba, whose import
takes longer than the answer. So modules that define queries use :func:`njit` from here instead of Numba's.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

_LOCK = threading.RLock()


class Compiled:
    """A function that becomes a Numba dispatcher on its first call, together with the functions it calls."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._dispatcher: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled function."""
        return (self._dispatcher or self.dispatcher())(*arguments)

    def dispatcher(self) -> Any:
        """Return Numba's dispatcher."""
        from numba import njit as compile_lazily

        with _LOCK:
            if self._dispatcher is None:
                # Numba resolves callees among the function's globals and accepts its own dispatchers only.
                names = self._function.__globals__
                for name in self._function.__code__.co_names:
                    if isinstance(names.get(name), Compiled):
                        names[name] = names[name].dispatcher()
                self._dispatcher = compile_lazily(**self._options)(self._function)
        return self._dispatcher


class Elsewhere(Compiled):
    """A compiled function of a module that imports Numba; the module is imported when the function is needed."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name
        self._dispatcher: Any = None

    def dispatcher(self) -> Any:
        """Return Numba's dispatcher."""
        self._dispatcher = getattr(importlib.import_module(self._module), self._name)
        return self._dispatcher


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator like Numba's ``njit`` that compiles on the first call.

    >>> @njit(cache=False)
    ... def double(x):
    ...     return 2 * x
    >>> double(21)
    42
    """

    def mark(function: Callable[..., Any]) -> Compiled:
        return Compiled(function, options)

    return mark
