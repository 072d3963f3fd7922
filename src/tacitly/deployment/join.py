"""A site: its folder with rows, keys and heads, and how it joins a coordinator or personalises offline."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacitly.data.cohort import Cohort
from tacitly.deployment.settings import INVITATION, check_format, farewell
from tacitly.federation.flower.card import Card
from tacitly.federation.flower.kept_heads import digest_of, read_heads
from tacitly.federation.flower.keys import make_node_key
from tacitly.federation.flower.masks import new_key
from tacitly.federation.flower.node import Node
from tacitly.federation.flower.version import check_flower
from tacitly.heads.base import HeadWork
from tacitly.methods import REGISTRY
from tacitly.portable import write_private
from tacitly.privacy.accounting import mu_of
from tacitly.privacy.guarantee import Adjacency, Budget, Event, GaussianEvent, SelectionEvent, Sensitivity, Unit
from tacitly.privacy.ledger import BudgetExceeded, Ledger

_TRUST = ("central", "node", "secure")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


def prepare(
    folder: Path, name: str, cohort: Cohort, *, tell_rows: bool = False, user_column: str | None = None
) -> Card:
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
        (folder / "site.json").write_text(json.dumps({"user": user_column}), "utf-8")
        (folder / "card.json").write_text(card.to_json(), "utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return card


def read_invitation(path: Path) -> dict[str, Any]:
    """Read a coordinator's ``invitation.json``; raise if it has another version."""
    invitation = json.loads(path.read_text("utf-8"))
    check_format(path, invitation, INVITATION)
    if not _NAME.fullmatch(str(invitation.get("run"))):  # it is stored in the account, and printed from there
        raise ValueError(f"{path}: the name of the run must be letters, digits, - and _. Do not join.")
    return dict(invitation)


def open_node(
    folder: Path,
    invitation: dict[str, Any],
    *,
    ceiling: Budget | None = None,
    trust: str | None = None,
    threads: int | None = None,
) -> Node:
    """Open a site's folder as a node of the run that an invitation describes.

    ``ceiling`` is the budget that all runs together may spend if the site adds noise. It is set once, by default to the
    budget of the first run, and no invitation can change it. ``trust`` is how far the site trusts the coordinator; None
    means the trust stated in the invitation. A site that has a ceiling is never opened as one that adds no noise.
    """
    card = Card.from_json((folder / "card.json").read_text("utf-8"))
    keys, trust = invitation["mask_keys"], _own_trust(folder, invitation["trust"], trust, ceiling)
    # Sites compare the fingerprint of the whole list, so each site only has to check its own entry.
    if keys.get(card.name) != card.mask_key:
        raise ValueError(
            f"the invitation must hold the mask key of {card.name}. Found another key or none. Do not join."
        )
    if len({bytes.fromhex(key) for key in keys.values()}) < len(keys):  # independent of how the hex digits are written
        raise ValueError("the invitation gives two sites the same mask key. Do not join.")
    return Node(
        card.name,
        Cohort.open(folder / "cohort"),
        folder,
        trust=trust,
        ceiling=None if trust == "central" else _own_ceiling(folder / "node.ledger", ceiling, invitation),
        mask_key=(folder / "mask.key").read_bytes(),
        peers={name: bytes.fromhex(key) for name, key in invitation["mask_keys"].items() if name != card.name},
        colluding=int(invitation["colluding"]),
        threads=threads,
    )


def asked_for(invitation: dict[str, Any]) -> Budget:
    """Return the budget of the run that an invitation describes."""
    return Budget(
        epsilon=float(invitation["epsilon"]),
        delta=float(invitation["delta"]),
        adjacency=Adjacency(invitation["adjacency"]),
        unit=Unit(invitation.get("unit", "user")),
    )


