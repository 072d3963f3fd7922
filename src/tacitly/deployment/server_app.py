"""The coordinator's algorithm as a Flower server app, started by ``tacitly serve``. All its inputs are public."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from tacitly.deployment.other_federations import NOT_COUNTED, other_federations
from tacitly.deployment.settings import Groups, Settings, Status, farewell
from tacitly.federation.flower.fleet import MESSAGE_TYPE, from_content, to_content
from tacitly.federation.flower.keys import signed
from tacitly.federation.flower.population import FlowerPopulation, Patience
from tacitly.portable import AlreadyLocked, lock_file

app = ServerApp()

_LIFETIME = 600.0  # seconds after which Flower drops a message
_LOOK = 1.0  # seconds between checks of which nodes are online
_GOODBYE = 15.0  # seconds for nodes to receive the message that the run is over
_HELD_UP = 2.0  # seconds after which a pull of all answers is considered blocked by one of them


class GridTransport:
    """Flower's grid as a :class:`~tacitly.federation.flower.population.Transport`: signed messages out, bytes in."""

    def __init__(self, grid: Grid, key: bytes) -> None:
        self._grid, self._key = grid, key
        self._pending: set[str] = set()
        self._arrived: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._round = 0
        self._pulls: dict[frozenset[str], float] = {}  # running pulls, and when each started
        self._online: tuple[float, list[int]] = (0.0, [])

    def begin(self) -> None:
        """Begin a round: replies to earlier messages are no longer pulled."""
        self._pending.clear()
        self._round, self._pulls = self._round + 1, {}

    def online(self) -> Iterable[int]:
        """Return the ids of nodes that can be reached now."""
        if time.monotonic() - self._online[0] > _LOOK:
            self._online = time.monotonic(), [int(node) for node in self._grid.get_node_ids()]
        return self._online[1]

    def send(self, messages: Mapping[int, bytes]) -> None:
        """Send each node its message."""
        out = [
            Message(
                content=to_content(signed(data, self._key)),
                message_type=MESSAGE_TYPE,
                dst_node_id=node,
                ttl=_LIFETIME,
                group_id="",
            )
            for node, data in messages.items()
        ]
        self._pending |= {message for message in self._grid.push_messages(out) if message}

    def receive(self) -> Iterable[tuple[Any, Any]]:
        """Return what arrived since the last call, as pairs of sender and content. Never waits.

        Flower waits for minutes for an answer that was announced and not sent. So pulls run in their own threads: one
        for all answers, and if that one is blocked, one for each answer that is still missing.
        """
        arrived = []
        while not self._arrived.empty():
            number, message = self._arrived.get()
            asked = message.metadata.reply_to_message_id
            if number == self._round and asked in self._pending:
                self._pending.discard(asked)
                arrived.append(message)
        self._pull_pending()
        return [
            (message.metadata.src_node_id, from_content(message.content) if message.has_content() else None)
            for message in arrived
        ]

    def _pull_pending(self) -> None:
        pulls = list(self._pulls.items())  # a copy, because threads remove finished pulls
        if self._pending and not pulls:
            self._pull(frozenset(self._pending))
        elif any(len(ids) > 1 and time.monotonic() - since > _HELD_UP for ids, since in pulls):
            alone = {next(iter(ids)) for ids, _ in pulls if len(ids) == 1}
            for each in self._pending - alone:
                self._pull(frozenset([each]))

    def _pull(self, ids: frozenset[str]) -> None:
        number, pulls = self._round, self._pulls
        pulls[ids] = time.monotonic()

        def work() -> None:
            try:
                for message in self._grid.pull_messages(list(ids)):
                    self._arrived.put((number, message))
            except Exception:
                time.sleep(_LOOK)  # treated as if nothing had arrived: the round's deadline decides
            finally:
                pulls.pop(ids, None)

        threading.Thread(target=work, daemon=True).start()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fit the model that the settings describe and save it."""
    folder = Path(str(context.run_config["folder"]))
    threading.Thread(target=_end_with_the_server, args=(folder,), daemon=True).start()
    settings, transport = Settings.load(folder), GridTransport(grid, (folder / "coordinator.key").read_bytes())
    roster = settings.roster(folder)
    threading.Thread(target=_watch, args=(transport, roster, Status(folder)), daemon=True).start()
    coordinate(folder, transport, lambda: dismiss(transport, roster, settings.run))


def dismiss(transport: Any, nodes: Iterable[int], run: str, seconds: float = _GOODBYE) -> None:
    """Tell the nodes that are online that the run is over, and wait until they have received the message."""
    here = set(nodes) & set(transport.online())
    transport.begin()
    transport.send(dict.fromkeys(here, farewell(run)))
    end = time.monotonic() + seconds
    while here and time.monotonic() < end:
        here -= {node for node, _ in transport.receive()}
        time.sleep(0.1)


def _watch(transport: Any, roster: Mapping[int, Any], status: Status) -> None:
    """Keep the status up to date about which sites are online."""
    before = None
    while True:
        try:
            online = set(transport.online())
        except Exception:
            online = set()  # Flower is starting, or ending
        sites = {card.name: "here" if node in online else "not here" for node, card in sorted(roster.items())}
        if sites != before:
            status.change(sites=sites)
        before = sites
        time.sleep(_LOOK)


def coordinate(folder: Path, transport: Any, goodbye: Callable[[], None] = lambda: None) -> None:
    """Fit over any transport, record the outcome in the status, and call ``goodbye`` when the model is saved."""
    from tacitly.model_folder import save
    from tacitly.privacy.ledger import Ledger

    settings = Settings.load(folder)
    status = Status(folder)
    out = Path(settings.out)
    if out.exists():
        if not made_by(settings.run, out):
            status.change(state="stopped", last_error=f"{out} exists, and this run did not write it. Remove it.")
            raise FileExistsError(out)
        goodbye()
        status.change(state="finished")
        return
    with Ledger(folder / "ledger", ceiling=settings.ceiling) as ledger:
        budget = settings.epsilon if settings.ceiling is not None else None
        status.change(state="waiting for nodes", process=os.getpid(), last_error=None, epsilon=budget, began=None)

        def released(name: str) -> None:
            done = [row for row in ledger.releases(settings.run) if row.state == "published"]
            spent = ledger.spent() if ledger.ceiling is not None else None
            status.release(name, len(done), spent)

        population = FlowerPopulation(
            transport=transport,
            roster=settings.roster(folder),
            how=settings.trust,
            patience=Patience(**settings.patience),
            colluding=settings.colluding,
            groups=Groups(folder),
            on_round=status.round,
        )
        model = settings.model(ledger, population)
        others = other_federations(folder, settings)
        model.account_notes = (NOT_COUNTED, *others)
        status.change(planned=settings.planned(model), users=population.n_users, not_counted=others)
        try:
            model.fit(on_release=released)
            save(model, out)
        except BaseException as error:
            # Only the class of an exception is published, unless its text is from tacitly and has public numbers only.
            shown = str(error) if type(error).__module__.startswith("tacitly.") else type(error).__name__
            status.change(state="stopped", last_error=shown)
            raise
    goodbye()
    status.change(state="finished")


def made_by(run: str, out: Path) -> bool:
    """Return whether this run wrote a model folder: its certificate has the run's releases and fits the billboard."""
    from tacitly.privacy.certificate import Certificate

    try:
        certificate = Certificate.from_json((out / "certificate.json").read_text("utf-8"))
        billboard = hashlib.sha256((out / "billboard.safetensors").read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return certificate.billboard_sha256 == billboard and {row.run for row in certificate.releases} == {run}


def _end_with_the_server(folder: Path) -> None:
    """Exit when ``tacitly serve`` has ended (its lock is free then), so that the next one can lock the ledger."""
    while True:
        try:
            lock_file(folder / "serve.lock").release()
        except AlreadyLocked:
            time.sleep(0.5)
            continue
        os._exit(1)
