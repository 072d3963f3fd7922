"""Test scores by pupil.

Pupils take a mathematics test every year. Each has their own level and pace. A school wants a growth curve with an
interval for each pupil, and a district wants the average curve, which must not reveal any pupil's tests.

Run it without arguments for synthetic pupils, or with the panel ``egsingle`` of the R package mlmRev:
``python examples/test_scores.py egsingle.csv.gz``. Both have the same columns.
"""

import sys

import numpy as np
import pyarrow as pa
from pyarrow import csv

import tacitly


def made_up_pupils(pupils: int = 1000) -> pa.Table:
    """Return tests of pupils who are not real: two to six years each."""
    rng = np.random.default_rng(0)
    tests = rng.integers(2, 7, size=pupils)
    pupil = np.repeat(np.arange(pupils), tests)
    year = np.concatenate([np.arange(n) - 2.5 for n in tests])
    female = np.where(rng.random(pupils) < 0.5, "Female", "Male")
    level, pace = rng.normal(-0.8, 0.8, size=pupils), rng.normal(0.75, 0.12, size=pupils)
    math = level[pupil] + pace[pupil] * year + 0.55 * rng.normal(size=len(pupil))
    return pa.table({"childid": pupil, "year": year, "female": female[pupil].tolist(), "math": math.round(3)})


table = csv.read_csv(sys.argv[1]) if len(sys.argv) > 1 else made_up_pupils()

# A fifth of each pupil's tests is held out, to see afterwards whether the intervals hold.
pupil, math = np.asarray(table["childid"]), np.asarray(table["math"])
test = tacitly.datasets.held_out(pupil, random_state=0)
features = table.select(["year", "female"])

# Which levels a text column can have is declared. Levels read from the rows would be a release of their own.
schema = {"year": {"range": [-3, 3]}, "female": {"levels": ["Female", "Male"]}}
model = tacitly.MixedEffects(epsilon=1.0, schema=schema).fit(features.filter(~test), math[~test], pupil[~test])

# The district's question: the average pace, and how much pupils vary around it.
print(model.summary())

# The pupil's question: where am I going? A curve with a 90 % interval, from this pupil's tests and the public prior.
one = pa.table({"year": [0.5, 1.5, 2.5], "female": ["Female"] * 3})
mean, std = model.predict(one, users=[pupil[0]] * 3, return_std=True)
print("\none pupil, the next three years:")
for year, middle, width in zip(one["year"].to_pylist(), mean, 1.645 * std, strict=True):
    print(f"  year {year:+.1f}: {middle:5.2f}  (90 %: {middle - width:5.2f} to {middle + width:5.2f})")

# Do the intervals hold? On held-out tests; this share is computed from private rows, so keep it to yourself.
mean, std = model.predict(features.filter(test), pupil[test], return_std=True)
print(f"\n90 % intervals cover {np.mean(np.abs(math[test] - mean) <= 1.645 * std):.1%} of held-out tests")

# A number that may be published instead costs a little of the budget.
held = (features.filter(test), math[test], pupil[test])
print(model.evaluate(*held, epsilon=0.2, bound=3.0))
