"""Digits by writer.

Writers share what a digit looks like, but each has their own handwriting and writes some digits more often than others.
The network's body is learned from all writers under user-level privacy; each writer's head stays on their device.

The digits are scikit-learn's (8 × 8 pixels, real, but without their writers). The writers here are synthetic: each has
an account number of three digits, and shifts and slants the digits in their own way. Needs ``pip install
tacitly[neural]``. ``python examples/digits.py 1000`` for more writers.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

from tacitly import neural

rng = np.random.default_rng(0)
digits = load_digits()
writers, own = int(sys.argv[1]) if len(sys.argv) > 1 else 150, 18
writer = np.repeat(np.arange(writers), own)
account = np.array([rng.choice(10, size=3, replace=False) for _ in range(writers)])
wanted = account[writer, rng.integers(3, size=len(writer))]
chosen = np.array([rng.choice(np.flatnonzero(digits.target == digit)) for digit in wanted])
images, label = digits.images[chosen] / 16, digits.target[chosen]
slant, shift = rng.integers(-1, 2, size=writers), rng.integers(-1, 2, size=writers)
for number, who in enumerate(writer):  # a writer's hand: the upper rows lean, the whole is off to one side
    images[number, :4] = np.roll(images[number, :4], slant[who], axis=1)
    images[number] = np.roll(images[number], shift[who], axis=1)
X = images.reshape(len(images), 64)
test = np.tile(np.arange(own) >= 12, writers)

# Fixed random filters and one small learned layer: 150 writers are enough for it at ε = 1. With more parameters the
# noise would be larger than anything the writers could agree on, and ``fit`` would say so before it spends.
body, head = neural.image_network(classes=10, shape=(1, 8, 8))
model = neural.Centaur(body, head, epsilon=1.0, delta=1e-5, rounds=5)
model.fit(X[~test], label[~test], writer[~test])

right = model.predict(X[test], writer[test]) == label[test]
print(f"each writer's own head on held-out digits: {right.mean():.1%} right (private: do not publish)")

# Guessing each writer's most frequent digit is what there is without looking.
common = np.array([np.bincount(label[~test & (writer == who)]).argmax() for who in range(writers)])
print(f"each writer's most frequent digit:         {np.mean(common[writer[test]] == label[test]):.1%} right")

# A new writer sends nothing: a head is fitted to twelve digits at home.
mine = model.personalize(X[:12], label[:12])
print(f"a new writer with 12 digits: {np.mean(mine.predict(X[12:18]) == label[12:18]):.0%} of 6 others right")
print(f"\n{str(model.certificate_).splitlines()[0]}")
