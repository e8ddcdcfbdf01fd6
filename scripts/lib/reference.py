"""Writes the reference from the code: every configuration key, every metric, every command."""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import command_pages
import msgspec
import msgspec.inspect as types
from prometheus_client.metrics import MetricWrapperBase

from ones.daemon import config
from ones.daemon.agent import metrics as agent_metrics
from ones.daemon.agent.main import main as agent
from ones.daemon.ctl.main import main as onesctl
from ones.daemon.onesd.main import main as onesd
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.release import main as release
from ones.daemon.wire import GpuSample
from ones.slurm_ext.runtime.launcher import parser as ones_run
from ones.slurm_ext.runtime.live.orders import parser as ones_order

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"
WRITTEN = "<!-- Written by scripts/reference from the code: change it there. -->\n\n"
COMMANDS: Mapping[str, click.Command] = {
    "onesctl": onesctl,
    "onesd": onesd,
    "ones-agent": agent,
    "ones-release": release,
}
CONFIGURATION = """\
# Configuration keys

All programs read `/etc/ones/ones.toml`, or what `--config` or `$ONES_CONF` names, and over it every
`ones.d/*.toml` beside it, in the order of their names. A key that is not listed here, or a value
that is not allowed, ends the program with one line that names the file and the key;
`onesd --check-config` looks at all of it. Keys that are left out have their defaults; none is
needed.

"""
METRICS = """\
# Metrics

What `onesd` and every agent answer at `/metrics`, in Prometheus' text format and in base units.
How to scrape them, the alerts and the dashboard: [monitoring](../monitoring.md).

"""


def main() -> None:
    """Write the pages, or manual pages."""
    parser = argparse.ArgumentParser(prog="reference", description=__doc__)
    parser.add_argument("--to", type=Path, default=DOCS, help="folder of the pages")
    parser.add_argument("--man", type=Path, help="write manual pages into this folder instead")
    given = parser.parse_args()
    pages = manual() if given.man else reference()
    for name, text in pages.items():
        path = (given.man or given.to) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def reference() -> dict[str, str]:
    """File -> text of every page."""
    commands = {
        f"commands/{page.name}.md": WRITTEN + command_pages.markdown(page) for page in programs()
    }
    return {"configuration.md": configuration(), "metrics.md": metrics(), **commands}


def manual() -> dict[str, str]:
    """File -> text of every manual page; a command of onesctl has one of its own."""
    pages = [part for page in programs() for part in (page, *page.parts)]
    return {f"{page.name.replace(' ', '-')}.1": command_pages.manual(page) for page in pages}


def programs() -> list[command_pages.Page]:
    """Every program that people call."""
    clicked = [command_pages.of_click(name, command) for name, command in COMMANDS.items()]
    return [*clicked, *(command_pages.of_argparse(each()) for each in (ones_run, ones_order))]


def configuration() -> str:
    """Every key with its type, default and unit; tables of the file in the order of the code."""
    found = types.type_info(config.Config)
    assert isinstance(found, types.StructType)
    text = WRITTEN + CONFIGURATION
    plain = [one for one in found.fields if not isinstance(one.type, types.StructType)]
    text += "## At the top of the file\n\n" + _keys(config.Config, plain)
    for one in found.fields:
        if isinstance(one.type, types.StructType):
            about = inspect.getdoc(one.type.cls) or ""
            text += f"\n## [{one.name}]\n\n{about}\n\n" + _keys(one.type.cls, one.type.fields)
    return text


def _keys(struct: type, fields: Any) -> str:
    told = meanings(struct)
    if silent := [one.name for one in fields if not told[one.name]]:
        sys.exit(f"reference: error: {struct.__name__} says nothing of {', '.join(silent)}")
    rows = ["| key | type | default | unit | meaning |", "|---|---|---|---|---|"]
    for one in fields:
        kind, unit = _type(one.type)
        default = one.default
        if default is msgspec.NODEFAULT:
            default = one.default_factory()
        shown = "none" if default is None else f"`{_toml(default)}`"
        rows.append(f"| `{one.name}` | {kind} | {shown} | {unit} | {_sentence(told[one.name])} |")
    return "\n".join(rows) + "\n"


