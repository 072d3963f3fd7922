"""A comparison with what users would have otherwise, on rows held out from every head.

A fifth of each user's rows is held out. All methods fit on the rest. The private part is the released one (differential
privacy bounds what it can contain about the held-out rows); only heads are fitted again. The numbers are computed from
private data and are not in any ledger: they are for the operator only.

Baselines get an intercept, features in units of their standard deviations, and missing cells replaced by their column's
mean. So a model that beats them is better than simple models with well-scaled inputs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.baselines.local import LocalModels
from tacitly.baselines.single import SingleModel
from tacitly.data.cohort import Cohort
from tacitly.heads.losses import Loss
from tacitly.privacy.certificate import Certificate, shown

_MOST_USERS = 4000  # enough for two digits; fitting local models of all users would take longer than the fit
_MOST_TRAINED = 50_000  # the non-private methods train on at most so many users, so that a copy of their rows fits
_PENALTIES = np.append(10.0 ** np.arange(-2.0, 4.0, 0.5), np.inf)  # of a user's slopes, in standard units
_CELLS = 1 << 21  # maximum of numbers that are loaded at once for users with the same number of rows
_SHARES = (0.05, 0.1, 0.2, 0.4, 0.7)  # of the way from the logarithm of a user's mean count to that of a local model
_CLEAR = 2.0  # an error is called smaller if it is smaller by this many standard errors
_PERFECT = 0.999  # from this R², accuracy or explained deviance on, the target may be among the columns
_ABSURD = 0.5  # from this share of all users' error on, one user decides the comparison alone
_MOST_WORK = 1e10  # users times weights³ up to which mixed effects are fitted again without noise: some minutes
_NOTHING = 0.02  # below this R² or explained deviance, almost nothing is predicted
_EXACT = 1.0 - 1e-12  # score of predictions whose only errors are rounding errors

OURS, TWIN, MEANS, LOCAL, SINGLE = (
    "tacitly (this model)",
    "this method, no noise",
    "users' own means",
    "local models",
    "one model for all",
)


Progress = Callable[[str], None]


def _silent(what: str) -> None:
    """Show no progress."""


class Comparable(Protocol):
    """A fitted private model whose heads can be fitted again on fewer rows."""

    certificate_: Certificate

    @property
    def loss(self) -> str:
        """The loss of the targets."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters."""

    def with_heads_of(self, cohort: Cohort) -> Any:
        """Return the same public model with heads fitted to these users' rows."""

    def _loss(self) -> Loss: ...


@dataclass(frozen=True)
class Line:
    """One method: what it shares, whether that is private, and its error and score on held-out rows.

    Squared error and R² for numbers, share of errors and accuracy for classes, (explained) deviance for counts.
    """

    method: str
    private: str
    error: float
    score: float
    doubt: float = 0.0
    """Standard error, over users, of the difference from this model's error."""


@dataclass(frozen=True)
class HeldOut:
    """Predictions of held-out rows by every method: private."""

    loss: Loss
    test: Cohort
    rows_kept: npt.NDArray[np.int64]
    """The number of rows to which each user's head was fitted."""
    predictions: dict[str, npt.NDArray[Any]]
    private: dict[str, str]
    ranges: str | None = None
    """See :func:`ranges_option`."""

    def lines(self) -> list[Line]:
        """Return one line per method."""
        return [self._line(name, predicted) for name, predicted in self.predictions.items()]

    def _line(self, method: str, predicted: npt.NDArray[Any]) -> Line:
        target = np.asarray(self.test.y, dtype=np.float64)
        counts, users = np.diff(self.test.offsets), self.test.n_users
        apart = (self.user_errors(OURS) - self.user_errors(method)) * (counts / counts.mean())
        doubt = float(apart.std(ddof=1) / math.sqrt(users)) if users > 1 else math.inf
        error, score = self.loss.error(target, predicted), self.loss.score(target, predicted)
        return Line(method, self.private[method], error, score, doubt)

    def without_absurd_users(self) -> tuple[HeldOut, int]:
        """Return this without users who alone have most of the error of every method, and the number of these users.

        Otherwise one extreme cell decides which method is better, and says nothing about the other users.
        """
        found, most = self, self.test.n_users // 100
        while found.test.n_users > self.test.n_users - most:
            counts = np.diff(found.test.offsets)
            errors = [found.user_errors(method) * counts for method in (OURS, MEANS, LOCAL)]
            shares = [sums / sums.sum() if sums.sum() > 0 else np.zeros(len(sums)) for sums in errors]
            worst = np.min(shares, axis=0)
            if not worst.max() > _ABSURD:
                break
            kept = np.arange(len(counts)) != worst.argmax()
            rows = np.repeat(kept, counts)
            found = replace(
                found,
                test=found.test.take(np.flatnonzero(kept)),
                rows_kept=found.rows_kept[kept],
                predictions={method: predicted[rows] for method, predicted in found.predictions.items()},
            )
        return found, self.test.n_users - found.test.n_users

    def user_errors(self, method: str) -> Array:
        """Return each user's mean error under one method."""
        errors = self.loss.errors(np.asarray(self.test.y, dtype=np.float64), self.predictions[method])
        sums: Array = np.add.reduceat(errors, self.test.offsets[:-1])
        return sums / np.diff(self.test.offsets)


