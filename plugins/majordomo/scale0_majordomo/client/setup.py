"""What both kinds of Client and Worker have in common: from what a user says to a session."""

# does I/O: draws the numbers that spread reconnects of many clients

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from scale0_core.api import records
from scale0_core.client.kit.route import Broker, address_of, target
from scale0_core.client.threads import FORKED
from scale0_majordomo.client.calls import Call, CallOptions, ClientSession, Reply, Sink
from scale0_majordomo.client.errors import CallError, ClosedError, WorkerError
from scale0_majordomo.client.handlers import Handler, Offer, make_offer
from scale0_majordomo.client.serving import Request, WorkerSession, WorkerState
from scale0_majordomo.client.words import DIALECTS, DialectName
from scale0_majordomo.dialects import Dialect

TIMEOUT = 30.0
WINDOW = 1000
PARTS_AT_ONCE = 100
"""Parts of a streamed reply after which a generator waits until they have left."""
LOOK_EVERY = 0.05
"""Seconds after which a generator that waits looks whether its request is cancelled."""

F = TypeVar("F", bound=Handler)

Item = bytes | str | tuple[bytes | str, ...]
Progress = Callable[[int, int | None], None]
"""Is told how many replies there are, and of how many if that is known."""


class Settable(Protocol):
    """What the futures of threads and those of asyncio can both do."""

    def set_result(self, result: Any, /) -> None:
        """Have a reply."""

    def set_exception(self, exception: Any, /) -> None:
        """Have an error."""


class FutureSink:
    """Puts the outcome of a call into a future."""

    __slots__ = ("_future", "_number", "_too_late")

    def __init__(self, future: Settable, too_late: type[Exception], number: int = 0) -> None:
        self._future, self._too_late, self._number = future, too_late, number

    def final(self, reply: Reply) -> None:
        """Take the reply, unless nobody waits for it any more."""
        if self._number:
            reply.number = self._number
        try:  # noqa: SIM105  a context manager would cost as much as all the rest
            self._future.set_result(reply)
        except self._too_late:
            pass  # it was cancelled a moment ago

    def fail(self, error: CallError) -> None:
        """Take the error, unless nobody waits for it any more."""
        with contextlib.suppress(self._too_late):
            self._future.set_exception(error)


def frames_of_item(item: Item) -> tuple[bytes | str, ...]:
    """Give the body of a call for an item of ``map``."""
    return item if isinstance(item, tuple) else (item,)


def count_of(items: Iterable[Item]) -> int | None:
    """Say how many items there are, if that is known."""
    return len(items) if isinstance(items, list | tuple | range | set | dict) else None


def check_window(window: int) -> None:
    """Raise what is wrong with a window."""
    if window < 1:
        raise ValueError("a window has at least one place")


def told_by_broker(service: str, reply: Reply) -> Any:
    """Read the answer of an mmi service that tells something in JSON."""
    if len(reply) < 2 or reply[0] != b"200":
        code = int(reply[0]) if reply and reply[0].isdigit() else 0
        remedy = "is it a broker of Scale0, with the plugin majordomo?"
        raise CallError(f"the broker does not answer {service}", f"it says {code}", "", remedy, code=code)
    return records.from_json(reply[1])


def forked_error() -> ClosedError:
    """Make the error of calls in a forked child."""
    remedy = "make another Client after the fork"
    return ClosedError("the client belongs to another process", FORKED, "the call has no reply here", remedy)


def _dialect(name: DialectName) -> Dialect:
    found = DIALECTS.get(name)
    if found is None:
        raise ValueError(f"a dialect is one of {', '.join(DIALECTS)}: {name!r}")
    return found


# --- the two kinds ----------------------------------------------------------------------------------------------------


class BaseClient(ABC):
    """A client, but for how it waits."""

    def __init__(
        self, broker: Broker = "default", *, timeout: float = TIMEOUT, retries: int = 5,
        dialect: DialectName = "scale0", wait_for_broker: bool = False,
    ) -> None:  # fmt: skip
        """Make a client.

        A call fails immediately with a NoBrokerError if nobody listens at an address on this machine. A client that was
        connected once waits for its broker to come back, until the call's timeout.

        :param broker: the name of a broker on this machine, an address of its service majordomo, or several of these,
            which are tried in order.
        :param timeout: seconds for a call that names no timeout of its own.
        :param retries: how often a call with ``retry=True`` is sent again.
        :param dialect: ``mdp02`` or ``mdp01`` for brokers that are not Scale0: one call at a time is under way then,
            and there are no errors from workers.
        :param wait_for_broker: wait for a broker that is not there yet as well.
        """
        self._session = ClientSession(
            target(broker, "majordomo", "requests"), random=random.Random(), retries=retries, dialect=_dialect(dialect),  # noqa: S311
            wait_for_broker=wait_for_broker,
        )  # fmt: skip
        self._timeout = timeout
        self._set_up()

    @property
    def address(self) -> str:
        """Where the broker is."""
        return address_of(self._session.address)

    @property
    def late(self) -> int:
        """How many replies came after their call was over; they are thrown away."""
        return self._session.late

    def _call(
        self, service: str, body: Iterable[bytes | str], sink: Sink, options: CallOptions,
        on_part: Callable[[Reply], None] | None = None,
    ) -> Call:  # fmt: skip
        timeout = options.get("timeout")
        given: CallOptions = {**options, "timeout": self._timeout if timeout is None else timeout}
        return Call(service, body, sink, on_part=on_part, **given)  # type: ignore[arg-type]  # it is not None any more

    @abstractmethod
    def _set_up(self) -> None:
        """Make what this kind of client needs."""


