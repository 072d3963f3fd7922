"""The format of a text file: separator, encoding, decimal mark, compression; detected, or given by the caller.

The separator and the decimal mark are detected in the first part of a file, the encoding by decoding the whole file.
The detected format is public, like a header: it describes how a program saved the table, not what the table contains.
Therefore the majority of cells decides and never a single one. An unusual cell may be misread itself, but it never
changes how other cells are read and never causes an error.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import lzma
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tacitly.data.validation import DataError

TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".txt")
COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}

_SAMPLE_BYTES, _SAMPLE_LINES, _MOST_BYTES = 1 << 18, 50, 1 << 28
_TYPOS = 0.1  # up to this share of the rows, unusual cells are treated as mistakes
_MOST_TITLES = 10  # maximum number of title lines before the header
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_WORDS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
_BEFORE, _AFTER = r"\s*[-+−]?[$€£¥]?[-+−]?", r"\s*(?:[%$€£¥]\s*)?"  # \s*[%]?\s* would take quadratic time in spaces
_COMMA = re.compile(_BEFORE + r"\d[\d \u00a0\u202f'.]*,\d+(?:[eE][-+]?\d+)?" + _AFTER)
_NAMED = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
_DOT = re.compile(_BEFORE + r"\d+\.\d+" + _AFTER)
_SURROGATES = re.compile("[\udc80-\udcff]")
_EITHER = re.compile(_BEFORE + r"[1-9]\d{0,2},\d{3}" + _AFTER)  # a thousands separator, or three decimals
_POINTS = re.compile(_BEFORE + r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?" + _AFTER)  # the same with points
_WHOLE = re.compile(_BEFORE + r"\d{1,3}" + _AFTER)
_ENOUGH = 3  # fewer cells of one format may be accidents


@dataclass(frozen=True)
class CsvFormat:
    """How a text file writes a table; fields that are None are detected.

    ``decimal`` is the decimal mark. If it is given as ``"."``, commas inside numbers separate thousands. With decimal
    commas, points separate thousands (``grouped``: some cells do), except in columns that write decimals with a point
    (``pointed``). ``skipped`` is the number of lines before the header: comments, a title, or the line in which Excel
    writes the separator. ``pure`` is False if the file has, or may have, bytes that are not valid in its encoding; each
    such byte is read as its number. ``nameless`` is the number of columns, after the first, that hold something but
    have no name in the header; they are left out.
    """

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    skipped: int = 0
    pure: bool = False
    grouped: bool = False
    pointed: frozenset[str] = frozenset()
    nameless: int = 0

    def __post_init__(self) -> None:
        if self.separator is not None:
            object.__setattr__(self, "separator", _WORDS.get(self.separator, self.separator))
            if len(str(self.separator)) != 1:
                raise DataError(f"separator must be one character, or 'tab'. Found {self.separator!r}.")
        if self.decimal not in (None, ",", "."):
            raise DataError(f"decimal must be ',' or '.'. Found {self.decimal!r}.")

    @property
    def words(self) -> str:
        """Unusual properties of the format, as part of a sentence; empty for comma-separated UTF-8.

        >>> CsvFormat(";", ",", "cp1252").words
        'semicolons between cells, decimal commas, Windows-1252 (latin-1) text'
        """
        parts = []
        if self.separator not in (None, ","):
            parts.append(f"{_SEPARATORS.get(str(self.separator), repr(self.separator))} between cells")
        if self.decimal == ",":
            parts.append("decimal commas" + ", points between thousands" * self.grouped)
        if self.encoding not in (None, "utf-8"):
            parts.append(f"{'Windows-1252 (latin-1)' if self.encoding == 'cp1252' else self.encoding} text")
        if self.skipped:
            parts.append(f"{self.skipped} line{'s' * (self.skipped > 1)} before the header")
        if self.nameless:
            parts.append(f"left out: {self.nameless} column{'s' * (self.nameless > 1)} without a name in the header")
        return ", ".join(parts)


def suffix_of(path: Path) -> str:
    """Return the extension that tells the file's format, without a compression extension.

    >>> suffix_of(Path("rows.CSV.gz"))
    '.csv'
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading; compressed files are decompressed."""
    file: IO[bytes] = COMPRESSED.get(path.suffix.lower(), open)(path, "rb")
    return file


class Utf8File:
    """A file's text as UTF-8, decompressed, in the form of a file object that Arrow reads piece by piece."""

    def __init__(self, path: Path, form: CsvFormat) -> None:
        self._file = opened(path)
        plain = form.encoding == "utf-8" and form.pure
        self._decoder = None if plain else codecs.getincrementaldecoder(str(form.encoding))("backslashreplace")
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, and fewer only at the end: Arrow treats what it gets as a block of whole lines."""
        if self._decoder is None:
            return self._file.read(size)
        while len(self._rest) < size:
            piece = self._file.read(size)
            self._rest += self._decoder.decode(piece, final=not piece).encode("utf-8")
            if not piece:
                break
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        self._file.close()  # as soon as Arrow's threads release it, and without Python's warning


def look(path: Path, given: CsvFormat, user: str | None = None) -> tuple[CsvFormat, list[str] | None]:
    """Return the format of a file, with missing fields detected, and its header; None if there is no header.

    Of the possible separators, one is preferred under which the header has the ``user`` column, then the one under
    which most lines have as many cells as the header.
    """
    encoding, pure = (given.encoding, False) if given.encoding else _encoding(path)
    with opened(path) as file:
        sample = file.read(_SAMPLE_BYTES)
        while sample.count(b"\n") < _SAMPLE_LINES and len(sample) < _MOST_BYTES and (more := file.read(len(sample))):
            sample += more  # one long cell is not a sufficient sample
    text = sample.decode(encoding, errors="ignore").removeprefix("\ufeff")
    _check_text(path, text)
    lines = text.splitlines(keepends=True)
    if len(text) >= _SAMPLE_BYTES // 4 and len(lines) > 1:
        lines.pop()  # most likely cut off in the middle
    skipped, named = _preamble(lines)
    separator = given.separator or named or _separator(lines[skipped:], path, user)
    if skipped and not named and _is_header(lines[skipped - 1], lines[skipped:], separator):
        skipped -= 1  # the header itself begins with #
    skipped += _titles(lines[skipped:], separator, user)
    rows = [row for row in _parsed(lines[skipped:], separator) if row]
    if not rows:
        return CsvFormat(separator, given.decimal, encoding, skipped, pure), None
    decimal = given.decimal if given.decimal is not None else _decimal(rows[1:], separator)
    grouped, pointed = _points(rows) if decimal == "," else (False, frozenset())
    return CsvFormat(separator, decimal, encoding, skipped, pure, grouped, pointed, _nameless(rows)), rows[0]


def _nameless(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of columns without a name that hold something; the first may hold saved row numbers.

    >>> _nameless([["", "id", "", ""], ["1", "7", "3.5", ""]])
    1
    """
    places = [place for place, name in enumerate(rows[0]) if place and not name.strip()]
    return sum(any(place < len(row) and row[place].strip() for row in rows[1:]) for place in places)


