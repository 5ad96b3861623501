"""At most one broker of a name per machine."""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from scale0_core.errors import NameTakenError

SHORT_WAIT = 1.0
BACKLOG = 4096
"""Nobody accepts: each process that asks who holds the name stays in the queue."""


def held_names() -> list[str]:
    """List the names that brokers of any user hold on this machine; empty where the system does not tell."""
    try:
        lines = Path("/proc/net/unix").read_bytes().splitlines()
    except OSError:
        return []
    found = {line.partition(b" @scale0/broker/")[2].decode(errors="replace") for line in lines}
    return sorted(found - {""})


class BrokerName:
    """Holds a broker's name while it is entered. The kernel lets go of it when the process dies, however it dies.

    On Linux it is an abstract unix socket, which also tells who holds it; elsewhere a locked file.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._held: socket.socket | int | None = None

    def __enter__(self) -> BrokerName:
        self._held = self._take_socket() if sys.platform == "linux" else self._take_file()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._held, socket.socket):
            self._held.close()
        elif self._held is not None:
            os.close(self._held)
        self._held = None

    def holder(self) -> int | None:
        """Give the process id of the broker that has this name; None when there is none, 0 when it cannot be told."""
        if sys.platform != "linux":
            return None
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(SHORT_WAIT)
            try:
                probe.connect(self._socket_name)
            except ConnectionRefusedError:
                return None
            except OSError:  # somebody has it, and too many have asked already
                return 0
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])

    @property
    def _socket_name(self) -> str:
        return f"\0scale0/broker/{self.name}"

    def _take_socket(self) -> socket.socket:
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(self._socket_name)
            held.listen(BACKLOG)
        except OSError as error:
            held.close()
            holder = self.holder()
            raise self._taken(f"process {holder} has it" if holder else "another process has it") from error
        return held

    def _take_file(self) -> int:
        import fcntl

        path = Path(tempfile.gettempdir()) / f"scale0-broker-{self.name}.lock"
        held = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(held)
            raise self._taken(f"another process holds {path}") from error
        return held

    def _taken(self, why: str) -> NameTakenError:
        return NameTakenError(
            f"a broker named {self.name} runs already on this machine",
            why,
            "this one does not start",
            "end the other one, or choose another name: scale0 broker --name NAME",
        )
