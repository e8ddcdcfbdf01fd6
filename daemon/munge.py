"""Credentials of auth/munge, over libmunge."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from ones.daemon.credentials import TTL, Credential, CredentialError

LIBRARY = "libmunge.so.2"

# munge.h
_OPT_TTL = 4
_OPT_ENCODE_TIME = 6
_OPT_SOCKET = 8
_NEXT_STEP = {
    6: "start munged, or look at its log; a Slurm without munge needs auth_type",  # EMUNGE_SOCKET
    8: "both hosts need the same /etc/munge/munge.key",  # EMUNGE_CRED_INVALID
    15: "the clocks of both hosts must agree, and the request must be recent",  # EXPIRED
    16: "the clocks of both hosts must agree",  # EMUNGE_CRED_REWOUND
    17: "each request needs a credential of its own",  # EMUNGE_CRED_REPLAYED
}


class MungeError(CredentialError):
    """Munge refused; `code` is libmunge's, 0 where the fault is found by us."""

    def __init__(self, reason: str, code: int = 0) -> None:
        hint = _NEXT_STEP.get(code)
        super().__init__(f"munge: {reason}; {hint}" if hint else f"munge: {reason}")
        self.code = code


def encode(payload: bytes, *, ttl: int = TTL, socket: str | None = None) -> str:
    """Seal a payload in this process's name."""
    library = _library()
    sealed = ctypes.c_void_p()
    with _context(socket) as context:
        library.munge_ctx_set(context, _OPT_TTL, ctypes.c_int(ttl))
        code = library.munge_encode(ctypes.byref(sealed), context, payload, len(payload))
        if code:
            raise _fault(code, context)
    try:
        return ctypes.string_at(sealed.value or 0).decode("ascii")
    finally:
        library.free(sealed)


def decode(credential: str, *, socket: str | None = None) -> Credential:
    """Open a credential; raises MungeError unless munged finds it genuine, fresh and unused."""
    library = _library()
    data = ctypes.c_void_p()
    length, uid, gid = ctypes.c_int(), ctypes.c_uint32(), ctypes.c_uint32()
    sealed = credential.encode("ascii", errors="replace")
    if b"\0" in sealed:
        raise MungeError("the credential is not one")
    with _context(socket) as context:
        code = library.munge_decode(
            sealed,
            context,
            ctypes.byref(data),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        try:
            # An expired or replayed credential comes with its payload, too: only the code counts.
            if code:
                raise _fault(code, context)
            encoded_at = ctypes.c_long()
            library.munge_ctx_get(context, _OPT_ENCODE_TIME, ctypes.byref(encoded_at))
            payload = ctypes.string_at(data.value, length.value) if data.value else b""
        finally:
            library.free(data)
    return Credential(uid.value, gid.value, payload, encoded_at.value)


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        hint = "install munge (Debian: libmunge2), or set auth_type"
        raise MungeError(f"{LIBRARY} is missing; {hint}") from None
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    library.munge_strerror.restype = ctypes.c_char_p
    library.munge_ctx_strerror.argtypes = [ctypes.c_void_p]
    library.munge_ctx_strerror.restype = ctypes.c_char_p
    library.free.argtypes = [ctypes.c_void_p]
    return library


@contextmanager
def _context(socket: str | None) -> Iterator[ctypes.c_void_p]:
    library = _library()
    context = ctypes.c_void_p(library.munge_ctx_create())
    if not context:
        raise MungeError("out of memory")
    try:
        if socket is not None:
            library.munge_ctx_set(context, _OPT_SOCKET, ctypes.c_char_p(socket.encode()))
        yield context
    finally:
        library.munge_ctx_destroy(context)


def _fault(code: int, context: ctypes.c_void_p) -> MungeError:
    library = _library()
    text = library.munge_ctx_strerror(context) or library.munge_strerror(code)
    return MungeError(text.decode(errors="replace").splitlines()[0], code)
