"""What both flavours of Client and Worker have in common: from what a user says to a session and its driver."""

from __future__ import annotations

import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from scale0_core.client.frontend import ClientSession, check_call, ping_call
from scale0_core.client.kit.calls import Call, Caller, Window
from scale0_core.client.kit.drivers import Driver
from scale0_core.client.kit.errors import WorkerError
from scale0_core.client.kit.flows import Flow
from scale0_core.client.kit.route import Broker, Place, Route, address_of, target
from scale0_core.client.kit.serving import Handler, Handling, Offers, Serving
from scale0_core.client.session import WorkerSession, WorkerState
from scale0_core.client.storage import ConfigFile, default_config_dir, program_name
from scale0_core.protocol.messages import LONGEST_IDENTITY
from scale0_core.protocol.options import LONGEST_SERVICE, MOST_SERVICES

ConfigDir = str | Path | None

LARGEST_WINDOW = 10_000

F = TypeVar("F", bound=Handler)


def _file(config_dir: ConfigDir, key: str, address: str) -> ConfigFile:
    return ConfigFile(default_config_dir(os.environ) if config_dir is None else Path(config_dir), key, address)


def _identity(identity: str | None) -> str:
    """Return the identity; without one, a new one that says where it runs and is like no other."""
    if identity is None:
        return f"{program_name()[:80]}-{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
    if not 0 < len(identity.encode()) <= LONGEST_IDENTITY:
        raise ValueError(f"an identity has 1 to {LONGEST_IDENTITY} bytes: {identity!r}")
    return identity


class BaseClient(ABC):
    """A client, but for how it waits."""

    def __init__(
        self, broker: Broker = "default", *, identity: str | None = None, timeout: float = 30.0, retries: int = 5,
        config_dir: ConfigDir = None, config_type: str = "JSON", wait_for_broker: bool = False,
    ) -> None:  # fmt: skip
        """Make a client.

        A call fails immediately with a NoBrokerError if nobody listens at the broker's address on this machine. A
        client that was connected once waits for its broker to come back, until the call's timeout.

        :param broker: the name of a broker on this machine, the address of a broker's frontend, or several of these,
            which are tried in order.
        :param identity: who this is, for the broker's lists; made up when not given.
        :param timeout: seconds for a call that names no timeout of its own.
        :param retries: how often a call with ``retry=True`` is sent again.
        :param config_dir: where the configuration is kept; by default in the user's cache folder.
        :param config_type: the format in which the broker is asked for the configuration.
        :param wait_for_broker: wait for a broker that is not there yet as well.
        """
        address, name = target(broker, "scale0", "frontend"), _identity(identity)
        file = _file(config_dir, identity or f"client-{program_name()}", address)
        self._session = ClientSession(
            Route(Place(address)), identity=name, config_type=config_type.upper(), stored=file.load(name),
            retries=retries, store=file.save, wait_for_broker=wait_for_broker,
        )  # fmt: skip
        self._timeout = timeout
        self._caller = Caller(self._driven(self._session))

    @abstractmethod
    def _driven(self, session: ClientSession) -> Driver[ClientSession]:
        """Make what turns the session."""

    @property
    def identity(self) -> str:
        """Who this is."""
        return self._session.identity

    @property
    def address(self) -> str:
        """The address of the broker that is talked to."""
        return address_of(self._session.address)

    @property
    def config_version(self) -> int | str | None:
        """The version of the configuration that the broker gave; None as long as there is none."""
        stored = self._session.stored
        return stored.version if stored else None

    def _call(self, service: str, payload: Iterable[bytes], timeout: float | None, retry: bool) -> Call:
        seconds = self._timeout if timeout is None else timeout
        return Call(service, check_call(service, payload), timeout=seconds, retry=retry)

    def _map(self, service: str, payloads: Iterable[Any], timeout: float | None, retry: bool, window: Window) -> Any:
        def make(payload: bytes | tuple[bytes, ...]) -> Call:
            return self._call(service, payload if isinstance(payload, tuple) else (payload,), timeout, retry)

        return self._caller.map(make, payloads, window)

    def _ping(self, timeout: float) -> Flow[float]:
        return self._caller.seconds(ping_call(timeout))


