from collections.abc import Callable
from typing import Any

def add(events: list[Any], over: float, came: float, taken: float, size: int, number: int, /) -> None: ...

class Answered:
    def __init__(
        self, events: list[Any], task_type: type, worker_type: type, otherwise: Callable[..., None], /
    ) -> None: ...
    def __call__(self, task: Any, worker: Any, outcome: str, body: Any, now: float, /) -> None: ...
