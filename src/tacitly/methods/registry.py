"""The description of a method, written once.

A method is a package whose ``__init__.py`` defines ``METHOD = Method(...)``. Everything that must know all methods is
derived from these descriptions: the facade, the commands and their options, the classes that may travel to sites, what
a site compiles beforehand, the configurations that tests run on every engine and attack, and the tables in the
documentation. A new method touches its own folder, its test and its page.

This module and the ``__init__.py`` of a method import nothing heavy (no NumPy, Numba, scikit-learn, pyarrow, PyTorch):
``tacitly --help`` reads all of them.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from importlib import import_module
from typing import Any, Final

Parameters = Mapping[str, Any]

ENGINES = ("local", "ray", "flower", "cuda")
"""Engines a method may run on: this process, a Ray cluster, sites behind Flower, a GPU of this process."""

ON_HOSTS = ENGINES[:3]
"""Engines that need no GPU."""

NETWORKS = "tacitly.neural"
"""The package whose methods need PyTorch. Folders and messages call them ``neural.Class``."""


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
"""The default of an option that has none."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A parameter of a method's estimator that a command can set.

    Parameters
    ----------
    name
        The estimator's parameter.
    help
        One sentence for ``--help``.
    kind
        ``bool`` for a switch; otherwise what turns the text into a value and raises ValueError if it cannot.
    default
        The estimator's own default. :data:`REQUIRED` where it has none and the command needs a value.
    flag
        Spelling on the command line; by default the name with dashes.
    required
        Whether the method's own command insists on a value although there is a default. (``serve`` does not.)
    compiles
        Whether the value decides what a site has to compile before it answers.
    exposed
        False for a parameter without a flag: only ``tacitly serve --set name=value`` sets it.
    """

    name: str
    help: str = ""
    kind: Callable[[str], Any] = str
    default: Any = REQUIRED
    flag: str = ""
    required: bool = False
    compiles: bool = False
    exposed: bool = True

    @property
    def spelling(self) -> str:
        """The flag, with its dashes."""
        return self.flag or f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True)
class Trial:
    """A small configuration that must find the same model on every engine; tests run it without ε.

    ``labels`` is how many classes or counts the target has, where not any number will do; ``noisy`` ones are not parted
    by any plane. ``tasks`` says that the first column holds the number of a task, ``shifted`` that rows and targets lie
    away from zero, ``rows`` that the unit of privacy is the row, ``adaptive`` that earlier releases decide about the
    number or size of later ones. ``tolerance`` bounds how far models of two engines may differ, ``one_by_one`` marks an
    algorithm that sends one message per user and step. ``refused`` is a part of the error where nodes are to add the
    noise, and ``certified`` whether a run with noise is certified (a paper's version as printed may not be).
    """

    name: str
    parameters: Parameters
    _: KW_ONLY
    labels: int = 0
    noisy: bool = False
    tasks: bool = False
    shifted: bool = False
    rows: bool = False
    adaptive: bool = False
    tolerance: float = 1e-10
    one_by_one: bool = False
    refused: str = ""
    certified: bool = True


@dataclass(frozen=True)
class AuditTrial:
    """A configuration that the auditor attacks, at ε = 1 unless it says otherwise.

    ``parameters`` may be a function, where making them needs imports. ``depth`` is ``"quick"`` (tests attack it with 20
    runs), ``"brief"`` (with 10) or ``"long"`` (benchmarks only). ``title`` is its row in the table of
    benchmarks/audit.py; empty for none. ``reach`` is the least share of the claim that the canary must come near, with
    a ``reason`` where it is not 0.8.
    """

    name: str
    parameters: Parameters | Callable[[], Parameters]
    _: KW_ONLY
    depth: str = "quick"
    title: str = ""
    reach: float = 0.8
    reason: str = ""

    def built(self) -> dict[str, Any]:
        """Return the estimator's parameters."""
        return {"epsilon": 1.0, **(self.parameters() if callable(self.parameters) else self.parameters)}


def _nothing_more(n_features: int, parameters: Parameters) -> int:
    return 0


def _never(parameters: Parameters) -> bool:
    return False


def _anything(parameters: Parameters) -> None:
    pass


def _not_simulated(shape: Parameters) -> str:
    return "there is no simulation of it yet"


def _rank_only(n_features: int, rank: int, words: Parameters) -> Parameters:
    return {"rank": rank}


@dataclass(frozen=True, kw_only=True)
class Method:
    """What everything outside a method's folder knows about it.

    Parameters
    ----------
    estimator
        ``"module:Class"`` in the folder, imported when it is first used.
    name
        What commands and invitations call it.
    command
        The command that fits it from a table: ``"fit"``, ``"svd"`` or ``"trace"``; None where only Python does.
    data, result, page
        "You have …" and "you get …" for the tables in the documentation, and its page under ``docs/``, with
        an anchor where it has only a part of it.
    default
        Whether its command uses it where no ``--method`` is given.
    baseline
        Whether it is there to compare with: lists name it after the others.
    delta
        The default of δ, which is an option of the command: 0 for a method under pure ε.
    options
        Parameters that commands can set, beside those that all methods share.
    fixed
        Parameters that commands always pass: what a resumed run must find again as it was.
    check
        Raises ValueError where the values of options contradict each other; called before any table is read.
    rank
        The parameter that is the number of shared directions; None where there is none.
    selects
        Whether it makes choices by the exponential mechanism, which one trusted party must add up.
    wire
        ``"module:Class"`` of the queries and the head work that travel, and of their fields.
    relatives
        ``"module:Class"`` of further estimators of the folder, for the facade and for model folders.
    engines
        Which of :data:`ENGINES` run it.
    limits
        Per engine (and per trust of Flower: ``"node"``), what it refuses there, for the table in docs/deploy.md.
    coordinates
        From the number of features and the parameters: how many numbers its longest answer has, where that can be more
        than a second moment of the features.
    small
        From the number of features, a rank of 1 or 2 and the words an invitation may set: parameters of the shortest
        run that asks everything a real one asks. A site compiles by it.
    plain_compiles
        Whether a site compiles even where it answers in plain NumPy.
    simulated
        From the numbers of a :class:`~tacitly.planning.shape.Shape`: the parameters with which ``tacitly plan`` fits it
        to made-up users of that shape; or why it does not fit, in a few words.
    trials, audits
        Named configurations for the engine conformance tests and for the auditor.
    package, about
        The folder's name and the first line of its docstring, "Paper: what the method does."; :func:`discover` sets
        them.
    """

    estimator: str
    name: str
    data: str
    result: str
    page: str
    command: str | None = "fit"
    default: bool = False
    baseline: bool = False
    delta: float = 1e-6
    options: tuple[Option, ...] = ()
    fixed: Parameters = field(default_factory=dict)
    check: Callable[[Parameters], None] = _anything
    rank: str | None = "rank"
    selects: bool = False
    wire: tuple[str, ...] = ()
    relatives: tuple[str, ...] = ()
    engines: tuple[str, ...] = ON_HOSTS
    limits: Mapping[str, str] = field(default_factory=dict)
    coordinates: Callable[[int, Parameters], int] = _nothing_more
    small: Callable[[int, int, Parameters], Parameters] = _rank_only
    plain_compiles: Callable[[Parameters], bool] = _never
    simulated: Callable[[Parameters], Parameters | str] = _not_simulated
    trials: tuple[Trial, ...] = ()
    audits: tuple[AuditTrial, ...] = ()
    package: str = ""
    about: str = ""

    @property
    def option_names(self) -> list[str]:
        """The parameters that commands can set."""
        return [option.name for option in self.options]

    @property
    def takes_schema(self) -> bool:
        """Whether it takes text, yes/no values and missing cells, and public ranges of columns."""
        return "schema" in self.option_names

    @property
    def paper(self) -> str:
        """The paper that it implements."""
        return self.about.partition(": ")[0]

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return self.about.partition(": ")[2].rstrip(".")

    @property
    def network(self) -> bool:
        """Whether it needs PyTorch."""
        return self.package.startswith(f"{NETWORKS}.")

    @property
    def class_name(self) -> str:
        """The estimator's name."""
        return self.estimator.partition(":")[2]

    @property
    def public_name(self) -> str:
        """The estimator's name below ``tacitly``, as in model folders."""
        return f"neural.{self.class_name}" if self.network else self.class_name

    @property
    def homes(self) -> dict[str, str]:
        """The module of each estimator of the folder, by class name."""
        return homes(self.package, self.estimator, *self.relatives)

    def load(self) -> Any:
        """Import and return the estimator's class."""
        return getattr(import_module(self.homes[self.class_name]), self.class_name)

    def build(self, **parameters: Any) -> Any:
        """Return the estimator with these parameters, those that are fixed, and defaults that it does not have."""
        usual = {option.name: option.default for option in self.options if option.default is not REQUIRED}
        return self.load()(**{**usual, **self.fixed, **parameters})

    def words(self, parameters: Parameters) -> dict[str, Any]:
        """Return the parameters that decide what is compiled, defaults included."""
        chosen = {
            option.name: parameters.get(option.name, option.default) for option in self.options if option.compiles
        }
        return {name: value for name, value in chosen.items() if value is not REQUIRED}


def homes(package: str, *classes: str) -> dict[str, str]:
    """Return the full name of the module of each ``"module:Class"`` of a package, by class name."""
    split = [name.partition(":") for name in classes]
    return {kind: f"{package}.{module}" for module, _, kind in split}


class Registry(Mapping[str, Method]):
    """All methods by name: the defaults of commands first, then by name, and what is there to compare with last."""

    def __init__(self, methods: list[Method]) -> None:
        ordered = sorted(methods, key=lambda method: (method.network, not method.default, method.baseline, method.name))
        self._methods = {method.name: method for method in ordered}
        if len(self._methods) < len(methods):
            raise ValueError(f"every method needs its own name. Found {[method.name for method in ordered]}.")

    def __getitem__(self, name: str) -> Method:
        return self._methods[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def offered(self, command: str) -> dict[str, Method]:
        """Return the methods that a command offers, by name; ``serve`` offers those that Flower runs."""
        return {
            method.name: method
            for method in self.values()
            if method.command == command or (command == "serve" and "flower" in method.engines and method.command)
        }

    def default(self, command: str) -> Method:
        """Return the method that a command uses where it is given none."""
        offered = list(self.offered(command).values())
        return next((method for method in offered if method.default), offered[0])

    def home(self, public_name: str) -> str | None:
        """Return the module of an estimator by its name below ``tacitly``; None for a name that no method has."""
        prefix, _, name = public_name.rpartition(".")
        for method in self.values():
            if prefix == ("neural" if method.network else "") and name in method.homes:
                return method.homes[name]
        return None


def discover(*packages: str) -> Registry:
    """Find every subpackage of these packages that describes a method."""
    found = []
    for package in packages:
        for module in pkgutil.iter_modules(import_module(package).__path__):
            if module.ispkg:
                folder = import_module(f"{package}.{module.name}")
                if hasattr(folder, "METHOD"):
                    about = (folder.__doc__ or "").partition("\n")[0]
                    found.append(replace(folder.METHOD, package=folder.__name__, about=about))
    return Registry(found)
