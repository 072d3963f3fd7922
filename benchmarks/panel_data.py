"""Seven real panels as (rows, targets, users): which columns are used, and why.

Rule for features: every column that would be known together with the target, except ids, the target itself, its lags
and its transforms. Year is a number; counts and money are on a log scale if they span orders of magnitude (a public
choice); categories are indicators. Missing cells are filled with the mean of the column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.data import FOLDER
from tacitly.arrays import Array

DEVELOPED = ("wagepan", "egsingle", "scorecard")
"""Panels that were looked at while the method was built. The others were run once it was finished."""

HELD_OUT = ("mathpnl", "chem97", "insteval", "instinnovation")


@dataclass(frozen=True)
class Panel:
    """One panel: rows of features, the target, and whose each row is."""

    name: str
    X: Array
    y: Array
    users: np.ndarray
    features: tuple[str, ...]
    target: str


def available() -> bool:
    """Whether the panels are there."""
    return (FOLDER / "panels").is_dir()


def load(name: str, target: str | None = None) -> Panel:
    """Read a panel; ``target`` names another target than the usual one: union in wagepan, for example."""
    frame = pd.read_csv(FOLDER / "panels" / f"{name}.csv.gz")
    frame, user, usual, features = _PANELS[name](frame)
    goal = target or usual
    features = [column for column in features if column != goal]
    frame = frame[frame[goal].notna()]
    rows = frame[features].astype(float)
    rows = rows.fillna(rows.mean())
    ids = pd.factorize(frame[user])[0]
    return Panel(name, rows.to_numpy(), frame[goal].to_numpy(float), ids, tuple(features), goal)


def _names(text: str) -> list[str]:
    return text.split()


Prepared = tuple[pd.DataFrame, str, str, list[str]]


def _wagepan(frame: pd.DataFrame) -> Prepared:
    features = _names("educ black hisp exper expersq married union hours rur south nrthcen nrtheast manuf poorhlth")
    return frame, "nr", "lwage", features


def _egsingle(frame: pd.DataFrame) -> Prepared:
    frame = frame.assign(female=(frame["female"] == "Female") * 1.0)
    return frame, "childid", "math", _names("year grade retained female black hispanic size lowinc mobility")


def _scorecard(frame: pd.DataFrame) -> Prepared:
    frame = frame[frame[["earnings_med", "count_working", "count_not_working"]].notna().all(axis=1)]
    frame = frame.assign(
        log_earnings=np.log(frame["earnings_med"]),
        log_working=np.log(frame["count_working"]),
        log_not_working=np.log1p(frame["count_not_working"]),
        two_year=(frame["pred_degree_awarded_ipeds"] == 2) * 1.0,
        four_year=(frame["pred_degree_awarded_ipeds"] == 3) * 1.0,
    )
    return frame, "unitid", "log_earnings", ["year", "two_year", "four_year", "log_working", "log_not_working"]


def _mathpnl(frame: pd.DataFrame) -> Prepared:
    features = _names("lunch lenrol lenrolsq lexpp staff avgsal avgben drop grad y93 y94 y95 y96 y97 y98")
    return frame, "distid", "math4", features


def _chem97(frame: pd.DataFrame) -> Prepared:
    return frame.assign(female=(frame["gender"] == "F") * 1.0), "school", "score", ["gcsecnt", "age", "female"]


def _insteval(frame: pd.DataFrame) -> Prepared:
    departments = sorted(frame["dept"].unique())[1:]
    indicators = {f"dept{k}": (frame["dept"] == k) * 1.0 for k in departments}
    return frame.assign(**indicators), "s", "y", ["studage", "lectage", "service", *indicators]


def _instinnovation(frame: pd.DataFrame) -> Prepared:
    logs = {f"log_{c}": np.log1p(frame[c].clip(lower=0)) for c in ("sales", "capital", "employment", "randd", "tobinq")}
    frame = frame.assign(**logs, sp=(frame["sp500"] == "yes") * 1.0, log_patents=np.log1p(frame["patents"]))
    return frame, "company", "log_patents", [*logs, "competition", "institutions", "sp", "year"]


_PANELS: dict[str, Callable[[pd.DataFrame], Prepared]] = {
    "wagepan": _wagepan,
    "egsingle": _egsingle,
    "scorecard": _scorecard,
    "mathpnl": _mathpnl,
    "chem97": _chem97,
    "insteval": _insteval,
    "instinnovation": _instinnovation,
}
