"""A real folder whose disk is slow, or full, for one process: a small library that is preloaded into it.

`SimDisk` forgets what was not synced, on virtual time. This one is for real processes: each write and each sync takes
longer, so that a process that acknowledges before it has written is caught by KILL right after the acknowledgement.
"""

# does I/O: builds a library and writes its control file

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from scale0_core.parts.files import write_atomically

SOURCE = Path(__file__).with_name("slow_disk.c")


class SlowDisk:
    """Slows down, and fills, the disk below ``folder`` for processes that are started with ``environment``.

    ``write_ms`` and ``sync_ms`` are added to each write and sync; ``capacity`` is how many bytes all files below the
    folder may have together, None for any number. ``change`` sets them anew while processes run. Linux only; needs a
    C compiler. Raise RuntimeError without one.
    """

    def __init__(
        self, folder: str | Path, *, write_ms: float = 0, sync_ms: float = 0, capacity: int | None = None
    ) -> None:
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._own = Path(tempfile.mkdtemp(prefix="s0-disk-"))
        self._control = self._own / "control"
        self._library = self._own / "slow_disk.so"
        self._values = (write_ms, sync_ms, capacity)
        self.change()
        _build(self._library)

    def __enter__(self) -> SlowDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that a process needs to have this disk."""
        preload = [str(self._library), *os.environ.get("LD_PRELOAD", "").split()]
        return {
            "LD_PRELOAD": " ".join(preload),
            "SCALE0_SLOW_DISK": str(self.folder),
            "SCALE0_SLOW_DISK_CONTROL": str(self._control),
        }

    def change(
        self, *, write_ms: float | None = None, sync_ms: float | None = None, capacity: int | None = None
    ) -> None:
        """Set some of the values anew; those left out stay."""
        given = (write_ms, sync_ms, capacity)
        self._values = tuple(old if new is None else new for old, new in zip(self._values, given, strict=True))  # type: ignore[assignment]
        write_ms, sync_ms, capacity = self._values
        text = f"{round(write_ms * 1000)} {round(sync_ms * 1000)} {-1 if capacity is None else capacity}\n"
        write_atomically(self._control, text, durable=False)  # a process reads it at any moment

    def make_room(self) -> None:
        """Take the bound on all files away."""
        write_ms, sync_ms, _ = self._values
        self._values = (write_ms, sync_ms, None)
        self.change()

    @property
    def used(self) -> int:
        """Return how many bytes all files below the folder have."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def close(self) -> None:
        """Remove the library; the folder stays."""
        shutil.rmtree(self._own, ignore_errors=True)


def _build(library: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("a slow disk needs a C compiler, and there is none")
    subprocess.run(  # noqa: S603
        [compiler, "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl"],
        check=True, timeout=60,
    )  # fmt: skip
