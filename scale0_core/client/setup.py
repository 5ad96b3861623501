"""What both kinds of Client and Worker have in common: from what a user says to a dialog, and from that to a future."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from scale0_core.client.calls import Reply
from scale0_core.client.errors import CallError, ClosedError, WorkerError
from scale0_core.client.frontend import Frontend
from scale0_core.client.handlers import Handler, Handlers
from scale0_core.client.kit.route import Broker, Place, Route, address_of, target
from scale0_core.client.session import Session, Task, WorkerState
from scale0_core.client.storage import ConfigFile, default_config_dir, program_name
from scale0_core.client.threads import FORKED
from scale0_core.protocol.messages import LONGEST_IDENTITY

ConfigDir = str | Path | None

LARGEST_WINDOW = 10_000
LONGEST_TIMEOUT = 86_400
"""Seconds: the protocol takes no longer timeout of a task."""
CLIENT_LINGER_MS = 200
WORKER_LINGER_MS = 1000
PARTS_AT_ONCE = 100
"""Parts of a streamed reply after which a generator waits until they have left."""
LOOK_EVERY = 0.05
"""Seconds after which a generator that waits looks whether anybody still does."""

F = TypeVar("F", bound=Handler)


# --- dialogs ----------------------------------------------------------------------------------------------------------


def frontend_for(
    broker: Broker,
    *,
    identity: str | None,
    retries: int,
    config_dir: ConfigDir,
    config_type: str,
    wait_for_broker: bool,
) -> Frontend:
    """Make the dialog of a client."""
    address = target(broker, "scale0", "frontend")
    name = _identity(identity)
    file = ConfigFile(_folder(config_dir), identity or f"client-{program_name()}", address)
    return Frontend(
        Route(Place(address)), identity=name, config_type=config_type.upper(), stored=file.load(name), retries=retries,
        store=file.save, wait_for_broker=wait_for_broker,
    )  # fmt: skip


def session_for(
    broker: Broker, *, backend: str | None, identity: str | None, window: int, interval: float,
    metadata: Mapping[str, str], config_dir: ConfigDir, config_type: str,
    begin: Callable[[Task], None], cancel: Callable[[Task], None], changed: Callable[[], None],
) -> Session:  # fmt: skip
    """Make the dialog of a worker."""
    address = target(broker, "scale0", "frontend")
    name = _identity(identity)
    file = ConfigFile(_folder(config_dir), identity or f"worker-{program_name()}", address)
    return Session(
        Route(Place(address, backend or "")), identity=name, begin=begin, cancel=cancel, changed=changed,
        wall_time=time.time,
        window=window, interval=interval, metadata=metadata, config_type=config_type.upper(),
        stored=file.load(name), store=file.save,
    )  # fmt: skip


def check_worker(concurrency: int, prefetch: int, heartbeat_interval: float) -> None:
    """Raise what is wrong with the numbers given to a worker."""
    if concurrency < 1 or prefetch < 0 or concurrency + prefetch > LARGEST_WINDOW:
        raise ValueError(f"a worker takes 1 to {LARGEST_WINDOW} tasks: {concurrency} and {prefetch} in advance")
    if not 0 < heartbeat_interval <= 86_400:
        raise ValueError(f"a heartbeat interval is longer than nothing, at most a day: {heartbeat_interval}")


def _folder(config_dir: ConfigDir) -> Path:
    return default_config_dir(os.environ) if config_dir is None else Path(config_dir)


def _identity(identity: str | None) -> str:
    """Give the identity; without one, a new one that says where it runs and is like no other."""
    if identity is None:
        return f"{program_name()[:80]}-{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
    if not 0 < len(identity.encode()) <= LONGEST_IDENTITY:
        raise ValueError(f"an identity has 1 to {LONGEST_IDENTITY} bytes: {identity!r}")
    return identity


# --- calls ------------------------------------------------------------------------------------------------------------


class Settable(Protocol):
    """What the futures of threads and those of asyncio can both do."""

    def set_result(self, result: Any, /) -> None:
        """Have a reply."""

    def set_exception(self, exception: Any, /) -> None:
        """Have an error."""


class FutureSink:
    """Puts the outcome of a call into a future."""

    __slots__ = ("_future", "_too_late")

    def __init__(self, future: Settable, too_late: type[Exception]) -> None:
        """Make one; ``too_late`` is what the future raises if it has been cancelled, by another thread perhaps."""
        self._future, self._too_late = future, too_late

    def final(self, reply: Reply) -> None:
        """Take the reply, unless nobody waits for it any more."""
        with contextlib.suppress(self._too_late):
            self._future.set_result(reply)

    def fail(self, error: CallError) -> None:
        """Take the error, unless nobody waits for it any more."""
        with contextlib.suppress(self._too_late):
            self._future.set_exception(error)


def closed_error(error: BaseException | None = None) -> ClosedError:
    """Make the error of calls that a closed client cannot make, or one that failed."""
    why = f"it failed: {error!r}" if error else ""
    return ClosedError("the client is closed", why, "the call has no reply", "" if error else "make another Client")


def forked_error() -> ClosedError:
    """Make the error of calls in a forked child."""
    remedy = "make another Client after the fork"
    return ClosedError("the client belongs to another process", FORKED, "the call has no reply here", remedy)


# --- the two kinds ----------------------------------------------------------------------------------------------------


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
        self._frontend = frontend_for(
            broker, identity=identity, retries=retries, config_dir=config_dir, config_type=config_type,
            wait_for_broker=wait_for_broker,
        )  # fmt: skip
        self._timeout = timeout
        self._set_up()

    @property
    def identity(self) -> str:
        """Who this is."""
        return self._frontend.identity

    @property
    def address(self) -> str:
        """The address of the broker that is talked to."""
        return address_of(self._frontend.address)

    @property
    def config_version(self) -> int | str | None:
        """The version of the configuration that the broker gave; None as long as there is none."""
        stored = self._frontend.stored
        return stored.version if stored else None

    def _time(self, timeout: float | None) -> float:
        seconds = self._timeout if timeout is None else timeout
        if not 0 < seconds <= LONGEST_TIMEOUT:
            raise ValueError(f"timeout must be positive and at most {LONGEST_TIMEOUT} s, got {seconds}")
        return seconds

    @abstractmethod
    def _set_up(self) -> None:
        """Make what this kind of client needs."""


class BaseWorker(ABC):
    """A worker, but for how it waits and where its functions run."""

    _asynchronous: bool

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
        check_worker(concurrency, prefetch, heartbeat_interval)
        self._concurrency = concurrency
        self._handlers = Handlers(asynchronous=self._asynchronous)
        self._make: Callable[[], Session] = lambda: session_for(
            broker, backend=backend, identity=identity, window=concurrency + prefetch, interval=heartbeat_interval,
            metadata={**({"version": version} if version else {}), **(metadata or {})},
            config_dir=config_dir, config_type=config_type, begin=self._begin, cancel=self._cancel,
            changed=self._changed,
        )  # fmt: skip
        self._session: Session = self._make()
        self._set_up()

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
        self._handlers.add(name, function)
        self._offer()

    def remove(self, name: str) -> None:
        """Offer a service no more; tasks in hand are finished."""
        self._handlers.remove(name)
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

    def _check_process(self, forked: bool) -> None:
        if forked:
            what = f"the worker {self.identity} belongs to another process"
            raise WorkerError(what, FORKED, "nothing is served here", "start another Worker after the fork")

    def _not_ready(self, timeout: float) -> WorkerError:
        return self._session.fault or WorkerError(
            f"the worker is not ready after {timeout:g} s", f"it is {self._session.state.value}"
        )

    @abstractmethod
    def _set_up(self) -> None:
        """Make what this kind of worker needs."""

    @abstractmethod
    def _offer(self) -> None:
        """Tell the broker of the services, if the worker runs."""

    @abstractmethod
    def _begin(self, task: Task) -> None:
        """Have a task done."""

    @abstractmethod
    def _cancel(self, task: Task) -> None:
        """Stop the handler of a task that nobody waits for any more."""

    @abstractmethod
    def _changed(self) -> None:
        """Have whoever waits for a change look."""
