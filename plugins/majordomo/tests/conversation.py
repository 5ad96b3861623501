"""What clients, workers and the broker say, written down from the RFCs and not from the plugin's own tables."""

from __future__ import annotations

import json
from collections import Counter

import attrs

from scale0_core.testing import Script
from scale0_majordomo.service.desk import DRAINING
from scale0_majordomo.service.majordomo import MajordomoService
from scale0_majordomo.settings import MajordomoSettings, ServiceSettings

SOCKET = "requests"
VERSIONS = ("0.1", "0.2", "own")
CLIENT_HEAD = {"0.1": ("", "MDPC01"), "0.2": ("MDPC02",), "own": ("S0MC01",)}
WORKER_HEAD = {"0.1": ("", "MDPW01"), "0.2": ("MDPW02",), "own": ("S0MW01",)}
READY = {"0.1": "\x01", "0.2": "\x01", "own": "\x01"}
REQUEST = {"0.1": "\x02", "0.2": "\x02", "own": "\x02"}
PARTIAL = {"0.2": "\x03", "own": "\x03"}
FINAL = {"0.1": "\x03", "0.2": "\x04", "own": "\x04"}
HEARTBEAT = {"0.1": "\x04", "0.2": "\x05", "own": "\x05"}
DISCONNECT = {"0.1": "\x05", "0.2": "\x06", "own": "\x06"}
OF_A_SERVICE = {field.name for field in attrs.fields(ServiceSettings)}


def make_service(**settings):
    """Make a service; what belongs into the table of a service goes into that of all."""
    default = ServiceSettings(**{name: settings.pop(name) for name in list(settings) if name in OF_A_SERVICE})
    return MajordomoService(MajordomoSettings(default=default, **settings))


class Majordomo(Script):
    """A script with the words of all three dialects; the version is that of the peer that speaks or is spoken to."""

    def __init__(self, **settings):
        super().__init__(make_service(**settings))
        self.service.events = self.events = []

    # --- workers ---

    def says(self, worker, version, command, *frames):
        self.feed(SOCKET, worker, *WORKER_HEAD[version], command[version], *frames)

    def hears(self, worker, version, command, *frames):
        return self.expect(SOCKET, worker, *WORKER_HEAD[version], command[version], *frames)

    def ready(self, *workers, service="echo", version="0.1", **options):
        for worker in workers:
            self.says(worker, version, READY, service, *([json.dumps(options)] if options else []))

    def gets(self, worker, *body, version="0.1", service="echo", options=""):
        """Insist that a worker gets a request; give the request's address."""
        if version == "own":
            return self.hears(worker, version, REQUEST, ..., service, options, *body)[3]
        return self.hears(worker, version, REQUEST, ..., "", *body)[len(WORKER_HEAD[version]) + 2]

    def reply(self, worker, address, *body, version="0.1", options=""):
        self.says(worker, version, FINAL, address, options, *body)

    def part(self, worker, address, *body, version="0.2", options=""):
        self.says(worker, version, PARTIAL, address, options, *body)

    def worker_error(self, worker, address, code, sentence=""):
        self.feed(SOCKET, worker, "S0MW01", "\x07", address, code, sentence)

    def beat(self, worker, version="0.1"):
        self.says(worker, version, HEARTBEAT)

    def leave(self, worker, version="0.1"):
        self.says(worker, version, DISCONNECT)

    def drain(self, worker, *begun):
        """Say that a worker takes no more requests; it has begun these."""
        self.feed(SOCKET, worker, "S0MW01", "\x09", *begun)

    def sent_away(self, worker, version="0.1"):
        self.hears(worker, version, DISCONNECT)

    def beaten(self, worker, version="0.1"):
        self.hears(worker, version, HEARTBEAT)

    def beats_of(self, seconds):
        """Let time pass; give who got heartbeats, and when."""
        beats = []
        until = self.now + seconds
        while self.now < until:
            self.sleep(min(0.25, until - self.now))
            while self._unexpected:
                _, frames = self._unexpected.popleft()
                assert frames[-1] in (b"\x04", b"\x05"), frames
                beats.append((frames[0].decode(), self.now))
        return beats

    def live(self, seconds, *workers, version="0.1"):
        """Let time pass in which these workers send heartbeats; those to them are not looked at."""
        until = self.now + seconds
        while self.now < until:
            self.sleep(min(1.0, until - self.now))
            for worker in workers:
                self.beat(worker, version)
        keep = [send for send in self._unexpected if not _is_beat(send[1])]
        self._unexpected.clear()
        self._unexpected.extend(keep)

    # --- clients ---

    def ask(self, client, *body, service="echo", version="0.1", ident="1", **options):
        body = body or ("hello",)
        if version == "0.1":
            self.feed(SOCKET, client, "", "MDPC01", service, *body)
        elif version == "0.2":
            self.feed(SOCKET, client, "MDPC02", "\x01", service, *body)
        else:
            text = json.dumps(options) if options else ""
            self.feed(SOCKET, client, "S0MC01", "\x01", ident, service, text, *body)

    def cancel(self, client, ident="1"):
        self.feed(SOCKET, client, "S0MC01", "\x05", ident)

    def answered(self, client, *body, service="echo", version="0.1", ident="1", options=""):
        if version == "0.1":
            self.expect(SOCKET, client, "", "MDPC01", service, *body)
        elif version == "0.2":
            self.expect(SOCKET, client, "MDPC02", "\x03", service, *body)
        else:
            self.expect(SOCKET, client, "S0MC01", "\x03", ident, service, options, *body)

    def gets_part(self, client, *body, service="echo", version="0.2", ident="1", options=""):
        more = (ident, service, options) if version == "own" else (service,)
        self.expect(SOCKET, client, *CLIENT_HEAD[version], "\x02", *more, *body)

    def fails(self, client, code, ident="1", service="echo"):
        return self.expect(SOCKET, client, "S0MC01", "\x04", ident, service, str(code), ...)[-1].decode()

    def is_cancelled(self, worker, address):
        self.expect(SOCKET, worker, "S0MW01", "\x08", address)

    def mmi(self, name, *body, version="0.1"):
        """Ask the broker itself; JSON comes back as what it stands for."""
        self.ask("m", *body, service=f"mmi.{name}", version=version)
        head = CLIENT_HEAD[version] + (() if version == "0.1" else ("\x03",))
        sent = self._unexpected.popleft()[1]
        assert sent[: len(head) + 2] == (b"m", *(part.encode() for part in head), f"mmi.{name}".encode())
        code, *rest = sent[len(head) + 2 :]
        return (int(code), *map(json.loads, rest)) if rest else int(code)

    def stats(self, service="echo"):
        return self.mmi("stats", service)[1][service]

    def all_sent(self):
        """Give what was sent and not expected yet."""
        sent = [frames for _, frames in self._unexpected]
        self._unexpected.clear()
        return sent

    @property
    def totals(self):
        return self.service.totals()


