"""Quick start: fit, score, personalize, verify.

The shortest complete use of the library, on synthetic users: a shared model, a head for a new user, and the
verification of a certificate.
"""

import tempfile
from pathlib import Path

import tacitly
from tacitly.privacy.verification import verify

# 3,000 users with 8 rows each. Everybody's weights lie in one 2-dimensional subspace of 30 features.
data = tacitly.datasets.make_shared_subspace(3000, 30, 2, 8, noise=0.1, random_state=0)
model = tacitly.PrivateFedRep(rank=2, epsilon=1.0).fit(data.X, data.y, data.users)

# The first line of the certificate. Print all of it to see who is trusted and what is not covered.
print(str(model.certificate_).splitlines()[0])
print(f"R² of personal predictions: {model.score(data.X, data.y, data.users):.3f}")

# A new user: a head is fitted to their own rows and the public basis. Nothing is released.
new = tacitly.datasets.make_shared_subspace(1, 30, 2, 8, noise=0.1, random_state=1)
head = model.personalize(new.X, new.y)
print(f"a new user's head: {head.weights.round(3)}")

# Anybody who has the public files can derive ε again.
with tempfile.TemporaryDirectory() as directory:
    folder = tacitly.save(model, Path(directory) / "model")
    certificate = (folder / "certificate.json").read_text(encoding="utf-8")
    public = {name: (folder / name).read_bytes() for name in ("billboard.safetensors", "config.json")}
    print(f"certificate holds: {verify(certificate, files=public).ok}")
