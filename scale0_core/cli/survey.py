"""A look at a configuration and its plugins that finds everything wrong at once, and starts nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import attrs

from scale0_core.cli import COMMANDS, PLUGIN_COMMANDS, plugin_command
from scale0_core.config.files import (
    EMBEDDED,
    BrokerConfig,
    find_config,
    read_config,
    read_tree,
    unknown_levels,
    unknown_tables,
)
from scale0_core.config.folders import broker_context
from scale0_core.config.settings import CoreSettings
from scale0_core.errors import LEFT_OUT, ConfigError, Fault, PluginError, Problem, Scale0Error
from scale0_core.plugin_types import BrokerContext
from scale0_core.plugins import (
    OWN,
    InstalledPlugin,
    PluginSet,
    distribution_name,
    duplicate_names,
    installed_plugins,
)
from scale0_core.service import Endpoint, Service, SocketKind

DISABLED = "it is not enabled, so the broker is not affected"
NETWORK = "network"


@attrs.frozen
class Finding:
    """One thing that is wrong with a plugin."""

    plugin: str
    problem: Problem


@attrs.define
class Survey:
    """What was found: the configuration as far as it could be read, its faults, and all plugins that matter."""

    source: str
    config: BrokerConfig | None
    faults: tuple[Fault, ...]
    """What keeps a broker from starting."""
    idle_faults: tuple[Fault, ...]
    """What is wrong in the tables of plugins that are not enabled."""
    installed: dict[str, InstalledPlugin]
    plugins: PluginSet
    settings: dict[str, Any]
    named: tuple[str, ...] | None
    """What broker.plugins says; None enables what is safe by default."""

    @property
    def core(self) -> CoreSettings:
        """The core's settings; the defaults where the file is wrong."""
        return self.config.core if self.config else CoreSettings()

    @property
    def insecure(self) -> bool:
        """Whether other machines may reach sockets; yes where the file is wrong, so that nothing is said in error."""
        return self.config is None or self.config.core.wire.insecure

    def enabled(self, name: str) -> bool:
        """Tell whether a broker with this configuration would start a plugin."""
        if name in OWN:
            return True
        if self.named is not None:
            return name in self.named
        plugin = self.plugins.plugins.get(name)
        # one that cannot be loaded cannot say that it is safe; a broker would try it and tell
        return name in self.plugins.failures if plugin is None else plugin.info.safe_by_default

    def needed_by(self, name: str) -> str:
        """Return what says that a broker does not start without a plugin: a setting, or a table; empty if none does."""
        return NETWORK if name in OWN else self.core.broker.needed_by(name)

    def names(self) -> list[str]:
        """Give the names of all plugins that are installed or asked for."""
        return sorted({*self.installed, *(self.named or ())})

    def findings(self) -> list[Finding]:
        """List what is wrong with the plugins, their services and their commands; nothing is started."""
        found = [Finding(name, _told(self, name, error.problem)) for name, error in self.plugins.failures.items()]
        found += [Finding(name, _duplicate(name)) for name in duplicate_names()]
        found += [
            Finding(_subject(fault), _faulty(fault, self))
            for fault in (*self.faults, *self.idle_faults)
            if _subject(fault)
        ]
        found += [*self.service_findings(contract=True), *_command_findings()]
        return sorted(found, key=lambda finding: finding.plugin)

    def service_findings(self, *, contract: bool = False) -> list[Finding]:
        """List what is wrong with the services and their addresses; services are made, but no socket is opened.

        :param contract: whether to look at all that the testing kit asks of endpoints, which takes a moment to import.
        """
        return [*_service_findings(self, contract=contract), *_network_findings(self)]


