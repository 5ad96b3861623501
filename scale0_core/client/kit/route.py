"""Which broker to talk to, and where it is.

A broker is given by its name on this machine, by an address, or as several of these, which are tried in order. Whoever
talks to it holds a target: text such as ``zpipes/pipes@main``, a service's socket at the broker of that name, or an
address, or several with `` | `` between them. ``resolve`` looks it up in the records of the brokers that run, anew for
each attempt to connect, so that a broker that was started again is found at its new place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

import attrs

from scale0_core.config.network import ClientConfig
from scale0_core.config.running import BrokerRecord, running_brokers
from scale0_core.config.settings import BROKER_NAME
from scale0_core.protocol.messages import Options

Broker = str | Sequence[str]
"""A broker's name or address, or several of them, tried in order."""

BETWEEN = " | "
Running = Callable[[], tuple[Sequence[BrokerRecord], Sequence[str]]]

NOWHERE = "ipc:///dev/null/nowhere"
"""An address at which nobody can be."""


@attrs.frozen
class Place:
    """A broker and where it is reached; an address that is not known is empty."""

    frontend: str
    backend: str = ""
    identity: str = ""
    group: str = ""


def target(broker: Broker, service: str, socket: str) -> str:
    """Return the target for a service's socket at a broker; an address stands for that socket itself."""
    brokers = [broker] if isinstance(broker, str) else list(broker)
    for each in brokers:
        if "://" not in each and not re.fullmatch(BROKER_NAME, each):
            raise ValueError(f"a broker is given by its name or by an address such as tcp://127.0.0.1:5555: {each!r}")
    if not brokers:
        raise ValueError("a broker is given by its name or by an address; the list is empty")
    return BETWEEN.join(each if "://" in each else f"{service}/{socket}@{each}" for each in brokers)


def running_here() -> tuple[Sequence[BrokerRecord], Sequence[str]]:
    """List the brokers that run on this machine, and what is wrong with the records of others."""
    return running_brokers(os.environ)


def resolve(target: str, attempt: int = 0, list_brokers: Running = running_here) -> tuple[str, str]:
    """Return the address to connect to, or NOWHERE and the reason why there is none.

    :param attempt: how often connecting has failed; of several brokers the next one is tried each time.
    :param list_brokers: lists the brokers that run.
    """
    tried = choice(target, attempt)
    socket, at, broker = tried.partition("@")
    if "://" in socket or not at:
        return tried, ""
    records, problems = list_brokers()
    record = next((record for record in records if broker in (record.name, *_addresses(record))), None)
    if record is None:
        running = ", ".join(record.name for record in records)
        why = f"no broker {broker} runs on this machine" + (f", but {running}" if running else "")
        return NOWHERE, "; ".join([why, *problems])
    service, _, name = socket.partition("/")
    bound = record.addresses.get(service, {}).get(name, ())
    for address in sorted(bound, key=lambda address: address.startswith("ipc://@")):
        if not address.startswith("inproc://"):
            return seen_from("", address), ""
    return NOWHERE, f"the broker {record.name} has no service {service}"


def choice(target: str, attempt: int) -> str:
    """Return which of several brokers is tried, when connecting has failed so often."""
    choices = target.split(BETWEEN)
    return choices[attempt % len(choices)]


def address_of(target: str) -> str:
    """Return the address that a target stands for now, for people; the target itself if there is none."""
    address, reason = resolve(target)
    return target if reason else address


def _addresses(record: BrokerRecord) -> list[str]:
    return [address for sockets in record.addresses.values() for bound in sockets.values() for address in bound]


def backend_beside(frontend: str) -> str:
    """Return the target for backends of the brokers on this machine whose frontends these are."""
    brokers = [choice if "://" in choice else choice.partition("@")[2] for choice in frontend.split(BETWEEN)]
    return BETWEEN.join(f"scale0/backend@{broker}" for broker in brokers if not broker.startswith("tcp://"))


