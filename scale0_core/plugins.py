"""Plugins: stevedore finds them, pluggy calls them. The only module that imports stevedore.

A plugin that is missing, cannot be imported, breaks the interface or raises gets a sentence of its own and is left out;
the others are not affected.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any

import attrs
import pluggy
from stevedore import NamedExtensionManager

from scale0_core import hookspecs
from scale0_core.config.formats import Format
from scale0_core.config.structure import nearest, structure
from scale0_core.container.host import CAUGHT
from scale0_core.errors import (
    LEFT_OUT,
    Fault,
    FormatMissingError,
    PluginContractError,
    PluginError,
    PluginImportError,
    PluginMissingError,
    PluginStartError,
    PluginVersionError,
)
from scale0_core.logs import get_logger
from scale0_core.plugin_types import API_VERSION, BatchReport, BrokerContext, PluginInfo, RunningBroker
from scale0_core.service import Service

GROUP = "scale0.plugins"
FORMATS = "scale0.formats"
LOG = get_logger("plugins")

EXAMPLE = "scale0_echo.plugin:EchoPlugin"

OWN = frozenset({"network", "reporter"})
"""The core's own plugins, which every broker starts and without which there is none."""


@attrs.frozen
class InstalledPlugin:
    """A plugin that is installed, whether or not it can be loaded."""

    name: str
    entry_point: str
    distribution: str
    version: str
    summary: str


@attrs.frozen
class LoadedPlugin:
    """One broker's instance of a plugin that keeps to the interface."""

    name: str
    plugin: Any
    info: PluginInfo


def distribution_name(plugin: str) -> str:
    """Give the name under which a plugin is installed: one stem in four places."""
    return f"scale0-{plugin.replace('_', '-')}"


def installed_plugins() -> dict[str, InstalledPlugin]:
    """Find all plugins that are installed, without importing any."""
    found = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.dist is not None:
            about = entry.dist.metadata
            summary = (about.get_all("Summary") or [""])[0]
            found[entry.name] = InstalledPlugin(entry.name, entry.value, about["Name"], entry.dist.version, summary)
    return dict(sorted(found.items()))


def duplicate_names() -> list[str]:
    """Give the names under which more than one distribution offers a plugin."""
    offers = {(entry.name, entry.value) for entry in metadata.entry_points(group=GROUP)}
    return sorted(name for name, count in Counter(name for name, _ in offers).items() if count > 1)


def installed_formats() -> list[str]:
    """Find the types of configurations for which a plugin is installed, without importing any."""
    return sorted({entry.name for entry in metadata.entry_points(group=FORMATS)})


def format_plugins() -> dict[str, str]:
    """Return the plugin of each type of configurations that is installed: that of the same distribution."""
    plugins = {found.distribution: found.name for found in installed_plugins().values()}
    found = {}
    for entry in metadata.entry_points(group=FORMATS):
        distribution = entry.dist.metadata["Name"] if entry.dist is not None else ""
        found[entry.name] = plugins.get(distribution, f"config_{entry.name.lower()}")
    return dict(sorted(found.items()))


def load_format(name: str) -> Format:
    """Load the plugin for a type of configurations, such as ``JSON``. Do it once: it looks at all that is installed.

    Raises a FormatMissingError, which lists the types that are there, or another PluginError.
    """
    _quiet_stevedore()
    wanted = name.upper()
    try:
        return _checked_format(wanted, _load_entry(FORMATS, wanted))
    except _LoadError as failure:
        raise _format_failed(failure.entry, failure.error) from failure.error
    except _NoEntryError:
        raise FormatMissingError(wanted, tuple(installed_formats())) from None


