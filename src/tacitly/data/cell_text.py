"""Cells as text: one text for one value, however the value was read."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tacitly.data.validation import NULL_WORDS, absent, written
from tacitly.data.validation import Array as Cells

_NUMBER = re.compile(r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_NOT_A_NUMBER = re.compile(r"[+-]?nan(?:\(\w*\))?", re.ASCII | re.IGNORECASE)  # as C's strtod reads it, and Arrow
_YES = ("true", "yes", "t", "y", "ja", "j", "wahr", "oui", "vrai", "si", "sí", "sì", "sim", "vero", "verdadero", "tak")
_NO = ("false", "no", "f", "n", "nein", "falsch", "non", "faux", "nee", "nej", "falso", "não", "nie")
TRUTH = dict.fromkeys(_YES, 1.0) | dict.fromkeys(_NO, 0.0)
"""Words for yes and no, as 1 and 0."""


def text_of(cell: Any) -> str:
    """Return a cell as stripped text, empty where it is missing; 1.0, 1, "1" and "01" are one level.

    Columns are read as float64 or as text, depending on what else is in them: a number must have one text in both, or
    one cell would decide what all the others are.

    >>> text_of("007"), text_of(7.0), text_of("7a"), text_of("1e1")
    ('7', '7', '7a', '10')
    """
    if absent(cell):
        return ""
    text = written(cell.item() if isinstance(cell, np.generic) else cell)  # 0.1 in single precision is another number
    if _NOT_A_NUMBER.fullmatch(text):
        return ""
    if _NUMBER.fullmatch(text):
        number = float(text)
        text = str(int(number)) if number.is_integer() else str(number)
    return "" if text in NULL_WORDS else text


def distinct(cells: Cells) -> tuple[list[str], Cells]:
    """Return the different texts of cells, and where each cell's is among them.

    No array of texts, which has room for the longest in every place: one long cell could take all memory.
    """
    numbered: dict[str, int] = {}
    texts = [text_of(cell) for cell in cells.tolist()]
    places = np.array([numbered.setdefault(text, len(numbered)) for text in texts], dtype=np.int64)
    return list(numbered), places