def compare(model: Comparable, cohort: Cohort, *, random_state: int = 0) -> list[Line]:
    """Compare a fitted model with users' own models, one model for all, and the same method without privacy.

    The list is empty if no user has two rows, because then no row can be held out. The same method without privacy is
    left out if it would take much longer than this model did.

    >>> import tacitly
    >>> X, y, users, *_ = tacitly.datasets.make_shared_subspace(500, 8, 1, 10, random_state=0)
    >>> cohort = tacitly.Cohort.from_arrays(X, y, users)
    >>> lines = compare(tacitly.PrivateFedRep(rank=1, epsilon=8.0).fit(cohort), cohort)
    >>> [line.method for line in lines]
    ["users' own means", 'local models', 'one model for all', 'this method, no noise', 'tacitly (this model)']
    """
    found = held_out(model, cohort, random_state=random_state)
    return [] if found is None else found.lines()


def held_out(
    model: Comparable, cohort: Cohort, *, random_state: int = 0, progress: Progress = _silent
) -> HeldOut | None:
    """Hold out rows, fit every method to the others and predict; None if no user has two rows.

    ``progress`` is told what is fitted.
    """
    rng = np.random.default_rng(random_state)
    if cohort.n_users > _MOST_TRAINED:
        cohort = cohort.take(np.sort(rng.permutation(cohort.n_users)[:_MOST_TRAINED]))
    if not (np.diff(cohort.offsets) > 1).any():
        return None
    train, test = _split(cohort, rng)
    some = np.sort(rng.permutation(train.n_users)[:_MOST_USERS])
    probe, epsilon, loss = test.take(some), model.certificate_.epsilon, model._loss()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a baseline that has not quite converged is still used
        predictions = alternatives(train, test, loss, some, progress)
        if _twin_work(model, train) <= _MOST_WORK:
            # Not stored, because heads may be large.
            predictions[TWIN] = _predicted(_not_private(model, train, progress), probe)
    progress(OURS)
    predictions[OURS] = _predicted(model.with_heads_of(train), probe)
    private = {MEANS: "nothing shared", LOCAL: "nothing shared", SINGLE: "no", TWIN: "no"}
    private[OURS] = f"ε = {shown(epsilon)}" if np.isfinite(epsilon) else "no"
    return HeldOut(loss, probe, np.diff(train.offsets)[some], predictions, private, ranges_option(model))


def alternatives(
    train: Cohort,
    test: Cohort,
    loss: Loss,
    some: npt.NDArray[np.int64] | None = None,
    progress: Progress = _silent,
) -> dict[str, npt.NDArray[Any]]:
    """Return the predictions of users' own means, local models and one model for all for held-out rows.

    ``some`` are the positions of the users whose rows are predicted; None for all users.
    """
    chosen = np.arange(train.n_users) if some is None else some
    same: dict[str, Any] = {"loss": loss.name, "classes": loss.classes, "fit_intercept": True}
    plain, plain_test = _in_plain_units(train, test)
    mine, probe, plain_probe = plain.take(chosen), test.take(chosen), plain_test.take(chosen)
    found = {MEANS: _own_means(loss, train.take(chosen), probe)}
    progress(LOCAL)
    squared = loss.name == "squared"
    found[LOCAL] = _own_ridges(mine, plain_probe) if squared else _alone(loss, same, mine, plain_probe)
    progress(SINGLE)
    found[SINGLE] = _predicted(SingleModel(**same).fit(plain), plain_probe)
    return found


