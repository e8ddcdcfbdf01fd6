"""A job's message, from bytes that may hold anything to a Report or Checkpoint, or one refusal."""

from __future__ import annotations

import json
import math
import re
from typing import Literal

import msgspec

from ones.daemon.wire import Checkpoint, Live, Report
from ones.slurm_ext.errors import OnesError

MOST_BYTES = 65536
Why = Literal["malformed", "foreign", "unproven", "too_fast"]
Op = Literal["report", "checkpoint"]
Message = Report | Checkpoint | Live
_NODE = re.compile(r"[\w.-]{1,255}", re.ASCII)
_MAY_DIVERGE = ("loss", "accuracy", "grad_sqr", "grad_var")


class Refused(OnesError):
    """A message is not taken; `why` is the word by which refusals are counted."""

    def __init__(self, why: Why, reason: str) -> None:
        shown = " ".join(reason.split())[:300]
        # It goes to logs and terminals, and much of it may be the sender's.
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown))
        self.why = why


def read_message(data: bytes, *, job: int, op: Op | None = None) -> Message:
    """The message in `data`, sent by a process of `job`; raises Refused.

    A message need not name the job, but may name no other; nor the op where a file's name says it.
    """
    if len(data) > MOST_BYTES:
        raise Refused("malformed", f"more than {MOST_BYTES} bytes; send one small JSON object")
    fields = _object(data)
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            if name not in _MAY_DIVERGE:
                raise Refused("malformed", f"{name[:40]!r} is {value}; send a finite number")
            fields[name] = None  # a training that diverges is still running
    if op is not None and fields.setdefault("op", op) != op:
        raise Refused("malformed", f"op is not {op!r}; leave it out of {op}.json")
    named = fields.setdefault("job", job)
    if isinstance(named, int) and named != job:
        raise Refused(
            "foreign", f"this process belongs to job {job}; it can't speak for job {named}"
        )
    try:
        message: Message = msgspec.convert(fields, Message)
    except msgspec.ValidationError as fault:
        raise Refused("malformed", str(fault).replace("$.", "")) from None
    if isinstance(message, Checkpoint) and not message.path.isprintable():
        raise Refused("malformed", "'path' has characters that can't be printed")
    if isinstance(message, Live) and not message.reason.isprintable():
        raise Refused("malformed", "'reason' has characters that can't be printed")
    if isinstance(message, Live) and not all(_is_job(part) for part in message.parts):
        raise Refused("malformed", "'parts' names what is no job, or too many jobs")
    if isinstance(message, Live) and not all(_NODE.fullmatch(node) for node in message.own):
        raise Refused("malformed", "'own' names what is no node")
    return message


def _is_job(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10


def _object(data: bytes) -> dict[str, object]:
    """The JSON object; NaN and Infinity, which Python's own encoder writes, are let through."""
    try:
        # A number of thousands of digits is a ValueError, too.
        found = json.loads(data.decode("utf-8"))
        # Half of a surrogate pair can be written in JSON, and in nothing that we send on.
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("malformed", "half of a surrogate pair, which is no text") from None
    except UnicodeDecodeError:
        raise Refused("malformed", "not UTF-8 text; send one JSON object a line") from None
    except RecursionError:
        raise Refused("malformed", "nested too deeply; send one flat JSON object") from None
    except ValueError as fault:
        raise Refused("malformed", f"not JSON: {fault}") from None
    if not isinstance(found, dict):
        raise Refused("malformed", 'not a JSON object; send one such as {"op":"report"}')
    return found
