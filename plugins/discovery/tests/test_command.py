"""The command `scale0 discovery`, as a shell calls it."""

import json
import signal
import subprocess
import sys

import pytest
import zmq

pytestmark = pytest.mark.real


def command(*arguments):
    return [sys.executable, "-m", "scale0_core", "discovery", *arguments]


def run(*arguments):
    """Run the command line in a process of its own."""
    return subprocess.run(command(*arguments), capture_output=True, encoding="utf-8", timeout=60, check=False)


@pytest.fixture
def broker(scale0_broker):
    settings = {"network": {"default_heartbeat_interval": 60_000}, "plugin": {"discovery": {"bookmark": 0.2}}}
    return scale0_broker(["discovery"], settings)


@pytest.fixture
def address(broker):
    return broker.address("discovery", "requests")


@pytest.fixture
def worker(broker):
    """Give a function by which a worker offers services."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(broker.address("scale0", "backend"))

        def send(command, options):
            socket.send_multipart([b"S0W01", command, json.dumps(options).encode()])
            assert socket.poll(10_000), broker.text()
            return socket.recv_multipart()

        def offer(*services, **metadata):
            assert send(b"READY", {"services": services, "window": 1, "metadata": metadata})[1] == b"READYOK"

        send(b"CHECKCONFIG", {"identity": "w1", "services": []})
        yield offer


def test_lists_what_is_there(address, worker):
    worker("sum", "product", version="1.2.0", zone="eu")
    done = run("ls", "--broker", address)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["SERVICE", "PROVIDER", "KIND", "STATE", "VERSION", "METADATA", "ENDPOINTS"]
    assert [line.split()[0] for line in lines[1:]] == ["discovery", "product", "scale0", "sum"]
    assert lines[4].split()[1:6] == ["w1", "worker", "responsive", "1.2.0", "zone=eu"]


def test_lists_what_fits_as_json(address, worker):
    worker("sum", version="1.2.0", zone="eu")
    asked = ("ls", "--broker", address, "-o", "json")
    (row,) = json.loads(run(*asked, "sum", "--version", ">=1,<2", "--metadata", "zone=eu").stdout)["items"]
    assert (row["provider"], row["metadata"]) == ("w1", {"version": "1.2.0", "zone": "eu"})
    assert json.loads(run(*asked, "--state", "lost").stdout)["items"] == []
    worker()
    (gone,) = json.loads(run(*asked, "--gone").stdout)["items"]
    assert gone["service"] == "sum"
    assert gone["removed"] > 0


def test_shows_one_service(address, worker):
    worker("sum", version="1.2.0")
    done = run("show", "sum", "--broker", address)
    assert done.returncode == 0
    assert done.stdout.startswith("sum: somebody answers\n  w1  worker  responsive  1.2.0\n")
    assert "requests 0" in done.stdout
    assert json.loads(run("show", "sum", "--broker", address, "-o", "json").stdout)["alive"] is True
    assert address in run("show", "discovery", "--broker", address).stdout
    worker()
    done = run("show", "sum", "--broker", address)
    assert (done.returncode, "gone at" in done.stdout) == (1, True)


ROW = {
    "service": "sum", "group": "eu", "workers_now": 2, "workers_wanted": 3, "utilisation": 0.9, "share": None,
    "advice": "add", "reason": "busy \x1b[2J",
}  # fmt: skip


def advise(address, *rows):
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(address)
        body = json.dumps({"as_of": "2026-01-31T12:00:00Z", "rows": rows}).encode()
        socket.send_multipart([b"ADVISE", body])
        assert socket.poll(10_000)
        answer = socket.recv_multipart()
    assert answer[0] == b"ADVISE", answer


def test_shows_where_workers_should_be(address, worker):
    worker("sum")
    done = run("advice", "--broker", address)
    assert (done.returncode, "no advice" in done.stderr) == (0, True)
    advise(address, ROW, {**ROW, "service": "product"})
    done = run("advice", "--broker", address)
    assert "as of 2026-01-31T12:00:00Z, received" in done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["SERVICE", "GROUP", "ADVICE", "NOW", "WANTED", "UTILISATION", "SHARE", "REASON"]
    assert lines[1] == ["sum", "eu", "add", "2", "3", "0.9", "-", "busy", "\\x1b[2J"]
    told = json.loads(run("advice", "product", "--broker", address, "-o", "json").stdout)
    assert (told["as_of"], [row["service"] for row in told["rows"]]) == ("2026-01-31T12:00:00Z", ["product"])
    shown = run("show", "sum", "--broker", address).stdout
    assert "  advice: add in eu: 2 workers now, 3 wanted; busy \\x1b[2J\n" in shown
    assert "advice as of 2026-01-31" in shown


def test_what_a_worker_says_does_not_reach_the_terminal_as_it_is(address, worker):
    worker("sum", version="\x1b[2J", zone="\x07")
    for asked in (("ls",), ("show", "sum"), ("watch", "sum", "--count", "1")):
        done = run(*asked, "--broker", address)
        assert "\\x1b[2J" in done.stdout
        assert not {"\x1b", "\x07"} & set(done.stdout)


def test_watches_and_writes_a_line_for_each_change(address, worker):
    process = subprocess.Popen(
        command("watch", "sum", "--broker", address, "-o", "jsonl", "--count", "3"), stdout=subprocess.PIPE, text=True
    )
    with process:
        worker("sum", version="1")
        lines = [json.loads(process.stdout.readline())]
        worker("sum", version="2")
        lines.append(json.loads(process.stdout.readline()))
        worker()
        lines.append(json.loads(process.stdout.readline()))
        assert process.wait(20) == 0
    assert [(line["kind"], line["provider"]["version"]) for line in lines] == [
        ("added", "1"),
        ("changed", "2"),
        ("removed", "2"),
    ]
    assert lines[0]["schema"] == "scale0.discovery.change/1"


def test_watches_from_a_revision_on_until_it_is_interrupted(address, worker):
    worker("sum")
    revision = json.loads(run("show", "sum", "--broker", address, "-o", "json").stdout)["revision"]
    worker("sum", "product")
    asked = command("watch", "--broker", address, "--since", str(revision))
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline().split()[1:4] == ["added", "product", "w1"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)
        assert f"last revision: {revision + 1}" in process.stderr.read()


def test_says_what_is_refused(address):
    done = run("ls", "--broker", address, "--version", "=>1", "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["why"][:3]) == (1, "400")
    done = run("show", "nobody", "--broker", address, "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["why"][:3]) == (1, "404")


def test_says_at_which_stage_there_is_no_broker(tmp_path):
    done = run("ls", "--broker", f"ipc://{tmp_path}/nobody", "--timeout", "0.2", "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["why"].startswith("connecting")) == (69, True)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        done = run("ls", "--broker", f"tcp://127.0.0.1:{port}", "--timeout", "0.2", "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["why"].startswith("waiting for the answer")) == (75, True)


def test_an_address_to_watch_that_is_none_is_wrong_usage(address):
    done = run("watch", "--broker", address, "--watch-address", "tcp://no where", "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["what"]) == (64, "cannot connect to tcp://no where")


@pytest.mark.parametrize("wrong", [("ls", "--metadata", "zone"), ("show",), ("ls", "--broker", "no/where")])
def test_refuses_wrong_usage(wrong):
    assert run(*wrong).returncode == 64