def _sentence(meaning: str) -> str:
    return meaning[:1].upper() + meaning[1:].rstrip(".")


def meanings(struct: type) -> dict[str, str]:
    """Key -> what the code says of it, behind it or below it."""
    source = inspect.getsource(struct)
    comments = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for one, after in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        below = after.value if isinstance(after, ast.Expr) else None
        text = below.value if isinstance(below, ast.Constant) else None
        said = [comments.get(one.end_lineno or 0, ""), " ".join(str(text).split()) if text else ""]
        found[one.target.id] = " ".join(filter(None, said)).replace("|", "\\|")
    return found


def _type(kind: types.Type, unit: str = "") -> tuple[str, str]:
    """What may be written, and its unit."""
    if isinstance(kind, types.Metadata):
        return _type(kind.type, str((kind.extra or {}).get("unit", "")))
    if isinstance(kind, types.UnionType):
        (only,) = [one for one in kind.types if not isinstance(one, types.NoneType)]
        return _type(only)
    if isinstance(kind, types.LiteralType):
        return " or ".join(f'`"{one}"`' for one in kind.values), unit
    if isinstance(kind, types.VarTupleType):
        return f"list of {_type(kind.item_type)[0]}", unit
    if isinstance(kind, types.DictType):
        return f"table of {_type(kind.value_type)[0]}", unit
    names = {types.StrType: "string", types.BoolType: "boolean"}
    names |= {types.IntType: "whole number", types.FloatType: "number"}
    return names[type(kind)] + _bounds(kind), unit


def _bounds(kind: types.Type) -> str:
    signs = (("gt", "above"), ("ge", "from"), ("lt", "below"), ("le", "up to"))
    bounds = [(word, getattr(kind, sign, None)) for sign, word in signs]
    told = " ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
    return f", {told}" if told else ""


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple() | list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return "{}"
        case _:
            return str(value)


def metrics() -> str:
    """Every metric with its type and labels, as the registries have them."""
    of_onesd = Metrics()
    parts = (*vars(of_onesd).values(), *vars(of_onesd.roles).values())
    onesd_has = [one for one in parts if isinstance(one, MetricWrapperBase)]
    told = agent_metrics.Metrics("n1", "0")
    told.state = agent_metrics.GpuState(gpus=(GpuSample(minor=0, uuid="", type=""),))
    agent_has = [one for one in vars(told).values() if isinstance(one, MetricWrapperBase)]
    gauges = [one for one in told.registry.collect() if one.name.startswith("ones_gpu_")]
    rows = sorted(
        [("ones_build_info", "info", ("version",), "The running version."), *_of(onesd_has)]
    )
    text = WRITTEN + METRICS + "## Of onesd\n\n" + _table(rows)
    rows = [("ones_agent_build_info", "info", ("version",), "The running version.")]
    text += "\n## Of an agent\n\n" + _table(sorted([*rows, *_of(agent_has)]))
    # Prometheus' library keeps the names of labels to itself.
    of_gpus = [(one.name, one.type, one._labelnames, one.documentation) for one in gauges]
    text += "\n## Of a node's GPUs, by its agent\n\n" + _table(of_gpus)
    return text


Row = tuple[str, str, tuple[str, ...], str]


def _of(parts: list[MetricWrapperBase]) -> Iterator[Row]:
    for one in parts:
        (family,) = one.describe()
        name = family.name + ("_total" if family.type == "counter" else "")
        yield name, family.type, tuple(one._labelnames), family.documentation


def _table(rows: list[Row]) -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, kind, labels, about in rows:
        shown = ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name}` | {kind} | {shown} | {about} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
