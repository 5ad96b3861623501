"""The bytes of clients and workers, in our own dialect and in those of stock brokers; and what a call is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

from scale0_core.api import Frames, records
from scale0_core.client.kit.calls import Call, Reply
from scale0_core.client.kit.sessions import frames_of
from scale0_majordomo.client.errors import START, CallError, Stage, error_for
from scale0_majordomo.dialects import (
    CANCEL,
    MAX_NAME,
    MAX_OPTIONS,
    MAX_TIMEOUT_MS,
    TO_WORKER,
    WORKER_WORDS,
    Dialect,
    Word,
    read_options,
)

T = TypeVar("T")

DialectName = Literal["scale0", "mdp02", "mdp01"]

DIALECTS: Mapping[str, Dialect] = {"scale0": Dialect.OWN, "mdp02": Dialect.MDP02, "mdp01": Dialect.MDP01}

MMI_SERVICE = b"mmi.service"
EMPTY = (b"",)
"""What a body has at least."""
QUESTION = b"?"
"""The id of the request by which a worker asks whether the broker is there."""

_CLIENT_HEAD = {Dialect.OWN: (b"S0MC01",), Dialect.MDP02: (b"MDPC02",), Dialect.MDP01: (b"", b"MDPC01")}
_WORKER_HEAD = {Dialect.OWN: (b"S0MW01",), Dialect.MDP02: (b"MDPW02",), Dialect.MDP01: (b"", b"MDPW01")}
_FROM_BROKER = {b"\x02": Word.PARTIAL, b"\x03": Word.FINAL, b"\x04": Word.ERROR}
_REQUEST, _CANCEL = b"\x01", b"\x05"
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


class Heard(NamedTuple):
    """A message from the broker. To a client an ERROR has its code in ``options`` and its sentence in ``body``."""

    word: Word
    ident: bytes = b""
    """The id of a call, or the address of a request."""
    options: bytes = b""
    body: Frames = ()


class ClientCodec:
    """What a client says and hears, for the kit's ``Calls``."""

    retried = frozenset((429, 503))
    look_here = START
    look_there = "is a frame larger than plugin.majordomo.max_message?"

    def __init__(self, dialect: Dialect) -> None:
        self.serial = dialect is not Dialect.OWN
        self._dialect = dialect
        self._head = _CLIENT_HEAD[dialect]

    def options(self, milliseconds: int, retry: bool, terms: Terms | None) -> bytes:
        """Write the options of a request."""
        return (terms or Terms()).options(milliseconds)

    def request(self, ident: bytes, call: Call, options: bytes) -> Frames:
        """Write REQUEST."""
        if self._dialect is Dialect.OWN:
            return (*self._head, _REQUEST, ident, call.service, options, *call.body)
        if self._dialect is Dialect.MDP02:
            return (*self._head, _REQUEST, call.service, *call.body)
        return (*self._head, call.service, *call.body)

    def cancel(self, ident: bytes, call: Call) -> Frames:
        """Write CANCEL."""
        return (*self._head, _CANCEL, ident)

    def refusal(self, code: int, message: str, service: str, address: str) -> CallError:
        """Make the error for an ERROR."""
        return error_for(code, message, service, address)

    def read(self, frames: Frames) -> Heard | None:
        """Read what the broker says; None when it makes no sense."""
        size = len(self._head)
        if frames[:size] != self._head:
            return None
        rest = frames[size:]
        if self._dialect is Dialect.MDP01:
            return Heard(Word.FINAL, b"", b"", rest[1:]) if len(rest) > 1 else None
        word = _FROM_BROKER.get(rest[0]) if rest else None
        if word is None or len(rest) < (5 if self._dialect is Dialect.OWN else 3):
            return None
        if self._dialect is Dialect.MDP02:
            return Heard(word, b"", b"", rest[2:]) if word is not Word.ERROR else None
        return Heard(word, rest[1], rest[3], rest[4:])