def seen_from(told: str, address: str) -> str:
    """Replace a host that means "every interface" by the one under which the broker was reached."""
    try:
        host, port = urlsplit(address).hostname, urlsplit(address).port
        reached = urlsplit(told).hostname
    except ValueError:
        return address
    if host not in ("0.0.0.0", "::", "*") or not address.startswith("tcp://"):  # noqa: S104
        return address
    if not told.startswith("tcp://") or not reached:
        return f"tcp://127.0.0.1:{port}"
    return f"tcp://[{reached}]:{port}" if ":" in reached else f"tcp://{reached}:{port}"


def places(config: ClientConfig, told: str) -> list[Place]:
    """List the brokers that a configuration knows, the own group's first."""
    return [
        Place(seen_from(told, broker.frontend), seen_from(told, broker.backend), broker.identity, group.name)
        for group in config.group_config
        for broker in group.brokers
    ]


class Route:
    """The way to a broker.

    ``here`` is the broker that is tried or talked to. When it cannot be reached, ``elsewhere`` goes to another one that
    the configuration knows, which is asked (NEEDBROKER) where to go; ``asking`` is true until it has answered.
    """

    def __init__(self, told: Place, config: ClientConfig | None = None) -> None:
        self.told = self.here = told
        self.asking = False
        self.config = config
        self.reached = told.frontend
        """Which of the brokers that were named was reached last: what they say of themselves is seen from there."""
        self._tried: set[str] = {told.frontend}

    @property
    def unreachable(self) -> list[str]:
        """The identities of brokers that were tried in vain."""
        known = self._known()
        names = {place.identity for place in known if place.frontend in self._tried and place != self.here}
        if self.config and self.told.frontend in self._tried and self.here is not self.told:
            names.add(self.config.prefered_broker)
        return sorted(name for name in names if name)

    def backend(self) -> str:
        """Return the address for backends of the broker at hand; empty if it is not known."""
        if self.here.backend:
            return self.here.backend
        if self.config is not None:
            wanted = self.here.identity or self.config.prefered_broker
            for place in self._known():
                if place.identity == wanted and place.backend:
                    return place.backend
        return backend_beside(self._at)

    @property
    def _at(self) -> str:
        """What the broker at hand was reached by."""
        return self.reached if self.here == self.told else self.here.frontend

    def _known(self) -> list[Place]:
        return places(self.config, self.reached) if self.config else []

    def linked(self, reached: str) -> None:
        """Note that there is a connection, and which of several brokers it leads to; "" where that is not known."""
        if reached and self.here == self.told:
            self.reached = reached

    def arrived(self) -> None:
        """Note that the broker at hand answers: when it is lost, all others may be tried again."""
        self._tried = set()

    def back(self) -> None:
        """Return to the broker that was named."""
        self.here, self.asking = self.told, False

    def elsewhere(self) -> bool:
        """Go to another broker and ask it; when all were tried, back to the first. Tell whether anything changed."""
        self._tried.add(self.here.frontend)
        for place in self._known():
            own = self.config is not None and place.identity == self.config.prefered_broker
            if place.frontend and place.frontend not in self._tried and not own:
                self.here, self.asking = place, True
                return True
        changed = self.here != self.told
        self._tried = {self.told.frontend} if changed else set()
        self.back()
        return changed

    def sent_to(self, options: Options) -> bool:
        """Follow a CHANGEBROKER; tell whether that leads to another address."""
        was_asking, self.asking = self.asking, False
        at = address_of(self._at)
        for entry in _entries(options.get("brokers"), at):
            if entry.frontend == at:
                return False
            if was_asking or entry.frontend not in self._tried:
                self.here = entry
                return True
        return False


def _entries(value: object, told: str) -> list[Place]:
    found = []
    for entry in value if isinstance(value, Sequence) and not isinstance(value, str) else ():
        if isinstance(entry, Mapping):
            texts = {name: entry.get(name, "") for name in ("frontend", "backend", "identity", "group")}
            if all(isinstance(text, str) for text in texts.values()) and texts["frontend"]:
                texts |= {name: seen_from(told, texts[name]) for name in ("frontend", "backend")}
                found.append(Place(**texts))
    return found
