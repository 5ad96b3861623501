"""What every service promises, and a host that insists on it.

The broker's own ``ServiceHost`` forgives within a budget, because a broker must go on. A test wants to see the first
fault at once, with its traceback: that is ``StrictHost``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, cast

from scale0_core.container.host import HostLimits, ServiceHost
from scale0_core.errors import ServiceFaultError
from scale0_core.service import Connect, Disconnect, Effect, Endpoint, FastPaths, Frames, Job, Service, SocketKind

RECEIVES_ONLY = frozenset({SocketKind.SUB, SocketKind.PULL})
SENDS_ONLY = frozenset({SocketKind.PUB, SocketKind.PUSH})


class StrictHost(ServiceHost):
    """A host without a budget: whatever a service does wrong is raised at once.

    With ``fast`` false it ignores the fast paths that the service declares.
    """

    def __init__(
        self, service: Service, *, plugin: str = "", limits: HostLimits | None = None, fast: bool = True
    ) -> None:
        super().__init__(service, plugin=plugin, limits=limits)
        if not fast:
            self.fast_paths.clear()
        self._endpoints = dict(service.endpoints)
        self._collect = self._insist

    def next_deadline(self) -> float | None:
        """Ask the service when it wants to be called, and insist on a time that can come."""
        due: Any = self.service.next_deadline()
        if due is None or (isinstance(due, int | float) and math.isfinite(due)):
            return due
        raise ServiceFaultError(
            f"next_deadline() of service {self.service.name} gave {due!r}", "it gives None or a finite number"
        )

    def _insist(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Job):
                self._insist_on_job(effect)
            elif isinstance(effect, Connect | Disconnect):
                self._insist_on_connection(effect)
                self.sends.append(cast("Any", effect))  # sorted out in ``take_sends``
            elif fault := send_fault(effect, self._endpoints):
                raise ServiceFaultError(f"service {self.service.name} returned {_shortened(effect)}", fault)
            else:
                self.sends.append(effect)

    def _insist_on_job(self, job: Job) -> None:
        what = f"service {self.service.name} returned a job"
        if self._on_job is None:
            raise ServiceFaultError(what, "it has no on_job to take the outcome")
        if not callable(job.function):
            raise ServiceFaultError(what, f"its function is {job.function!r}")
        self.jobs.add(job)

    def _insist_on_connection(self, effect: Connect | Disconnect) -> None:
        """Insist on the form. Addresses come from peers, so a wrong one is no fault: ``on_refused`` is for that."""
        what = f"service {self.service.name} returned {_shortened(effect)}"
        socket: Any = effect.socket
        address: Any = effect.address
        routing_id: Any = effect.routing_id if isinstance(effect, Connect) else b""
        if self._sends_alone:
            raise ServiceFaultError(what, "it has no on_refused to take it back")
        if not isinstance(socket, str) or socket not in self._endpoints:
            raise ServiceFaultError(what, f"no such socket; declared are {', '.join(map(repr, self._endpoints))}")
        if not isinstance(address, str) or not isinstance(routing_id, bytes):
            raise ServiceFaultError(what, "an address is a text, a routing id bytes")
        if routing_id and self._endpoints[socket].kind is not SocketKind.ROUTER:
            raise ServiceFaultError(what, "only on a ROUTER peers have routing ids")

    def failed(self, where: str, error: BaseException, now: float) -> NoReturn:
        """Raise what went wrong."""
        self.counts.errors += 1
        raise error


def send_fault(send: object, endpoints: Mapping[str, Endpoint]) -> str:
    """Say what is wrong with a send; nothing, when it is well-formed and its socket can send."""
    if type(send) is not tuple or len(send) != 2:
        return "a send is a tuple (socket, frames)"
    socket, frames = send
    endpoint = endpoints.get(socket) if isinstance(socket, str) else None
    if endpoint is None:
        return f"no such socket; declared are {', '.join(map(repr, endpoints)) or 'none'}"
    if endpoint.kind in RECEIVES_ONLY:
        return f"a {endpoint.kind.value} socket cannot send"
    return _frames_fault(frames) or (_router_fault(frames) if endpoint.kind is SocketKind.ROUTER else "")


def _frames_fault(frames: object) -> str:
    if type(frames) is not tuple or not frames:
        return "the frames are a tuple of at least one"
    for frame in frames:
        if type(frame) is not bytes and not _is_bytes_like(frame):
            return f"a frame is bytes, not {type(frame).__name__}"
    return ""


def _router_fault(frames: Frames) -> str:
    if len(frames[0]) == 0:
        return "the first frame on a ROUTER is the peer's routing id, and this one is empty"
    # ZeroMQ takes a routing id alone for a message without frames and drops it without a word
    return "" if len(frames) > 1 else "on a ROUTER a message follows the routing id, and there is none"


def endpoint_faults(service: Service) -> list[str]:
    """Say all that is wrong with a service's name and endpoints."""
    # the types promise much of this, but not every plugin has its types checked
    name: Any = service.name
    endpoints: Any = service.endpoints
    faults = [] if isinstance(name, str) and name else [f"the name is {name!r}, not a text"]
    if not isinstance(endpoints, Mapping):
        return [*faults, f"endpoints is a {type(endpoints).__name__}, not a mapping of names to Endpoint"]
    for socket, endpoint in endpoints.items():
        if not isinstance(socket, str) or not socket:
            faults.append(f"the name of socket {socket!r} is not a text")
        if isinstance(endpoint, Endpoint):
            faults.extend(f"socket {socket!r}: {fault}" for fault in _faults_of(endpoint))
        else:
            faults.append(f"socket {socket!r} is a {type(endpoint).__name__}, not an Endpoint")
    return [*faults, *_fast_path_faults(service)]


def _fast_path_faults(service: Service) -> list[str]:
    """List the fast paths that no message could take."""
    paths = service.fast_paths if isinstance(service, FastPaths) else ()
    return [
        f"fast path for {path.word!r}: no socket {path.socket!r}, or no frame {path.place} in some of its messages"
        for path in paths
        if path.socket not in service.endpoints
        or path.place >= (path.frames if isinstance(path.frames, int) else path.frames.start)
    ]


def _faults_of(endpoint: Endpoint) -> list[str]:
    addresses: tuple[Any, ...] = (*endpoint.bind, *endpoint.connect)
    topics: tuple[Any, ...] = endpoint.subscribe
    faults = [
        f"{address!r} is not an address such as tcp://127.0.0.1:5555; bind and connect are tuples of these"
        for address in dict.fromkeys(addresses)
        if not isinstance(address, str) or not ("://" in address or address.startswith("@"))
    ]
    if topics and endpoint.kind is not SocketKind.SUB:
        faults.append(f"a {endpoint.kind.value} socket does not subscribe")
    faults.extend(f"the topic {topic!r} is not bytes" for topic in topics if not isinstance(topic, bytes))
    if endpoint.high_water < 0:
        faults.append(f"high_water is {endpoint.high_water}")
    if endpoint.blob_over is not None and endpoint.blob_over < 0:
        faults.append(f"blob_over is {endpoint.blob_over}")
    return faults


def _is_bytes_like(frame: object) -> bool:
    try:
        memoryview(frame)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return False
    return True


def _shortened(effect: object, longest: int = 200) -> str:
    text = repr(effect)
    return text if len(text) <= longest else text[:longest] + "..."