def ranges_option(model: Comparable) -> str | None:
    """Return the command's option that declares columns' ranges, if the method has one that may still help."""
    parameters = model.get_params()
    if "schema" in parameters:
        return "--range"
    return "--feature-range" if parameters.get("feature_range", 0) is None else None


def verdict(lines: list[Line], ranges: str | None = None) -> str:
    """Return a sentence that says whether sharing helped against the users' own means, and if not, what to do.

    ``ranges`` is the model's :func:`ranges_option`.

    >>> verdict([Line(MEANS, "", 2.0, 0.0), Line(LOCAL, "", 1.5, 0.0), Line(SINGLE, "", 3.0, 0.0),
    ...          Line(TWIN, "", 0.9, 0.0), Line(OURS, "", 1.0, 0.0)])
    "Sharing helped: the error is 50 % below that of the users' own means, and 33 % below that of local models."

    If one model for all is clearly better than this model, another sentence says so.
    """
    line = {line.method: line for line in lines}
    ours, means, local = (line[method].error for method in (OURS, MEANS, LOCAL))
    nearest = line[MEANS] if means <= local else line[LOCAL]
    best, name = nearest.error, "the users' own means" if means <= local else "local models"
    if means == 0.0 or line[MEANS].score > _EXACT:
        return "There was nothing to learn: the target does not change within a user, so users' own means are exact."
    if ours < best and _below(ours, best) == "0 %":
        return f"Sharing made no difference: the error is as large as that of {name}, which need no sharing."
    if ours < best:
        also = f", and {_below(ours, local)} below that of local models" if local != means else ""
        said = f"the error is {_below(ours, means)} below that of the users' own means{also}"
        single = _single_is_better(line)
        if best - ours < _CLEAR * nearest.doubt:
            return f"Sharing may have helped: {said}, a difference that may well be chance.{single}"
        return f"Sharing helped: {said}.{_too_good(line)}{single or _too_little(line)}"
    also = "" if ranges is None else f", or public ranges ({ranges})"
    if TWIN not in line:
        why = f"More users, a larger epsilon, fewer columns{also} may help."
    elif line[TWIN].error < best:
        why = f"The noise is why: more users, a larger epsilon, fewer columns{also} help."
    else:
        units = "declare the columns' public range (--feature-range), try" if ranges == "--feature-range" else "try"
        why = f"Without noise it would not have helped either: {units} other columns, or another --method."
    if _below(ours, means) != "0 %" and ours < means:
        said = f"{_below(ours, means)} below that of the users' own means, but {_above(ours, local)} local models"
    else:
        said = f"{_above(ours, best)} {name}"
    return f"Sharing did not help: the error is {said}, which need no sharing. {why}"


def _too_good(line: dict[str, Line]) -> str:
    """Return a caution if one model for all is almost exact, and users' own means are not."""
    if line[SINGLE].score < _PERFECT or line[MEANS].score > _PERFECT:
        return ""
    return " One model for all is almost exact, too: does a column repeat the target, or follow from it?"


def _single_is_better(line: dict[str, Line]) -> str:
    """Return a caution if one model for all, which nobody's own rows change, has a clearly smaller error."""
    single, ours = line[SINGLE], line[OURS].error
    if not (0.0 < ours - single.error > _CLEAR * single.doubt) or _below(single.error, ours) == "0 %":
        return ""
    return (
        f" But one model for all is better: its error is {_below(single.error, ours)} below that of this model. Users' "
        "own rows may show little about how they differ."
    )