def _is_beat(frames):
    return frames[1:] in ((b"", b"MDPW01", b"\x04"), (b"MDPW02", b"\x05"), (b"S0MW01", b"\x05"))


def told(service):
    """Insist that each request that is over was told, if anybody observes."""
    if service.events is None:
        return
    tables = [event[0].table(event) for event in service.events if event[0].name == "rpc"]
    outcomes = Counter(table["outcome"] for table in tables)
    totals = service.totals()
    assert outcomes["ok"] == totals["replies"]
    assert outcomes["error"] + outcomes["lost"] == totals["errors"] + totals["failed"]
    assert outcomes["timeout"] == totals["expired"]
    assert outcomes["refused"] == totals["refused"]
    assert outcomes["cancelled"] == totals["cancelled"] + totals["abandoned"]
    assert all((table["peer"] is None) == (table["service_us"] is None) for table in tables)
    # differences of times, whose parts of a microsecond are noise and are not stored
    assert all(int(table["queue_us"] or 0) >= 0 and int(table["service_us"] or 0) >= 0 for table in tables)
    came, went = (sum(event[0].name == kind for event in service.events) for kind in ("join", "leave"))
    assert came - went == len(service._workers)


def conserved(service):
    """Insist that of each service's requests all are accounted for, and that nothing is left behind."""
    told(service)
    for each in service._services.values():
        waiting = list(each.all_waiting())
        there = [*each.workers.values(), *each.draining.values()]
        in_hand = [r for worker in there for r in worker.in_hand.values() if not r.done]
        ended = sum(each.counts[n] for n in ("errors", "expired", "refused", "cancelled", "failed", "abandoned"))
        assert each.requests == each.replies + ended + len(waiting) + len(in_hand), each.name
        assert each.waiting == len(waiting)
        assert each.queue_bytes == sum(512 - 64 + sum(64 + len(frame) for frame in r.body) for r in waiting)
        shares = Counter(request.back[0] for request in waiting)
        assert {client: share.waiting for client, share in each.shares.items()} == shares
        assert sum(share.bytes for share in each.shares.values()) == each.queue_bytes
        assert all(share.held == (client in service._late) for client, share in each.shares.items())
        places = [each.queue, *each.levels.values(), *(worker.backlog for worker in each.workers.values())]
        free = [request for request in waiting if not request.share.held]
        assert len(free) <= sum(place.available for place in places) <= len(waiting)
        assert sum(map(len, places)) <= 2 * len(waiting) + 64 * len(shares)
        assert each.workers or each.waiting or each.draining, "a service that nobody uses is forgotten"
        assert len(each.ready) == len(set(map(id, each.ready))), "a worker stands there once"
        for worker in each.workers.values():
            assert len(worker.in_hand) <= worker.credit
            assert all(request.worker is worker for request in worker.in_hand.values())
            assert worker.queued == (worker in each.ready)
            room = len(worker.in_hand) < worker.credit
            wanted = each.available or worker.backlog.available
            assert not (room and wanted), "nobody idles while requests wait"
            if room and each.quick:
                assert worker.queued
        for worker in each.draining.values():
            assert worker.credit == DRAINING
            assert not len(worker.backlog)
        if each.waiting:
            assert each.next_due <= min(request.due for request in waiting)
            assert each in service._queues
            assert service._sweep_due <= max(each.next_due, service._sweep_due)
    assert all(not request.done for request in service._open.values())
    assert len(service._timers) == sum(request.timed for request in service._open.values())
    assert all(worker in service._watch.alarms for worker in service._workers.values())
    assert len(service._watch.alarms) == len(service._workers), "one alarm for each worker"


def nothing_left(service):
    """Insist that no request, worker, service, timer or alarm is left."""
    assert not service._services
    assert not service._workers
    assert not service._open
    assert not service._queues
    assert not service._gone
    assert not len(service._watch.alarms)
    assert not len(service._timers)
