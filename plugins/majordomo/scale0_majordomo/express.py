"""The way of the messages that come most often: in C, where the wheel was built with a compiler at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from scale0_core.api import Effect, Frames, Send

Express = Callable[[Iterator[Frames], float, list[Effect], list[Send]], None]
"""Takes messages until there are none left: ``express(messages, now, effects, later)``."""

if TYPE_CHECKING:
    from scale0_majordomo.records import RequestBase as RequestBase
    from scale0_majordomo.records import ServiceBase as ServiceBase
    from scale0_majordomo.records import WorkerBase as WorkerBase

    make_express: Callable[..., Express] | None
else:
    try:
        from scale0_majordomo._express import Express as make_express
        from scale0_majordomo._express import RequestBase, ServiceBase, WorkerBase
    except ImportError:
        from scale0_majordomo.records import RequestBase, ServiceBase, WorkerBase

        make_express = None
