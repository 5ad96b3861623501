"""The table [plugin.zpipes] of broker.toml."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import ge

from scale0_core.api import KIB, MIB, setting


@attrs.frozen
class ZpipesSettings:
    """What an operator may set."""

    bind: tuple[str, ...] = setting(
        ("ipc://@/zpipes/{name}", "ipc://{runtime}/zpipes"),
        "Addresses to listen on; {runtime} is the broker's private folder, {name} its name.",
    )
    alias: bool = setting(True, "Let the broker named default listen on ipc://@/zpipes/local as well.")
    max_message: int = setting(16 * MIB, "Maximum size of a chunk in bytes; a larger one is refused.", validator=ge(1))
    max_pipes: int = setting(1_000_000, "Pipes at a time.", validator=ge(1))
    max_pipe_chunks: int = setting(1_000_000, "Chunks that may wait in one pipe.", validator=ge(1))
    max_pipe_bytes: int = setting(64 * MIB, "Bytes that may wait in one pipe.", validator=ge(1))
    max_chunks: int = setting(10_000_000, "Chunks that may wait in all pipes together.", validator=ge(1))
    max_bytes: int = setting(1024 * MIB, "Bytes that may wait in all pipes together.", validator=ge(1))
    when_full: Literal["block", "refuse"] = setting(
        "block", "What a write to a full pipe gets: block, its answer waits until there is room; refuse, an error."
    )
    max_blocked: int = setting(
        10_000, "Connections whose write waits for room, in all pipes together.", validator=ge(0)
    )
    max_blocked_bytes: int = setting(
        64 * MIB,
        "Bytes of such writes and of requests held behind them; a quarter for one connection.",
        validator=ge(0),
    )
    max_waiting: int = setting(100_000, "Reads that may wait at one pipe.", validator=ge(1))
    expire_empty: float = setting(
        86400.0, "Seconds after which an empty pipe that nobody uses is forgotten; 0: never.", validator=ge(0)
    )
    expire: float = setting(
        0.0, "Seconds after which a pipe that nobody uses is forgotten with its chunks; 0: never.", validator=ge(0)
    )
    durable: tuple[str, ...] = setting(
        (), "Names of pipes that are kept on disk; * stands for any characters, as in orders.*."
    )
    segment_bytes: int = setting(64 * MIB, "Size of the files in which durable pipes are kept.", validator=ge(64 * KIB))
    binary_timeout: float = setting(
        60.0, "Seconds after which a silent client of the binary dialect is dropped.", validator=ge(0.001)
    )
