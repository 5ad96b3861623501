"""A whole broker, its plugins included, as a node of the simulated network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from scale0_core import __version__
from scale0_core.config.files import BrokerConfig, read_config
from scale0_core.config.network import NetworkConfig
from scale0_core.config.tree import to_tree, tree_hash
from scale0_core.container.assembly import Assembly
from scale0_core.errors import ConfigError
from scale0_core.network.negotiation import RunningConfig, Writer
from scale0_core.network.plugin import NetworkPlugin, own_group
from scale0_core.network.service import Reloaded
from scale0_core.plugin_types import BrokerContext, RunningBroker
from scale0_core.plugins import PluginSet
from scale0_core.protocol.states import BrokerState
from scale0_core.service import Service
from scale0_core.testing.simclient import WALL
from scale0_core.testing.simnode import SimHost, SimNode


class SimBroker:
    """Makes the services of a broker at each start of its node, as a real broker does.

    ::

        net.add("b1", SimBroker("network.config_service=false", plugins={"discovery": DiscoveryPlugin}))

    Settings are given as to ``scale0 broker --set``, plugins as classes. Sockets are in the runtime folder of the node,
    ``/run/NAME``, unless settings say so. The broker's state, such as ``disabled``, outlives a restart.
    """

    def __init__(self, *settings: str, plugins: Mapping[str, Callable[[], Any]] | None = None) -> None:
        self._config = read_config(None, settings)
        self._classes = dict(plugins or {})
        self._memory: dict[str, str] = {}

    def __call__(self, node: SimNode) -> list[Service]:
        """Run all services on a node that starts."""
        core = self._config.core
        network = attrs.evolve(core.network, identity=core.network.identity or node.name)
        plugins = PluginSet()
        own = NetworkPlugin(
            attrs.evolve(self._config, core=attrs.evolve(core, network=network)), lambda config: [], plugins.formats,
            make_store=self._make_store, wall_time=lambda: WALL + node.now,
        )  # fmt: skip
        for name, plugin in {"network": own, **self._classes}.items():
            plugins.add(name, plugin)
        settings, faults = plugins.settings(self._config.plugin_tables)
        if faults:
            raise ConfigError(node.name, tuple(faults))
        context = BrokerContext(
            name=node.name, runtime_dir=f"/run/{node.name}", data_dir=f"/var/{node.name}", group=network.group,
            post=node.post, services=node.container,
        )  # fmt: skip
        assembly: Assembly[SimHost] = Assembly(node, node.make_host)
        for name in plugins.plugins:
            assembly.start(name, plugins.services(name, settings[name], context))
        for failure in plugins.failures.values():
            raise failure
        assembly.register(context.registry, network.identity, {}, __version__)
        plugins.started(
            RunningBroker(name=node.name, wire="simulated", addresses=assembly.addresses, counts=assembly.counts)
        )
        return []

    def _make_store(self, folder: Path, config: BrokerConfig, writers: Mapping[str, Writer], check: object) -> _Store:
        return _Store(self._memory, config.core.network, writers)


class _Store:
    """What a broker keeps, in memory; its configuration never changes."""

    def __init__(self, memory: dict[str, str], network: NetworkConfig, writers: Mapping[str, Writer]) -> None:
        self.writers = writers
        self._memory, self._network = memory, network

    def load_state(self, default: str) -> BrokerState:
        """Return the state in which the broker was."""
        return BrokerState(self._memory.get("state", default))

    def save_state(self, state: str) -> None:
        """Keep the broker's state."""
        self._memory["state"] = state

    def load_config(self) -> RunningConfig:
        """Return the configuration."""
        network = self._network
        return RunningConfig(network, 1, tree_hash(to_tree(network, "network")), own_group(network), self.writers)

    def reload(self, known: RunningConfig, *, force: bool = False) -> Reloaded:
        """Find that nothing has changed."""
        return Reloaded(known)
