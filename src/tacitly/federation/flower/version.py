"""Which Flower this speaks with: its fleet protocol is its own affair, so another version is refused, not tried."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

LINE = "1.41"


class OtherFlower(RuntimeError):
    """Flower is not there, or not in the version that this speaks with."""


def check_flower() -> None:
    """Raise unless the Flower that is installed is of the line this was made for.

    Parts of it are replaced from outside (:mod:`tacitly.federation.flower.fleet`). In another version they might have
    other names, and what was meant to be replaced would go on as it is: a node would end where it should come back.
    """
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise OtherFlower("a federation needs Flower: pip install 'tacitly[flower]'.") from None
    if ".".join(found.split(".")[:2]) != LINE:
        raise OtherFlower(f"a federation needs Flower {LINE}: pip install 'tacitly[flower]'. Found {found}.")