def survey(file: str | None, overrides: Iterable[str] = (), *, load_all: bool = True) -> Survey:
    """Read a configuration and load plugins: all that are installed, or just those that it names or enables."""
    path = find_config(file, os.environ)
    faults: list[Fault] = []
    config: BrokerConfig | None = None
    tree: Mapping[str, Any] = {}
    try:
        config = read_config(path, overrides)
        broker, log = {"plugins": config.core.broker.plugins}, {"levels": config.core.log.levels}
        tree = {"plugin": config.plugin_tables, "broker": broker, "log": log}
    except ConfigError as error:
        faults += error.faults
        tree = _readable_part(path, overrides)
    installed = installed_plugins()
    named, tables = _names(tree), _tables(tree)
    plugins = PluginSet()
    wanted = list(installed) if named is None or load_all else [*named, *(set(tables) & set(installed))]
    plugins.load_installed(list(dict.fromkeys([*wanted, *(named or ())])))
    settings, table_faults = plugins.settings(tables)
    known = {*installed, *plugins.plugins, *plugins.failures}
    faults += unknown_tables(tables, known) + unknown_levels(_levels(tree), known | OWN)
    source = EMBEDDED if path is None else str(path)
    found = Survey(source, config, (), (), installed, plugins, settings, named)
    faults += [fault for fault in table_faults if found.enabled(_owner(fault))]
    found.faults = tuple(faults)
    found.idle_faults = tuple(fault for fault in table_faults if fault not in faults)
    found.faults += tuple(_needed_faults(found))
    return found


def _readable_part(path: Path | None, overrides: Iterable[str]) -> dict[str, Any]:
    """Give what can be read of a configuration that has faults, so that plugin tables are looked at as well."""
    try:
        return read_tree(path, overrides)[0]
    except ConfigError:
        return {}


def _names(tree: Mapping[str, Any]) -> tuple[str, ...] | None:
    broker = tree.get("broker")
    names = broker.get("plugins") if isinstance(broker, Mapping) else None
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list | tuple) else None


def _tables(tree: Mapping[str, Any]) -> dict[str, Any]:
    tables = tree.get("plugin")
    return {k: v for k, v in tables.items() if isinstance(v, Mapping)} if isinstance(tables, Mapping) else {}