def _check_text(path: Path, text: str) -> None:
    """Raise if the file is binary: its first line, which is public, has characters that do not occur in text."""
    if any(character < " " and not character.isspace() for character in text.partition("\n")[0]):
        packed = " It looks like a spreadsheet or an archive: save the sheet as CSV." * text.startswith("PK\x03\x04")
        raise DataError(
            f"The file {path.name!r} is not a text table. Expected lines of cells (CSV); Parquet and Arrow files "
            f"are known by their extensions (.parquet, .arrow, .feather).{packed}"
        )


def _preamble(lines: Sequence[str]) -> tuple[int, str | None]:
    """Return the number of lines before the header, and the separator if one of these lines declares it.

    >>> _preamble(["sep=;", "a;b"]), _preamble(["# saved by hand", "a,b"]), _preamble(["a,b"])
    ((1, ';'), (1, None), (0, None))
    """
    if lines and (named := _NAMED.fullmatch(lines[0].strip("\r\n"))):
        return 1, named[1]
    comments = next((place for place, line in enumerate(lines) if not line.startswith("#")), 0)
    return comments, None


def _titles(lines: Sequence[str], separator: str, user: str | None = None) -> int:
    """Return the number of lines before the header: the first line with the ``user`` column, if there is one.

    Otherwise lines in which only the first cell is not empty are titles.

    >>> _titles(["Sales 2024;;", "", "id;x;y", "1;2;3"], ";"), _titles(["id", "1"], ";"), _titles([";y", "1;2"], ";")
    (2, 0, 0)
    >>> _titles([";Marks;", "id;x;y", "1;2;3"], ";", "id")
    1
    """
    rows = [next(iter(_parsed([line], separator)), []) for line in lines[:_MOST_TITLES]]
    if named := [place for place, row in enumerate(rows) if user in row]:
        return named[0]
    for place, row in enumerate(rows):
        if sum(map(bool, row)) > 1 or (row and not row[0]):
            return place
    return 0


