"""Wages by person.

Each person has a wage in several years. What is the effect of a year of schooling, how much do people differ, and what
will this person earn next year? What is published must not reveal any person's wages.

Run it without arguments for synthetic people, or with the panel of Vella and Verbeek (1998) if you have it:
``python examples/wages.py wagepan.csv.gz``. Both have the same columns. The panel has 545 people, which are few for
ε = 1: in some runs the model reports that noise hides the features, and all predictions are people's own means.
"""

import sys

import numpy as np
import pyarrow as pa
from pyarrow import csv

import tacitly


def made_up_people(people: int = 2000, years: int = 8) -> pa.Table:
    """Return a table of people who are not real, one row per person and year."""
    rng = np.random.default_rng(0)
    person, year = np.repeat(np.arange(people), years), np.tile(np.arange(1980, 1980 + years), people)
    educ = rng.integers(8, 17, size=people)[person]
    exper = rng.integers(1, 8, size=people)[person] + year - 1980
    union, married = rng.random(people * years) < 0.25, rng.random(people * years) < 0.1 + 0.06 * (year - 1980)
    level, growth = 0.35 * rng.normal(size=people), 0.03 * rng.normal(size=people)
    lwage = 0.2 + 0.09 * educ + 0.04 * exper + 0.08 * union + 0.06 * married + level[person] + growth[person] * exper
    lwage += 0.25 * rng.normal(size=people * years)
    columns = {"nr": person, "year": year, "educ": educ, "exper": exper, "married": married, "union": union}
    return pa.table({**columns, "lwage": lwage.round(4)})


table = csv.read_csv(sys.argv[1]) if len(sys.argv) > 1 else made_up_people()

# The last year is held out, so that the model is asked what a user would ask: what comes next.
last = np.asarray(table["year"]) == 1987
features, person, wage = table.select(["educ", "exper", "married", "union"]), table["nr"], np.asarray(table["lwage"])

# Ranges that everybody knows are declared. They are public, and the budget is not spent on finding scales.
known = {"educ": {"range": [0, 20]}, "exper": {"range": [0, 40]}}
model = tacitly.MixedEffects(epsilon=1.0, schema=known)
model.fit(features.filter(~last), wage[~last], person.filter(~last))

# The population: what may be published. A coefficient of 0.09 means 9 % more for a year of schooling.
print(model.summary())

# The persons: what stays with them. The errors below are computed from private rows and are for your eyes only.
own = np.bincount(np.unique(person.filter(~last), return_inverse=True)[1], wage[~last]) / 7
error = {
    "everybody's mean": wage[last] - wage[~last].mean(),
    "each person's own mean": wage[last] - own,
    "the population's model": wage[last] - model.predict(features.filter(last)),
    "each person's model": wage[last] - model.predict(features.filter(last), person.filter(last)),
}
print("\nerror in the last year (log wage)")
for name, difference in error.items():
    print(f"{name:<24}{np.sqrt(np.mean(difference**2)):.3f}")
print(f"\n{str(model.certificate_).splitlines()[0]}")
