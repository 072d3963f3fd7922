"""A lazy ``njit``: Numba is imported when a compiled function is first called.

A node that answers for a few users runs the plain NumPy form of a query and never needs Numba, whose import takes
longer than the answer. So modules that define kernels use :func:`njit` from here instead of Numba's.

Kernels call each other far more often than Python calls them. Functions that are called by compiled code are compiled
without the two wrappers for calls from Python and C, which saves a quarter of the compile time. The garbage collector
is paused during compilation, because searching for cycles among the compiler's many objects takes another tenth or
more. Processes that need the same function at the same time compile it once: :mod:`tacitly.simd.one_compiler`.
"""

from __future__ import annotations

import functools
import gc
import importlib
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

from tacitly.simd.one_compiler import OneCompiler

MANY = 8192
"""From this number of users on, compiled kernels are used instead of array operations; fewer would wait for
compiling."""

UNCOUNTED: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "fastmath": {"contract"},
    "error_model": "numpy",
    "_nrt": False,
}
"""Options of functions that create and return no arrays, for calls from kernels that own the arrays.

Numba counts references in every function that takes an array, by atomic operations that wait for all earlier stores. If
such functions are called for every eight users, this takes a sixth of the time.
"""

_CELLS = 1 << 16  # users times features up to which array operations compute queries linear in both
_NARROW = 32  # features up to which array operations form a matrix over all features for every user
_LOCK = threading.RLock()

TOLD: list[Callable[[], None]] = []
"""Called whenever a compilation starts. The list is defined here, because Numba's listeners would import Numba."""


def few(n_users: int, n_features: int) -> bool:
    """Whether there are so few users that array operations take less time than compiling or loading kernels.

    Only public sizes decide, never numbers of rows, because the last bits of all results depend on the form.

    >>> few(5000, 8), few(5000, 64), few(100_000, 1), few(10, 1000)
    (True, False, False, False)
    """
    return n_users < MANY and n_features <= _NARROW and n_users * n_features <= _CELLS


class Compiled:
    """A function that becomes a Numba dispatcher on its first call, together with the functions it calls."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._dispatchers: dict[bool, Any] = {}
        self._from_python: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled function."""
        if self._from_python is None:
            self._from_python = self.dispatcher()
        return self._from_python(*arguments)

    def dispatcher(self, *, inside: bool = False) -> Any:
        """Return Numba's dispatcher: for Python, or for calls from ``inside`` other compiled functions only."""
        from numba import njit as compile_lazily
        from numba.core.caching import FunctionCache

        with _LOCK:
            _watch_compiler()
            if inside not in self._dispatchers:
                wrappers: dict[str, Any] = {"no_cfunc_wrapper": True, "no_cpython_wrapper": inside}
                made: Any = compile_lazily(**self._options, **wrappers)(self._copy(inside))
                if isinstance(made._cache, FunctionCache):
                    made._cache = OneCompiler(made._cache)
                self._dispatchers[inside] = made
            return self._dispatchers[inside]

    def _copy(self, inside: bool) -> FunctionType:
        """Return the function with dispatchers for the functions it calls, because Numba accepts only dispatchers.

        The inside version has another name, because compiled code is cached by name and signature only.
        """
        function: Any = self._function
        names = dict(function.__globals__)
        for name in function.__code__.co_names:
            if isinstance(names.get(name), Compiled):
                names[name] = names[name].dispatcher(inside=True)
        copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
        copied.__module__ = function.__module__
        copied.__qualname__ = function.__qualname__ + (".inside" if inside else "")
        return copied


class Elsewhere(Compiled):
    """A compiled function of a module that imports Numba; the module is imported when the function is needed."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name
        self._from_python: Any = None

    def dispatcher(self, *, inside: bool = False) -> Any:
        """Return Numba's dispatcher, or what else compiled functions may call."""
        found = getattr(importlib.import_module(self._module), self._name)
        return found.dispatcher(inside=inside) if isinstance(found, Compiled) else found


@functools.cache
def _watch_compiler() -> None:
    """When Numba compiles, call the listeners and pause the garbage collector; unlock functions that fail to compile.

    Numba compiles in one thread at a time.
    """
    from numba.core import event

    class Watching(event.Listener):
        def __init__(self) -> None:
            self.depth, self.enabled = 0, False  # compiling a function includes compiling the functions it calls

        def on_start(self, event: Any) -> None:
            for tell in TOLD:
                tell()
            if self.depth == 0:
                self.enabled = gc.isenabled()
                gc.disable()
            self.depth += 1

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            cache = event.data["dispatcher"]._cache
            if event._exc_details is not None and isinstance(cache, OneCompiler):  # is_failed has the wrong value
                cache.release()
            if self.depth == 0 and self.enabled:
                gc.enable()

    event.register("numba:compile", Watching())  # type: ignore[no-untyped-call]


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
