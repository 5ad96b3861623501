"""The broker's own plugin for the Scale0 protocol, and where it keeps what must survive a restart."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from scale0_core.broker.negotiation import RunningConfig, Writer
from scale0_core.broker.service import BrokerService, NetworkSockets
from scale0_core.config.addresses import is_local
from scale0_core.config.files import BrokerConfig
from scale0_core.config.formats import Format
from scale0_core.config.network import ClientConfig, GroupConfig, NetworkConfig, Port
from scale0_core.config.tree import to_tree, tree_hash
from scale0_core.errors import PluginError
from scale0_core.hookspecs import hookimpl
from scale0_core.logs import get_logger
from scale0_core.plugin_types import API_VERSION, BrokerContext, PluginInfo, RunningBroker
from scale0_core.plugins import installed_formats, load_format
from scale0_core.protocol.states import BrokerState
from scale0_core.service import Service

LOG = get_logger("network")

HISTORY_KEPT = 100


class FileStore:
    """Keeps state and configurations in a folder. Every file is written whole or not at all."""

    def __init__(self, folder: Path, read_network: Callable[[], NetworkConfig], writers: Mapping[str, Writer]) -> None:
        self._folder = folder
        self._read_network = read_network
        self._writers = writers

    def load_state(self, default: str) -> BrokerState:
        """Give the state on record, the default when there is none, and disabled when the record cannot be read."""
        path = self._folder / "state.json"
        try:
            return BrokerState(json.loads(path.read_text(encoding="utf-8"))["state"])
        except FileNotFoundError:
            return BrokerState(default)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
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
        """Give the highest version on record and its hash; the history knows them too if the record of them is lost."""
        newest = sorted((self._folder / "history").glob("*.json"))[-2:]
        records = [self._read(path) for path in (self._folder / "current.json", *newest)]
        known = [(kept["version"], str(kept.get("hash", ""))) for kept in records if type(kept.get("version")) is int]
        return max(known, default=(0, ""))

    def _recorded(self, version: int, known_hash: str) -> RunningConfig:
        network = self._read_network()
        tree = to_tree(network, "network")
        found = tree_hash(tree)
        if found != known_hash:
            version += 1
            record = {"version": version, "hash": found, "time": time.time(), "network": attrs.asdict(network)}
            history = self._folder / "history"
            self._write(history / f"{version:010}.json", record)
            self._write(self._folder / "current.json", {"version": version, "hash": found})
            for old in sorted(history.glob("*.json"))[:-HISTORY_KEPT]:
                old.unlink()
        return RunningConfig(network, version, found, _own_group(network), self._writers)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            LOG.error("a record cannot be read and is ignored", path=str(path), error=repr(error))
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, path: Path, content: object) -> None:
        """Write beside the old file, make sure that it is on the disk, then put it in the old one's place."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class NetworkPlugin:
    """The Scale0 protocol as a plugin of the core's own."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._service: BrokerService | None = None

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(summary="the Scale0 protocol: negotiation, heartbeats, tasks", api=(API_VERSION, API_VERSION))

    @hookimpl
    def scale0_services(self, context: BrokerContext) -> Iterable[Service]:
        """Make the broker's own service."""
        network = self._config.core.network
        store = FileStore(Path(context.data_dir) / "network", self._read_network, format_writers())
        sockets = NetworkSockets(
            frontend=_addresses(network.frontend_port, network, context),
            backend=_addresses(network.backend_port, network, context),
            config=_addresses(network.config_pub_port, network, context),
            management=(context.address("ipc://{runtime}/management"),),
        )
        remote = {"frontend": sockets.frontend, "backend": sockets.backend}
        self._service = BrokerService(
            store.load_config(),
            sockets,
            store=store,
            registry=context.registry,
            wall_time=time.time,
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

    def _read_network(self) -> NetworkConfig:
        core = self._config.read_again().core
        return attrs.evolve(core.network, identity=core.network.identity or core.broker.name)


def _own_group(network: NetworkConfig) -> GroupConfig:
    """Give the group of this broker as it is written, or an empty one."""
    written = [group for group in network.group_config if group.name == network.group]
    return written[0] if written else GroupConfig(name=network.group)


def format_writers() -> dict[str, Writer]:
    """Give a writer of client configurations for every format that is installed."""
    writers: dict[str, Writer] = {}
    for name in installed_formats():
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
