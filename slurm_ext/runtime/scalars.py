"""numpy's numbers in states: PyTorch writes them, and refuses to read them with `weights_only`."""

from __future__ import annotations

import sys
from typing import Any


def plain_numbers(state: Any) -> Any:
    """The state with Python's numbers in place of numpy's, itself where it has none.

    A script that takes its learning rate from an array has them in its optimizer.
    """
    numpy = sys.modules.get("numpy")
    return state if numpy is None else _plain(state, numpy.generic)


def _plain(state: Any, scalar: Any) -> Any:
    if isinstance(state, scalar):
        return state.item()
    if isinstance(state, dict):
        keys, values = [[_plain(each, scalar) for each in part] for part in (state, state.values())]
        same = _same(keys, state) and _same(values, state.values())
        return state if same else dict(zip(keys, values, strict=True))
    if type(state) in (list, tuple):
        inner = [_plain(each, scalar) for each in state]
        return state if _same(inner, state) else type(state)(inner)
    return state


def _same(these: Any, others: Any) -> bool:
    return all(one is other for one, other in zip(these, others, strict=True))
