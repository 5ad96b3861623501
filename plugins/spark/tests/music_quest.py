"""A real music broker and real music servers, reached by plain ZeroMQ: nothing of that plugin is imported."""

import json
import time

import zmq

ANY = "tcp://127.0.0.1:*"
PATIENCE = 60.0


class Quest:
    """A music broker, and as many servers as a test wants, each a broker of its own."""

    def __init__(self, start, folder):
        self.start, self.folder = start, folder
        # on a busy machine all may stand still for seconds, and nobody is to be taken for dead
        table = {"bind_servers": [ANY], "bind_clients": [ANY], "lease": 15.0}
        self.broker = start.in_thread(["musicquest-broker"], {"plugin": {"musicquest-broker": table}})
        self.address = self.broker.address("musicquest-broker", "clients")
        self.count = 0

    def server(self, songs, *, telemetry=None, **settings):
        """Start a server with these songs, and give its address when it has them.

        With settings of telemetry it is a process of its own, which tells of what it does.
        """
        music = self.folder / f"music{self.count}"
        music.mkdir()
        for name, data in songs.items():
            (music / name).write_bytes(data)
        table = {
            "music": str(music), "clients": [ANY], "children": [ANY], "heartbeat": 2.0, "rescan": 0.5,
            "broker": self.broker.address("musicquest-broker", "servers"), **settings,
        }  # fmt: skip
        if telemetry is None:
            server = self.start.in_thread(["musicquest-server"], {"plugin": {"musicquest-server": table}})
        else:
            both = {"plugin": {"musicquest-server": table, "telemetry": telemetry}}
            server = self.start(["musicquest-server", "telemetry"], both)
        endpoint = server.address("musicquest-server", "clients")
        first = self.count == 0  # the root, which has no father
        until(lambda: (told := ask(endpoint, "stats"))["scanned"] and told["registered"] and (first or told["father"]))
        self.count += 1
        return endpoint


def until(condition):
    """Look again until something holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def say(endpoint, word, *rest):
    """Ask a server, and give the frames of its answer after the tag."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.connect(endpoint)
        asking.send_multipart([b"ZMQ01", word.encode(), b"t", *rest])
        assert asking.poll(PATIENCE * 1000)
        return asking.recv_multipart()[3:]


def ask(endpoint, word, *rest):
    """Ask a server, and give the JSON of its answer."""
    return json.loads(say(endpoint, word, *(json.dumps(each).encode() for each in rest))[0])


def holders(endpoint, name):
    """Search for a song at a server, and give where it is."""
    hits = ask(endpoint, "search", {"name": name, "fresh": True})["hits"]
    return {holder["endpoint"] for hit in hits for holder in hit["holders"]}


def fetch(endpoint, name, size):
    """Fetch a song that is not larger than one part."""
    _, data = say(endpoint, "fetch", name.encode(), bytes(8), size.to_bytes(8, "big"))
    return data


def advice_at(address):
    """Give what a discovery shows."""
    with zmq.Context() as context, context.socket(zmq.REQ) as asking:
        asking.linger = 0
        asking.connect(address)
        asking.send(b"ADVICE")
        assert asking.poll(PATIENCE * 1000)
        return json.loads(asking.recv_multipart()[1])
