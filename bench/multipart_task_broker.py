"""The baseline of a broker in Python: the loop that a reader of the zguide writes, one message at a time.

It speaks the same frames as Scale0, so the same clients and workers drive it: poll, ``recv_multipart``,
``send_multipart``; a queue of tasks and one of waiting workers for each service. As in Majordomo, the client's
address travels with the task and comes back with the reply, so there is no table of open tasks: no deadlines, no
limits, no check of who answers, nothing is sent again when a worker dies. That makes it cheaper than a broker
that has all this.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque

import zmq

HEARTBEAT_SECONDS = 2.5
LIVENESS = 3
ADDRESS_SIZE = 5
"""Bytes of the routing ids that libzmq makes."""

CLIENT, WORKER = b"S0C01", b"S0W01"


class Service:
    """The tasks that wait for a worker, and the workers that wait for a task, the least recently used first."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.requests: deque[tuple[bytes, list[bytes]]] = deque()
        self.waiting: deque[Worker] = deque()


class Worker:
    """A worker: how many more tasks it takes, and until when it counts as alive."""

    def __init__(self, address: bytes, service: Service, room: int) -> None:
        self.address, self.service, self.room = address, service, room
        self.alive()

    def alive(self) -> None:
        """Note that it was heard of."""
        self.expiry = time.time() + HEARTBEAT_SECONDS * LIVENESS


class Broker:
    """Passes tasks to workers and replies to clients."""

    def __init__(self, frontend: str, backend: str) -> None:
        context = zmq.Context()
        self.frontend, self.backend = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
        self.frontend.linger = self.backend.linger = 0
        self.frontend.bind(frontend)
        self.backend.bind(backend)
        self.services: dict[bytes, Service] = {}
        self.workers: dict[bytes, Worker] = {}
        self.heartbeat_at = time.time() + HEARTBEAT_SECONDS

    def mediate(self) -> None:
        """Serve until the process is ended."""
        poller = zmq.Poller()
        poller.register(self.frontend, zmq.POLLIN)
        poller.register(self.backend, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(HEARTBEAT_SECONDS * 1000))
            if self.backend in ready:
                self.from_worker(self.backend.recv_multipart())
            if self.frontend in ready:
                self.from_client(self.frontend.recv_multipart())
            if time.time() > self.heartbeat_at:
                self.purge_workers()
                self.send_heartbeats()

    def from_client(self, message: list[bytes]) -> None:
        """Take a task."""
        client, header, command, _options, name, task_id, *payload = message
        if header == CLIENT and command == b"TASK":
            service = self.require_service(name)
            service.requests.append((client + task_id, payload))
            self.dispatch(service)

    def from_worker(self, message: list[bytes]) -> None:
        """Take a reply, or what a worker says about itself."""
        address, header, command, *rest = message
        if header != WORKER:
            return
        worker = self.workers.get(address)
        if command == b"CHECKCONFIG":
            self.backend.send_multipart([address, WORKER, b"CONFIGACK", b""])
        elif command == b"READY":
            self.worker_ready(address, json.loads(rest[0]))
        elif worker is None:
            self.backend.send_multipart([address, WORKER, b"FORCENEGOTIATE", b""])
        elif command == b"TASKREPLY":
            _options, name, number, *payload = rest
            client, task_id = number[:ADDRESS_SIZE], number[ADDRESS_SIZE:]
            self.frontend.send_multipart([client, CLIENT, b"TASKREPLY", b"", name, task_id, *payload])
            worker.alive()
            worker.room += 1
            if worker.room == 1:
                worker.service.waiting.append(worker)
            self.dispatch(worker.service)
        elif command == b"HEARTBEAT":
            worker.alive()
        elif command == b"DISCONNECT":
            self.delete_worker(worker)

    def worker_ready(self, address: bytes, options: dict[str, object]) -> None:
        """Take a worker into service."""
        services, window = options["services"], options["window"]
        assert isinstance(services, list)
        assert isinstance(window, int)
        service = self.require_service(services[0].encode())
        worker = self.workers[address] = Worker(address, service, window)
        service.waiting.append(worker)
        self.backend.send_multipart([address, WORKER, b"READYOK", b""])
        self.dispatch(service)

    def require_service(self, name: bytes) -> Service:
        """Find a service; make it when it is new."""
        service = self.services.get(name)
        if service is None:
            service = self.services[name] = Service(name)
        return service

    def dispatch(self, service: Service) -> None:
        """Give tasks to workers as long as there are both."""
        while service.waiting and service.requests:
            number, payload = service.requests.popleft()
            worker = service.waiting.popleft()
            worker.room -= 1
            if worker.room:
                service.waiting.append(worker)
            self.backend.send_multipart([worker.address, WORKER, b"TASK", b"", service.name, number, *payload])

    def delete_worker(self, worker: Worker) -> None:
        """Forget a worker."""
        self.workers.pop(worker.address, None)
        if worker in worker.service.waiting:
            worker.service.waiting.remove(worker)

    def purge_workers(self) -> None:
        """Forget the workers that have been silent for too long."""
        now = time.time()
        for worker in [worker for worker in self.workers.values() if worker.expiry < now]:
            self.delete_worker(worker)

    def send_heartbeats(self) -> None:
        """Tell the workers that the broker is alive."""
        for worker in self.workers.values():
            self.backend.send_multipart([worker.address, WORKER, b"HEARTBEAT", b""])
        self.heartbeat_at = time.time() + HEARTBEAT_SECONDS


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Broker(sys.argv[1], sys.argv[2]).mediate()