def _own_trust(folder: Path, invited: str, wanted: str | None, ceiling: Budget | None) -> str:
    """Return how far the coordinator is trusted; no invitation can make a site with a ceiling stop adding noise."""
    if invited not in _TRUST or wanted not in (None, *_TRUST):
        raise ValueError(
            f"trust must be one of {', '.join(_TRUST)}. Found {invited!r} in the invitation, {wanted!r} here."
        )
    if wanted is not None and wanted != invited:
        raise ValueError(f"the invitation says trust {invited!r}, this site {wanted!r}. Do not join.")
    if invited == "central" and (ceiling is not None or (folder / "node.ledger").exists()):
        why = "was given a ceiling (--epsilon)" if ceiling is not None else "has a ceiling (node.ledger)"
        raise ValueError(
            f"this site {why}, and the invitation says trust 'central': the coordinator would see sums without noise, "
            "which no ceiling limits. Do not join, or create another folder for this run."
        )
    return invited


def _own_ceiling(path: Path, wanted: Budget | None, invitation: dict[str, Any]) -> Budget:
    """Return the ceiling, setting it if there is none; raise here, not in a round, if the run exceeds it."""
    asked = asked_for(invitation)
    with Ledger(path, ceiling=wanted or (None if path.exists() else asked)) as ledger:
        standing = ledger.ceiling
        if standing is None:
            raise ValueError(f"{path} has no ceiling, so it cannot protect this site's users.")
        begun = any(row.run.startswith(f"{invitation['run']}/") for row in ledger.releases())
        if standing.adjacency == asked.adjacency and not begun:
            try:
                ledger.afford([whole(asked)], "the run")
            except BudgetExceeded:
                raise ValueError(
                    f"the run asks for ε = {asked.epsilon:g}; this site's ceiling is ε = {standing.epsilon:g}, and "
                    f"{ledger.spent():.3g} of it is spent. Do not join."
                ) from None
    return standing


def whole(asked: Budget) -> Event:
    """Return one release that costs as much as the whole run, and a few of them about as much as a few runs."""
    if asked.delta == 0.0:
        return SelectionEvent.of_epsilon(asked.epsilon, asked.adjacency)
    sensitivity = Sensitivity.of_clip(1.0, unit=asked.unit)
    distance = sensitivity.zero_out if asked.adjacency is Adjacency.ZERO_OUT else sensitivity.replace_one
    return GaussianEvent(sigma=distance / mu_of(asked.epsilon, asked.delta), sensitivity=sensitivity)


