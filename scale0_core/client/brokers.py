"""Which broker to talk to: the one that was named, or another one of its groups. Without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import attrs

from scale0_core.config.folders import default_runtime_dir
from scale0_core.config.network import ClientConfig
from scale0_core.protocol.messages import Options


@attrs.frozen
class Place:
    """A broker and where it is reached; an address that is not known is empty."""

    frontend: str
    backend: str = ""
    identity: str = ""
    group: str = ""


def frontend_address(broker: str, environment: Mapping[str, str]) -> str:
    """Give the address for frontends: as it stands, or by the name of a broker on this machine."""
    if "://" in broker:
        return broker
    if not broker or "/" in broker:
        raise ValueError(f"a broker is given by its name or by an address such as tcp://127.0.0.1:5555: {broker!r}")
    return f"ipc://{default_runtime_dir(broker, environment)}/frontend"


def backend_beside(frontend: str) -> str:
    """Give the address for backends where only names tell: brokers have both sockets in one folder by default."""
    folder, _, name = frontend.rpartition("/")
    return f"{folder}/backend" if frontend.startswith("ipc://") and name == "frontend" else ""


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
        self._tried: set[str] = {told.frontend}

    @property
    def unreachable(self) -> list[str]:
        """The identities of brokers that were tried in vain."""
        known = places(self.config, self.told.frontend) if self.config else []
        names = {place.identity for place in known if place.frontend in self._tried and place != self.here}
        if self.config and self.told.frontend in self._tried and self.here is not self.told:
            names.add(self.config.prefered_broker)
        return sorted(name for name in names if name)

    def backend(self) -> str:
        """Give the address for backends of the broker at hand; empty when it is not known."""
        if self.here.backend:
            return self.here.backend
        if self.config is not None:
            wanted = self.here.identity or self.config.prefered_broker
            for place in places(self.config, self.told.frontend):
                if place.identity == wanted and place.backend:
                    return place.backend
        return backend_beside(self.here.frontend)

    def arrived(self) -> None:
        """Note that the broker at hand answers: when it is lost, all others may be tried again."""
        self._tried = set()

    def back(self) -> None:
        """Return to the broker that was named."""
        self.here, self.asking = self.told, False

    def elsewhere(self) -> bool:
        """Go to another broker and ask it; when all were tried, back to the first. Tell whether anything changed."""
        self._tried.add(self.here.frontend)
        known = places(self.config, self.told.frontend) if self.config else []
        for place in known:
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
        for entry in _entries(options.get("brokers")):
            if entry.frontend == self.here.frontend:
                return False
            if was_asking or entry.frontend not in self._tried:
                self.here = entry
                return True
        return False


def _entries(value: object) -> list[Place]:
    found = []
    for entry in value if isinstance(value, Sequence) and not isinstance(value, str) else ():
        if isinstance(entry, Mapping):
            texts = {name: entry.get(name, "") for name in ("frontend", "backend", "identity", "group")}
            if all(isinstance(text, str) for text in texts.values()) and texts["frontend"]:
                found.append(Place(**texts))
    return found
