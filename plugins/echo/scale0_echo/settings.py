"""The table [plugin.echo] of broker.toml."""

from __future__ import annotations

import attrs

from scale0_core.api import MIB, setting


@attrs.frozen
class EchoSettings:
    """What an operator may set."""

    bind: tuple[str, ...] = setting(
        ("ipc://{runtime}/echo",), "Addresses to listen on; {runtime} is the broker's private folder, {name} its name."
    )
    max_message: int = setting(MIB, "Bytes in one frame; a peer that sends more is disconnected.")
    max_waiting: int = setting(10_000, "Messages that may wait to be sent back later.")
