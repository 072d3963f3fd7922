"""A site's folder: its users' rows, its keys, its heads; and how it joins a coordinator or works alone."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.cohort import Cohort
from tacit.federation.flower.keys import make_node_key, write_private
from tacit.federation.flower.masks import new_key
from tacit.federation.flower.node import Card, Node
from tacit.heads import RidgeHeads
from tacit.privacy.guarantee import Adjacency, Budget
from tacit.privacy.ledger import Ledger


def prepare(folder: Path, name: str, cohort: Cohort, *, tell_rows: bool = False) -> Card:
    """Make a site's folder from its users' rows; return (and write) the card to give to the coordinator."""
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
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


def open_node(folder: Path, invitation: dict[str, Any], *, threads: int | None = None) -> Node:
    """Open a site's folder as the node that an invitation speaks of."""
    card = Card.from_json((folder / "card.json").read_text("utf-8"))
    trust, ceiling = invitation["trust"], None
    if trust != "central":
        ceiling = Budget(
            epsilon=float(invitation["epsilon"]),
            delta=invitation["delta"],
            adjacency=Adjacency(invitation["adjacency"]),
        )
        Ledger(folder / "node.ledger", ceiling=ceiling).close()  # says here, not by silence later, if another stands
    return Node(
        card.name,
        Cohort.open(folder / "cohort"),
        folder,
        trust=trust,
        ceiling=ceiling,
        mask_key=(folder / "mask.key").read_bytes(),
        peers={name: bytes.fromhex(key) for name, key in invitation["mask_keys"].items() if name != card.name},
        colluding=int(invitation["colluding"]),
        threads=threads,
    )


def fingerprint(invitation: dict[str, Any]) -> str:
    """Short digest of the mask keys, for people at the sites to compare: the coordinator hands keys out too."""
    text = json.dumps(invitation["mask_keys"], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "-".join(digest[i : i + 4] for i in range(0, 24, 4))


def join(folder: Path, invitation: dict[str, Any], say: Callable[[str], None], *, patience: float = 60.0) -> None:
    """Answer a coordinator until interrupted."""
    from tacit.federation.flower.fleet import stay

    node = open_node(folder, invitation)
    say(f"{node.name}: joining {invitation['server']} (trust: {invitation['trust']})")
    if invitation["trust"] == "secure":
        say(f"{node.name}: keys of the group: {fingerprint(invitation)} (compare with the other sites)")
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
    work = RidgeHeads(model.basis_, bool(getattr(model, "fit_intercept", False)))
    return Node("here", cohort, folder).keep_heads(work)