class BaseWorker(ABC):
    """A worker, but for how it waits and where its functions run."""

    _elsewhere = ""
    """The worker that takes async functions, if this one does not."""

    def __init__(
        self, broker: Broker = "default", *, identity: str | None = None, concurrency: int = 1, prefetch: int = 0,
        heartbeat_interval: float = 2.5, version: str = "", metadata: Mapping[str, str] | None = None,
        backend: str | None = None, config_dir: ConfigDir = None, config_type: str = "JSON",
    ) -> None:  # fmt: skip
        """Make a worker; it waits for a broker that is not there yet.

        :param broker: the name of a broker on this machine, the address of a broker's frontend, or several of these,
            which are tried in order.
        :param identity: who this is, unique among workers; made up when not given.
        :param concurrency: how many tasks it works on at once.
        :param prefetch: how many more it takes in advance: more throughput for short tasks, longer waits behind long
            ones.
        :param heartbeat_interval: seconds between heartbeats; the broker may want it longer.
        :param version: the version of what it serves, for service discovery.
        :param metadata: short texts for service discovery.
        :param backend: the address for backends, for brokers that give no configuration.
        :param config_dir: where the configuration is kept; by default in the user's cache folder.
        :param config_type: the format in which the broker is asked for the configuration.
        """
        if concurrency < 1 or prefetch < 0 or concurrency + prefetch > LARGEST_WINDOW:
            raise ValueError(f"a worker takes 1 to {LARGEST_WINDOW} tasks: {concurrency} and {prefetch} in advance")
        if not 0 < heartbeat_interval <= 86_400:
            raise ValueError(f"heartbeat_interval must be positive and at most a day, got {heartbeat_interval}")
        address, name = target(broker, "scale0", "frontend"), _identity(identity)
        file = _file(config_dir, identity or f"worker-{program_name()}", address)

        def make(begin: Callable[[Any], None], cancel: Callable[[Any], None]) -> WorkerSession:
            return WorkerSession(
                Route(Place(address, backend or "")), identity=name, begin=begin, cancel=cancel, wall_time=time.time,
                window=concurrency + prefetch, interval=heartbeat_interval,
                metadata={**({"version": version} if version else {}), **(metadata or {})},
                config_type=config_type.upper(), stored=file.load(name), store=file.save,
            )  # fmt: skip

        self._make = make
        self._session = make(_nothing, _nothing)
        self._concurrency = concurrency
        self._offers = Offers(asynchronous=self._elsewhere)
        self._serving = self._served()

    @abstractmethod
    def _served(self) -> Serving[WorkerSession]:
        """Make what serves."""

    def service(self, name: str) -> Callable[[F], F]:
        """Have the function below serve; also while the worker runs."""

        def register(function: F) -> F:
            self.add(name, function)
            return function

        return register

    def add(self, name: str, function: Handler) -> None:
        """Offer a service; it takes the payload, a frame each, and returns bytes, text, a tuple of these, or None.

        A generator sends what it yields as it goes. What it raises goes to the caller as a RemoteError.
        """
        if not 0 < len(name.encode()) <= LONGEST_SERVICE:
            raise ValueError(f"the name of a service has 1 to {LONGEST_SERVICE} bytes: {name!r}")
        if len(self._offers.names) >= MOST_SERVICES:
            raise ValueError(f"a worker has at most {MOST_SERVICES} services")
        self._offers.add(name, function)
        self._offer()

    def remove(self, name: str) -> None:
        """Offer a service no more; tasks in hand are finished."""
        self._offers.remove(name)
        self._offer()

    @property
    def identity(self) -> str:
        """Who this is."""
        return self._session.identity

    @property
    def state(self) -> WorkerState:
        """How far it has come: ``serving`` when tasks may come."""
        return self._session.state

    @property
    def fault(self) -> WorkerError | None:
        """What keeps it from serving, or the last that did; None when all is well."""
        return self._session.fault

    @property
    def config_version(self) -> int | str | None:
        """The version of the configuration that the broker gave; None as long as there is none."""
        stored = self._session.stored
        return stored.version if stored else None

    # --- flows --------------------------------------------------------------------------------------------------------

    def _offer(self) -> None:
        for line in self._serving.all_lines:
            line.post(lambda now: self._session.offer(self._offers.names, now))

    def _begin(self) -> None:
        if self._serving.running:
            raise RuntimeError("the worker has been started already")

        def make(handling: Handling) -> WorkerSession:
            session = self._session = self._make(handling.begin, handling.cancel)
            session.offer(self._offers.names, time.monotonic())
            return session

        self._serving.open(
            "", make, lambda task: self._offers[task.service], threads=self._concurrency,
            at_once=self._concurrency, name=f"scale0 worker {self.identity}",
        )  # fmt: skip
        self._serving.running = True

    def _check(self) -> None:
        self._serving.check(f"the worker {self.identity}")

    def _wait_ready(self, timeout: float) -> Flow[None]:
        self._check()
        yield from self._serving.wait_ready(
            lambda: self._session.offers(self._offers.names), lambda: self._not_ready(timeout), timeout
        )

    def _not_ready(self, timeout: float) -> WorkerError:
        what = f"the worker is not ready after {timeout:g} s"
        return self._session.fault or WorkerError(what, f"it is {self._session.state.value}")

    def _drain(self, timeout: float) -> Flow[bool]:
        if not self._serving.running:
            return True
        self._check()
        return (yield from self._serving.drain(timeout))

    def _leave(self, *, finish: bool) -> Flow[None]:
        if finish and not self._serving.forked:
            yield from self._drain(30.0)
        yield from self._serving.stop()


def _nothing(task: Any) -> None: ...
