"""Options that several methods have, and what turns their text into values."""

from __future__ import annotations

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
    """Read numbers separated by commas; whole ones as whole numbers.

    >>> labels("0,1,2"), labels("0.5,1")
    ([0, 1, 2], [0.5, 1.0])
    """
    values = [float(label) for label in text.split(",")]
    return [int(value) for value in values] if all(value.is_integer() for value in values) else values


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
    help="Labels that may occur, numbers with commas; default for classes: 0,1.",
)
MODE = Option(name="mode", default="auto", compiles=True, exposed=False)