def _is_header(line: str, lines: Sequence[str], separator: str) -> bool:
    """Return whether a line has as many cells as most of the others.

    >>> _is_header("#id,y", ['1,"2,5"', "2,3", "3,4"], ","), _is_header("# saved", ["id,y", "2,3"], ",")
    (True, False)
    """
    widths = sorted(len(row) for row in _parsed(lines, separator) if row)
    return bool(widths) and [len(row) for row in _parsed([line], separator)] == [widths[len(widths) // 2]]


def _parsed(lines: Sequence[str], separator: str) -> list[list[str]]:
    rows: list[list[str]] = []
    reader = csv.reader(lines, delimiter=separator)
    while True:
        with suppress(csv.Error):  # a cell longer than this reader accepts: its row is not used for the sample
            if (row := next(reader, None)) is None:
                return rows
            rows.append(row)


def _separator(lines: Sequence[str], path: Path, user: str | None) -> str:
    best, score = ",", (False, False, False, 0.0, 1)
    for separator in _SEPARATORS:
        titles = _titles(lines, separator, user)
        rows = [row for row in _parsed(lines[titles:], separator) if row]
        if not rows or len(rows[0]) < 2:
            continue
        alike = sum(len(row) == len(rows[0]) for row in rows) / len(rows)
        tabs = separator == "\t" and suffix_of(path) in (".tsv", ".tab")
        # A line without this separator may be a title, or a header with another separator.
        found = (user in rows[0], tabs, not titles and alike == 1.0, round(alike, 1), len(rows[0]))
        if found > score:
            best, score = separator, found
    return best


def _decimal(rows: Sequence[Sequence[str]], separator: str) -> str | None:
    """Return ',' if more numbers have a decimal comma than a point; raise if the comma may separate thousands.

    An error is raised only if more than a few cells of a column are ambiguous. A single one is read as text.

    Where commas are also the separator, numbers with a comma are quoted. There, commas of which most can be decimals
    only are decimal marks, and all others separate thousands.

    >>> _decimal([["1,5", "2,25", "3.5"]], ";"), _decimal([["1,5", "2,250"]], ","), _decimal([["1,5", "2,25"]], ",")
    (',', None, ',')
    """
    if separator == ",":
        commas = [cell for row in rows for cell in row if "," in cell and _COMMA.fullmatch(cell)]
        others = sum(_EITHER.fullmatch(cell) is not None for cell in commas)
        others += sum(_DOT.fullmatch(cell) is not None for row in rows for cell in row if "." in cell)
        return "," if len(commas) > 2 * others and len(commas) >= min(_ENOUGH, len(rows)) else None
    _check_points(rows)
    cells = [cell for row in rows for cell in row if "," in cell or "." in cell]
    commas = [cell for cell in cells if _COMMA.fullmatch(cell)]
    if len(commas) <= sum(_DOT.fullmatch(cell) is not None for cell in cells):
        return None
    if not all(_EITHER.fullmatch(cell) for cell in commas):
        return ","
    places = Counter(place for row in rows for place, cell in enumerate(row) if _EITHER.fullmatch(cell))
    if max(places.values()) > _TYPOS * len(rows):
        raise DataError(
            "The file has numbers with a comma and three digits after it: thousands or decimals? Specify which: "
            "--decimal , (decimals) or --decimal . (thousands); in Python csv=CsvFormat(decimal=…)."
        )
    return None


def _check_points(rows: Sequence[Sequence[str]]) -> None:
    """Raise where points may separate thousands: a column of 980 and 1.234, in a file without decimal commas.

    Whoever writes three decimals writes them everywhere, or drops zeros: then some numbers have one or two. Shares of
    the rows decide, so that a few cells neither stop a fit nor let it go on: points in a tenth of them, others in a
    hundredth.

    >>> _check_points([["980"], ["1.234"], ["36.125"], ["12.5"], ["2.750"]])
    """
    few = _TYPOS * len(rows)
    rare = _TYPOS * few
    commas, groups, whole, others = (Counter[int]() for _ in range(4))
    for row in rows:
        for place, cell in enumerate(row):
            commas[place] += "," in cell and _COMMA.fullmatch(cell) is not None
            groups[place] += _POINTS.fullmatch(cell) is not None
            whole[place] += _WHOLE.fullmatch(cell) is not None
            others[place] += "." in cell and _POINTS.fullmatch(cell) is None
    if any(count > rare for count in commas.values()):
        return
    if any(count > max(few, _ENOUGH - 1) and whole[place] > rare >= others[place] for place, count in groups.items()):
        raise DataError(
            "The file has numbers with a point and three digits after it beside whole numbers: thousands or decimals? "
            "Say which: --decimal , (1.234 is a thousand) or --decimal . (1.234 is about one); in Python "
            "csv=CsvFormat(decimal=…)."
        )


def _points(rows: Sequence[Sequence[str]]) -> tuple[bool, frozenset[str]]:
    """Return whether points separate thousands, and the columns in which most of them are decimal points instead.

    >>> _points([["a", "b"], ["1.234", "0.5"], ["1.234.567,8", "36.125"], ["980", "2.25"]])
    (True, frozenset({'b'}))
    """
    groups, others = Counter[int](), Counter[int]()
    for row in rows[1:]:
        for place, cell in enumerate(row):
            if "." in cell:
                groups[place] += _POINTS.fullmatch(cell) is not None
                others[place] += _POINTS.fullmatch(cell) is None and _DOT.fullmatch(cell) is not None
    pointed = {place for place, count in others.items() if count > groups[place]}
    names = frozenset(rows[0][place] for place in pointed if place < len(rows[0]))
    return any(count and place not in pointed for place, count in groups.items()), names


def _encoding(path: Path) -> tuple[str, bool]:
    """Return the encoding of a file, UTF-8 or Windows-1252, and whether the whole file is valid text in it.

    The encoding is UTF-8 unless lines with bytes that are invalid in UTF-8 outnumber valid lines with non-ASCII
    characters. Lines are counted instead of bytes, so that a long cell counts once.
    """
    with opened(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16", False
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # invalid bytes become surrogates
    right = wrong = 0
    letters, unread, piece = False, False, b"\0"  # in the current line, which may continue in the next piece
    with opened(path) as file:
        while piece:
            piece = file.read(1 << 20)
            text = decoder.decode(piece, final=not piece)
            lines = [""] * (1 + ("\n" in text)) if text.isascii() else text.split("\n")
            for place, line in enumerate(lines if piece else [*lines, ""]):
                if place:
                    right, wrong = right + (letters and not unread), wrong + unread
                    letters = unread = False
                if not line.isascii():
                    letters, unread = True, unread or _SURROGATES.search(line) is not None
    return ("utf-8", not wrong) if right >= wrong else ("cp1252", False)
