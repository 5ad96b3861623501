from collections.abc import Iterator, Sequence

import zmq
from typing_extensions import Buffer

from scale0_core.container.host import ReceiveBatch
from scale0_core.service import Frames, Send

class Blob(Buffer):
    def __len__(self) -> int: ...

class Port:
    dropped: int
    incomplete: int
    def __init__(
        self,
        owner: zmq.Socket[bytes],
        blob_over: int | None = None,
        least_frames: int = 1,
        most_frames: int = ...,
    ) -> None: ...
    def drain(self, limit: int, /) -> list[Frames]: ...
    def close(self) -> None: ...

class Poller:
    def __init__(self, ports: tuple[Port, ...], fd: int, /) -> None: ...
    def wait(self, milliseconds: int, /) -> Sequence[Port | None]: ...
    def rush(
        self,
        port: Port,
        limit: int,
        receive: ReceiveBatch,
        socket: str,
        sends: list[Send],
        ports: dict[str, Port],
        now: float,
        seconds: float,
        /,
    ) -> tuple[
        int,
        int,
        float,
        float,
        float,
        list[Send] | None,
        list[tuple[int, int]] | None,
        Exception | SystemExit | None,
        Iterator[Frames] | None,
    ]: ...

def load_library(path: str, /) -> None: ...
def send(ports: dict[str, Port], sends: list[Send], /) -> list[tuple[int, int]]: ...
