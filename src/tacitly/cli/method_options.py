"""Options that depend on the method: a command shows and accepts those that apply to its ``--method``.

A command that fits offers one or more methods of the registry. Its function declares the options that all of them
share. :class:`MethodCommand` adds the options of the method named in the arguments, and passes their values to the
function as :class:`Chosen`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click
import typer
from typer.core import TyperOption

from tacitly.cli.help_pages import Command
from tacitly.methods import REGISTRY
from tacitly.methods.registry import REQUIRED, Method, Option

_PREFIX = "method_option_"  # avoids conflicts between a method's parameters and the command's
_KEY = "tacitly.method"


@dataclass(frozen=True)
class Chosen:
    """A method and the values of its options; ``given`` are the options that were passed explicitly."""

    method: Method
    values: dict[str, Any]
    given: dict[str, Any]

    @classmethod
    def of(cls, context: typer.Context) -> Chosen:
        """Return the method and options that the command's arguments select."""
        chosen = context.meta[_KEY]
        assert isinstance(chosen, cls)
        return chosen


class MethodCommand(Command):
    """A command whose options depend on its method."""

    insists = True
    """Whether options without a default are required."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the method first, because it decides which options exist."""
        ctx.meta[_KEY] = method = self._method(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            self._explain(error.option_name, method)
            raise
        values, given = {}, {}
        for option in self._own(method):
            name = _PREFIX + option.name
            values[option.name] = ctx.params.pop(name)
            source = ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                given[option.name] = values[option.name]
        ctx.meta[_KEY] = Chosen(method, values, given)
        return rest

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the shared options and the method's own."""
        method = ctx.meta.get(_KEY)
        method = method.method if isinstance(method, Chosen) else method or REGISTRY.default(str(self.name))
        shared = [_with_default(parameter, "delta", method.delta) for parameter in super().get_params(ctx)]
        *shared, last = shared  # --help stays at the end
        return [*shared, *(self._parameter(option) for option in self._own(method)), last]

    def sections(self, ctx: click.Context) -> dict[str, list[click.Parameter]]:
        """Return the parameters by title; the method's own options have their own title."""
        chosen = ctx.meta.get(_KEY) or REGISTRY.default(str(self.name))
        method = chosen.method if isinstance(chosen, Chosen) else chosen
        found = super().sections(ctx)
        own = [parameter for parameter in found["Options"] if str(parameter.name).startswith(_PREFIX)]
        found["Options"] = [parameter for parameter in found["Options"] if parameter not in own]
        return {**found, f"Options of {method.name}": own}

    def _method(self, args: list[str]) -> Method:
        offered = REGISTRY.offered(str(self.name))
        name = _value_of("--method", args) if len(offered) > 1 else None
        if name is None:
            return REGISTRY.default(str(self.name))
        if name not in offered:
            width = max(map(len, offered))
            lines = [f"  {method.name:<{width}}  {method.summary}" for method in offered.values()]
            raise ValueError("\n".join([f"--method must be one of the methods below. Found {name!r}.", *lines]))
        return offered[name]

    def _own(self, method: Method) -> list[Option]:
        """Return the options of a method that have flags, except those that the command itself has."""
        taken = {flag for parameter in self.params for flag in parameter.opts}
        return [option for option in method.options if option.exposed and option.spelling not in taken]

    def _parameter(self, option: Option) -> TyperOption:
        flag, switch = option.spelling, option.kind is bool
        missing = option.default is REQUIRED or option.required
        return TyperOption(
            param_decls=[_PREFIX + option.name, f"{flag}/--no-{flag[2:]}" if switch else flag],
            type=bool if switch else _explained(option.kind),
            metavar=None if switch or option.kind in (int, float, str) else "TEXT",
            is_flag=True if switch else None,
            default=None if missing else option.default,
            required=missing and self.insists,
            show_default=not missing and option.default is not None,
            help=option.help,
        )

    def _explain(self, flag: str, method: Method) -> None:
        """Raise a clear error if an option belongs to other methods."""
        offered = REGISTRY.offered(str(self.name)).values()
        owners = [
            other.name
            for other in offered
            if flag in [word for option in self._own(other) for word in (option.spelling, _off(option))]
        ]
        if owners:
            raise ValueError(f"{flag} is for --method {listed(owners)} only. Found --method {method.name}.") from None


def listed(names: Iterable[str]) -> str:
    """Return names joined as in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _explained(kind: Callable[[str], Any]) -> Any:
    """Return a parser for an option that keeps its own error message; Click would only repeat the value."""
    if kind in (int, float, str):
        return kind

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return read


def _off(option: Option) -> str:
    return f"--no-{option.spelling[2:]}" if option.kind is bool else option.spelling


def _with_default(parameter: click.Parameter, name: str, value: Any) -> click.Parameter:
    """Return a parameter with the method's own default, if it has this name and no default yet."""
    if parameter.name != name or parameter.default is not None:
        return parameter
    changed = copy.copy(parameter)
    changed.default = value
    return changed


def _value_of(flag: str, args: list[str]) -> str | None:
    """Return the last value of an option in the arguments.

    >>> _value_of("--method", ["a", "--method", "b", "--method=c"])
    'c'
    """
    found = None
    for position, word in enumerate(args):
        if word == "--":
            break
        if word == flag and position + 1 < len(args):
            found = args[position + 1]
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found
