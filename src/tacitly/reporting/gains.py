"""Which users it helped: each user's error on held-out rows, with and without sharing. Private edition only.

Everything here is computed from private rows and is recorded in no ledger. It is only for the person who has the table,
and pages that show it are marked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.baselines.comparison import LOCAL, OURS, HeldOut, verdict
from tacitly.reporting.charts import Scale, bar, box, drawn, histogram
from tacitly.reporting.page import number, paragraph

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_MEASURES = {
    "squared": ("squared error", "R²"),
    "poisson": ("deviance", "explained"),
    "classes": ("wrong", "accuracy"),
}


def comparison(found: HeldOut) -> str:
    """Return the error of this model next to what users would have without it."""
    found, absurd = found.without_absurd_users()
    lines = found.lines()
    measure, score = _MEASURES["classes" if found.loss.classifies else found.loss.name]
    scale = Scale.of(np.array([line.error for line in lines]))
    chart = drawn(
        [line.method for line in lines],
        [bar(scale, line.error) for line in lines],
        [
            ("private?", [line.private for line in lines]),
            (measure, [number(line.error) for line in lines]),
            (score, [f"{line.score:.3f}".replace("-", "−") for line in lines]),
        ],
        first="method",
        scale=scale,
        caption="A fifth of each user's rows was held out; everybody's own part was fitted to the others.",
    )
    words = verdict(lines, found.ranges).replace("--method", "method").replace(f" ({found.ranges})", "")
    if absurd:
        words += f" Left out here: {absurd} of all users, who cause most of the error of every method (extreme cells?)."
    return paragraph(words) + chart


def helped(found: HeldOut) -> str:
    """Return the distribution of the gain over local models, for all users and by number of rows."""
    ours, local, rows = found.user_errors(OURS), found.user_errors(LOCAL), found.rows_kept
    squared = found.loss.name == "squared"
    gain = np.sqrt(local) - np.sqrt(ours) if squared else local - ours
    unit = "smaller root mean squared error" if squared else "smaller error"
    words = (
        f"For {_share(gain > 0)} of {len(gain):,} users this model predicts their held-out rows better than a model of "
        f"their own rows alone, for {_share(gain == 0)} as well, for {_share(gain < 0)} worse. With one or "
        "two held-out rows per user much of the spread is chance; the medians and the rows of the table are what to "
        "look at."
    )
    body, moved = paragraph(words), gain[gain != 0]
    if moved.size:
        title = f"Gain over a local model, of the {moved.size:,} users whose error changed (blue: it is smaller)"
        body += histogram(moved, title=title, what="users", unit=unit)
    return body + _by_rows(gain, ours, local, rows, unit)


def _by_rows(gain: Array, ours: Array, local: Array, rows: npt.NDArray[np.int64], unit: str) -> str:
    groups = [(name, chosen) for name, chosen in _groups(rows) if chosen.any()]
    quantiles = [np.quantile(gain[chosen], _QUANTILES) for _, chosen in groups]
    scale = Scale.of(*quantiles)
    return drawn(
        [name for name, _ in groups],
        [box(scale, list(one)) for one in quantiles],
        [
            ("users", [f"{int(chosen.sum()):,}" for _, chosen in groups]),
            ("better for", [_share(gain[chosen] > 0) for _, chosen in groups]),
            ("worse for", [_share(gain[chosen] < 0) for _, chosen in groups]),
            ("median gain", [number(float(one[2])) for one in quantiles]),
            ("total error", [_change(float(ours[chosen].mean()), float(local[chosen].mean())) for _, chosen in groups]),
        ],
        first=f"rows of a user; {unit}",
        scale=scale,
        caption="By number of rows. Box: half of the users; line: eight in ten; thick mark: the median.",
    )


def _share(chosen: npt.NDArray[np.bool_]) -> str:
    return f"{100 * float(np.mean(chosen)):.0f} %"


def _groups(rows: npt.NDArray[np.int64]) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """Return users grouped by number of rows: 1, 2, 3–4, 5–8, 9–16 and so on."""
    most, low, found = int(rows.max(initial=1)), 1, []
    while low <= most:
        high = low if low < 3 else 2 * (low - 1)
        found.append(
            (f"{low} row{'s' * (low > 1)}" if high == low else f"{low} to {high} rows", (rows >= low) & (rows <= high))
        )
        low = high + 1
    return found


def _change(ours: float, local: float) -> str:
    return "–" if not local > 0 else f"{'−' if ours <= local else '+'}{abs(100 * (1 - ours / local)):.0f} %"
