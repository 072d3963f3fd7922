"""Private PCA across hospitals.

Eight hospitals measure the same twelve laboratory values. Which values vary together, over all patients? The components
will be published, and must not reveal any patient's row. There is no target, so the method is ``FedPower``.

The hospitals and their patients are synthetic.
"""

import numpy as np

import tacitly

names = ["sodium", "potassium", "chloride", "urea", "creatinine", "glucose"]
names += ["HbA1c", "cholesterol", "LDL", "triglycerides", "CRP", "leukocytes"]
rng = np.random.default_rng(0)
hospital = np.repeat(np.arange(8), rng.integers(500, 1500, size=8))
kidney, sugar, fat, inflamed = (rng.normal(size=(len(hospital), 1)) for _ in range(4))
loadings = np.zeros((4, 12))
loadings[0, [1, 3, 4]], loadings[1, [5, 6]] = (0.6, 0.9, 0.9), (0.9, 0.8)
loadings[2, [7, 8, 9]], loadings[3, [10, 11]] = (0.8, 0.8, 0.5), (0.9, 0.7)
X = np.hstack([1.6 * kidney, 1.4 * sugar, 1.2 * fat, inflamed]) @ loadings + 0.4 * rng.normal(size=(len(hospital), 12))
X += 0.1 * rng.normal(size=(8, 12))[hospital]  # each hospital's laboratory is a little off

# A row is a patient, so the row is what is protected. Values are in units of a public reference range, and laboratories
# agree that nothing beyond eight such units is reported: a public bound, which saves budget.
model = tacitly.FedPower(4, epsilon=1.0, unit="row", center=True, feature_range=(-8.0, 8.0))
model.fit(X, users=hospital)

# Components come with how well they can be told from the privacy noise: 1 is certain, 0 is noise.
print("the four largest components, and what they load on")
for component, sure, value in zip(model.components_, model.confidence_, model.singular_values_, strict=True):
    component = component * np.sign(component[np.abs(component).argmax()])
    loads = ", ".join(f"{name} {load:+.2f}" for name, load in zip(names, component, strict=True) if abs(load) > 0.25)
    print(f"  {value:6.1f}  confidence {sure:.3f}  {loads}")

# Beside what the pooled rows would have shown without privacy (for you: it is computed from private rows).
centred = X - X.mean(axis=0)
exact = np.linalg.svd(centred, full_matrices=False)[2][: model.n_components_]
print(
    f"sine of the largest angle to PCA without privacy: {tacitly.subspace_distance(model.components_.T, exact.T):.4f}"
)
print(f"\n{str(model.certificate_).splitlines()[0]}")

# Hospitals that do not send rows anywhere run the same method with ``tacitly serve`` and ``tacitly join``:
# see the deployment guide. To protect a hospital as a whole, not each patient, take ``unit="user"``; with eight
# hospitals the noise would drown everything, as it should.
