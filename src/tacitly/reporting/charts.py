"""Charts as tables: every row has its name and numbers, and below the name a line or bar that shows them.

Inline SVG, written here. Vega-Lite and Plotly need JavaScript (0.5 MB or more, and a content policy that allows it) to
show anything, and their canvas has no text for screen readers and printers. A picture from Matplotlib is 20–100 kB, has
the same size on phones and paper, and ignores the dark mode. Here a row with a bar is a few hundred bytes, fits any
width (positions are in per cent), and uses the page's colours. Screen readers read the table, so the drawings are
hidden from them. Only the histogram is a picture; its table is folded below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array
from tacitly.reporting.page import folded, framed, number, row, table, text

_DRAWING = '<svg aria-hidden="true" focusable="false">{}</svg>'


@dataclass(frozen=True)
class Scale:
    """The values at the left and right end of a drawing."""

    low: float
    high: float

    @classmethod
    def of(cls, *values: Array | Sequence[float] | float) -> Scale:
        """Return a scale that contains all values and zero, with some margin."""
        every = np.concatenate([np.ravel(np.asarray(value, dtype=np.float64)) for value in (*values, 0.0)])
        every = every[np.isfinite(every)]
        low, high = float(every.min()), float(every.max())
        air = 0.04 * (high - low) or 1.0
        return cls(low - air if low < 0 else 0.0, high + air if high > 0 else 0.0)

    def place(self, value: float) -> str:
        """Return the position of a value, in per cent; values beyond the ends are placed at the ends.

        >>> Scale(-1.0, 3.0).place(0.0)
        '25%'
        """
        if not math.isfinite(value):
            return "0%"
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return f"{100 * min(1.0, max(0.0, share)):.4g}%"

    def width(self, low: float, high: float) -> str:
        """Return the width of an interval."""
        return f"{max(0.0, float(self.place(high)[:-1]) - float(self.place(low)[:-1])):.4g}%"

    @property
    def zero(self) -> str:
        """A thin line at zero."""
        at = self.place(0.0)
        return f'<line class="zero" x1="{at}" x2="{at}" y1="0" y2="14"/>'

    @property
    def axis(self) -> str:
        """The values at the two ends, for the head of the column."""
        return f'<span class="axis"><span>{_short(self.low)}</span><span>{_short(self.high)}</span></span>'


def _short(value: float) -> str:
    return number(float(f"{value:.2g}"))


def bar(scale: Scale, value: float, floor: float | None = None) -> str:
    """Return a bar from zero to a value, and a dashed line at ``floor``."""
    low, high = min(0.0, value), max(0.0, value)
    shape = f'<rect class="mark" x="{scale.place(low)}" width="{scale.width(low, high)}" y="3" height="8"/>'
    if floor is not None:
        at = scale.place(floor)
        shape += f'<line class="floor" x1="{at}" x2="{at}" y1="0" y2="14"/>'
    return _DRAWING.format(shape + scale.zero)


def whisker(scale: Scale, value: float, interval: tuple[float, float], spread: tuple[float, float]) -> str:
    """Return a dot with its interval, on a band."""
    band = f'<rect class="band" x="{scale.place(spread[0])}" width="{scale.width(*spread)}" y="2" height="10"/>'
    line = (
        f'<line class="mark" stroke-width="3" x1="{scale.place(interval[0])}" x2="{scale.place(interval[1])}" '
        'y1="7" y2="7"/>'
    )
    return _DRAWING.format(f'{band}{scale.zero}{line}<circle class="mark" cx="{scale.place(value)}" cy="7" r="4"/>')


def box(scale: Scale, quantiles: Sequence[float]) -> str:
    """Return a box plot: 10th, 25th, 50th, 75th and 90th percentiles."""
    least, low, middle, high, most = quantiles
    line = f'<line class="mark" x1="{scale.place(least)}" x2="{scale.place(most)}" y1="7" y2="7"/>'
    half = f'<rect class="band" x="{scale.place(low)}" width="{scale.width(low, high)}" y="1" height="12"/>'
    at = scale.place(middle)
    return _DRAWING.format(
        f'{line}{half}{scale.zero}<line class="mark" stroke-width="3" x1="{at}" x2="{at}" y1="1" y2="13"/>'
    )


def drawn(
    names: Sequence[str],
    drawings: Sequence[str],
    columns: Sequence[tuple[str, Sequence[str]]],
    *,
    first: str,
    scale: Scale,
    caption: str,
) -> str:
    """Return a table whose rows are named and drawn in the first column; ``columns`` are titles and cells."""
    top = "".join(f'<th scope="col" role="columnheader" class="n">{text(title)}</th>' for title, _ in columns)
    top = f'<th scope="col" role="columnheader" class="bar">{text(first)}{scale.axis}</th>{top}'
    body = "".join(
        row(
            f'<th scope="row" role="rowheader" class="bar">{text(name)}{drawing}</th>',
            ((title, cells[at]) for title, cells in columns),
        )
        for at, (name, drawing) in enumerate(zip(names, drawings, strict=True))
    )
    return framed(top, body, caption, stacked=len(columns) > 1)


def steps(values: Sequence[float], title: str) -> str:
    """Return a picture of how a total grew; the caller adds its table."""
    tallest, width = max(max(values), 1e-300), 100 / len(values)
    bars = "".join(
        f'<rect class="mark" x="{at * width:.4g}%" width="{0.9 * width:.4g}%" y="{100 - 100 * value / tallest:.4g}%" '
        f'height="{100 * value / tallest:.4g}%"/>'
        for at, value in enumerate(values)
    )
    return (
        f'<figure class="chart"><figcaption>{text(title)}</figcaption><svg role="img" aria-label="{text(title)}">{bars}'
        '</svg><span class="axis"><span>first release</span><span>last</span></span></figure>'
    )


def histogram(values: Array, *, title: str, what: str, unit: str) -> str:
    """Return a histogram with its table below; the outermost bars include all values beyond them."""
    low, high = np.quantile(values, [0.01, 0.99])
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    width = (high - low) / 24 or 1.0
    edges = width * np.arange(math.floor(low / width), math.ceil(high / width) + 1)  # zero is one of the edges
    edges = edges if len(edges) > 1 else np.array([0.0, width])
    counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
    scale, tallest = Scale(float(edges[0]), float(edges[-1])), max(int(counts.max()), 1)
    bars = "".join(
        f'<rect class="{"mark" if left + right > 0 else "off"}" x="{scale.place(left)}" '
        f'width="{0.92 * 100 / len(counts):.4g}%" y="{100 - 100 * count / tallest:.4g}%" '
        f'height="{100 * count / tallest:.4g}%"/>'
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
    )
    at = scale.place(0.0)
    rows = [
        (f"{number(left)} to {number(right)}", str(count))
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    return (
        f'<figure class="chart"><figcaption>{text(title)}</figcaption><svg role="img" aria-label="{text(title)}">{bars}'
        f'<line class="zero" x1="{at}" x2="{at}" y1="0" y2="100%"/></svg>{scale.axis}</figure>'
        + folded("The numbers behind this chart", table((unit, what), rows, title))
    )
