"""A web server's log beside those who speak no HTTP to it."""

from __future__ import annotations

import logging
import sys

from aiohttp.http_exceptions import BadStatusLine

from ones.daemon.strangers import Strangers


def a_record(fault: Exception) -> logging.LogRecord:
    try:
        raise fault
    except Exception:
        info = sys.exc_info()
    words = "Error handling request from %s"
    return logging.LogRecord("x", logging.ERROR, "", 0, words, ("10.0.0.1",), info)


def test_a_stranger_is_a_line_a_minute_without_a_traceback() -> None:
    now = [0.0]
    strangers = Strangers(clock=lambda: now[0])
    first, second = a_record(BadStatusLine("x")), a_record(ConnectionResetError("Connection lost"))
    assert strangers.filter(first)
    assert first.getMessage() == "Error handling request from 10.0.0.1: no HTTP"
    assert (first.exc_info, first.levelno) == (None, logging.WARNING)
    assert not any(strangers.filter(a_record(BadStatusLine("x"))) for _ in range(50))
    now[0] = 61.0
    assert strangers.filter(second)
    assert second.getMessage().endswith(": a request broken off (and 50 others before)")


def test_a_fault_of_our_own_is_told_whole() -> None:
    record = a_record(KeyError("x"))
    assert Strangers().filter(record)
    assert record.exc_info is not None
