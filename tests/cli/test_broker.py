"""`scale0 broker`: what it takes, and how it ends."""

import signal
import subprocess
import uuid

import pytest


@pytest.fixture
def name():
    return f"cli-{uuid.uuid4().hex[:12]}"


def test_a_broker_runs_until_it_is_told_to_stop(scale0, name):
    command = scale0.command("broker", "--name", name, "--set", "log.format=text")
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, encoding="utf-8", env=scale0.environment, cwd=scale0.folder
    ) as broker:
        for line in broker.stderr:
            if " ready " in line:
                break
        assert f"name={name}" in line

        taken = scale0("broker", "--name", name, "-o", "json")
        assert (taken.code, scale0("broker", "--name", name).code) == (64, 69)

        asked = scale0("echo", "-b", name, "hello")
        assert (asked.code, asked.out) == (0, "hello\n")

        running = {row["name"]: row for row in scale0("doctor", "-b", name, "-o", "json").json["items"]}
        assert running["broker"]["found"] == f"{name} runs as process {broker.pid}"

        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=20)
    assert broker.returncode == 0


def test_a_taken_name_is_told_in_four_parts(scale0, scale0_broker):
    first = scale0_broker()
    done = scale0("broker", "--name", first.name)
    assert done.code == 69
    for part in (
        f"a broker named {first.name} runs already",
        f"process {first.process.pid} has it",
        "consequence",
        "--name",
    ):
        assert part in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "nowhere.toml"], "cannot be read"),
        (["--set", "wire.bach=1"], "did you mean batch?"),
        (["--set", "plugin.echo.max_waiting=many"], "plugin.echo.max_waiting"),
        (["--set", 'broker.required=["absent"]', "--set", 'broker.plugins=["absent"]'], "broker.required"),
        (["--name", "no/slashes"], "broker.name"),
    ],
)
def test_a_wrong_configuration_exits_with_78(scale0, arguments, words):
    done = scale0("broker", *arguments)
    assert done.code == 78
    assert words in done.err
    assert "Traceback" not in done.err


def test_safe_mode_starts_without_plugins(scale0_broker):
    broker = scale0_broker(["echo"], arguments=["--safe-mode"])
    assert list(broker.addresses) == ["scale0"]
    assert broker.stop() == 0
