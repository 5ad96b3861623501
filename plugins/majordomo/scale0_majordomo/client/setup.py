"""What both flavours of Client and Worker have in common: from what a user says to a session and its driver."""

# does I/O: draws the numbers that spread reconnects of many clients

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from scale0_core.api import printable
from scale0_core.client.kit.calls import Call, Caller, Window
from scale0_core.client.kit.drivers import Driver
from scale0_core.client.kit.flows import Flow
from scale0_core.client.kit.route import Broker, address_of, target
from scale0_core.client.kit.serving import Handler, Handling, Offers, Serving
from scale0_majordomo.client.codec import (
    DIALECTS,
    CallOptions,
    DialectName,
    check_name,
    make_call,
    told_by_broker,
)
from scale0_majordomo.client.errors import START, WorkerError
from scale0_majordomo.client.session import ClientSession, WorkerSession, WorkerState
from scale0_majordomo.dialects import Dialect

WINDOW = 1000
MAX_CREDIT = 10_000
MOST_THREADS = 64

F = TypeVar("F", bound=Handler)
T = TypeVar("T")

Item = bytes | str | tuple[bytes | str, ...]
Progress = Callable[[int, int | None], None]
"""Is told how many replies there are, and of how many if that is known."""


def _dialect(name: DialectName) -> Dialect:
    found = DIALECTS.get(name)
    if found is None:
        raise ValueError(f"a dialect is one of {', '.join(DIALECTS)}: {name!r}")
    return found


class BaseClient(ABC):
    """A client, but for how it waits."""

    def __init__(
        self, broker: Broker = "default", *, timeout: float = 30.0, retries: int = 5,
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
        self._target = target(broker, "majordomo", "requests")
        self._session = ClientSession(
            self._target, random=random.Random(), retries=retries, dialect=_dialect(dialect),  # noqa: S311
            wait_for_broker=wait_for_broker,
        )  # fmt: skip
        self._timeout = timeout
        self._caller = Caller(self._driven(self._session))

    @abstractmethod
    def _driven(self, session: ClientSession) -> Driver[ClientSession]:
        """Make what turns the session."""

    @property
    def address(self) -> str:
        """Where the broker is."""
        return address_of(self._target)

    @property
    def late(self) -> int:
        """How many replies came after their call was over; they are thrown away."""
        return self._session.calls.late

    def _call(self, service: str, body: tuple[bytes | str, ...], options: CallOptions) -> Call:
        timeout = options.get("timeout")
        if timeout is None:
            options = {**options, "timeout": self._timeout}
        return make_call(service, body, **options)  # type: ignore[arg-type]  # the timeout is not None any more

    def _map(self, service: str, items: Iterable[Item], options: CallOptions, window: Window) -> Any:
        def make(item: Item) -> Call:
            return self._call(service, item if isinstance(item, tuple) else (item,), options)

        return self._caller.map(make, items, window)

    def _told(self, kind: type[T], question: str, *body: str, timeout: float | None) -> Flow[T]:
        reply = yield from self._caller.call(self._call(question, body, {"timeout": timeout}))
        return told_by_broker(question, reply, kind)

    def _offers(self, service: str, timeout: float | None) -> Flow[bool]:
        reply = yield from self._caller.call(self._call("mmi.service", (service,), {"timeout": timeout}))
        return reply.body == b"200"


class BaseWorker(ABC):
    """A worker, but for how it waits and where its functions run."""

    _elsewhere = ""
    """The worker that takes async functions, if this one does not."""

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
        if threads is not None and threads < 1:
            raise ValueError(f"a worker has at least one thread: {threads}")
        self._dialect = _dialect(dialect)
        self._target = target(broker, "majordomo", "requests")
        self._check_credit(credit)
        self._credit, self._threads = credit, threads
        self._heartbeat, self._liveness = heartbeat, liveness
        self._offers = Offers(asynchronous=self._elsewhere)
        self._credits: dict[str, int] = {}
        self._serving = self._served()

    @abstractmethod
    def _served(self) -> Serving[WorkerSession]:
        """Make what serves."""

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
        check_name(name.encode())
        if name.startswith("mmi."):
            raise ValueError(f"services that begin with mmi. are the broker's own: {name}")
        if name in self._offers:
            raise ValueError(f"{name} is on offer already")
        wanted = self._credit if credit is None else credit
        self._check_credit(wanted)
        self._offers.add(name, function)
        self._credits[name] = wanted
        if self._serving.running:
            self._open(name)

    def _check_credit(self, credit: int) -> None:
        if credit != 1 and self._dialect is not Dialect.OWN:
            raise ValueError("credit needs our own dialect")
        if not 1 <= credit <= MAX_CREDIT:
            raise ValueError(f"a worker takes 1 to {MAX_CREDIT} requests at once: {credit}")

    @property
    def services(self) -> tuple[str, ...]:
        """The services on offer."""
        return self._offers.names

    @property
    def address(self) -> str:
        """Where the broker is."""
        return address_of(self._target)

    # --- flows --------------------------------------------------------------------------------------------------------

    def _open(self, name: str) -> None:
        function, credit = self._offers[name.encode()], self._credits[name]

        def make(handling: Handling) -> WorkerSession:
            return WorkerSession(
                self._target, name, begin=handling.begin, cancel=handling.cancel, random=random.Random(), credit=credit,  # noqa: S311
                heartbeat=self._heartbeat, liveness=self._liveness, dialect=self._dialect,
            )  # fmt: skip

        # the function is not looked up for each request: those in hand of a service that is removed are finished
        threads = self._threads or min(credit, MOST_THREADS)
        self._serving.open(
            name, make, lambda request: function, threads=threads, at_once=credit, name=f"majordomo worker {name}"
        )

    def _begin(self) -> None:
        self._serving.running = True
        for name in self._offers.names:
            self._open(name)

    def _start(self) -> Flow[None]:
        if self._serving.running:
            raise RuntimeError("the worker has been started already")
        try:
            self._begin()
        except BaseException:
            yield from self._serving.stop()
            raise

    def _check(self) -> None:
        self._serving.check("the worker")

    def _wait_ready(self, timeout: float) -> Flow[None]:
        self._check()
        yield from self._serving.wait_ready(lambda: not self._missing(), lambda: self._not_ready(timeout), timeout)

    def _missing(self) -> list[WorkerSession]:
        sessions = [line.session for line in self._serving.all_lines]
        return [session for session in sessions if session.state is not WorkerState.SERVING]

    def _not_ready(self, timeout: float) -> WorkerError:
        for session in self._missing():
            if session.fault is not None:
                return session.fault
        what = f"the worker is not ready after {timeout:g} s"
        why = ", ".join(f"{printable(session.service)} is {session.state.value}" for session in self._missing())
        return WorkerError(what, why, "it tries again", START)

    def _drain(self, timeout: float) -> Flow[bool]:
        self._check()
        return (yield from self._serving.drain(timeout))

    def _remove(self, name: str, timeout: float) -> Flow[bool]:
        self._check()
        self._offers.remove(name)
        return (yield from self._serving.remove(name, timeout))

    def _leave(self, *, finish: bool) -> Flow[None]:
        if finish and not self._serving.forked:
            yield from self._drain(30.0)
        yield from self._serving.stop()