class PluginSet:
    """The plugins of one broker. ``failures`` says of each that could not be used why."""

    def __init__(self) -> None:
        self.plugins: dict[str, LoadedPlugin] = {}
        self.failures: dict[str, PluginError] = {}
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)

    def load_installed(self, names: Sequence[str] | None) -> None:
        """Load plugins by name; None loads all installed ones that say they are safe by default."""
        wanted = list(installed_plugins()) if names is None else list(dict.fromkeys(names))
        classes = self._import(wanted)
        for name in wanted:
            if name in classes:
                self.add(name, classes[name])
                if names is None and name in self.plugins and not self.plugins[name].info.safe_by_default:
                    self.drop(name)

    def add(self, name: str, plugin: Any) -> None:
        """Add a plugin: its class, or an instance of it; ``failures`` says why it was left out, if it was."""
        if name in self.plugins:
            self.failures[name] = _name_taken(name)
            return
        hook = "__init__"
        try:
            if isinstance(plugin, type):
                plugin = plugin()
            hook = "scale0_plugin_info"
            self._manager.register(plugin, name)
            self._manager.check_pending()
            info = self._caller(hook, name)()
            self.plugins[name] = LoadedPlugin(name, plugin, _checked_info(name, info))
        except PluginError as error:
            self.fail(name, error)
        except pluggy.PluginValidationError as error:
            self.fail(name, _wrong_hook(name, error))
        except CAUGHT as error:
            self.fail(name, _raised(name, hook, error))

    def formats(self) -> list[str]:
        """List the types of configurations whose plugins are loaded."""
        return [name for name, plugin in format_plugins().items() if plugin in self.plugins]

    def fail(self, name: str, error: PluginError) -> None:
        """Leave a plugin out and remember why."""
        self.drop(name)
        self.failures[name] = error

    def drop(self, name: str) -> None:
        """Forget a plugin."""
        self.plugins.pop(name, None)
        if self._manager.has_plugin(name):
            self._manager.unregister(name=name)

    def settings(self, tables: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
        """Make the settings object of each plugin; list all faults of all tables."""
        settings: dict[str, Any] = {}
        faults: list[Fault] = []
        for name, plugin in self.plugins.items():
            table = tables.get(name, {})
            if plugin.info.settings is None:
                faults += [Fault(f"plugin.{name}.{key}", "the plugin has no settings") for key in table]
                settings[name] = None
            else:
                settings[name], found = structure(plugin.info.settings, table, f"plugin.{name}")
                faults += found
        return settings, faults

    def services(self, name: str, settings: Any, context: BrokerContext) -> list[Service]:
        """Call ``scale0_services`` of one plugin; a PluginStartError says what it raised."""
        try:
            answers = self._caller("scale0_services", name)(settings=settings, context=context)
            services = [service for answer in _listed(answers) for service in answer]
        except CAUGHT as error:
            raise _raised(name, "scale0_services", error) from error
        for service in services:
            _check_service(name, service)
        return services

    def started(self, broker: RunningBroker) -> dict[str, PluginError]:
        """Call ``scale0_started`` of every plugin; return the errors by plugin."""
        raised = self._call_each("scale0_started", broker=broker)
        return {name: _raised(name, "scale0_started", error) for name, error in raised.items()}

    def stopping(self, broker: RunningBroker) -> None:
        """Call ``scale0_stopping`` of every plugin."""
        self._call_each("scale0_stopping", broker=broker)

    def batch_observers(self) -> list[BatchObserver]:
        """Give one callable for each plugin that implements ``scale0_batch``."""
        # its function itself: going through pluggy in every turn of the loop costs more than all else in the turn
        found = {impl.plugin_name: impl for impl in self._manager.hook.scale0_batch.get_hookimpls()}
        observing = [(name, found[name]) for name in self.plugins if name in found]
        return [BatchObserver(name, impl.function, tuple(impl.argnames)) for name, impl in observing]

    @property
    def observes_events(self) -> bool:
        """Whether a plugin that implements ``scale0_batch`` wants the events of services."""
        return any(self.plugins[observer.name].info.observes_events for observer in self.batch_observers())

    def _call_each(self, hook: str, **arguments: object) -> dict[str, BaseException]:
        raised: dict[str, BaseException] = {}
        for name in self.plugins:
            try:
                self._caller(hook, name)(**arguments)
            except CAUGHT as error:
                raised[name] = error
                LOG.error("plugin raised in a hook", plugin=name, hook=hook, error=repr(error))
        return raised

    def _caller(self, hook: str, name: str) -> pluggy.HookCaller:
        """Give a hook caller that reaches just one plugin: in a chain, the first exception would silence the rest."""
        others = [plugin for other, plugin in self._manager.list_name_plugin() if other != name]
        return self._manager.subset_hook_caller(hook, others)

    def _import(self, names: Sequence[str]) -> dict[str, type]:
        _quiet_stevedore()
        classes = {name: found for name in names if (found := self._import_one(name)) is not None}
        for name in duplicate_names():
            if name in classes:
                LOG.warning("several distributions offer this plugin; one of them was taken", plugin=name)
        return classes

    def _import_one(self, name: str) -> type | None:
        try:
            found = _load_entry(GROUP, name, type)
            if isinstance(found, type):
                return found
            self.failures[name] = _no_class(name, found)
        except _LoadError as failure:
            self.failures[name] = _import_failed(failure.entry, failure.error)
        except _NoEntryError:
            self.failures[name] = _missing(name)
        return None


@attrs.frozen
class BatchObserver:
    """Calls ``scale0_batch`` of one plugin, until it raises."""

    name: str
    function: Callable[..., object]
    takes: tuple[str, ...]
    """Pluggy lets an implementation leave out the argument."""
    _broken: list[str] = attrs.field(factory=list)

    def __call__(self, report: BatchReport) -> None:
        """Hand on a report; a plugin that raises here is not called again, since it would raise on every batch."""
        if self._broken:
            return
        try:
            if self.takes:
                self.function(report)
            else:
                self.function()
        except CAUGHT as error:
            self._broken.append(repr(error))
            LOG.error("plugin raised in a hook and no longer gets it", plugin=self.name, hook="scale0_batch",
                      error=repr(error))  # fmt: skip


def _quiet_stevedore() -> None:
    # what it logs is said better by our own errors
    logging.getLogger("stevedore").setLevel(logging.CRITICAL)


def _load_entry(group: str, name: str, kind: type = object) -> Any:
    """Import what an entry point names, by stevedore; look past its cache on disk if that fails or is no ``kind``."""
    failed: _LoadError | None = None
    known, loaded = "", None
    try:
        found: NamedExtensionManager[Any] = NamedExtensionManager(
            group, names=[name], on_load_failure_callback=_reraise, on_missing_entrypoints_callback=_ignore
        )
        for extension in found:
            known, loaded = extension.entry_point.value, extension.plugin
            if isinstance(loaded, kind):
                return loaded
    except _LoadError as failure:
        failed, known = failure, failure.entry.value
    except (AssertionError, SystemExit) as error:  # stevedore hands these through, and they are the plugin's own
        raise _LoadError(metadata.EntryPoint(name, _value_of(group, name), group), error) from error
    for entry in metadata.entry_points(group=group, name=name):
        if entry.value != known:
            return _load_uncached(entry)
        break
    if failed is None and known:
        return loaded
    raise failed or _NoEntryError(name)


def _load_uncached(entry: metadata.EntryPoint) -> Any:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise _LoadError(entry, error) from error


class _NoEntryError(Exception):
    """Nothing of that name is installed."""


class _LoadError(Exception):
    """Carries a failed import out of stevedore, which would only log it."""

    def __init__(self, entry: metadata.EntryPoint, error: BaseException) -> None:
        super().__init__(entry.name)
        self.entry = entry
        self.error = error


def _reraise(_: object, entry: metadata.EntryPoint, error: BaseException) -> None:
    raise _LoadError(entry, error) from error


def _ignore(_: object) -> None:
    """Leave a missing name to the look past the cache."""


def _value_of(group: str, name: str) -> str:
    return next((entry.value for entry in metadata.entry_points(group=group, name=name)), name)


def _listed(answers: Iterable[Iterable[Service] | None]) -> list[Iterable[Service]]:
    return [answer for answer in answers if answer is not None]


def _checked_info(name: str, answers: Sequence[object]) -> PluginInfo:
    if len(answers) != 1 or not isinstance(answers[0], PluginInfo):
        why = "it has no hook scale0_plugin_info" if not answers else f"scale0_plugin_info gave {answers[0]!r}"
        raise PluginContractError(
            name, f"plugin {name} does not say what it is", why, LEFT_OUT, "return a PluginInfo from scale0_plugin_info"
        )
    info = answers[0]
    _check_settings_class(name, info.settings)
    lowest, highest = info.api
    if not lowest <= API_VERSION <= highest:
        wanted = f"{lowest}" if lowest == highest else f"{lowest} to {highest}"
        why = f"it works with API_VERSION {wanted}, and this core has {API_VERSION}"
        raise _other_version(name, why, "scale0-core" if lowest > API_VERSION else distribution_name(name))
    return info


def _other_version(name: str, why: str, upgrade: str) -> PluginVersionError:
    what = f"plugin {name} was made for another version of Scale0"
    return PluginVersionError(name, what, why, LEFT_OUT, f"pip install --upgrade {upgrade}")


def _no_class(name: str, found: object) -> PluginVersionError:
    """Explain an entry point that names no class: up to API_VERSION 1 it named a module."""
    kind = "the module" if isinstance(found, ModuleType) else type(found).__name__
    named = getattr(found, "__name__", None) or repr(found)
    why = f"its entry point names {kind} {named}; since API_VERSION 2 it names a class, as in {EXAMPLE}"
    return _other_version(name, why, f"{distribution_name(name)}, or name the class if the plugin is yours")


def _check_settings_class(name: str, settings: type | None) -> None:
    """Refuse a class that no table could be read into, before somebody writes the table."""
    try:
        if settings is not None:
            attrs.resolve_types(settings)
    except CAUGHT as error:
        raise PluginContractError(
            name,
            f"plugin {name} has settings that cannot be read",
            f"{type(error).__name__}: {error}",
            LEFT_OUT,
            "make the settings an attrs class whose annotations can be looked up",
        ) from error


SERVICE_PARTS = ("name", "endpoints", "receive", "next_deadline", "on_deadline")


def _check_service(name: str, service: object) -> None:
    lacking = [part for part in SERVICE_PARTS if not hasattr(service, part)]
    if lacking:
        raise PluginContractError(
            name,
            f"plugin {name} offers something that is no service",
            f"{type(service).__name__} has no {', '.join(lacking)}",
            LEFT_OUT,
            "see scale0_core.api.Service for what a service has",
        )


NO_FORMAT = "configurations of this type are neither read nor written"


def _checked_format(name: str, found: Any) -> Format:
    whole = callable(getattr(found, "read", None)) and callable(getattr(found, "write", None))
    if not whole or getattr(found, "name", None) != name:
        raise PluginContractError(
            f"config_{name.lower()}",
            f"what is installed for the type {name} is no format",
            f"{type(found).__name__} must have the name {name}, and the functions read and write",
            NO_FORMAT,
            "see scale0_core.api.Format for what a format has",
        )
    checked: Format = found
    return checked


def _format_failed(entry: metadata.EntryPoint, error: BaseException) -> PluginImportError:
    plugin = f"config_{entry.name.lower()}"
    return PluginImportError(
        plugin,
        f"the plugin for the type {entry.name} cannot be imported",
        f"{entry.value}: {type(error).__name__}: {error}",
        NO_FORMAT,
        f"pip install --force-reinstall {distribution_name(plugin)}",
    )


def _wrong_hook(name: str, error: pluggy.PluginValidationError) -> PluginContractError:
    hooks = [hook for hook in vars(hookspecs) if hook.startswith("scale0_")]
    message = str(error)
    word = next((w.strip("'\"") for w in message.split() if w.strip("'\"").startswith("scale0_")), "")
    if word in hooks:
        what, why = f"plugin {name} has a hook {word} of the wrong shape", message.splitlines()[-1]
        remedy = f"give it the parameters that scale0_core.hookspecs.{word} has, or fewer"
    else:
        what = f"plugin {name} has a hook that does not exist"
        why = f"{message.splitlines()[0]}: {nearest(word, hooks)}"
        remedy = "correct the name of the hook"
    return PluginContractError(name, what, why, LEFT_OUT, remedy)


def _name_taken(name: str) -> PluginContractError:
    return PluginContractError(
        name, f"there is a plugin {name} already", "two have the same name", "the first one stays", "rename one of them"
    )


def _missing(name: str) -> PluginMissingError:
    return PluginMissingError(
        name,
        f"there is no plugin {name}",
        nearest(name, installed_plugins()) or "no plugin is installed",
        LEFT_OUT,
        f"pip install {distribution_name(name)}, or take it out of broker.plugins",
    )


def _raised(name: str, hook: str, error: BaseException) -> PluginStartError:
    return PluginStartError(
        name,
        f"plugin {name} raised at start",
        f"{hook}: {type(error).__name__}: {error}",
        LEFT_OUT,
        f"mend it, or start without it; scale0 plugins doctor {name} shows more",
    )


def _import_failed(entry: metadata.EntryPoint, error: BaseException) -> PluginImportError:
    return PluginImportError(
        entry.name,
        f"plugin {entry.name} cannot be imported",
        f"{entry.value}: {type(error).__name__}: {error}",
        LEFT_OUT,
        f"pip install --force-reinstall {distribution_name(entry.name)}, or take it out of broker.plugins",
    )
