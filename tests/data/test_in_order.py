"""Rows arrive in any order, lie on disk in theirs, and no byte is written more than twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacitly.data import in_order
from tacitly.data.grouping import new_map
from tacitly.data.in_order import Piece, write_in_order

ROWS, WIDTH = 1000, 3
BUFFER = 100 * (8 + 4 * WIDTH + 4)  # a hundred rows with their positions


def pieces(order: np.ndarray, X: np.ndarray, y: np.ndarray, batch: int = 37) -> Iterator[Piece]:
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        yield some, [X[some], y[some]]


def orders() -> dict[str, np.ndarray]:
    rng, rows = np.random.default_rng(0), np.arange(ROWS)
    half = ROWS // 2 + 50
    return {
        "sorted": rows,
        "shuffled": rng.permutation(ROWS),
        "backwards": rows[::-1].copy(),
        "first sorted, then shuffled": np.concatenate([rows[:half], half + rng.permutation(ROWS - half)]),
        "two sorted halves, one row each in turn": rows.reshape(2, -1).T.ravel(),
        "blocks in another order": rng.permutation(10).repeat(100) * 100 + np.tile(np.arange(100), 10),
    }


def written_in_order(folder: Path, order: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Any]]:
    """Write rows that arrive in this order; return the number of bytes written, and the progress shown."""
    X = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
    y = X[:, 0] * 2
    maps = [new_map(folder / "X.npy", X.dtype, X.shape), new_map(folder / "y.npy", y.dtype, y.shape)]
    written, shown = [0], []
    plain = in_order._write

    def counted(file: Any, values: Any, rows: Any) -> None:
        written[0] += len(rows) * values.strides[0]
        plain(file, values, rows)

    monkeypatch.setattr(in_order, "_write", counted)
    write_in_order(pieces(order, X, y), maps, lambda what, part: shown.append((what, part)))
    np.testing.assert_array_equal(np.load(folder / "X.npy"), X)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), y)
    assert sorted(path.name for path in folder.iterdir()) == ["X.npy", "y.npy"]
    return written[0], shown


@pytest.mark.parametrize("name", orders())
def test_rows_lie_in_order_and_bytes_are_written_once_or_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_order, "_BUFFER_BYTES", (BUFFER, BUFFER))
    monkeypatch.setattr(in_order, "_PIECE_BYTES", 150)
    written, shown = written_in_order(tmp_path, orders()[name], monkeypatch)
    once, twice = ROWS * 4 * (WIDTH + 1), ROWS * (8 + 8 * (WIDTH + 1))
    expected = {"sorted": once, "backwards": once, "blocks in another order": once}
    if name == "first sorted, then shuffled":
        assert once < written < twice
    else:
        assert written == expected.get(name, twice)
    assert [part for what, part in shown if what == "reading rows"][-1] == 1.0
    assert all(0 < part <= 1 for _, part in shown)


def test_what_fits_into_the_buffer_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, _ = written_in_order(tmp_path, orders()["shuffled"], monkeypatch)
    assert written == ROWS * 4 * (WIDTH + 1)
