"""Every error that Scale0 raises on purpose.

::

    Scale0Error                  carries a Problem (what, why, consequence, remedy) and an exit code
    ├── UsageError               the command line was used wrongly (64)
    │   └── PluginNameError          a new plugin cannot have this name
    ├── FolderInUseError         there is something already where a plugin should be written (65)
    ├── NegativeError            the answer is no (1)
    ├── NotReachedError          a broker or a service could not be reached (69)
    ├── TimedOutError            no answer came in time (75)
    ├── WireMissingError         the wire that was asked for is not there (78)
    ├── ConfigError              broker.toml or a setting is wrong; holds all the faults found (78)
    │   └── ConfigDataError          a configuration that was handed in is wrong (65)
    ├── FormatError              a text is not what its format allows, or a format cannot express a value (65)
    ├── NameTakenError           a broker of this name runs already (69)
    ├── AddressError             a socket could not be opened (69)
    │   └── AddressInUseError        another program has its address
    ├── RecordError              a record that the broker keeps on disk cannot be read or written (65)
    ├── PluginError              a plugin cannot be used
    │   ├── PluginMissingError       no such plugin is installed
    │   │   └── FormatMissingError       no plugin for this type of configuration (415 in the protocol)
    │   ├── PluginImportError        its module cannot be imported
    │   ├── PluginContractError      it does not keep to the plugin interface
    │   ├── PluginVersionError       it wants another API_VERSION
    │   └── PluginStartError         it raised while starting
    └── ServiceFaultError        what a service did wrong while running (counted, never raised through the loop)
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import attrs


class Exit(IntEnum):
    """What the exit codes of ``scale0`` mean (after sysexits)."""

    DONE = 0
    NEGATIVE = 1
    USAGE = 64
    DATA = 65
    UNREACHED = 69
    BUG = 70
    TIMEOUT = 75
    PERMISSION = 77
    CONFIG = 78


@attrs.frozen
class Problem:
    """An error for people: what happened, why, what follows from it, and what to do now."""

    what: str
    why: str = ""
    consequence: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join(part for part in (self.what, self.why, self.consequence, self.remedy) if part)


class Scale0Error(Exception):
    """The root of all errors of Scale0."""

    exit_code: Exit = Exit.BUG

    def __init__(self, what: str, why: str = "", consequence: str = "", remedy: str = "") -> None:
        self.problem = Problem(what, why, consequence, remedy)
        super().__init__(str(self.problem))

    def details(self) -> dict[str, Any]:
        """Return what machines get beside the four parts, in JSON's types."""
        return {}


class UsageError(Scale0Error):
    """The command line was used wrongly."""

    exit_code = Exit.USAGE


class PluginNameError(UsageError):
    """A plugin cannot have this name."""


class FolderInUseError(Scale0Error):
    """There is something already where the plugin should be written."""

    exit_code = Exit.DATA


class NegativeError(Scale0Error):
    """The answer is no: there is nothing of that name, or the service refuses."""

    exit_code = Exit.NEGATIVE


class NotReachedError(Scale0Error):
    """A broker or a service could not be reached; say at which endpoint, and how far one came."""

    exit_code = Exit.UNREACHED


class TimedOutError(Scale0Error):
    """No answer came in time; say from which endpoint, and at which stage."""

    exit_code = Exit.TIMEOUT


class WireMissingError(Scale0Error):
    """The wire that the configuration asks for is not there."""

    exit_code = Exit.CONFIG


@attrs.frozen
class Fault:
    """One thing that is wrong in a configuration: where, what, and what may have been meant."""

    place: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class ConfigError(Scale0Error):
    """The configuration is wrong; ``faults`` holds everything that was found."""

    exit_code = Exit.CONFIG

    def __init__(self, source: str, faults: tuple[Fault, ...]) -> None:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__(
            f"{source} has {count}",
            "\n".join(str(fault) for fault in faults),
            "the broker does not start with it",
            "mend the places named, then run: scale0 config check",
        )
        self.source = source
        self.faults = faults

    def details(self) -> dict[str, Any]:
        """Return all faults, each with its place."""
        return {"faults": [{"place": f.place, "message": f.message, "hint": f.hint} for f in self.faults]}


class ConfigDataError(ConfigError):
    """A configuration that was handed in, to be converted or applied, is wrong; ``faults`` holds all that was found."""

    exit_code = Exit.DATA

    def __init__(self, source: str, faults: tuple[Fault, ...], consequence: str, remedy: str) -> None:
        super().__init__(source, faults)
        self.problem = attrs.evolve(self.problem, consequence=consequence, remedy=remedy)
        self.args = (str(self.problem),)


class FormatError(Scale0Error, ValueError):
    """A text is not what its format allows, or a format cannot express a value; ``line`` is None when not known."""

    exit_code = Exit.DATA

    def __init__(self, reason: str, line: int | None = None) -> None:
        place = "" if line is None else f"line {line}: "
        super().__init__(
            f"{place}{reason}", "", "no part of the configuration is taken", "mend the place named, then try again"
        )
        self.reason = reason
        self.line = line


class NameTakenError(Scale0Error):
    """A broker of this name runs already on this machine."""

    exit_code = Exit.UNREACHED


class AddressError(Scale0Error):
    """A socket could not be opened at its address."""

    exit_code = Exit.UNREACHED


class AddressInUseError(AddressError):
    """Another program has the address."""


class RecordError(Scale0Error):
    """A record that the broker keeps on disk cannot be read or written."""

    exit_code = Exit.DATA


class PluginError(Scale0Error):
    """A plugin cannot be used."""

    exit_code = Exit.CONFIG

    def __init__(self, plugin: str, what: str, why: str = "", consequence: str = "", remedy: str = "") -> None:
        super().__init__(what, why, consequence, remedy)
        self.plugin = plugin

    def details(self) -> dict[str, Any]:
        """Return the plugin's name."""
        return {"plugin": self.plugin}


class PluginMissingError(PluginError):
    """No plugin of that name is installed."""


class FormatMissingError(PluginMissingError):
    """No plugin for this type of configuration is installed; ``offered`` lists the types that are."""

    def __init__(self, name: str, offered: tuple[str, ...]) -> None:
        plugin = f"config_{name.lower()}"
        install = f", or pip install scale0-config-{name.lower()}" if name in ("JSON", "XML", "ZFL") else ""
        super().__init__(
            plugin,
            f"configurations of the type {name} are not offered",
            f"installed: {', '.join(offered)}" if offered else "no plugin for a type of configuration is installed",
            "nothing was read or written",
            f"ask for one of those that are installed{install}",
        )
        self.offered = offered


class PluginImportError(PluginError):
    """The plugin's module cannot be imported."""


LEFT_OUT = "the broker runs without it"
"""The consequence of an error in a plugin that nobody insists on."""


class PluginContractError(PluginError):
    """The plugin does not keep to the plugin interface."""


class PluginVersionError(PluginError):
    """The plugin was made for another API_VERSION."""


class PluginStartError(PluginError):
    """The plugin raised while it was started."""


class ServiceFaultError(Scale0Error):
    """What a service did wrong while running, such as a deadline that never moves."""