class WorkerCodec:
    """What a worker says and hears."""

    def __init__(self, dialect: Dialect, service: bytes, credit: int) -> None:
        self.stock = dialect is not Dialect.OWN
        """Whether there are no errors, no credit, no cancelling, and the broker cannot be asked."""
        self._dialect = dialect
        self._head = _WORKER_HEAD[dialect]
        self._bytes = TO_WORKER[dialect]
        self._words = WORKER_WORDS[dialect]
        options = () if self.stock else (write_options(credit=credit),)
        self.ready: Frames = (*self._head, self._bytes[Word.READY], service, *options)
        self.heartbeat: Frames = (*self._head, self._bytes[Word.HEARTBEAT])
        self.disconnect: Frames = (*self._head, self._bytes[Word.DISCONNECT])
        # the broker answers this one at once, on the same connection
        self.question: Frames = (*_CLIENT_HEAD[Dialect.OWN], _REQUEST, QUESTION, MMI_SERVICE, b"", service)

    def reply(self, word: Word, address: bytes, options: bytes, body: Frames) -> Frames:
        """Write PARTIAL, FINAL or, in our own dialect, ERROR; a stock one has an empty frame where options are."""
        return (*self._head, self._bytes[word], address, b"" if self.stock else options, *body)

    def drain(self, begun: Iterable[bytes]) -> Frames:
        """Write DRAIN, with the addresses of the requests that were begun; only our own dialect has it."""
        return (*self._head, self._bytes[Word.DRAIN], *begun)

    def read(self, frames: Frames) -> Heard | None:
        """Read what the broker says; None when it makes no sense. The answer to ``question`` counts as HEARTBEAT."""
        size = len(self._head)
        if frames[:size] != self._head:
            return Heard(Word.HEARTBEAT, QUESTION) if frames[:1] == _CLIENT_HEAD[Dialect.OWN] else None
        rest = frames[size:]
        if not rest:
            return None
        if rest[0] == CANCEL and not self.stock:
            return Heard(Word.CANCEL, rest[1]) if len(rest) > 1 else None
        word = self._words.get(rest[0])
        if word is not Word.REQUEST:
            return Heard(word) if word in (Word.HEARTBEAT, Word.DISCONNECT) else None
        # address, service, options; or address and an empty frame
        fixed = 3 if self.stock else 4
        if len(rest) <= fixed:
            return None
        return Heard(word, rest[1], b"" if self.stock else rest[3], rest[fixed:])


def write_options(**options: Any) -> bytes:
    """Write options; those that are None are left out."""
    given = {name: value for name, value in options.items() if value is not None}
    return json.dumps(given, separators=(",", ":")).encode() if given else b""


def options_of(text: bytes) -> Mapping[str, Any]:
    """Read options; such as make no sense are none."""
    return read_options(text) or {}


# --- what a user says -------------------------------------------------------------------------------------------------


class CallOptions(TypedDict, total=False):
    """What may be said of a call."""

    timeout: float | None
    """Seconds until the call ends in any case; the client's own, when not given."""
    retry: bool | None
    """True: may be carried out twice, so it is sent again when a worker or the broker dies. False: never, not even to
    another worker by the broker. Not given: as the service's settings have it, and never sent again from here."""
    priority: int
    """Larger is sooner, where the service is scheduled so."""
    key: str
    """Requests of one key go to one worker, where the service is scheduled so."""
    traceparent: str
    """The W3C trace that this call belongs to; handed to the worker as it is."""


class Terms(NamedTuple):
    """What a client wants of a request, but for the time."""

    retry: bool | None = None
    priority: int = 0
    key: str = ""
    traceparent: str = ""

    def options(self, milliseconds: int) -> bytes:
        """Write them as options."""
        return write_options(
            timeout=milliseconds, retry=self.retry, priority=self.priority or None, key=self.key or None,
            traceparent=self.traceparent or None,
        )  # fmt: skip


def make_call(
    service: str, body: tuple[bytes | str, ...], *, timeout: float, retry: bool | None = None, priority: int = 0,
    key: str = "", traceparent: str = "",
) -> Call:  # fmt: skip
    """Make a call, or raise what is wrong with it."""
    terms = None
    if retry is not None or priority or key or traceparent:
        terms = _checked(Terms(retry, priority, key, traceparent))
    call = Call(service, frames_of(body) or EMPTY, timeout=timeout, retry=retry, terms=terms)
    check_name(call.service)
    return call


def _checked(terms: Terms) -> Terms:
    if type(terms.priority) is not int or abs(terms.priority) > 2**31:
        raise ValueError(f"a priority is a whole number: {terms.priority!r}")
    if terms.traceparent and not _TRACE.fullmatch(terms.traceparent):
        raise ValueError(f"a traceparent looks like 00-<32 digits>-<16 digits>-01: {terms.traceparent!r}")
    if len(terms.options(MAX_TIMEOUT_MS)) > MAX_OPTIONS:
        raise ValueError("the key is too long")
    return terms


def check_name(name: bytes) -> None:
    """Raise what is wrong with the name of a service."""
    if not 1 <= len(name) <= MAX_NAME:
        raise ValueError(f"the name of a service has 1 to {MAX_NAME} bytes: {name.decode()!r}")


# --- what a broker tells ----------------------------------------------------------------------------------------------


def told_by_broker(service: str, reply: Reply, kind: type[T]) -> T:
    """Read the answer of an mmi service that tells something in JSON, an object or a list."""
    remedy = "is it a broker of Scale0, with the plugin majordomo?"
    what = f"the broker does not answer {service}"
    if len(reply) < 2 or reply[0] != b"200":
        code = int(reply[0]) if reply and len(reply[0]) == 3 and reply[0].isdigit() else 0
        raise CallError(what, f"it says {code}", "", remedy, stage=Stage.WORKER, code=code)
    try:
        told = records.from_json(reply[1])
    except records.MalformedError as error:
        raise CallError(what, str(error), "", remedy, stage=Stage.WORKER) from error
    if not isinstance(told, kind):
        raise CallError(what, f"it gives no {kind.__name__}", "", remedy, stage=Stage.WORKER)
    return told