def _too_little(line: dict[str, Line]) -> str:
    """Return a caution if one model for all is as good, and hardly better than one number for all."""
    if line[OURS].score > _NOTHING or line[SINGLE].error > (1.0 + _NOTHING) * line[OURS].error:
        return ""
    return " But hardly anything was learned: one number for everybody predicts about as well."


def _below(error: float, other: float) -> str:
    less = f"{100.0 * (1.0 - error / other):.0f} %" if other > 0 else "0 %"
    return "over 99 %" if less == "100 %" else less


def _above(error: float, other: float) -> str:
    more = 100.0 * (error / other - 1.0) if other > 0 else 0.0
    return f"{more:.0f} % above that of" if more >= 0.5 else "as large as that of"


def _split(cohort: Cohort, rng: np.random.Generator) -> tuple[Cohort, Cohort]:
    """Hold out a fifth of every user's rows (at least one); users with fewer than two rows are left out."""
    counts = np.diff(cohort.offsets)
    order = rng.random(cohort.n_rows)
    owner = np.repeat(np.arange(cohort.n_users), counts)
    ranks = np.empty(cohort.n_rows, dtype=np.int64)
    ranks[np.lexsort((order, owner))] = np.arange(cohort.n_rows)
    held = ranks - cohort.offsets[owner] < np.maximum(counts // 5, 1)[owner]
    kept = (counts >= 2)[owner]
    return _rows(cohort, owner, kept & ~held), _rows(cohort, owner, kept & held)


def _rows(cohort: Cohort, owner: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]) -> Cohort:
    users, counts = np.unique(owner[chosen], return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    assert cohort.y is not None
    X, y = np.ascontiguousarray(cohort.X[chosen]), cohort.y[chosen]
    return Cohort(X, y, offsets, cohort.users[users], cohort.feature_names, cohort.target_name, cohort.schema)


def _in_plain_units(train: Cohort, test: Cohort) -> tuple[Cohort, Cohort]:
    """Return both cohorts with missing cells at their column's mean, centred, in units of the standard deviation."""
    known = np.isfinite(train.X)
    count = np.maximum(known.sum(axis=0), 1)
    center = np.where(known, train.X, 0.0).sum(axis=0, dtype=np.float64) / count
    scale = np.sqrt((np.where(known, train.X - center, 0.0) ** 2).sum(axis=0, dtype=np.float64) / count)
    scale[~(scale > 0)] = 1.0

    def plain(cohort: Cohort) -> Cohort:
        rows = (np.where(np.isfinite(cohort.X), cohort.X, center) - center) / scale
        return replace(cohort, X=rows.astype(cohort.dtype), schema=None)

    return plain(train), plain(test)


def _own_means(loss: Loss, train: Cohort, test: Cohort) -> npt.NDArray[Any]:
    """Predict each user by their own targets: the mean, or the most frequent class."""
    counts, rows = np.diff(test.offsets), np.diff(train.offsets)
    if loss.classes is not None:
        labels = np.asarray(loss.classes)
        votes = np.stack([np.add.reduceat(train.y == label, train.offsets[:-1], dtype=float) for label in labels])
        return np.repeat(labels[votes.argmax(axis=0)], counts)
    assert train.y is not None
    sums: Array = np.add.reduceat(train.y, train.offsets[:-1], dtype=np.float64)
    if loss.name == "poisson":  # add half a row at the population's rate, so that no rate is zero
        return np.repeat((sums + 0.5 * train.y.mean()) / (rows + 0.5), counts)
    return np.repeat(sums / rows, counts)


def _own_ridges(train: Cohort, test: Cohort) -> Array:
    """Predict with one ridge regression per user, intercept unpenalised.

    The penalty is the one with the smallest leave-one-out error over all users; it may be infinite (the user's mean).
    Leave-one-out on a single user's two or three rows could not distinguish an exploding slope from a good one.
    """
    errors = np.zeros(len(_PENALTIES))
    predicted = np.zeros((len(_PENALTIES), test.n_rows))
    for users in _alike(train, test):
        own, later = (_places(cohort, users) for cohort in (train, test))
        assert train.y is not None
        X, y = train.X[own].astype(np.float64), train.y[own].astype(np.float64)
        center, level = X.mean(axis=1, keepdims=True), y.mean(axis=1, keepdims=True)
        left, values, right = np.linalg.svd(X - center, full_matrices=False)
        turned = np.einsum("urk,ur->uk", left, y - level)
        shrunk = values[:, None] / (values[:, None] ** 2 + _PENALTIES[:, None])
        if X.shape[1] > 1:
            hat = shrunk * values[:, None]
            leverage = 1.0 / X.shape[1] + hat @ np.swapaxes(left**2, 1, 2)
            found = (hat * turned[:, None]) @ np.swapaxes(left, 1, 2)
            errors += np.square(((y - level)[:, None] - found) / (1.0 - leverage)).sum(axis=(0, 2))
        ahead = (shrunk * turned[:, None]) @ right @ np.swapaxes(test.X[later] - center, 1, 2)
        predicted[:, later] = np.swapaxes(level[:, None] + ahead, 0, 1)
    return np.asarray(predicted[int(errors.argmin())])


def _alike(train: Cohort, test: Cohort) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the positions of users with the same numbers of rows, a bounded number of cells at a time."""
    sizes = np.column_stack([np.diff(train.offsets), np.diff(test.offsets)])
    for size in np.unique(sizes, axis=0):
        users = np.flatnonzero((sizes == size).all(axis=1))
        most = max(1, _CELLS // int((size.sum() + 1) * (train.n_features + len(_PENALTIES))))
        yield from (users[first : first + most] for first in range(0, len(users), most))


def _places(cohort: Cohort, users: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions of the rows of users with equal numbers of rows, one line per user."""
    size = int(cohort.offsets[users[0] + 1] - cohort.offsets[users[0]])
    return np.asarray(cohort.offsets[users][:, None] + np.arange(size))


def _alone(loss: Loss, same: dict[str, Any], train: Cohort, test: Cohort) -> npt.NDArray[Any]:
    """Predict with one model per user, shrunk to the user's own mean as far as is best on the held-out rows.

    This choice favours the baseline. A fit to two or three counts alone may predict ten billion for the next count.
    """
    own, means = _predicted(LocalModels(**same).fit(train), test), _own_means(loss, train, test)
    tried = [own, means]
    if loss.name == "poisson":
        near = np.clip(np.log(np.maximum(own, 1e-300) / means), -50.0, 50.0)
        tried += [means * np.exp(share * near) for share in _SHARES]
    target = np.asarray(test.y, dtype=np.float64)
    return min(tried, key=lambda prediction: loss.error(target, prediction))


def _twin_work(model: Comparable, train: Cohort) -> float:
    """Return the work of a fit without noise, if it grows with the third power of the number of columns; else 0.

    With noise, most of a thousand columns are left out; without it the fit uses all of them, which may take hours.
    """
    from tacitly.methods.mixed_effects.estimator import MixedEffects

    return float(train.n_users) * (train.n_features + 1.0) ** 3 if isinstance(model, MixedEffects) else 0.0


def _not_private(model: Comparable, train: Cohort, progress: Progress) -> Any:
    """Fit the same method without noise."""
    from tacitly.methods.margin.estimator import MarginClassifier

    given = model.get_params(deep=False)
    if isinstance(model, MarginClassifier):  # without noise there is nothing to select
        from tacitly.baselines.fedrep import FedRep

        same = {name: given[name] for name in ("rank", "fit_intercept", "loss", "classes")}
        progress(TWIN)
        return FedRep(**same).fit(train)
    # Not scikit-learn's clone: it copies parameters, and an open ledger cannot be copied.
    ours = {"epsilon": math.inf, "ledger": None, "noise_seed": None, "engine": None, "mode": "auto"}
    ours |= {"clips": None, "start": "random"} if "clips" in given else {}
    twin = type(model)(**{**given, **{name: value for name, value in ours.items() if name in given}})
    return twin.fit(train, on_release=lambda name: progress(f"{TWIN}, {name}"))  # type: ignore[attr-defined]


def _predicted(fitted: Any, test: Cohort) -> npt.NDArray[Any]:
    prediction: npt.NDArray[Any] = fitted.predict(test.X, np.repeat(test.users, np.diff(test.offsets)))
    return prediction
