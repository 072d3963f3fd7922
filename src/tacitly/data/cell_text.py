"""Cells as text: equal values get equal texts, however they were read."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tacitly.data.validation import NULL_WORDS, absent, written
from tacitly.data.validation import Array as Cells

_NUMBER = re.compile(r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_NOT_A_NUMBER = re.compile(r"[+-]?nan(?:\(\w*\))?", re.ASCII | re.IGNORECASE)  # as read by C's strtod and by Arrow
_YES = ("true", "yes", "t", "y", "ja", "j", "wahr", "oui", "vrai", "si", "sí", "sì", "sim", "vero", "verdadero", "tak")
_NO = ("false", "no", "f", "n", "nein", "falsch", "non", "faux", "nee", "nej", "falso", "não", "nie")
TRUTH = dict.fromkeys(_YES, 1.0) | dict.fromkeys(_NO, 0.0)
"""Words for yes and no, mapped to 1 and 0."""


def text_of(cell: Any) -> str:
    """Return a cell as stripped text, empty if it is missing; 1.0, 1, "1" and "01" have the same text.

    A column is read as float64 or as text, depending on its other cells. So a number must get the same text in both
    cases; otherwise one cell could change the texts of all others.

    >>> text_of("007"), text_of(7.0), text_of("7a"), text_of("1e1")
    ('7', '7', '7a', '10')
    """
    if absent(cell):
        return ""
    text = written(cell.item() if isinstance(cell, np.generic) else cell)  # float32 prints 0.1 as another number
    if _NOT_A_NUMBER.fullmatch(text):
        return ""
    if _NUMBER.fullmatch(text):
        number = float(text)
        text = str(int(number)) if number.is_integer() else str(number)
    return "" if text in NULL_WORDS else text


def distinct(cells: Cells) -> tuple[list[str], Cells]:
    """Return the distinct texts of cells, and the index of each cell's text among them.

    This does not build a NumPy array of text, which reserves the longest length for every entry: one long cell could
    use up all memory.
    """
    numbered: dict[str, int] = {}
    texts = [text_of(cell) for cell in cells.tolist()]
    places = np.array([numbered.setdefault(text, len(numbered)) for text in texts], dtype=np.int64)
    return list(numbered), places
