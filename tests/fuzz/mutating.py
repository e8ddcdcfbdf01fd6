"""Hostile inputs out of valid ones: changed as JSON where they are JSON, and as bytes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

_DEEP = "@deep@"  # stands for what json.dumps itself could not write
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
NUMBERS = (
    *(b"0", b"-1", b"1", b"00", b"007", b"65535", b"65536", b"65537", b"999999999", b"9999999999"),
    *(b"2147483648", b"4294967294", b"4294967295", b"9223372036854775808", b"18446744073709551616"),
    *(b"1e999", b"-1e999", b"1e308", b"1e-400", b"NaN", b"Infinity", b"-Infinity", b"0x10", b"1_0"),
    *(b"9" * 19, b"9" * 25, b"9" * 400, b"9" * 5000, "१२".encode(), "²".encode(), b"+5", b" 5 "),
)
TEXTS = (
    *("", " ", "\0", "\n", "\r\n", "\u2028", "\u202e", "\ud800", "é", "\U0001f600", "A" * 5000),
    *("(null)", "null", "N/A", "UNLIMITED", "../../etc/passwd", "%s%n", "'", '"', "\\", "{}", "[]"),
    *("a" * 257, "9" * 5000, "n[1-999999]", "n[1-2][1-2]", "gpu:((((", "1-2-3:4:5", "=", ";", "|"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 65537, 2**31, 2**32 - 2, 2**63, 2**64, 10**25, 10**400),
    *(0.5, -0.0, 1e308, 1e-300, float("inf"), float("-inf"), float("nan"), _DEEP),
    *([], {}, [[]], [None], {"": None}, [0] * 300, *TEXTS),
    *(
        {"set": True, "infinite": False, "number": number}
        for number in (-1, 10**25, float("inf"), None)
    ),
)
_BYTES = (
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xae",
    ),
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b"(",
        b")",
        b'"',
        b"'",
        b"\\",
        b",",
        b";",
        b":",
        b"=",
        b"|",
        b"-",
        b"/",
    ),
    *(b" ", b"\t", b"~", b"#", b"[[", b"]]", b"\\u0000", b"\\ud800"),
)


class Mutator:
    """Changes inputs of one target; the same random numbers make the same inputs."""

    def __init__(self, seeds: Sequence[bytes], words: Sequence[bytes], *, largest: int) -> None:
        self._seeds = list(seeds)
        self._words = (*words, *NUMBERS, *_BYTES)
        self._largest = largest

    def fresh(self, rng: random.Random) -> bytes:
        """A new input out of one of the seeds."""
        return self.changed(rng.choice(self._seeds), rng)

    def changed(self, data: bytes, rng: random.Random) -> bytes:
        """Another input out of this one."""
        if data[:1] in (b"{", b"[") and rng.random() < 0.7:
            try:
                found = json.loads(data)
                for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
                    found = self._value(found, rng)
                text = json.dumps(found)
                if _DEEP in text:
                    depth = rng.choice((50, 500, 990, 5000, 20000))
                    text = text.replace(f'"{_DEEP}"', "[" * depth + "]" * depth)
                data = text.encode()
            except (ValueError, RecursionError):
                pass
            if rng.random() < 0.8:
                return data[: self._largest]
        for _ in range(rng.choice((1, 1, 2, 2, 3, 4, 8))):
            data = rng.choice(_WAYS)(self, data, rng)
            if len(data) > self._largest:
                data = data[: self._largest]
        return data

    def _value(self, value: Any, rng: random.Random) -> Any:
        """The same value with one thing in it changed, on a random way down."""
        if not isinstance(value, dict | list) or not value or rng.random() < 0.05:
            return rng.choice(VALUES)
        if isinstance(value, list):
            at = rng.randrange(len(value))
            if (dice := rng.random()) < 0.1:
                return value[:at] + value[at + 1 :]
            if dice < 0.2:
                return value + [value[at]] * rng.choice((1, 2, 50))
            return [*value[:at], self._value(value[at], rng), *value[at + 1 :]]
        key = rng.choice(list(value))
        if (dice := rng.random()) < 0.1:
            return {name: one for name, one in value.items() if name != key}
        if dice < 0.2:
            return {**value, rng.choice(TEXTS): value[key]}
        if dice < 0.25:
            return {**value, key: value[rng.choice(list(value))]}
        return {**value, key: self._value(value[key], rng)}

    def _insert(self, data: bytes, rng: random.Random) -> bytes:
        at = rng.randint(0, len(data))
        return data[:at] + rng.choice(self._words) + data[at:]

    def _over(self, data: bytes, rng: random.Random) -> bytes:
        word, at = rng.choice(self._words), rng.randint(0, len(data))
        return data[:at] + word + data[at + len(word) :]

    def _cut(self, data: bytes, rng: random.Random) -> bytes:
        at, to = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        return data[:at] + data[to:]

    def _nibble(self, data: bytes, rng: random.Random) -> bytes:
        at = rng.randint(0, len(data))
        return data[:at] + data[at + rng.randint(1, 4) :]

    def _again(self, data: bytes, rng: random.Random) -> bytes:
        at, to = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        return data[:to] + data[at:to] * rng.choice((1, 1, 2, 3, 20)) + data[to:]

    def _many(self, data: bytes, rng: random.Random) -> bytes:
        """One short thing very often: what quadratic work needs."""
        at = rng.randint(0, len(data))
        piece = data[at : at + rng.randint(1, 12)] or rng.choice(self._words)
        if rng.random() < 0.3:
            piece = rng.choice(self._words)
        times = 30000 if rng.random() < 0.02 else rng.choice((4, 10, 30, 100, 300, 1000))
        times //= max(1, len(piece) // 4)
        return data[:at] + piece * times + data[at:]

    def _flip(self, data: bytes, rng: random.Random) -> bytes:
        if not data:
            return bytes([rng.randrange(256)])
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]

    def _number(self, data: bytes, rng: random.Random) -> bytes:
        places = [match.span() for match in _NUMBER.finditer(data[:4096])]
        if not places:
            return self._insert(data, rng)
        at, to = rng.choice(places)
        return data[:at] + rng.choice(NUMBERS) + data[to:]

    def _splice(self, data: bytes, rng: random.Random) -> bytes:
        other = rng.choice(self._seeds)
        return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


_WAYS: tuple[Callable[[Mutator, bytes, random.Random], bytes], ...] = (
    *(Mutator._insert, Mutator._insert, Mutator._over, Mutator._cut, Mutator._nibble),
    *(Mutator._again, Mutator._flip, Mutator._flip, Mutator._number, Mutator._number),
    *(Mutator._splice, Mutator._nibble, Mutator._over, Mutator._insert, Mutator._many),
)
