"""Use your own PyTorch model.

You can use any ``nn.Module`` that you can split in two: the body is shared and learned privately, the head is personal.
Here thermostats learn what a household finds comfortable, which is not linear in temperature and humidity.

The households are synthetic. Needs ``pip install tacitly[neural]``. ``python examples/own_network.py 5000`` for more
households.
"""

import sys

import numpy as np
from torch import manual_seed, nn

from tacitly import neural

rng = np.random.default_rng(0)
homes, evenings = int(sys.argv[1]) if len(sys.argv) > 1 else 600, 12
home = np.repeat(np.arange(homes), evenings)
X = rng.normal(size=(len(home), 4))  # temperature, humidity, sun, wind, in units of a public range
muggy, chill = np.tanh(1.5 * X[:, 0] + X[:, 1]), np.tanh(X[:, 3] - 1.5 * X[:, 0])
taste = rng.normal([1.0, -1.0], 0.6, size=(homes, 2))[home]
comfort = taste[:, 0] * muggy + taste[:, 1] * chill + 0.2 * rng.normal(size=len(home))
test = np.tile(np.arange(evenings) >= 9, homes)

# Your model: a body that makes features of rows, a head that makes a number of features. Both start public, with
# random weights, so fix the seed if you want the same start again.
manual_seed(0)
body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
head = nn.Linear(8, 1)

# Layers are checked before anything is spent: one that mixes users (batch normalisation) is refused by its name. Your
# own layer class is accepted with ``trust_custom_layers=True``, and the certificate says that you vouched for it.
model = neural.Centaur(body, head, epsilon=2.0, delta=1e-5, loss="squares", rounds=10)
model.fit(X[~test], comfort[~test], home[~test])


def error(predicted: np.ndarray) -> float:
    """Return the root mean squared error on held-out evenings (private: for the operator)."""
    return float(np.sqrt(np.mean((predicted.ravel() - comfort[test]) ** 2)))


def lines(penalty: float = 0.3) -> np.ndarray:
    """Return what each home could do alone: a straight line through its own nine evenings."""
    found = []
    for rows in np.flatnonzero(test).reshape(homes, 3):
        mine = np.arange(rows[0] - 9, rows[0])
        Z = np.column_stack([np.ones(9), X[mine]])
        weights = np.linalg.solve(Z.T @ Z + penalty * np.eye(5), Z.T @ comfort[mine])
        found.append(np.column_stack([np.ones(3), X[rows]]) @ weights)
    return np.concatenate(found)


print(f"each home's own head on the learned body: {error(model.predict(X[test], home[test])):.3f}")
print(f"each home alone, a straight line:         {error(lines()):.3f}")
print(f"one number for everybody:                 {error(np.full(test.sum(), comfort[~test].mean())):.3f}")
print(f"noise of the evenings themselves:         {0.2:.3f}")

# A new home fits a head to nine evenings; nothing leaves it.
mine = model.personalize(X[:9], comfort[:9])
print(f"a new home's next evening: {mine.predict(X[9:10]).item():+.2f}, felt {comfort[9]:+.2f}")
print(f"\n{str(model.certificate_).splitlines()[0]}")

# A saved network is numbers, not code: load it with the same modules, ``tacitly.load(folder, body=body, head=head)``.
