"""Help pages and typing errors, identical with every version of Typer and Click.

Some versions do not work well together. Three problems are corrected here, so that old versions need not be pinned:

* Typer escapes ``[`` in ``[required]`` and ``[default: …]`` for Rich, even if Click prints the page (a backslash);
* Click 8.5 gives arguments their own ``help`` and thereby resets the one that Typer has set;
* both suggest a command for one that is mistyped ("Did you mean 'fit'? Did you mean 'fit'?").
"""

from __future__ import annotations

import difflib
import inspect
import typing
from typing import Any

import click
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo


class Command(TyperCommand):
    """A command with a page of arguments and options."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        texts = _argument_texts(self.callback)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and not parameter.help:
                parameter.help = texts.get(str(parameter.name))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section of arguments and one of options."""
        for title, parameters in self.sections(ctx).items():
            records = [record for parameter in parameters if (record := parameter.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl([(name, text.replace("\\[", "[")) for name, text in records])

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Leave out Click's own section of arguments: :meth:`format_options` has one."""

    def sections(self, ctx: click.Context) -> dict[str, list[click.Parameter]]:
        """Return the parameters under each title of the page."""
        parameters = self.get_params(ctx)
        arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
        return {"Arguments": arguments, "Options": [one for one in parameters if one not in arguments]}


class Group(TyperGroup):
    """All commands, each with its full first sentence; for a mistyped command, the most similar one is suggested."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; Click's own method truncates sentences to one line."""
        every = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=300)) for name, command in every])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            near = difflib.get_close_matches(args[0], self.commands, 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(self.commands)}."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


def _argument_texts(callback: Any) -> dict[str, str]:
    """Return the help of a command's arguments, as declared by its function."""
    if callback is None:
        return {}
    hints = typing.get_type_hints(inspect.unwrap(callback), include_extras=True)
    return {
        name: str(about.help)
        for name, hint in hints.items()
        for about in getattr(hint, "__metadata__", ())
        if isinstance(about, ArgumentInfo) and about.help
    }
