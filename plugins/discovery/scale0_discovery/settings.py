"""The table [plugin.discovery] of broker.toml."""

from __future__ import annotations

import attrs

from scale0_core.api import setting


def _not_negative(_: object, field: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value < 1e9:
        raise ValueError(f"'{field.name}' is a number of seconds, 0 or more: {value!r}")


def _positive(_: object, field: attrs.Attribute[float], value: float) -> None:
    if not 0 < value < 1e9:
        raise ValueError(f"'{field.name}' is a number of seconds above 0: {value!r}")


@attrs.frozen
class DiscoverySettings:
    """What an operator may set."""

    bind: tuple[str, ...] = setting(
        ("ipc://{runtime}/discovery",),
        "Addresses that take queries; {runtime} is the broker's private folder, {name} its name.",
    )
    watch: tuple[str, ...] = setting(("ipc://{runtime}/discovery-watch",), "Addresses at which changes are published.")
    grace: float = setting(
        10.0,
        "Seconds for which a worker whose connection was lost is shown as lost and waited for. 0 removes it at once.",
        validator=_not_negative,
    )
    memory: float = setting(
        3600.0, "Seconds for which those that went are remembered. 0 forgets them at once.", validator=_not_negative
    )
    bookmark: float = setting(
        5.0, "Seconds between two bookmarks, by which a watcher finds out that it has missed something.",
        validator=_positive,
    )  # fmt: skip
    advice: bool = setting(True, "Whether advice on where services should have workers is taken, and shown.")
    advice_keep: float = setting(
        7 * 24 * 3600.0, "Seconds after which advice that was not renewed is forgotten.", validator=_positive
    )
