"""Order and grouping of the jobs of one service. Threads (``io.jobs``) and simulated time run them."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

from scale0_core.service import Job, JobResult


class JobQueue:
    """Jobs that wait or run. Per key one batch runs at a time; ``take`` hands out what may start now."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Job]] = {}
        self._startable: deque[Hashable] = deque()
        self.in_flight = 0

    def add(self, job: Job) -> None:
        """Put a job behind those of its key."""
        waiting = self._waiting.get(job.key)
        self.in_flight += 1  # only now: a key that cannot be hashed has raised
        if waiting is None:
            # a key stays in the table while one of its batches waits or runs, so it becomes startable just once
            self._waiting[job.key] = deque((job,))
            self._startable.append(job.key)
        else:
            waiting.append(job)

    def take(self) -> list[Job] | None:
        """Give the next batch that may start: one job, or all grouped ones in a row; None if there is none."""
        if not self._startable:
            return None
        waiting = self._waiting[self._startable.popleft()]
        first = waiting.popleft()
        batch = [first]
        if first.grouped:
            while waiting and waiting[0].grouped and waiting[0].function == first.function:
                batch.append(waiting.popleft())
        return batch

    def finished(self, batch: Sequence[Job]) -> None:
        """Note that a batch has ended, so that the next one of its key may start."""
        self.in_flight -= len(batch)
        key = batch[0].key
        if self._waiting[key]:
            self._startable.append(key)
        else:
            del self._waiting[key]


def run_batch(batch: Sequence[Job]) -> list[JobResult]:
    """Run jobs that were taken together and return one result for each; whatever goes wrong is a result too."""
    if not batch[0].grouped:
        return [_run_one(job) for job in batch]
    try:
        values = list(batch[0].function([job.argument for job in batch]))
        if len(values) != len(batch):
            raise ValueError(f"a grouped job returned {len(values)} values for {len(batch)} arguments")
    except Exception as error:
        return [JobResult(job.token, error=error) for job in batch]
    return [
        JobResult(job.token, error=value) if isinstance(value, BaseException) else JobResult(job.token, value)
        for job, value in zip(batch, values, strict=True)
    ]


def _run_one(job: Job) -> JobResult:
    try:
        return JobResult(job.token, job.function(job.argument))
    except Exception as error:
        return JobResult(job.token, error=error)
