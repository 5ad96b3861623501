"""What the broker answers itself: services whose names begin with `mmi.` (RFC 8, and some of our own)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from scale0_core.api import Frames
from scale0_majordomo.service.desk import Service, Worker

PREFIX = b"mmi."
UNKNOWN: Frames = (b"501",)

Services = Mapping[bytes, Service]


def answer(name: bytes, services: Services, own: Callable[[bytes], bool], body: Frames, now: float) -> Frames:
    """Answer a request; ``own`` tells which other services the broker has itself."""
    asked = name[len(PREFIX) :]
    if asked == b"service":
        return _service(services, own, body)
    tell = LISTS.get(asked)
    return (b"200", json.dumps(tell(services, body, now)).encode()) if tell is not None else UNKNOWN


def _service(services: Services, own: Callable[[bytes], bool], body: Frames) -> Frames:
    if len(body) != 1 or not len(body[0]):
        return (b"400",)
    name = bytes(body[0])
    service = services.get(name)
    return (b"200",) if own(name) or (service is not None and service.workers) else (b"404",)


def _names(services: Services, body: Frames, now: float) -> list[str]:
    return sorted(_text(name) for name, service in services.items() if service.workers)


def _workers(services: Services, body: Frames, now: float) -> list[dict[str, Any]]:
    return [
        {
            "service": _text(worker.service.name), "worker": worker.name, "dialect": worker.dialect.value,
            "credit": max(worker.credit, 0), "in_hand": len(worker.in_hand), "silent_s": round(now - worker.heard, 3),
        }
        for service in _asked(services, body) for worker in _all_of(service)
    ]  # fmt: skip


def _stats(services: Services, body: Frames, now: float) -> dict[str, Any]:
    return {_text(service.name): stats(service) for service in _asked(services, body)}


LISTS: Mapping[bytes, Callable[[Services, Frames, float], Any]] = {
    b"services": _names,
    b"workers": _workers,
    b"stats": _stats,
}


def _asked(services: Services, body: Frames) -> list[Service]:
    wanted = bytes(body[0]) if body else b""
    if not wanted:
        return [service for _, service in sorted(services.items())]
    service = services.get(wanted)
    return [service] if service is not None else []


def stats(service: Service) -> dict[str, Any]:
    """Give the figures of a service."""
    in_hand = sum(len(worker.in_hand) for worker in _all_of(service))
    return {**figures(service), "waiting": service.waiting, "workers": len(service.workers), "in_hand": in_hand}


def _all_of(service: Service) -> Iterable[Worker]:
    return chain(service.workers.values(), service.draining.values())


def figures(service: Service) -> dict[str, int]:
    """Give what was counted of a service."""
    return {"requests": service.requests, "replies": service.replies, **service.counts}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
