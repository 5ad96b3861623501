"""Threads that run the jobs of services; each service has its own, so that slow jobs of one delay no other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from scale0_core.container.jobs import run_batch
from scale0_core.service import Job, JobResult

Done = Callable[[list[JobResult]], None]


class JobThreads:
    """The threads of one service, started when first needed; daemons: a job that hangs cannot keep the broker alive."""

    def __init__(self, threads: int, name: str = "job") -> None:
        self._wanted = threads
        self._name = name
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[tuple[list[Job], Done] | None] = SimpleQueue()

    def start(self, batch: list[Job], done: Done) -> None:
        """Run a batch on some thread and call ``done`` there with the results."""
        self._queue.put((batch, done))
        if len(self._threads) < self._wanted:
            thread = threading.Thread(target=self._work, name=f"scale0-{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Drop what has not begun, and let the threads end; what runs already goes on, and is not waited for."""
        with contextlib.suppress(Empty):
            while True:
                self._queue.get_nowait()
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            batch, done = item
            try:
                results = run_batch(batch)
            except BaseException as error:  # such as SystemExit: it ends the job, not the thread
                results = [JobResult(job.token, error=error) for job in batch]
            done(results)