class BaseWorker(ABC):
    """A worker, but for how it waits and where its functions run."""

    _asynchronous: bool

    def __init__(
        self, broker: Broker = "default", *, credit: int = 1, threads: int | None = None, heartbeat: float = 2.5,
        liveness: int = 3, dialect: DialectName = "scale0",
    ) -> None:  # fmt: skip
        """Make a worker; it waits for a broker that is not there yet.

        :param broker: the name of a broker on this machine, an address of its service majordomo, or several of these,
            which are tried in order.
        :param credit: how many requests of a service it takes at once.
        :param threads: how many of them plain functions work on at once; by default all, up to 64.
        :param heartbeat: seconds between heartbeats.
        :param liveness: a broker that is silent for so many heartbeats is gone.
        :param dialect: ``mdp02`` or ``mdp01`` for brokers that are not Scale0: one request at a time, no cancelling,
            and a handler that raises is as a worker that died.
        """
        if not heartbeat > 0 or liveness < 1:
            raise ValueError("a heartbeat is longer than nothing, and at least one is waited for")
        self._dialect = _dialect(dialect)
        if credit != 1 and self._dialect is not Dialect.OWN:
            raise ValueError("credit needs our own dialect")
        self._target = target(broker, "majordomo", "requests")
        self._credit, self._threads = credit, threads
        self._heartbeat, self._liveness = heartbeat, liveness
        self._offers: dict[str, Offer] = {}
        self._set_up()

    def service(self, name: str, *, credit: int | None = None) -> Callable[[F], F]:
        """Have the function below serve; also while the worker runs."""

        def register(function: F) -> F:
            self.add(name, function, credit=credit)
            return function

        return register

    def add(self, name: str, function: Handler, *, credit: int | None = None) -> None:
        """Offer a service. The function takes a Request and returns bytes, text, a tuple of these, or None.

        A generator sends what it yields as it goes, and what it returns as the end. What it raises goes to the caller
        as a RemoteError.
        """
        if name in self._offers:
            raise ValueError(f"{name} is on offer already")
        wanted = self._credit if credit is None else credit
        if wanted != 1 and self._dialect is not Dialect.OWN:
            raise ValueError("credit needs our own dialect")
        offer = make_offer(name, function, wanted, self._threads, asynchronous=self._asynchronous)
        self._offers[name] = offer
        self._offered(offer)

    @property
    def services(self) -> tuple[str, ...]:
        """The services on offer."""
        return tuple(self._offers)

    @property
    def address(self) -> str:
        """Where the broker is."""
        return address_of(self._target)

    def session_for(
        self, offer: Offer, begin: Callable[[Request], None], cancel: Callable[[Request], None],
        changed: Callable[[], None],
    ) -> WorkerSession:  # fmt: skip
        """Make the session of a service."""
        return WorkerSession(
            self._target, offer.name, begin=begin, cancel=cancel, changed=changed, random=random.Random(),  # noqa: S311
            credit=offer.credit, heartbeat=self._heartbeat, liveness=self._liveness, dialect=self._dialect,
        )  # fmt: skip

    @abstractmethod
    def _set_up(self) -> None:
        """Make what this kind of worker needs."""

    @staticmethod
    def _check_process(forked: bool) -> None:
        if forked:
            what, remedy = "the worker belongs to another process", "start another Worker after the fork"
            raise WorkerError(what, FORKED, "nothing is served here", remedy)

    @abstractmethod
    def _offered(self, offer: Offer) -> None:
        """Begin to serve, if the worker runs."""


def not_ready(session: WorkerSession, timeout: float) -> WorkerError:
    """Make the error for a worker that the broker has not taken in time."""
    if session.fault is not None:
        return session.fault
    what = f"the worker of {session.service} is not ready after {timeout:g} s"
    remedy = "is a broker with the plugin majordomo running at this address?"
    return WorkerError(what, f"it is {session.state.value}", "it tries again", remedy)


def is_serving(session: WorkerSession) -> bool:
    """Tell whether the broker has taken a worker."""
    return session.state is WorkerState.SERVING
