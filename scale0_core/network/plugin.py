"""The broker's own plugin for the Scale0 protocol, and where it keeps what must survive a restart."""

# does I/O: files, and the wall clock

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import attrs

from scale0_core.api import API_VERSION, BrokerContext, PluginInfo, RunningBroker, Service, get_logger, hookimpl
from scale0_core.config.addresses import is_local
from scale0_core.config.changes import changes, why_not_whole
from scale0_core.config.files import BrokerConfig
from scale0_core.config.formats import Format
from scale0_core.config.network import ClientConfig, GroupConfig, NetworkConfig, Port
from scale0_core.config.tree import to_tree, tree_hash
from scale0_core.errors import ConfigDataError, ConfigError, Fault, PluginError, RecordError
from scale0_core.network.negotiation import RunningConfig, Writer
from scale0_core.network.service import BrokerService, Reloaded, Store
from scale0_core.network.sockets import NetworkSockets
from scale0_core.parts import records
from scale0_core.parts.files import write_atomically
from scale0_core.plugins import load_format
from scale0_core.protocol.states import BrokerState

LOG = get_logger("network")

Check = Callable[[BrokerConfig], list[Fault]]

HISTORY_KEPT = 100

VERSION = re.compile(r"[0-9]{10}")
"""How the files of the history are named."""

HIGHEST_VERSION = 10**10 - 2
"""A record of a later one is damaged: no broker gets so far, and the names of the history have room for no more."""

DAMAGED = (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError)
"""What reading any bytes as a record may raise."""


class FileStore:
    """Keeps state and configurations in a folder. Every file is written whole or not at all.

    What cannot be written, or not be taken for what it should be, is a RecordError.
    """

    def __init__(self, folder: Path, read_network: Callable[[], NetworkConfig], writers: Mapping[str, Writer]) -> None:
        self._folder = folder
        self._read_network = read_network
        self._writers = writers

    def load_state(self, default: str) -> BrokerState:
        """Give the state on record, the default when there is none, and disabled when the record cannot be read."""
        path = self._folder / "state.json"
        try:
            return BrokerState(records.object_from(path.read_bytes())["state"])
        except FileNotFoundError:
            return BrokerState(default)
        except DAMAGED as error:
            # it may have said disabled, and who disabled the broker had a reason
            LOG.error(
                "the broker's state cannot be read: it starts disabled and answers nothing but enable", path=str(path),
                error=repr(error), next="scale0 enable, if it is to serve",
            )  # fmt: skip
            return BrokerState.DISABLED

    def save_state(self, state: str) -> None:
        """Keep the broker's state."""
        self._write(self._folder / "state.json", {"state": state})

    def load_config(self) -> RunningConfig:
        """Take the configuration as it is written now: the version on record, or the next one when it has changed."""
        return self._recorded(*self._latest())

    def reload(self, known: RunningConfig) -> RunningConfig:
        """Read the configuration again; a new version that is kept when it has changed."""
        running = self._recorded(*max(self._latest(), (known.version, known.hash)))
        return known if running.version == known.version else running

    def _latest(self) -> tuple[int, str]:
        """Return the highest version on record and its hash, which is empty where the record of it is damaged.

        The names of the history say which versions there were, so that none comes twice, whatever the records hold.
        """
        history = [path for path in sorted((self._folder / "history").glob("*.json")) if _is_version(path.stem)]
        named = [(int(path.stem), "") for path in history[-1:]]
        records = [self._read(path) for path in (self._folder / "current.json", *history[-2:])]
        return max([*named, *(known for known in map(_version_in, records) if known)], default=(0, ""))

    def _recorded(self, version: int, known_hash: str) -> RunningConfig:
        network = self._read_network()
        tree = to_tree(network, "network")
        found = tree_hash(tree)
        if found != known_hash:
            version += 1
            record = {"version": version, "hash": found, "time": time.time(), "network": attrs.asdict(network)}
            kept = self._folder / "history" / f"{version:010}.json"
            self._write(kept, record)
            try:
                self._write(self._folder / "current.json", {"version": version, "hash": found})
            except RecordError:
                with contextlib.suppress(OSError):
                    kept.unlink(missing_ok=True)  # this version never was
                raise
            for old in sorted(kept.parent.glob("*.json"))[:-HISTORY_KEPT]:
                with contextlib.suppress(OSError):
                    old.unlink()
        return RunningConfig(network, version, found, own_group(network), self._writers)

    def _read(self, path: Path) -> object:
        try:
            return records.from_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except DAMAGED as error:
            LOG.error("a record cannot be read and is ignored", path=str(path), error=repr(error))
            return None

    def _write(self, path: Path, content: object) -> None:
        try:
            write_atomically(path, json.dumps(content, indent=2), durable=True)
        except OSError as error:
            raise RecordError(
                f"{path} cannot be written", error.strerror or str(error), "nothing was changed",
                "make room on the disk, or let the broker's user write there",
            ) from error  # fmt: skip


def _is_version(stem: str) -> bool:
    return VERSION.fullmatch(stem) is not None and int(stem) <= HIGHEST_VERSION


def _version_in(record: object) -> tuple[int, str] | None:
    """Return the version and the hash in a record; None if it is damaged."""
    if not isinstance(record, dict):
        return None
    version, found = record.get("version"), record.get("hash")
    if type(version) is not int or not 0 < version <= HIGHEST_VERSION:
        return None
    return version, found if isinstance(found, str) else ""


