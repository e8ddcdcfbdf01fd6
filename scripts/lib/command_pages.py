"""Pages of commands, from what their own --help says: Markdown and manual pages."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version

import click

from ones.daemon.ctl.main import LATER


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One command. `parts` are the commands below it."""

    name: str  # with those above it, such as `onesctl job`
    usage: str
    about: str
    options: tuple[tuple[str, str], ...]
    parts: tuple[Page, ...] = ()


def of_click(name: str, command: click.Command) -> Page:
    """The page of a command and of all below it."""
    context = click.Context(command, info_name=name)
    below = command.commands if isinstance(command, click.Group) else {}
    usage = f"{name} {' '.join(command.collect_usage_pieces(context))}"
    records = (one.get_help_record(context) for one in command.get_params(context))
    return Page(
        name=name,
        usage=usage,
        about=inspect.cleandoc(command.help or "").replace("\b", ""),
        options=tuple(record for record in records if record is not None),
        parts=tuple(
            of_click(f"{name} {word}", _loaded(name, word, part)) for word, part in below.items()
        ),
    )


def _loaded(name: str, word: str, command: click.Command) -> click.Command:
    """The command itself: some of onesctl's are only imported when they are called."""
    if name != "onesctl" or word not in LATER:
        return command
    found = getattr(import_module(f"ones.daemon.ctl.{word}"), word)
    assert isinstance(found, click.Command)
    return found


def of_argparse(parser: argparse.ArgumentParser) -> Page:
    """The page of a program that click does not parse for."""
    options, parts = [], list[Page]()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parts += (of_argparse(each) for each in action.choices.values())
            continue
        shown = ", ".join(action.option_strings) or str(action.metavar)
        if action.option_strings and action.nargs != 0:
            shown += f" {action.metavar or action.dest.upper()}"
        if action.help:
            options.append((shown, action.help))
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    about = f"{parser.description or ''}\n\n{parser.epilog or ''}".strip()
    return Page(
        name=parser.prog, usage=usage, about=about, options=tuple(options), parts=tuple(parts)
    )


def markdown(page: Page, level: int = 1) -> str:
    """The page with all below it."""
    text = f"{'#' * level} {page.name}\n\n{page.about}\n\n```text\n{page.usage}\n```\n"
    if page.options:
        rows = [f"| `{_cell(names)}` | {_cell(about)} |" for names, about in page.options]
        text += "\n| option | |\n|---|---|\n" + "\n".join(rows) + "\n"
    return text + "".join(f"\n{markdown(part, level + 1)}" for part in page.parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def manual(page: Page) -> str:
    """The page in man(7) of troff."""
    title = page.name.replace(" ", "-")
    lines = [
        f'.TH {_troff(title.upper())} 1 "" "ONES {version("ones-slurm")}" "ONES for Slurm"',
        ".SH NAME",
        f"{_troff(title)} \\- {_troff(_first(page.about))}",
        ".SH SYNOPSIS",
        f".B {_troff(page.usage)}",
        ".SH DESCRIPTION",
    ]
    for paragraph in page.about.split("\n\n"):
        lines += [".PP", _troff(" ".join(paragraph.split()))]
    if page.options:
        lines.append(".SH OPTIONS")
        for names, about in page.options:
            lines += [".TP", f".B {_troff(names)}", _troff(" ".join(about.split()))]
    if page.parts:
        lines.append(".SH COMMANDS")
        for part in page.parts:
            lines += [".TP", f".B {_troff(part.name)}", _troff(_first(part.about))]
    return "\n".join(lines) + "\n"


def _first(about: str) -> str:
    return " ".join(about.split("\n\n", maxsplit=1)[0].split()).rstrip(".")


def _troff(text: str) -> str:
    """No character of it is a command of troff's."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{safe}" if safe.startswith(".") else safe
