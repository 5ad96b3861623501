"""The baseline of a Majordomo broker in Python: the loop that a reader of the zguide writes, one message at a time.

One ROUTER for all, poll, ``recv_multipart``, ``send_multipart``; for each service a queue of requests and one of
waiting workers, the least recently used first; after every message a look for workers whose time is up, and whether
heartbeats are due to those that wait; and mmi.workers, for the bench. As in the zguide the client's address travels
with the request and comes back with the reply: there is no table of open requests, no expiry of them, no check of who
answers, and what a worker has in hand is lost with it. That makes it cheaper than a broker that has all this. It is
also cheaper than the zguide's own: queues are deques, and workers are known by their addresses as they are.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque

import zmq

HEARTBEAT_SECONDS = 2.5
EXPIRY_SECONDS = 3 * HEARTBEAT_SECONDS
HIGH_WATER = 20_000
"""As Scale0's: with ZeroMQ's 1,000 the replies to a client with so many requests in flight may be dropped."""

CLIENT, WORKER = b"MDPC01", b"MDPW01"
READY, REQUEST, REPLY, HEARTBEAT, DISCONNECT = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"


class Service:
    """The requests that wait for a worker, and the workers that wait for a request."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.requests: deque[list[bytes]] = deque()
        self.waiting: deque[Worker] = deque()


class Worker:
    """A worker, and until when it counts as alive."""

    def __init__(self, address: bytes, service: Service) -> None:
        self.address, self.service = address, service
        self.expiry = time.time() + EXPIRY_SECONDS


class Broker:
    """Passes requests to workers and replies to clients."""

    def __init__(self, endpoint: str) -> None:
        self.socket = zmq.Context().socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = HIGH_WATER
        self.socket.bind(endpoint)
        self.services: dict[bytes, Service] = {}
        self.workers: dict[bytes, Worker] = {}
        self.waiting: deque[Worker] = deque()
        """Those of all services, the one that waits longest first."""
        self.heartbeat_at = time.time() + HEARTBEAT_SECONDS

    def mediate(self) -> None:
        """Serve until the process is ended."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        while True:
            if poller.poll(int(HEARTBEAT_SECONDS * 1000)):
                message = self.socket.recv_multipart()
                sender, _empty, header = message[:3]
                if header == CLIENT:
                    self.from_client(sender, message[3:])
                elif header == WORKER:
                    self.from_worker(sender, message[3:])
            self.purge_workers()
            self.send_heartbeats()

    def from_client(self, sender: bytes, message: list[bytes]) -> None:
        """Take a request."""
        name = message[0]
        if name.startswith(b"mmi."):
            workers = json.dumps([address.hex() for address in self.workers]).encode()
            answer = [b"200", workers] if name == b"mmi.workers" else [b"501"]
            self.socket.send_multipart([sender, b"", CLIENT, name, *answer])
            return
        service = self.require_service(name)
        service.requests.append([sender, b"", *message[1:]])
        self.dispatch(service)

    def from_worker(self, sender: bytes, message: list[bytes]) -> None:
        """Take a reply, or what a worker says about itself."""
        command = message[0]
        worker = self.workers.get(sender)
        if command == READY and worker is None:
            service = self.require_service(message[1])
            worker = self.workers[sender] = Worker(sender, service)
            self.worker_waits(worker)
        elif worker is None:
            self.socket.send_multipart([sender, b"", WORKER, DISCONNECT])
        elif command == REPLY:
            client, _empty, *body = message[1:]
            self.socket.send_multipart([client, b"", CLIENT, worker.service.name, *body])
            self.worker_waits(worker)
        elif command == HEARTBEAT:
            worker.expiry = time.time() + EXPIRY_SECONDS
        elif command == DISCONNECT:
            self.delete_worker(worker)

    def require_service(self, name: bytes) -> Service:
        """Find a service; make it when it is new."""
        service = self.services.get(name)
        if service is None:
            service = self.services[name] = Service(name)
        return service

    def worker_waits(self, worker: Worker) -> None:
        """Let a worker wait for a request."""
        self.waiting.append(worker)
        worker.service.waiting.append(worker)
        worker.expiry = time.time() + EXPIRY_SECONDS
        self.dispatch(worker.service)

    def dispatch(self, service: Service) -> None:
        """Give requests to workers as long as there are both."""
        self.purge_workers()
        while service.waiting and service.requests:
            request = service.requests.popleft()
            worker = service.waiting.popleft()
            self.waiting.remove(worker)
            self.socket.send_multipart([worker.address, b"", WORKER, REQUEST, *request])

    def delete_worker(self, worker: Worker) -> None:
        """Forget a worker."""
        del self.workers[worker.address]
        if worker in worker.service.waiting:
            worker.service.waiting.remove(worker)
            self.waiting.remove(worker)

    def purge_workers(self) -> None:
        """Forget the workers that have waited in silence for too long; behind the first that lives all do."""
        while self.waiting and self.waiting[0].expiry < time.time():
            self.delete_worker(self.waiting[0])

    def send_heartbeats(self) -> None:
        """Tell the workers that wait that the broker is alive."""
        if time.time() > self.heartbeat_at:
            for worker in self.waiting:
                self.socket.send_multipart([worker.address, b"", WORKER, HEARTBEAT])
            self.heartbeat_at = time.time() + HEARTBEAT_SECONDS


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Broker(sys.argv[1]).mediate()
