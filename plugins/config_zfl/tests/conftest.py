"""CZMQ's zconfig, the living reader of ZFL, by ctypes."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from typing import Any

import pytest

Tree = tuple[tuple[str, str, Any], ...]


class Czmq:
    """Reads a text as CZMQ does. A node is its name, its value and its children; no value is an empty one."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        for name, result, *arguments in (
            ("zchunk_new", pointer, text, ctypes.c_size_t),
            ("zchunk_destroy", None, ctypes.POINTER(pointer)),
            ("zconfig_chunk_load", pointer, pointer),
            ("zconfig_destroy", None, ctypes.POINTER(pointer)),
            ("zconfig_child", pointer, pointer),
            ("zconfig_next", pointer, pointer),
            ("zconfig_name", text, pointer),
            ("zconfig_value", text, pointer),
        ):
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments

    def __call__(self, data: bytes) -> Tree | None:
        chunk = ctypes.c_void_p(self._library.zchunk_new(data, len(data)))
        root = ctypes.c_void_p(self._library.zconfig_chunk_load(chunk))
        self._library.zchunk_destroy(ctypes.byref(chunk))
        if not root:
            return None
        tree = self._children(root.value)
        self._library.zconfig_destroy(ctypes.byref(root))
        return tree

    def _children(self, node: int | None) -> Tree:
        found = []
        child = self._library.zconfig_child(node)
        while child:
            name, value = self._library.zconfig_name(child), self._library.zconfig_value(child)
            found.append((_text(name), _text(value or b""), self._children(child)))
            child = self._library.zconfig_next(child)
        return tuple(found)


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


@pytest.fixture(scope="session")
def czmq(real: None) -> Callable[[bytes], Tree | None]:
    try:
        return Czmq(ctypes.util.find_library("czmq") or "libczmq.so.4")
    except OSError:
        pytest.skip("CZMQ is not installed: on Debian, apt-get install libczmq4")
