"""Named pipes for Scale0: ``from scale0_zpipes import Pipe``; for asyncio, ``from scale0_zpipes.aio import Pipe``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale0_zpipes.client import *


def __getattr__(name: str) -> Any:
    """Import the client when it is used: a broker that loads the plugin, and `scale0 --help`, have no need of it."""
    # names of the client are classes; in small letters it is a module that is about to be imported
    if name[0].isupper() and name in (names := vars(import_module("scale0_zpipes.client"))):
        return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
