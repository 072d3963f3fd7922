"""A synthetic table that looks like a real one: visits of patients, with text, yes/no values and missing cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def load_visits(patients: int = 2000, seed: int = 0) -> pa.Table:
    """Return visits of synthetic patients who recover at their own pace: one row per visit, a ``patient`` column.

    Columns: patient, week since the operation, age, weight in kg (a tenth missing), dose in mg, clinic (text), smoker
    (yes/no) and the score to predict, from 0 to 100. Patients differ in their level, in their pace and in how they
    respond to the dose. The same arguments give the same table; no patient is real.

    >>> table = load_visits(100)
    >>> table.column_names
    ['patient', 'week', 'age', 'weight', 'dose', 'clinic', 'smoker', 'score']
    >>> table.num_rows, table["clinic"][0].as_py() in ("North", "South", "Harbour")
    (605, True)
    """
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(patients), 3 + rng.integers(0, 7, size=patients))
    rows = len(owner)
    clinic = rng.choice(3, size=patients, p=[0.5, 0.3, 0.2])
    age = rng.normal(58.0, 12.0, size=patients).clip(18, 95).round()
    smoker = rng.random(patients) < 0.25
    weight = rng.normal(78.0, 14.0, size=patients).clip(45, 140)[owner] + rng.normal(0.0, 1.5, size=rows)
    week = rng.integers(0, 27, size=rows)
    dose = rng.choice([0.0, 50.0, 100.0, 150.0], size=rows)
    level = 52.0 - 0.25 * (age - 58.0) - 6.0 * smoker + np.array([0.0, 3.0, -4.0])[clinic]
    level += 9.0 * rng.normal(size=patients)
    pace, response = 0.9 + 0.4 * rng.normal(size=patients), 0.04 + 0.03 * rng.normal(size=patients)
    score = level[owner] + pace[owner] * week + response[owner] * dose - 0.05 * (weight - 78.0)
    score = (score + 4.0 * rng.normal(size=rows)).clip(0, 100)
    return pa.table(
        {
            "patient": [f"P{number:05d}" for number in owner],
            "week": week,
            "age": age[owner].astype(np.int64),
            "weight": pa.array(weight.round(1), mask=rng.random(rows) < 0.1),
            "dose": dose,
            "clinic": np.array(["North", "South", "Harbour"])[clinic][owner].tolist(),
            "smoker": smoker[owner],
            "score": score.round(1),
        }
    )
