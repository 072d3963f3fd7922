"""A site's folder: its users' rows, its keys, its heads; and how it joins a coordinator or works alone."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.cohort import Cohort
from tacit.federation.flower.keys import make_node_key, write_private
from tacit.federation.flower.masks import new_key
from tacit.federation.flower.node import Card, Node, majority
from tacit.privacy.guarantee import Adjacency, Budget
from tacit.privacy.ledger import Ledger

_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


def prepare(folder: Path, name: str, cohort: Cohort, *, tell_rows: bool = False) -> Card:
    """Make a site's folder from its users' rows; return (and write) the card to give to the coordinator."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"a node's name must be letters, digits, - and _. Found {name!r}.")
    folder.mkdir(mode=0o700, parents=True)
    try:
        cohort.save(folder / "cohort")
        private, public = new_key()
        write_private(folder / "mask.key", private)
        card = Card(
            name=name,
            key=make_node_key(folder / "node.key"),
            mask_key=public.hex(),
            users=cohort.n_users,
            features=cohort.feature_names,
            target=cohort.target_name,
            rows=cohort.n_rows if tell_rows else None,
        )
        (folder / "card.json").write_text(card.to_json(), "utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return card


def open_node(
    folder: Path, invitation: dict[str, Any], *, ceiling: Budget | None = None, threads: int | None = None
) -> Node:
    """Open a site's folder as the node that an invitation speaks of.

    ``ceiling`` is what the site allows all runs together to spend where it adds noise. It is the site's own: set once,
    by default to what the first run asks for, and no invitation changes it.
    """
    card = Card.from_json((folder / "card.json").read_text("utf-8"))
    keys, trust = invitation["mask_keys"], invitation["trust"]
    # Sites that compare the fingerprint compare the whole list, so it is enough that each finds itself in it.
    if keys.get(card.name) != card.mask_key:
        raise ValueError(f"the invitation does not hold the mask key of {card.name}, but another or none. Do not join.")
    if len(set(keys.values())) < len(keys):
        raise ValueError("the invitation gives two sites one mask key. Do not join.")
    return Node(
        card.name,
        Cohort.open(folder / "cohort"),
        folder,
        trust=trust,
        ceiling=None if trust == "central" else _own_ceiling(folder / "node.ledger", ceiling, asked_for(invitation)),
        mask_key=(folder / "mask.key").read_bytes(),
        peers={name: bytes.fromhex(key) for name, key in invitation["mask_keys"].items() if name != card.name},
        colluding=int(invitation["colluding"]),
        threads=threads,
    )


def asked_for(invitation: dict[str, Any]) -> Budget:
    """Return what the run of an invitation will spend."""
    return Budget(
        epsilon=float(invitation["epsilon"]),
        delta=float(invitation["delta"]),
        adjacency=Adjacency(invitation["adjacency"]),
    )


def _own_ceiling(path: Path, wanted: Budget | None, asked: Budget) -> Budget:
    """Return the ceiling that stands, or set it; say here, not by silence later, if the run does not fit under it."""
    first = wanted or (None if path.exists() else asked)
    with Ledger(path, ceiling=first) as ledger:
        standing = ledger.ceiling
    if standing is None:
        raise ValueError(f"{path} has no ceiling, so it cannot guard this site's users.")
    if standing.adjacency == asked.adjacency and asked.epsilon > standing.epsilon:
        raise ValueError(f"the run asks for ε = {asked.epsilon:g}; this site's ceiling is ε = {standing.epsilon:g}.")
    return standing


def fingerprint(invitation: dict[str, Any]) -> str:
    """Short digest of who takes part and on what terms, for people at the sites to compare.

    The coordinator hands the keys out, so only a comparison past it shows that everybody has the same ones.
    """
    text = json.dumps([invitation[name] for name in ("mask_keys", "trust", "colluding")], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "-".join(digest[i : i + 4] for i in range(0, 24, 4))


def terms(folder: Path, invitation: dict[str, Any]) -> list[str]:
    """Say what a site agrees to by joining: with whom, how much is spent, and who must be honest."""
    names, asked = sorted(invitation["mask_keys"]), asked_for(invitation)
    said = [
        f"joining {invitation['server']} (trust: {invitation['trust']})",
        f"{len(names)} sites: {', '.join(names)}",
        f"the run spends ε = {asked.epsilon:g}, δ = {asked.delta:g} ({asked.adjacency})",
    ]
    if invitation["trust"] != "central":
        with Ledger(folder / "node.ledger") as ledger:
            if ledger.ceiling is not None:
                said.append(
                    f"this site's ceiling is ε = {ledger.ceiling.epsilon:g}; {ledger.spent():.3g} of it is spent"
                )
    if invitation["trust"] == "secure":
        said.append(f"{majority(len(names))} of them must be honest, {invitation['colluding']} of a group may not be")
        said.append(f"fingerprint {fingerprint(invitation)}: compare it, and the names, with the other sites")
    return said


def join(
    folder: Path,
    invitation: dict[str, Any],
    say: Callable[[str], None],
    *,
    ceiling: Budget | None = None,
    patience: float = 60.0,
) -> None:
    """Answer a coordinator until interrupted."""
    from tacit.federation.flower.fleet import stay

    node = open_node(folder, invitation, ceiling=ceiling)
    for line in terms(folder, invitation):
        say(f"{node.name}: {line}")
    count = 0

    def answered() -> None:
        nonlocal count
        count += 1
        say(f"{node.name}: {count} answered")

    stay(
        node.answer,
        server=invitation["server"],
        key=folder / "node.key",
        authority=invitation["authority"],
        coordinator=bytes.fromhex(invitation["coordinator"]),
        patience=patience,
        on_answer=answered,
    )


def personalize(folder: Path, model: Any) -> Path:
    """Fit heads for this site's users on a published billboard: offline, and free for everybody else's privacy."""
    cohort = Cohort.open(folder / "cohort")
    names = tuple(str(name) for name in model.feature_names_in_)
    if cohort.feature_names != names:
        raise ValueError("this site's columns are not those of the model. Expected the same names in the same order.")
    return Node("here", model.as_asked(cohort), folder).keep_heads(model.head_work())
