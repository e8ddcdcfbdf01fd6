"""Modules as one script, for a file that stands alone: nothing can be imported into that."""

from __future__ import annotations

import re

from ones.daemon.web import files

_IMPORT = re.compile(r"^import (\{[^}]*\}) from \"\./(\w+)\.js\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def bundle(name: str) -> str:
    """This module after all that it imports, each in a scope of its own.

    Raises ValueError where one imports or exports in a way that isn't understood here.
    """
    done: dict[str, str] = {}
    _take(name, done)
    return "\n".join(done.values())


def _take(name: str, done: dict[str, str]) -> None:
    text = files.read(f"{name}.js").decode()
    for _, other in _IMPORT.findall(text):
        if other not in done:
            _take(other, done)
    exported = ", ".join(_EXPORT.findall(text))
    body = _EXPORT.sub("", _IMPORT.sub(_from_above, text))
    if left := _LEFT.search(body):
        raise ValueError(f"{name}.js: '{left[0]}' can't be bundled")
    done[name] = f"const {name}_module = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def _from_above(match: re.Match[str]) -> str:
    return f"const {match[1].replace(' as ', ': ')} = {match[2]}_module;\n"
