"""Options that several methods have, and what turns their text into values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tacitly.methods.registry import Option, Parameters


def whole_or_word(text: str) -> int | str:
    """Read a count, or a word that the estimator knows (``auto``)."""
    return int(text) if text.lstrip("+-").isdigit() else text


def count_fraction_or_word(text: str) -> int | float | str:
    """Read a count, a fraction or a word; the estimator checks it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def labels(text: str) -> list[Any]:
    """Read labels separated by commas: numbers (whole ones as whole numbers) if all are, else text.

    >>> labels("0,1,2"), labels("0.5,1"), labels("no, yes")
    ([0, 1, 2], [0.5, 1.0], ['no', 'yes'])
    """
    words = [label.strip() for label in text.split(",")]
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if values:
        return [int(value) for value in values] if all(value.is_integer() for value in values) else values
    if len(words) < 2 or not all(words):
        raise ValueError(f"expected two or more labels with commas between them, such as no,yes. Found {text!r}.")
    return words


def low_high(text: str) -> tuple[float, float]:
    """Read a public range.

    >>> low_high("0:120"), low_high("-1.5:2")
    ((0.0, 120.0), (-1.5, 2.0))
    """
    low, colon, high = text.partition(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = (0.0, 0.0)
    if not (colon and -math.inf < bounds[0] < bounds[1] < math.inf):
        raise ValueError(f"expected low:high, two numbers, the lower first, such as 0:120. Found {text!r}.")
    return bounds


def schema_file(text: str) -> dict[str, dict[str, Any]]:
    """Read a schema file."""
    from tacitly.data.schema import read_declared

    return read_declared(text)


def classes_need_a_loss_for_classes(parameters: Parameters) -> None:
    """Raise where labels are declared for a loss that has none."""
    loss = parameters.get("loss")
    if parameters.get("classes") is not None and loss not in ("logistic", "hinge"):
        raise ValueError(f"--classes is for --loss logistic and hinge. Found --loss {loss}.")


def loss_option(default: str, text: str) -> Option:
    """Return the option for the loss, with a method's own default and help."""
    return Option(name="loss", default=default, help=text, compiles=True)


def largest_rank(n_features: int, parameters: Parameters) -> int:
    """Return the largest number of shared directions that a run with these parameters may have."""
    rank = parameters["rank"]
    return min(8, n_features) if isinstance(rank, str) else int(rank)


def with_target(*, any_loss: bool = False, **parameters: Any) -> Callable[[Parameters], Parameters | str]:
    """Return how a method that predicts is simulated: with these parameters, where a shape has a target.

    ``any_loss`` says that it also predicts classes and counts.
    """

    def simulated(shape: Parameters) -> Parameters | str:
        if not shape["target"]:
            return "it needs a target"
        if shape["loss"] == "squared":
            return parameters
        if not any_loss:
            return "it predicts numbers only"
        classes = tuple(range(shape["classes"])) if shape["loss"] == "logistic" else None
        return {**parameters, "loss": shape["loss"], "classes": classes}

    return simulated


RANK = Option(name="rank", kind=whole_or_word, help="Number of shared directions, or auto.")
INTERCEPT = Option(
    name="fit_intercept",
    kind=bool,
    default=False,
    flag="--intercept",
    help="Give each user an intercept, fitted with the head.",
    compiles=True,
)
ROUNDS = Option(name="rounds", kind=int, default=None, help="Noisy steps of the basis; default: the method's own.")
CLASSES = Option(
    name="classes",
    kind=labels,
    default=None,
    help="Labels that may occur, with commas: 0,1,2 or no,yes; default for classes: 0,1.",
)
SCHEMA = Option(
    name="schema",
    kind=schema_file,
    default=None,
    help="JSON file with public facts about columns: "
    '{"age": {"range": [0, 120]}, "region": {"levels": ["north", "south"]}}.',
)
TARGET_RANGE = Option(
    name="target_range", kind=low_high, default=None, help="Public range of the target, as low:high; saves budget."
)
MODE = Option(name="mode", default="auto", compiles=True, exposed=False)
