"""Visits by patient: counts.

An insurer counts doctor visits per patient and half-year. Counts are whole numbers, never negative, and some patients
come much more often than others. The model for this is a Poisson model with personal rates: ``loss="poisson"``.

The patients are synthetic.
"""

import numpy as np
import pyarrow as pa

import tacitly

rng = np.random.default_rng(0)
patients, halves = 2000, 4
patient, half = np.repeat(np.arange(patients), halves), np.tile(np.arange(halves), patients)
age, chronic = rng.integers(20, 80, size=patients)[patient], (rng.random(patients) < 0.3)[patient]
winter = half % 2 == 1
rate = np.exp(-0.3 + 0.012 * (age - 50) + 0.7 * chronic + 0.25 * winter + 0.6 * rng.normal(size=patients)[patient])
visits = rng.poisson(rate)
table = pa.table({"age": age, "chronic": chronic, "winter": winter})

# The last half-year is held out.
test = half == halves - 1
schema = {"age": {"range": [0, 110]}}
model = tacitly.MixedEffects(epsilon=1.0, loss="poisson", schema=schema)
model.fit(table.filter(~test), visits[~test], patient[~test])

# Coefficients are of log rates: 0.7 for a chronic illness means exp(0.7) = 2 times as many visits.
print(model.summary())

# A patient's expected number of visits comes from their own history and the public prior.
frequent = int(np.argmax(np.bincount(patient[~test], visits[~test])))
rare = int(np.argmin(np.bincount(patient[~test], visits[~test])))
for name, one in (("a patient who comes often", frequent), ("a patient who never came", rare)):
    row = table.filter((patient == one) & test)
    print(f"{name}: {model.predict(row, users=[one])[0]:.2f} visits expected in the next half-year")

# Somebody who was not there has no history yet: the population's rate for their age and health.
new = pa.table({"age": [67], "chronic": [True], "winter": [True]})
print(f"somebody new, 67 and chronically ill: {model.predict(new)[0]:.2f}")


def deviance(expected: np.ndarray) -> float:
    """Return the mean Poisson deviance on the held-out half-year."""
    seen = visits[test]
    return float(2 * np.mean(np.where(seen > 0, seen * np.log(np.maximum(seen, 1) / expected), 0) - seen + expected))


print("\ndeviance on the held-out half-year (less is better; private: do not publish)")
print(f"one rate for all       {deviance(np.full(test.sum(), visits[~test].mean())):.3f}")
print(f"the population's model {deviance(model.predict(table.filter(test))):.3f}")
print(f"each patient's model   {deviance(model.predict(table.filter(test), patient[test])):.3f}")
print(f"\n{str(model.certificate_).splitlines()[0]}")
