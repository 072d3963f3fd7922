"""Private FedRep, Figure 1 (Snedeker et al. 2025): n = 20,000, d = 50, k = 2, m = 10, label noise 0.01, δ = 1e-6.

Population mean squared error in closed form, averaged over five draws of the data, for

* the paper's printed settings, with their true ε (zero-out and replace-one, start and loop together);
* Priv-AltMin (Jain et al. 2021), corrected; tacitly, zero-out and replace-one;
* without privacy: the same method, FedRep as Collins et al. printed it, the true subspace (oracle), local ridge
  regressions, and five local gradient steps (Figure 2).

Heads are of unit norm, as in the paper's released script, and N(0, I_k), as in its text: each has a table.

``python -m benchmarks.papers.private_fedrep [--heads unit,gaussian]`` (about eight minutes on two cores; ``--quick``
for a smoke test).
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import numpy as np

from benchmarks.tables import IMAGES, RESULTS, keep, table
from tacitly import Cohort, FedRep, LocalModels, PrivateAltMin, PrivateFedRep, UncertifiedWarning
from tacitly.datasets import SharedSubspace, make_shared_subspace
from tacitly.heads.ridge import fit_heads
from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Adjacency

DELTA = 1e-6
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


HEADS = {"unit": "heads of unit norm (the script)", "gaussian": "heads N(0, I) (the text)"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small problem, nothing is written")
    parser.add_argument("--heads", default=",".join(HEADS), help="only these; the others keep their results")
    arguments = parser.parse_args()
    quick, kept = arguments.quick, RESULTS / "private_fedrep.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() and not quick else {}
    data = {name: found[name] for name in ("mse", "mse_gaussian", "true_epsilon_of_paper") if name in found}
    for heads in arguments.heads.split(","):
        errors, data["true_epsilon_of_paper"] = run(heads, quick)
        data["mse" if heads == "unit" else f"mse_{heads}"] = errors
    keep("private_fedrep", data, text_of(data), quick=quick)
    if not quick:
        plot(data)


def run(heads: str, quick: bool) -> tuple[dict[str, list[float]], dict[str, tuple[float, float]]]:
    """Return the errors of every method by draw, and the true ε of the paper's settings."""
    n, draws, epsilons = (300, 1, (8.0,)) if quick else (20_000, 5 if heads == "unit" else 3, EPSILONS)
    errors: dict[str, list[float]] = {}
    true: dict[str, tuple[float, float]] = {}
    for draw in range(draws):
        data = make_shared_subspace(n, 50, 2, 10, 0.01, random_state=1000 + draw, unit_heads=heads == "unit")
        cohort = Cohort.from_arrays(data.X, data.y, data.users)
        note(errors, "oracle", oracle(data, cohort))
        note(errors, "not private", mse(data, FedRep(rank=2).fit(cohort)))
        printed = FedRep(rank=2, mode="paper", rounds=5 if quick else 100, random_state=draw)
        note(errors, "FedRep as printed", mse(data, printed.fit(cohort)))
        note(errors, "local", mse(data, LocalModels().fit(cohort)))
        note(errors, "local, five gradient steps", mse(data, LocalModels(gradient_steps=5).fit(cohort)))
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
            true[str(epsilon)] = (
                compose(events, Adjacency.ZERO_OUT, DELTA),
                compose(events, Adjacency.REPLACE_ONE, DELTA),
            )
    return errors, true


METHODS = {
    "ours, zero-out": "tacitly, zero-out",
    "ours, replace-one": "tacitly, replace-one",
    "Priv-AltMin, zero-out": "Priv-AltMin, zero-out",
    "paper as printed": "paper as printed",
}


def text_of(data: dict[str, Any]) -> str:
    """Return a table for each distribution of heads that was run."""
    true, parts = data["true_epsilon_of_paper"], []
    for heads, title in HEADS.items():
        errors = data.get("mse" if heads == "unit" else f"mse_{heads}")
        if errors is None:
            continue
        mean, draws = {name: float(np.mean(values)) for name, values in errors.items()}, len(errors["oracle"])
        rows = [
            [
                f"{float(epsilon):g}",
                *(f"{mean[f'{method}, {float(epsilon):g}']:.3e}" for method in METHODS),
                f"{both[0]:.2f} / {both[1]:.2f}",
            ]
            for epsilon, both in true.items()
            if f"ours, zero-out, {float(epsilon):g}" in mean
        ]
        header = ["ε", *METHODS.values(), "its true ε (zero-out / replace-one)"]
        without = {
            "true subspace": "oracle", "same method": "not private",
            "FedRep as Collins et al. printed it, 100 rounds": "FedRep as printed", "local models": "local",
            "five local gradient steps": "local, five gradient steps",
        }  # fmt: skip
        said = ", ".join(f"{label} {mean[name]:.3e}" for label, name in without.items() if name in mean)
        title = title[0].upper() + title[1:]
        parts.append(f"{title}:\n\n{table(header, rows)}\n\nWithout privacy: {said}. Mean of {draws} draws.")
    return "\n\n".join(parts)


def note(errors: dict[str, list[float]], name: str, value: float) -> None:
    errors.setdefault(name, []).append(value)


def mse(data: SharedSubspace, model: PrivateFedRep | PrivateAltMin | LocalModels) -> float:
    return data.population_mse(model.basis_, model.heads_)


def oracle(data: SharedSubspace, cohort: Cohort) -> float:
    heads = fit_heads(cohort.X, np.asarray(cohort.y), cohort.offsets, data.basis)
    return data.population_mse(data.basis, heads)


def plot(data: dict[str, Any]) -> None:
    """Figures 1 and 2: a panel for each distribution of heads."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    true = {float(epsilon): both for epsilon, both in data["true_epsilon_of_paper"].items()}
    shown = {heads: data.get("mse" if heads == "unit" else f"mse_{heads}") for heads in HEADS}
    shown = {heads: errors for heads, errors in shown.items() if errors}
    figure, panels = plt.subplots(1, len(shown), figsize=(5 * len(shown) + 4, 4.2), sharey=True, squeeze=False)
    for axes, (heads, errors) in zip(panels[0], shown.items(), strict=True):
        mean = {name: float(np.mean(values)) for name, values in errors.items()}
        for name, style in (("ours, zero-out", "o-"), ("ours, replace-one", "s--"), ("Priv-AltMin, zero-out", "^-")):
            axes.loglog(true, [mean[f"{name}, {e:g}"] for e in true], style, label=name.replace("ours", "tacitly"))
        printed = [mean[f"paper as printed, {e:g}"] for e in true]
        axes.loglog([both[1] for both in true.values()], printed, "v-", label="paper as printed, at its true ε")
        lines = {
            "local": ":", "oracle": "-.", "FedRep as printed": "--", "local, five gradient steps": (0, (1, 4)),
        }  # fmt: skip
        for name, style in lines.items():
            if name in mean:
                label = name.replace("oracle", "true subspace known").replace("FedRep as", "FedRep, not private, as")
                axes.axhline(mean[name], color="grey", linestyle=style, label=label)
        axes.set_xlabel("ε (δ = 1e-6, all releases accounted; replace-one for the paper)")
        axes.set_title(f"20,000 users, 10 rows each, {HEADS[heads]}", fontsize=9)
    panels[0][0].set_ylabel("population squared error")
    panels[0][-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.tight_layout()
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / "private_fedrep.png", dpi=130)


if __name__ == "__main__":
    main()
