"""The way of the messages that come most often: in C, where the wheel was built with a compiler at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from scale0_core.api import Effect, Frames, Send

__all__ = ["Express", "RequestBase", "ServiceBase", "WorkerBase", "make_express"]

Express = Callable[[Iterator[Frames], float, list[Effect], list[Send], object], None]
"""Takes messages until there are none left: ``express(messages, now, effects, later, telling)``."""

if TYPE_CHECKING:
    from scale0_majordomo.records import RequestBase, ServiceBase, WorkerBase

    make_express: Callable[..., Express] | None
else:
    try:
        from scale0_majordomo import _express
        from scale0_majordomo._express import RequestBase, ServiceBase, WorkerBase

        make_express = _express.Express
    except ImportError:
        from scale0_majordomo.records import RequestBase, ServiceBase, WorkerBase

        make_express = None
