"""scikit-learn's conventions, without importing scikit-learn for a fit.

Importing ``sklearn.base`` takes longer than a fit of thousands of users: it imports SciPy's statistics, and pandas
where that is installed. A fit needs one thing of it, the parameters of an estimator. So estimators derive from
:class:`Conventions`, which reads parameters itself, and has ``BaseEstimator`` as its base class as soon as
scikit-learn plays a part: if it was imported before the first estimator, or when something is asked for that
``BaseEstimator`` answers (``clone``, tags, routing of metadata, how an estimator is printed). From then on all
estimators are instances of ``BaseEstimator``, those made before included.
"""

from __future__ import annotations

import inspect
import sys
import threading
from typing import Any, Self

_LOCK = threading.Lock()


class _Alone:
    """The base class of :class:`Conventions` until scikit-learn is imported."""


class Conventions(_Alone):
    """An estimator whose parameters are those of its constructor, each stored unchanged."""

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the parameters, sorted, as scikit-learn does."""
        if cls.__init__ is object.__init__:
            return []
        return sorted(list(inspect.signature(cls.__init__).parameters)[1:])

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if ``deep``, also those of parameters that have some themselves."""
        found: dict[str, Any] = {}
        for name in self._get_param_names():
            value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{inner}": own for inner, own in value.get_params().items()}
            found[name] = value
        return found

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters by name; return the estimator."""
        self._following().set_params(**parameters)
        return self

    def __repr__(self) -> str:
        return str(self._following().__repr__())

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy with the same parameters."""
        copied: Self = self._following().__sklearn_clone__()
        return copied

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn should know of this estimator."""
        return self._following().__sklearn_tags__()

    def __getattr__(self, name: str) -> Any:
        # Methods that BaseEstimator would have: for routing (set_fit_request), and for notebooks (_repr_html_).
        if _of_base_estimator(name) and _Alone in Conventions.__bases__:
            follow_scikit_learn()
            return getattr(self, name)
        return object.__getattribute__(self, name)  # the same error again, in the words of whoever raised it

    def _following(self) -> Any:
        """Return what this estimator inherits from ``BaseEstimator``."""
        follow_scikit_learn()
        return super()


def follow_scikit_learn() -> None:
    """Make ``BaseEstimator`` the base class of :class:`Conventions`, once."""
    if _Alone not in Conventions.__bases__:
        return
    from sklearn.base import BaseEstimator

    with _LOCK:
        if _Alone not in Conventions.__bases__:
            return
        Conventions.__bases__ = (BaseEstimator,)
        for kind in _subclasses(Conventions):
            super(Conventions, kind).__init_subclass__()  # what BaseEstimator does when a class is made


def not_fitted(message: str) -> Exception:
    """Return scikit-learn's ``NotFittedError``."""
    from sklearn.exceptions import NotFittedError

    error: Exception = NotFittedError(message)
    return error


def _of_base_estimator(name: str) -> bool:
    if name.startswith("set_"):
        return name.endswith("_request")
    return name in ("get_metadata_routing", "_repr_html_", "_repr_mimebundle_")


def _subclasses(kind: Any) -> list[Any]:
    """Return a class and all that derive from it, each after its base classes."""
    found = [kind]
    for derived in kind.__subclasses__():
        found += [each for each in _subclasses(derived) if each not in found]
    return found


if "sklearn.base" in sys.modules:
    follow_scikit_learn()
