"""Digits by writer.

Writers share what a digit looks like, and each has a hand of their own. The network's body is learned from all writers
under user-level privacy; each writer's head stays on their device.

The digits are scikit-learn's (8 × 8 pixels, by 43 people, but without saying who wrote which). The writers here are made
up: each gets some of the images, shifted and slanted in a way of their own. Needs ``pip install tacitly[neural]``.
"""

import numpy as np
from sklearn.datasets import load_digits

import tacitly
from tacitly import neural

rng = np.random.default_rng(0)
digits = load_digits()
writers, own = 150, 24
writer = np.repeat(np.arange(writers), own)
chosen = rng.integers(len(digits.target), size=len(writer))
images, label = digits.images[chosen] / 16, digits.target[chosen]
slant, shift = rng.integers(-1, 2, size=writers), rng.integers(-1, 2, size=writers)
for number, who in enumerate(writer):  # a writer's hand: the upper rows lean, the whole is off to one side
    images[number, :4] = np.roll(images[number, :4], slant[who], axis=1)
    images[number] = np.roll(images[number], shift[who], axis=1)
X = images.reshape(len(images), 64)
test = np.tile(np.arange(own) >= 18, writers)

# Fixed random filters and one small learned layer: 150 writers are enough for it at ε = 1. With more parameters the
# noise would be larger than anything the writers could agree on, and ``fit`` would say so before it spends.
body, head = neural.image_network(classes=10, shape=(1, 8, 8))
model = neural.Centaur(body, head, epsilon=1.0, delta=1e-5)
model.fit(X[~test], label[~test], writer[~test])

right = model.predict(X[test], writer[test]) == label[test]
print(f"each writer's own head on held-out digits: {right.mean():.1%} right (private: do not publish)")

# A new writer sends nothing: a head is fitted to twelve digits at home.
mine = model.personalize(X[:12], label[:12])
print(f"a new writer with 12 digits: {np.mean(mine.predict(X[12:24]) == label[12:24]):.1%} of 12 others right")
print(f"\n{str(model.certificate_).splitlines()[0]}")

# What a writer would have alone, on the same fixed filters: six digits of ten are seen too rarely.
alone = tacitly.LocalModels(loss="logistic", classes=tuple(range(10))).fit(X[~test], label[~test], writer[~test])
print(f"\neach writer alone, on pixels: {np.mean(alone.predict(X[test], writer[test]) == label[test]):.1%} right")
