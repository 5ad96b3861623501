"""The configuration that brokers and clients share: CLIENT CONFIG, BROKER CONFIG and GROUP CONFIG.

What an operator writes is a ``NetworkConfig``, the table [network] of broker.toml or a file of its own in any installed
format. A client is given its ``ClientConfig`` and nothing else: no ports of other planes, no users, no limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from attrs import validators

from scale0_core.config.fields import at_least_1, not_negative, setting

ROLES = ("viewer", "operator", "admin")
"""What users may do, each more than the one before."""

ALL = ("all",)
"""What ``services`` holds when a broker takes any service."""

Port = int | str
"""A number is a TCP port at the bind address; a text is any ZeroMQ address."""


def _port(value: Port) -> Port:
    """Take a text of digits as a number: formats without types know only texts."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def port_setting(default: Port, help: str) -> Port:  # noqa: A002
    """Make a field for a port or an address."""
    return attrs.field(default=default, converter=_port, metadata={"help": help}, validator=_is_port)


def _is_port(_: object, field: attrs.Attribute[Port], value: Port) -> None:
    if isinstance(value, int) and not 0 <= value <= 65535:
        raise ValueError(f"'{field.name}' is a port of at most 65535, or an address: {value!r}")


@attrs.frozen
class GroupBroker:
    """One broker of a group: who it is, what it serves, and where it is reached."""

    identity: str = setting("", "Unique identifier of the broker.", validator=validators.min_len(1))
    services: tuple[str, ...] = setting(ALL, "Services that the broker serves, or the single word all.")
    frontend: str = setting("", "Address for frontends.")
    backend: str = setting("", "Address for backends.")
    peer: str = setting("", "Address for other brokers.")
    config_sub_port: str = setting("", "Address at which the broker publishes configurations.")


@attrs.frozen
class GroupConfig:
    """A named set of brokers."""

    name: str = setting("", "Unique name of the group.")
    brokers: tuple[GroupBroker, ...] = setting((), "The brokers of the group.")


@attrs.frozen
class ClientConfig:
    """All that a client is given, and stores."""

    identity: str = setting("", "Unique identifier of the client.")
    services: tuple[str, ...] = setting((), "Services that the client processes.")
    group_config: tuple[GroupConfig, ...] = setting((), "The group of its broker, and the fallback groups.")
    prefered_broker: str = setting("", "Identity of the broker to try first.")
    default_heartbeat_interval: int = setting(2500, "Heartbeat interval in milliseconds.", validator=at_least_1)


@attrs.frozen
class User:
    """Somebody who may manage the broker."""

    name: str = setting("", "The auth_id.", validator=validators.min_len(1))
    password: str = setting("", "Salted scrypt hash, as `scale0 password` prints it.", validator=validators.min_len(1))
    role: str = setting("viewer", "viewer, operator or admin.", validator=validators.in_(ROLES))


@attrs.frozen
class NetworkConfig:
    """All that a broker needs to serve clients: the table [network]."""

    identity: str = setting("", "Unique identifier of this broker; by default the broker's name.")
    bind_address: str = setting("127.0.0.1", "Where ports given as numbers are opened.")
    frontend_port: Port = port_setting("ipc://{runtime}/frontend", "The port on which frontends connect.")
    backend_port: Port = port_setting("ipc://{runtime}/backend", "The port on which backends connect.")
    config_pub_port: Port = port_setting(
        "ipc://{runtime}/config", "The port on which this broker publishes new configurations."
    )
    config_sub_ports: tuple[str, ...] = setting((), "Addresses at which it listens for new configurations.")
    config_service: bool = setting(True, "Whether this broker gives configurations to clients.")
    state: str = setting(
        "active",
        "The state to start in when none is on record: joining, active or disabled.",
        validator=validators.in_(("joining", "active", "disabled")),
    )
    peers: tuple[str, ...] = setting((), "Addresses of other brokers.")
    default_heartbeat_interval: int = setting(
        2500, "Milliseconds between heartbeats; clients may ask for longer, not for shorter.", validator=at_least_1
    )
    liveness: int = setting(3, "So many intervals of silence make a client unresponsive.", validator=at_least_1)
    services: tuple[str, ...] = setting(ALL, "Services managed by the broker, or the single word all.")
    group: str = setting("", "The one group this broker is a member of; empty when groups are not used.")
    fallback_groups: tuple[str, ...] = setting((), "Groups to send clients to when the own one cannot serve them.")
    group_config: tuple[GroupConfig, ...] = setting((), "Configuration of the own group and of the fallback groups.")
    max_clock_skew: int = setting(
        30_000, "Milliseconds by which a client's clock may differ; 0 does not care.", validator=not_negative
    )
    max_silence: int = setting(
        600_000,
        "Milliseconds after which a silent worker is given up although its connection stands.",
        validator=at_least_1,
    )
    task_timeout: int = setting(30_000, "Milliseconds for a task that names no timeout.", validator=at_least_1)
    max_task_timeout: int = setting(3_600_000, "The longest timeout a task may ask for.", validator=at_least_1)
    queue_limit: int = setting(10_000, "Tasks that may wait for a worker of one service.", validator=not_negative)
    client_limit: int = setting(10_000, "Tasks of one client that may be open.", validator=at_least_1)
    error_client_threshold: int = setting(5, "So many errors within the window silence a client.", validator=at_least_1)
    error_client_window: int = setting(60_000, "The window in milliseconds.", validator=at_least_1)
    error_client_penalty: int = setting(
        300_000, "Milliseconds of silence; twice as long each time.", validator=at_least_1
    )
    users: tuple[User, ...] = setting((), "Who may send management requests over the network.")
    management_insecure: bool = setting(False, "Take passwords over connections that are not encrypted.")

    def client_config(self, identity: str, services: Sequence[str], own: GroupConfig) -> ClientConfig:
        """Give a client its part; ``own`` is the group of this broker with the addresses that are really open."""
        others = tuple(group for group in self.group_config if group.name != own.name)
        return ClientConfig(
            identity=identity,
            services=tuple(services),
            group_config=(own, *others),
            prefered_broker=self.identity,
            default_heartbeat_interval=self.default_heartbeat_interval,
        )