def _levels(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    log = tree.get("log")
    levels = log.get("levels") if isinstance(log, Mapping) else None
    return levels if isinstance(levels, Mapping) else {}


def _needed_faults(found: Survey) -> list[Fault]:
    """List why a broker does not start although its configuration can be read: it needs plugins that cannot be used."""
    faults = [
        _unusable(found, finding.plugin, finding.problem.why, finding.problem.remedy)
        for finding in found.service_findings()
        if found.needed_by(finding.plugin) and found.enabled(finding.plugin)
    ]
    faults += [
        _unusable(found, name, f"{error.problem.what}, {error.problem.why}")
        for name, error in found.plugins.failures.items()
        if found.needed_by(name)
    ]
    return faults + [
        Fault("broker.required", f"{name} is not enabled", "add it to broker.plugins")
        for name in found.core.broker.required
        if name not in found.plugins.failures and not found.enabled(name)
    ]


def _unusable(found: Survey, name: str, why: str, remedy: str = "") -> Fault:
    if name in OWN:
        place, _, message = why.partition(": ")
        return Fault(place, message, remedy)
    return Fault(found.needed_by(name), f"{name} cannot be used: {why}", remedy)


def _told(found: Survey, name: str, problem: Problem) -> Problem:
    """Say what follows when a plugin cannot be used: that depends on how much it is wanted."""
    if place := found.needed_by(name):
        since = "" if name in OWN else f", since {place} names it"
        return attrs.evolve(problem, consequence=f"the broker does not start{since}")
    return problem if found.enabled(name) else attrs.evolve(problem, consequence=DISABLED)


def _duplicate(name: str) -> Problem:
    return Problem(
        f"several distributions offer a plugin {name}",
        "two entry points of the group scale0.plugins have this name",
        "one of them is taken, and nobody can say which",
        "pip uninstall all but one of them",
    )


def _owner(fault: Fault) -> str:
    parts = fault.place.split(".")
    return parts[1] if parts[0] == "plugin" and len(parts) > 1 else ""


def _subject(fault: Fault) -> str:
    """Give the plugin that a fault is about: its own, or one whose level is to be set."""
    levels = "log.levels."
    return fault.place.removeprefix(levels) if fault.place.startswith(levels) else _owner(fault)


def _faulty(fault: Fault, found: Survey) -> Problem:
    return Problem(
        f"{found.source} is wrong at {fault.place}",
        fault.message,
        "the broker does not start" if fault in found.faults else DISABLED,
        fault.hint or "mend it, then run: scale0 config check",
    )


def _service_findings(found: Survey, *, contract: bool) -> list[Finding]:
    findings = []
    taken: dict[str, str] = {}
    context = broker_context(found.core.broker, os.environ)
    for name in found.plugins.plugins:
        if any(_owner(fault) == name for fault in (*found.faults, *found.idle_faults)):
            continue  # without settings there are no services
        try:
            for service in found.plugins.services(name, found.settings[name], context):
                addresses = _address_findings(found, name, service, context)
                findings += addresses
                findings += _contract_findings(name, service, addresses) if contract else []
                if service.name in taken:
                    problem = _taken_name(name, service.name, taken[service.name])
                    findings.append(Finding(name, _told(found, name, problem)))
                taken[service.name] = name
        except Scale0Error as error:
            findings.append(Finding(name, _told(found, name, error.problem)))
        except Exception as error:
            problem = _bad_endpoint(name, f"{type(error).__name__}: {error}")
            findings.append(Finding(name, _told(found, name, problem)))
    return findings


def _address_findings(found: Survey, name: str, service: Service, context: BrokerContext) -> list[Finding]:
    from scale0_core.cli.addresses import endpoint_faults, place_of

    findings = []
    endpoints: Any = service.endpoints
    bound: list[tuple[Any, Endpoint, Any]] = [
        (socket, endpoint, address)
        for socket, endpoint in (endpoints.items() if isinstance(endpoints, Mapping) else ())
        if isinstance(endpoint, Endpoint)
        for address in endpoint.bind
    ]
    for socket, endpoint, address in bound:
        if isinstance(address, str):
            place = place_of(address, f"plugin.{name}", found.settings[name], context)
            where = place or f"the socket {socket} of its service {service.name}"
            faults = endpoint_faults(where, address, endpoint, context, insecure=found.insecure)
            findings += [Finding(name, _told(found, name, _bad_address(name, fault))) for fault in faults]
    return findings


def _contract_findings(name: str, service: Service, told: Iterable[Finding]) -> list[Finding]:
    """List what the testing kit finds; what was told of an address with its place is not told again without it."""
    from scale0_core.testing.contract import endpoint_faults

    said = [finding.problem.why.partition(": ")[2] for finding in told]
    faults = [fault for fault in endpoint_faults(service) if not any(words in fault for words in said)]
    return [Finding(name, _bad_endpoint(name, fault)) for fault in faults]


def _network_findings(found: Survey) -> list[Finding]:
    """Look at the addresses of the broker's own sockets."""
    from scale0_core.cli.addresses import endpoint_faults, network_endpoints

    if found.config is None:
        return []
    context = broker_context(found.core.broker, os.environ)
    return [
        Finding(NETWORK, _told(found, NETWORK, _bad_address(NETWORK, fault)))
        for place, address in network_endpoints(found.core.network, context).items()
        for fault in endpoint_faults(place, address, Endpoint(kind=SocketKind.ROUTER), context, insecure=found.insecure)
    ]


def _bad_address(name: str, fault: Fault) -> Problem:
    what = f"plugin {name} could not open a socket"
    return Problem(what, f"{fault.place}: {fault.message}", LEFT_OUT, fault.hint)


def _bad_endpoint(name: str, fault: str) -> Problem:
    return Problem(
        f"plugin {name} has a service that cannot be opened", fault, "the broker runs without it", "mend its endpoints"
    )


def _taken_name(name: str, service: str, other: str) -> Problem:
    return Problem(
        f"plugin {name} offers a service that exists already",
        f"plugin {other} has a service named {service} as well",
        "a broker that enables both runs without the second",
        "enable one of them in broker.plugins",
    )


def _command_findings() -> list[Finding]:
    findings = []
    for entry in entry_points(group=PLUGIN_COMMANDS):
        if entry.name in COMMANDS:
            findings.append(Finding(entry.name, _hidden_command(entry.name)))
            continue
        try:
            plugin_command(entry)
        except PluginError as error:
            remedy = f"pip install --force-reinstall {distribution_name(entry.name)}, or tell its author"
            findings.append(Finding(entry.name, attrs.evolve(error.problem, remedy=remedy)))
    return findings


def _hidden_command(name: str) -> Problem:
    return Problem(
        f"a plugin offers a command {name}",
        "the core has a command of that name",
        "the plugin's command cannot be called",
        "rename the entry point",
    )