def fingerprint(invitation: dict[str, Any]) -> str:
    """Return a digest of the participants and terms, which people at the sites compare in full.

    The coordinator distributes the keys, so only a comparison through another channel shows that all sites have the
    same keys. A shorter digest could be forged: the coordinator could generate keys until two lists have the same
    digest.
    """
    text = json.dumps([invitation[name] for name in ("mask_keys", "trust", "colluding")], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "-".join(digest[i : i + 4] for i in range(0, len(digest), 4))


def terms(folder: Path, invitation: dict[str, Any]) -> list[str]:
    """Return what a site agrees to by joining: the participants, the budget, and who must be honest."""
    names, asked = sorted(invitation["mask_keys"]), asked_for(invitation)
    per_row = "" if asked.unit is Unit.USER else ", for each row: it does not hide a user with many rows"
    lines = [
        f"joining {invitation['server']} (trust: {invitation['trust']})",
        f"{len(names)} sites: {', '.join(names)}",
        f"the run spends ε = {asked.epsilon:g}, δ = {asked.delta:g} ({asked.adjacency}){per_row}",
    ]
    if invitation["trust"] == "central":
        lines.append("the coordinator sees the sums of this site's users without noise")
    else:
        with Ledger(folder / "node.ledger") as ledger:
            if ledger.ceiling is not None:
                lines.append(
                    f"this site's ceiling is ε = {ledger.ceiling.epsilon:g}; {ledger.spent():.3g} of it is spent"
                )
    if invitation["trust"] == "secure":
        lines.append(f"all but {invitation['colluding']} of them must follow the protocol and keep their ledgers")
        lines.append(f"fingerprint {fingerprint(invitation)}: compare it, and the names, with the other sites")
    return lines


def join(
    folder: Path,
    invitation: dict[str, Any],
    say: Callable[[str], None],
    *,
    ceiling: Budget | None = None,
    trust: str | None = None,
    patience: float = 60.0,
    agreed: Callable[[], None] = lambda: None,
) -> None:
    """Answer a coordinator until it says that the run is over; ``agreed`` is called before the first answer."""
    check_flower()
    from tacitly.federation.flower.fleet import stay

    node = open_node(folder, invitation, ceiling=ceiling, trust=trust)
    for line in terms(folder, invitation):
        say(f"{node.name}: {line}")
    agreed()
    _warm(node, invitation.get("learns", {}), say)
    say(f"{node.name}: waiting for {invitation['server']} (Ctrl-C stops; run the same command again to continue)")
    count, over, goodbye = 0, False, farewell(str(invitation["run"]))

    def answer(ask: bytes) -> bytes:
        nonlocal over
        over = over or ask == goodbye
        return b"" if ask == goodbye else node.answer(ask)

    def answered() -> None:
        nonlocal count
        count += 1
        say(f"{node.name}: {count} answered")

    stay(
        answer,
        server=invitation["server"],
        key=folder / "node.key",
        authority=invitation["authority"],
        coordinator=bytes.fromhex(invitation["coordinator"]),
        patience=patience,
        on_answer=answered,
        until=lambda: over,
    )
    say(f"{node.name}: the run has finished")
    if (folder / "heads.npz").exists():
        say(f"{node.name}: heads are in {folder}. To predict: tacitly predict MODEL TABLE --heads {folder}")


def _warm(node: Node, learns: dict[str, Any], say: Callable[[str], None]) -> None:
    """Compile before the site reports as online, so that no round waits for it; the site joins even if this fails."""
    from tacitly.deployment.warm_up import warm_up

    method = REGISTRY.get(str(learns.get("method")))
    if method is not None and method.network:
        method.load()  # raises an error with installation advice if PyTorch is missing; every answer would fail then
    started = time.monotonic()
    try:
        if warm_up(node, learns):
            say(f"{node.name}: ready after {time.monotonic() - started:.0f} s of compiling")
    except Exception as error:
        say(f"{node.name}: nothing could be compiled beforehand ({type(error).__name__}); the first rounds may be slow")


def personalize(folder: Path, model: Any) -> Path:
    """Fit heads for this site's users on a published model: offline, and without privacy cost."""
    cohort = Cohort.open(folder / "cohort")
    names = tuple(str(name) for name in model.feature_names_in_)
    if cohort.feature_names != names:
        raise ValueError("this site's columns are not those of the model. Expected the same names in the same order.")
    return Node("here", model.for_site(cohort), folder).keep_heads(model.head_work())


def take_heads(folder: Path, model: Any) -> str | None:
    """Load the heads of a site's users into a published model; return the column of user ids in the site's table.

    Raises if the heads were fitted to another model.
    """
    path = folder / "heads.npz"
    if not path.is_file():
        raise ValueError(f"{folder} has no heads yet: tacitly join {folder} --personalize-only MODEL fits them here.")
    # Heads of training users and of new users may be fitted differently; both kinds belong to the model.
    works = [work for work in (model.head_work(), model._home_work()) if isinstance(work, HeadWork)]
    stored = read_heads(path)
    if str(stored["model"]) not in [digest_of(work) for work in works]:
        raise ValueError(f"the heads in {folder} are of another model. Fit them again: --personalize-only MODEL.")
    model._take_heads(stored["heads"])
    model.users_ = stored["users"]
    about = folder / "site.json"
    column = json.loads(about.read_text("utf-8")).get("user") if about.is_file() else None
    return None if column is None else str(column)
