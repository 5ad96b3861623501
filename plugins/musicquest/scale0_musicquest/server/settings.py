"""The table [plugin.musicquest-server] of broker.toml."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, le

from scale0_core.api import KIB, MIB, setting

MAX_CHUNK = MIB
"""Bytes that one fetch may give."""


@attrs.frozen
class MusicServerSettings:
    """What an operator may set."""

    music: str = setting("{data}/music", "The folder with the songs; {data} is the broker's folder for data.")
    clients: tuple[str, ...] = setting(
        ("tcp://127.0.0.1:5556",), "Addresses to listen on for clients: searches and downloads."
    )
    children: tuple[str, ...] = setting(
        ("tcp://127.0.0.1:4444",), "Addresses to listen on for servers below this one in the tree."
    )
    endpoint: str = setting("", "Where others reach the address for clients; empty: as it is bound.")
    children_endpoint: str = setting("", "Where others reach the address for servers below; empty: as it is bound.")
    broker: str = setting(
        "tcp://127.0.0.1:6668",
        "Where the music broker takes servers; empty: there is none, and it sends no clients.",
    )
    father: str = setting(
        "", "The server above this one: empty, the broker names it; none, this is a root; or its address for children."
    )
    slots: int = setting(4, "Servers that may be directly below this one.", validator=and_(ge(0), le(1000)))
    capacity: int = setting(
        100, "Clients that this server is made for; 0: the broker sends it no more.", validator=ge(0)
    )
    heartbeat: float = setting(
        2.0, "Seconds between signs of life among neighbours, and of idle clients.", validator=ge(0.01)
    )
    liveness: int = setting(3, "Who is silent for so many heartbeats is gone.", validator=ge(1))
    deadline: float = setting(
        5.0, "Seconds after which a search is answered with what was found.", validator=and_(ge(0.05), le(600))
    )
    grace: float = setting(
        0.05,
        "Seconds for which a search for one song waits for other holders after the first; 0: until all have answered.",
        validator=ge(0),
    )
    max_searches: int = setting(10_000, "Searches under way at a time.", validator=ge(1))
    cache_size: int = setting(1_000, "Songs whose holders are remembered.", validator=ge(0))
    cache_seconds: float = setting(600.0, "Seconds for which holders are remembered.", validator=ge(0))
    cache_not_found: float = setting(5.0, "Seconds for which nobody is asked again who holds a song.", validator=ge(0))
    chunk: int = setting(
        250_000, "Bytes in which clients are told to ask for a song.", validator=and_(ge(KIB), le(MAX_CHUNK))
    )
    credit: int = setting(32, "Requests for parts of songs that may wait, of one client.", validator=ge(1))
    rescan: float = setting(10.0, "Seconds between looks at the folder.", validator=ge(0.1))
    replicate_after: int = setting(
        10,
        "Downloads begun in the window after which a song is offered to neighbours; 0: never.",
        validator=ge(0),
    )
    replicate_window: float = setting(60.0, "The window in which they are counted, in seconds.", validator=ge(0.1))
    replica_bytes: int = setting(
        1024 * MIB, "Bytes of songs of others that may be kept here; 0: none are taken.", validator=ge(0)
    )
    replica_credit: int = setting(
        2, "Parts asked for at a time while a song of another server is taken over.", validator=ge(1)
    )
    plans: bool = setting(True, "Whether clients may say which songs of others are to be kept here.")
    adverts: str = setting("", "A folder with adverts; empty: there are none.")
