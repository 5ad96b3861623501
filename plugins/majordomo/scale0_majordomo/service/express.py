"""The way of the messages that come most often: in C, where the wheel was built with a compiler at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from scale0_core.api import Effect, Frames, Send

__all__ = ["Express", "FairQueue", "RequestBase", "ServiceBase", "Share", "WorkerBase", "make_express"]


class Express(Protocol):
    """Takes messages for a service."""

    telling: object
    """Is told of each reply, while somebody observes; else None."""

    def receive_batch(
        self, socket: str, messages: Iterator[Frames], now: float, effects: list[Effect], later: list[Send]
    ) -> None:
        """Take messages until there are none left, those that are not common by the service's ``receive``."""


if TYPE_CHECKING:
    from scale0_majordomo.service.queues import FairQueue, Share
    from scale0_majordomo.service.records import RequestBase, ServiceBase, WorkerBase

    make_express: Callable[..., Express] | None
else:
    try:
        from scale0_majordomo.service import _express
        from scale0_majordomo.service._express import FairQueue, RequestBase, ServiceBase, Share, WorkerBase

        make_express = _express.Express
    except ImportError:
        from scale0_majordomo.service.queues import FairQueue, Share
        from scale0_majordomo.service.records import RequestBase, ServiceBase, WorkerBase

        make_express = None
