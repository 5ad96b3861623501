"""What broker.toml may hold for the core; plugins have tables of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import attrs

from scale0_core.config.fields import at_least_1, not_negative, setting
from scale0_core.config.network import NetworkConfig
from scale0_core.container.host import HostLimits
from scale0_core.service import MIB

LogLevel = Literal["debug", "info", "warning", "error"]

BROKER_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"


def _is_name(_: object, field: attrs.Attribute[str], value: str) -> None:
    # ASCII, since it becomes part of paths and socket names, which have room for about 100 bytes
    if not re.fullmatch(BROKER_NAME, value):
        raise ValueError(f"'{field.name}' is 1 to 64 letters, digits, '.', '_' or '-': {value!r}")


@attrs.frozen
class BrokerSettings:
    """The table [broker]."""

    name: str = setting("default", "One broker of a name runs on a machine at a time.", validator=_is_name)
    plugins: tuple[str, ...] | None = setting(
        None,
        "Names of the plugins to start, without which the broker does not start; if it is not set, all installed ones "
        "that say they are safe by default are started, as far as they can be.",
    )
    required: tuple[str, ...] = setting(
        (), "Plugins without which the broker does not start, whatever `plugins` and `keep_going` say."
    )
    keep_going: bool = setting(
        False, "Start without plugins named in `plugins` that cannot be used, instead of exiting with an error."
    )
    runtime_dir: str = setting("", "Folder for sockets; by default a private one of the user's.")
    data_dir: str = setting("", "Folder for what must survive a restart; by default the user's state folder.")
    stop_seconds: float = setting(5.0, "How long a stop waits for jobs that are under way.", validator=not_negative)

    def needed_by(self, plugin: str) -> str:
        """Return the setting that says that the broker does not start without a plugin; empty if none does."""
        if plugin in self.required:
            return "broker.required"
        return "broker.plugins" if plugin in (self.plugins or ()) and not self.keep_going else ""


@attrs.frozen
class WireSettings:
    """The table [wire]: how messages are moved."""

    implementation: Literal["auto", "native", "pure"] = setting(
        "auto", "Which wire to use; auto takes the native one where it is there."
    )
    batch: int = setting(256, "Messages taken from one socket before the others have their turn.", validator=at_least_1)
    insecure: bool = setting(
        False, "Allow sockets that other machines can reach without encryption and authentication."
    )
    other_users: bool = setting(
        False, "Let programs of other users connect to abstract ipc addresses, which have no file permissions."
    )
    linger_ms: int = setting(
        1000, "How long a closing socket tries to deliver what it still holds.", validator=not_negative
    )
    handshake_ms: int = setting(
        2000, "A connection that has not said who it is by then is closed.", validator=at_least_1
    )
    heartbeat_ms: int = setting(
        90_000,
        "Interval of ZeroMQ's own heartbeats, by which it finds peers that vanished without a word. 0 turns them off.",
        validator=not_negative,
    )
    heartbeat_timeout_ms: int = setting(
        10_000,
        "A peer that has not answered a heartbeat by then is disconnected; short, since libzmq's timers cost much.",
        validator=at_least_1,
    )
    io_threads: int = setting(1, "Threads in which ZeroMQ does its input and output.", validator=at_least_1)


@attrs.frozen
class LogSettings:
    """The table [log]."""

    level: LogLevel = setting("info", "What is logged: debug, info, warning or error.")
    format: Literal["text", "json"] = setting("text", "Lines for people, or JSON for machines.")
    levels: Mapping[str, LogLevel] = attrs.field(
        factory=dict, metadata={"help": "Levels of their own for plugins, by name: levels.echo = 'debug'."}
    )


@attrs.frozen
class LimitSettings:
    """The table [limits]: what one service may do wrong or ask for before it is held back."""

    errors: int = setting(
        10, "So many exceptions within the window put a service into quarantine.", validator=at_least_1
    )
    errors_window_seconds: float = setting(60.0, "The window for counting exceptions.", validator=not_negative)
    slow_call_ms: int = setting(
        100, "A service that holds the loop longer than this is logged by name.", validator=at_least_1
    )
    jobs: int = setting(
        1024, "Jobs of one service in flight; beyond that its sockets are not read.", validator=at_least_1
    )
    job_threads: int = setting(4, "Threads for the jobs of each service.", validator=at_least_1)
    outbox_bytes: int = setting(
        128 * MIB,
        "Bytes kept for peers of one service that read too slowly, with the overhead of each message; a peer may use "
        "as many as are still free, so at most half. Beyond that, messages to it are dropped and counted.",
        validator=not_negative,
    )

    def host_limits(self) -> HostLimits:
        """Return the part that hosts of services watch over."""
        return HostLimits(errors=self.errors, errors_window=self.errors_window_seconds, jobs=self.jobs)


@attrs.frozen
class CoreSettings:
    """All tables of broker.toml but those of the plugins."""

    broker: BrokerSettings = attrs.field(factory=BrokerSettings)
    wire: WireSettings = attrs.field(factory=WireSettings)
    log: LogSettings = attrs.field(factory=LogSettings)
    limits: LimitSettings = attrs.field(factory=LimitSettings)
    network: NetworkConfig = attrs.field(factory=NetworkConfig)