class ConfigStore:
    """The broker's configuration and state: read from broker.toml, kept in a folder."""

    def __init__(self, folder: Path, config: BrokerConfig, writers: Mapping[str, Writer], check: Check) -> None:
        self._started = self._read = config
        self._check = check
        self.writers = writers
        self._files = FileStore(folder, self._network, writers)
        self.load_state = self._files.load_state
        self.load_config = self._files.load_config
        self.save_state = self._files.save_state

    def reload(self, known: RunningConfig, *, force: bool = False) -> Reloaded:
        """Read broker.toml again; raise a ConfigError, and go on as before, if it is wrong or not whole."""
        before, self._read = self._read, self._read_again(force=force)
        try:
            running = self._files.reload(known)
        except BaseException:
            self._read = before
            raise
        return Reloaded(running, self._read.source, changes(self._started, before, self._read))

    def _read_again(self, *, force: bool) -> BrokerConfig:
        path, read = self._read.path, self._read
        fix = "fix the file, then reload again; scale0 config check shows all that is wrong"
        try:
            read = self._read.read_again()
            faults = self._check(read)
        except ConfigError as error:
            faults = list(error.faults)
        if not force and (why := why_not_whole(self._read.text, read.text)):
            faults = [Fault(str(path), why)]
            fix = "write the file to its end, then reload again; scale0 reload --force takes it as it is"
        if faults:
            raise ConfigDataError(self._read.source, tuple(faults), "nothing was changed", fix)
        return read

    def _network(self) -> NetworkConfig:
        network = self._read.core.network
        return attrs.evolve(network, identity=network.identity or self._started.core.broker.name)


class BrokerStore(Store, Protocol):
    """What keeps the broker's configuration and state from one start to the next."""

    writers: Mapping[str, Writer]

    def load_state(self, default: str) -> BrokerState:
        """Return the state on record, or the default."""

    def load_config(self) -> RunningConfig:
        """Return the configuration as it is written now."""


MakeStore = Callable[[Path, BrokerConfig, Mapping[str, Writer], Check], BrokerStore]


class NetworkPlugin:
    """The Scale0 protocol as a plugin of the core's own.

    ``check`` lists what else is wrong in a configuration with which the broker could not be started again. ``formats``
    lists the types of configurations that are enabled. ``make_store`` makes what keeps the broker's state.
    """

    def __init__(
        self, config: BrokerConfig, check: Check, formats: Callable[[], Iterable[str]], *,
        make_store: MakeStore = ConfigStore, wall_time: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._make_store, self._wall_time = make_store, wall_time
        self._config = config
        self._check = check
        self._formats = formats
        self._service: BrokerService | None = None

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(summary="the Scale0 protocol: negotiation, heartbeats, tasks", api=(API_VERSION, API_VERSION))

    @hookimpl
    def scale0_services(self, context: BrokerContext) -> Iterable[Service]:
        """Make the broker's own service."""
        network = self._config.core.network
        store = self._make_store(
            Path(context.data_dir) / "network", self._config, format_writers(self._formats()), self._check
        )
        sockets = NetworkSockets(
            frontend=_addresses(network.frontend_port, network, context),
            backend=_addresses(network.backend_port, network, context),
            config=_addresses(network.config_pub_port, network, context),
            management=(context.address("ipc://{runtime}/management"),),
        )
        if network.config_service and not store.writers:
            LOG.warning(
                "no format of configurations is enabled: clients get none, and know only the address they were given",
                next="add config_json to broker.plugins, or set network.config_service = false",
            )
        remote = {"frontend": sockets.frontend, "backend": sockets.backend}
        self._service = BrokerService(
            store.load_config(),
            sockets,
            store=store,
            registry=context.registry,
            services=context.services,
            wall_time=self._wall_time,
            state=store.load_state(network.state),
            remote_sockets=frozenset(name for name, bound in remote.items() if not all(map(is_local, bound))),
        )
        return [self._service]

    @hookimpl
    def scale0_started(self, broker: RunningBroker) -> None:
        """Tell the service where its sockets are really open."""
        if self._service is not None:
            addresses = broker.addresses.get(self._service.name, {})
            self._service.set_addresses({name: tuple(bound) for name, bound in addresses.items()})


def own_group(network: NetworkConfig) -> GroupConfig:
    """Give the group of this broker as it is written, or an empty one."""
    written = [group for group in network.group_config if group.name == network.group]
    return written[0] if written else GroupConfig(name=network.group)


def format_writers(names: Iterable[str]) -> dict[str, Writer]:
    """Return a writer of client configurations for each of these formats; one that cannot be loaded is logged."""
    writers: dict[str, Writer] = {}
    for name in names:
        try:
            writers[name] = partial(_write_client, load_format(name))
        except PluginError as error:
            LOG.error(error.problem.what, why=error.problem.why, next=error.problem.remedy)
    return writers


def _write_client(format_: Format, config: ClientConfig) -> bytes:
    return format_.write(to_tree(config, "client"))


def _addresses(port: Port, network: NetworkConfig, context: BrokerContext) -> tuple[str, ...]:
    if isinstance(port, int):
        return (f"tcp://{network.bind_address}:{port or '*'}",)
    return (context.address(port),) if port else ()
