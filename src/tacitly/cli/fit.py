"""Fit a model on a table, or on made-up users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.cli.console import Table, Target, User, fit_with_progress, say, show_certificate, show_comparison, status

if TYPE_CHECKING:
    from tacitly.methods.shared_basis import SharedBasisModel


def fit(
    table: Table,
    user: User,
    target: Target,
    rank: Annotated[int, typer.Option(help="Number of shared directions.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="Privacy budget; 'inf' for no privacy.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")] = Path("model"),
    delta: Annotated[
        float | None,
        typer.Option(help="Probability with which epsilon may fail; default: 1e-6, or 0 (pure epsilon) for margin."),
    ] = None,
    adjacency: Annotated[str, typer.Option(help="zero-out or replace-one.")] = "zero-out",
    method: Annotated[str, typer.Option(help="fedrep, altmin, centaur, low-rank-sparse or margin.")] = "fedrep",
    sparsity: Annotated[
        str | None,
        typer.Option(help="low-rank-sparse: own coordinates of a user; a count, a fraction, or auto (default)."),
    ] = None,
    shared_weight: Annotated[
        bool, typer.Option(help="low-rank-sparse, rank 1: one central model, sparsely fine-tuned by every user.")
    ] = False,
    sampling_rate: Annotated[
        float, typer.Option(help="centaur: chance with which a user takes part in a release, by a secret coin.")
    ] = 1.0,
    features: Annotated[str | None, typer.Option(help="Feature columns, with commas; default: all others.")] = None,
    intercept: Annotated[bool, typer.Option(help="Give every user a level of their own.")] = False,
    loss: Annotated[
        str | None,
        typer.Option(help="squared, logistic, hinge or poisson; default: squared, or hinge for margin."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Labels that may occur, numbers with commas; default for classes: 0,1.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="Account to debit; default: OUT.ledger, new.")] = None,
    on_disk: Annotated[
        Path | None, typer.Option(help="Group the rows in this folder instead of memory; used again if it is there.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray: spread users over a Ray cluster.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Shards on the cluster; default: a shard a core.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a running Ray cluster, or auto; default: a new one here.")
    ] = None,
    compare: Annotated[bool, typer.Option(help="Compare with what you would have without it.")] = True,
) -> None:
    """Fit a model on a table of (user, features, target)."""
    from tacitly.data.cohort import Cohort
    from tacitly.methods.altmin.estimator import PrivateAltMin
    from tacitly.methods.centaur.estimator import Centaur
    from tacitly.methods.fedrep.estimator import PrivateFedRep
    from tacitly.methods.low_rank_sparse.estimator import LowRankSparse
    from tacitly.methods.margin.estimator import MarginClassifier
    from tacitly.model_folder import save
    from tacitly.privacy.guarantee import Adjacency, Budget, check_target
    from tacitly.privacy.ledger import Ledger

    if out.exists():
        raise ValueError(f"{out} exists already. Choose another --out, or remove it.")
    methods = {
        "fedrep": PrivateFedRep,
        "altmin": PrivateAltMin,
        "centaur": Centaur,
        "low-rank-sparse": LowRankSparse,
        "margin": MarginClassifier,
    }
    if method not in methods:
        raise ValueError(f"--method must be one of {', '.join(methods)}. Found {method!r}.")
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine must be local or ray. Found {engine!r}.")
    if intercept and method == "altmin":
        raise ValueError("--intercept is not for --method altmin.")
    if method != "low-rank-sparse" and (shared_weight or sparsity is not None):
        option = "--shared-weight" if shared_weight else "--sparsity"
        raise ValueError(f"{option} is for --method low-rank-sparse only.")
    if loss is None:
        loss = "hinge" if method == "margin" else "squared"
    if delta is None:
        delta = 0.0 if method == "margin" else 1e-6
    if method not in ("fedrep", "margin") and loss != "squared":
        raise ValueError("--loss is for --method fedrep and margin only.")
    if method != "centaur" and sampling_rate != 1.0:
        raise ValueError("--sampling-rate is for --method centaur only.")
    if classes is not None and loss not in ("logistic", "hinge"):
        raise ValueError(f"--classes is for --loss logistic and hinge. Found --loss {loss}.")
    if method != "margin":  # which alone can keep a delta of 0; a ledger would keep a wrong one as its ceiling
        check_target(epsilon, delta)
    labels = None if classes is None else [float(label) for label in classes.split(",")]
    if labels is not None and all(label.is_integer() for label in labels):
        labels = [int(label) for label in labels]
    budget = Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(adjacency))
    chosen = None if features is None else [name.strip() for name in features.split(",")]
    with status("reading the table"):
        if on_disk is not None and on_disk.exists():
            cohort = Cohort.open(on_disk)
            if cohort.target_name != target or (chosen is not None and list(cohort.feature_names) != chosen):
                raise ValueError(
                    f"{on_disk} holds rows with another target or other features. Remove it, or name another."
                )
            say(f"using the rows grouped in {on_disk} earlier (remove it to read the table again)")
        else:
            cohort = Cohort.from_table(table, user=user, target=target, features=chosen, folder=on_disk)
    say(f"{cohort.n_users} users, {cohort.n_features} features")
    if not 1 <= rank <= cohort.n_features:
        raise ValueError(f"--rank must lie between 1 and the number of features ({cohort.n_features}). Found {rank}.")
    path = ledger or out.with_name(out.name + ".ledger")
    # An account of its own gets this run's budget as its ceiling; one that exists keeps the ceiling it has.
    ceiling = None if path.exists() or not budget.private else budget
    with Ledger(path, ceiling=ceiling) as account:
        shared: dict[str, Any] = {
            "rank": rank,
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": adjacency,
            "ledger": account,
            "run": out.name,
        }
        if engine == "ray":
            from tacitly.federation.ray import RayEngine

            shared["engine"] = RayEngine(address=address, workers=workers)
        if method != "altmin":
            shared["fit_intercept"] = intercept
        if method == "low-rank-sparse":
            shared |= {"sparsity": _sparsity(sparsity or "auto"), "shared_weight": shared_weight}
        if method == "centaur":
            # Where a power method starts is public, and must be the same when the command is run again to go on.
            shared |= {"sampling_rate": sampling_rate, "random_state": 0}
        if method in ("fedrep", "margin"):
            shared |= {"loss": loss, "classes": labels}
        model: SharedBasisModel = methods[method](**shared)
        fit_with_progress(model, cohort)
        model.user_column_ = user
        save(model, out)
    show_certificate(model)
    if compare:
        show_comparison(model, cohort)
    say(f"model: {out}/ (share it with 'tacitly publish'; private/ holds the heads)\nledger: {path}")


def _sparsity(text: str) -> int | float | str:
    """Read a count, a fraction or a word; the estimator says what is wrong with it."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def demo(
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")] = Path("demo-model"),
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")] = 1.0,
    users: Annotated[int, typer.Option(help="Number of synthetic users.")] = 5000,
) -> None:
    """Show the whole thing on synthetic users in seconds: fit, certificate, comparison, model folder."""
    import shutil

    from tacitly.data.cohort import Cohort
    from tacitly.datasets import make_shared_subspace
    from tacitly.linalg import subspace_distance
    from tacitly.methods.fedrep.estimator import PrivateFedRep
    from tacitly.model_folder import PUBLIC, save

    if out.exists():
        if not all((out / name).is_file() for name in PUBLIC):
            raise ValueError(f"{out} exists and is not a model folder. Choose another --out.")
        shutil.rmtree(out)
    say(f"{users} synthetic users with 10 rows each: 50 features, 2 shared directions, a head of their own")
    data = make_shared_subspace(users, 50, 2, 10, noise=0.1)
    cohort = Cohort.from_arrays(data.X, data.y, data.users)
    model = PrivateFedRep(rank=2, epsilon=epsilon, run="demo")
    fit_with_progress(model, cohort)
    save(model, out)
    show_certificate(model)
    show_comparison(model, cohort)
    say(f"distance to the true subspace: {subspace_distance(model.basis_, data.basis):.4f}")
    say(f"model: {out}/  next: tacitly verify {out}")
