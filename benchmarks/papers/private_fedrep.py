"""Private FedRep, Figure 1 (Snedeker et al. 2025): n = 20,000, d = 50, k = 2, m = 10, label noise 0.01, δ = 1e-6.

Population mean squared error in closed form, averaged over five draws of the data, for

* the paper's printed settings, with their true ε (zero-out and replace-one, start and loop together);
* Priv-AltMin (Jain et al. 2021), corrected; tacitly, zero-out and replace-one;
* without privacy: the same method, the true subspace (oracle), local ridge regressions.

``python -m benchmarks.papers.private_fedrep`` (about four minutes on two cores; ``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

from benchmarks.tables import IMAGES, keep, table
from tacitly import Cohort, FedRep, LocalModels, PrivateAltMin, PrivateFedRep, UncertifiedWarning
from tacitly.datasets import SharedSubspace, make_shared_subspace
from tacitly.heads.ridge import fit_heads
from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Adjacency

DELTA = 1e-6
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small problem, nothing is written")
    quick = parser.parse_args().quick
    n, draws, epsilons = (1000, 1, (1.0, 8.0)) if quick else (20_000, 5, EPSILONS)

    errors: dict[str, list[float]] = {}
    true: dict[float, tuple[float, float]] = {}
    for draw in range(draws):
        data = make_shared_subspace(n, 50, 2, 10, 0.01, random_state=1000 + draw)
        cohort = Cohort.from_arrays(data.X, data.y, data.users)
        note(errors, "oracle", oracle(data, cohort))
        note(errors, "not private", mse(data, FedRep(rank=2).fit(cohort)))
        note(errors, "local", mse(data, LocalModels().fit(cohort)))
        for epsilon in epsilons:
            model = PrivateFedRep(rank=2, epsilon=epsilon, delta=DELTA).fit(cohort)
            note(errors, f"ours, zero-out, {epsilon:g}", mse(data, model))
            replace = PrivateFedRep(rank=2, epsilon=epsilon, delta=DELTA, adjacency="replace-one")
            note(errors, f"ours, replace-one, {epsilon:g}", mse(data, replace.fit(cohort)))
            altmin = PrivateAltMin(rank=2, epsilon=epsilon, delta=DELTA).fit(cohort)
            note(errors, f"Priv-AltMin, zero-out, {epsilon:g}", mse(data, altmin))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UncertifiedWarning)
                paper = PrivateFedRep(rank=2, epsilon=epsilon, delta=DELTA, mode="paper").fit(cohort)
            note(errors, f"paper as printed, {epsilon:g}", mse(data, paper))
            events = [release.event for release in paper.certificate_.releases]
            true[epsilon] = (
                compose(events, Adjacency.ZERO_OUT, DELTA),
                compose(events, Adjacency.REPLACE_ONE, DELTA),
            )

    mean = {name: float(np.mean(values)) for name, values in errors.items()}
    rows = [
        [
            f"{epsilon:g}",
            f"{mean[f'ours, zero-out, {epsilon:g}']:.3e}",
            f"{mean[f'ours, replace-one, {epsilon:g}']:.3e}",
            f"{mean[f'Priv-AltMin, zero-out, {epsilon:g}']:.3e}",
            f"{mean[f'paper as printed, {epsilon:g}']:.3e}",
            f"{true[epsilon][0]:.2f} / {true[epsilon][1]:.2f}",
        ]
        for epsilon in epsilons
    ]
    text = table(
        [
            "ε",
            "tacitly, zero-out",
            "tacitly, replace-one",
            "Priv-AltMin, zero-out",
            "paper as printed",
            "its true ε (zero-out / replace-one)",
        ],
        rows,
    )
    text += (
        f"\n\nWithout privacy: true subspace {mean['oracle']:.3e}, same method {mean['not private']:.3e}, "
        f"local models {mean['local']:.3e}. Mean of {draws} draws."
    )
    data_out = {
        "mse": errors,
        "true_epsilon_of_paper": {str(key): value for key, value in true.items()},
    }
    keep("private_fedrep", data_out, text, quick=quick)
    if not quick:
        plot(mean, true, epsilons)


def note(errors: dict[str, list[float]], name: str, value: float) -> None:
    errors.setdefault(name, []).append(value)


def mse(data: SharedSubspace, model: PrivateFedRep | PrivateAltMin | LocalModels) -> float:
    return data.population_mse(model.basis_, model.heads_)


def oracle(data: SharedSubspace, cohort: Cohort) -> float:
    heads = fit_heads(cohort.X, np.asarray(cohort.y), cohort.offsets, data.basis)
    return data.population_mse(data.basis, heads)


def plot(mean: dict[str, float], true: dict[float, tuple[float, float]], epsilons: tuple[float, ...]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.2))
    for name, style in (("ours, zero-out", "o-"), ("ours, replace-one", "s--"), ("Priv-AltMin, zero-out", "^-")):
        axes.loglog(epsilons, [mean[f"{name}, {e:g}"] for e in epsilons], style, label=name.replace("ours", "tacitly"))
    axes.loglog(
        [true[e][1] for e in epsilons],
        [mean[f"paper as printed, {e:g}"] for e in epsilons],
        "v-",
        label="paper as printed, at its true ε (replace-one)",
    )
    for name, label in (("local", "local models"), ("oracle", "true subspace known")):
        axes.axhline(mean[name], color="grey", linestyle=":" if name == "local" else "-.", label=label)
    axes.set_xlabel("ε (δ = 1e-6, all releases accounted)")
    axes.set_ylabel("population squared error")
    axes.set_title("Private FedRep's experiment: 20,000 users, 10 rows each")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.tight_layout()
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / "private_fedrep.png", dpi=130)


if __name__ == "__main__":
    main()
