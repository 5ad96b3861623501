"""What a format of configurations is: JSON, XML, ZFL, or one from another plugin.

A format is an object behind an entry point of the group ``scale0.formats``, whose name is the ``config_type`` of the
protocol, in capitals. It turns bytes into a tree and back, and knows nothing of what the names mean.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from scale0_core.config.tree import Node, from_tree, to_tree
from scale0_core.errors import Fault, FormatError

T = TypeVar("T")

MAX_BYTES = 1 << 20
"""No text is longer, read or written."""

MAX_DEPTH = 32
"""No more names are nested in each other."""


class Format(Protocol):
    """Turns a text into a tree and a tree into a text; whatever cannot be done is a FormatError."""

    @property
    def name(self) -> str:
        """The type of configurations, in capitals, as in ``JSON``."""

    def read(self, data: bytes) -> Node:
        """Read a text: the children of the node returned, which has no name, are its outermost names."""

    def write(self, node: Node) -> bytes:
        """Write a node, or the children of a node without a name."""


def config_from_text(fmt: Format, data: bytes, cls: type[T], name: str) -> tuple[T | None, list[Fault]]:
    """Read a configuration, or list all faults; a FormatError says that the text is not of this format.

    :param name: the outermost name, such as ``network``; a text without it is read too.
    """
    if len(data) > MAX_BYTES:
        raise FormatError(f"the text has {len(data)} bytes, and {MAX_BYTES} are allowed")
    try:
        node = fmt.read(data)
    except FormatError:
        raise
    except Exception as error:  # a plugin's own code
        raise FormatError(f"the plugin for {fmt.name} failed: {type(error).__name__}: {error}") from error
    return from_tree(cls, node, name)


def config_to_text(fmt: Format, config: Any, name: str) -> bytes:
    """Write a configuration; a FormatError says what the format cannot express."""
    try:
        return fmt.write(to_tree(config, name))
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(f"the plugin for {fmt.name} failed: {type(error).__name__}: {error}") from error
