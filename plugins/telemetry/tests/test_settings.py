"""The table [plugin.telemetry]."""

import subprocess
import sys

import attrs
import pytest

from scale0_telemetry.plugin import TelemetryPlugin
from scale0_telemetry.settings import TelemetrySettings


def test_every_setting_has_a_help_text():
    assert all(field.metadata.get("help") for field in attrs.fields(TelemetrySettings))


def test_it_is_never_started_unasked():
    info = TelemetryPlugin().scale0_plugin_info()
    assert (info.safe_by_default, info.observes_events, info.settings) == (False, True, TelemetrySettings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampling": {"task": -0.1}}, {"sampling": {"task": 1.1}}, {"sampling": {"task": float("nan")}},
        {"segment_bytes": 1}, {"segment_seconds": 0.0}, {"quota_bytes": -1}, {"quota_bytes": 1000}, {"max_queue": 0},
        {"load_interval": 0.0},
        {"pipe_broker": "127.0.0.1:5560"}, {"pipe_broker": "tcp://127.0.0.1"}, {"pipe_broker": ("a", "tcp://host:*")},
    ],
    ids=repr,
)  # fmt: skip
def test_refuses_what_makes_no_sense(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TelemetrySettings(**wrong)


@pytest.mark.parametrize("kind", ["join", "leave", "song_replica", "config_change"])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_kinds_that_tell_of_states_are_not_sampled(kind, rate):
    """Of a worker whose leave is missing, no weight says that it is gone."""
    with pytest.raises(ValueError, match=rf"must leave {kind} out"):
        TelemetrySettings(sampling={kind: rate})
    assert TelemetrySettings(sampling={kind: 1.0}).sampling == {kind: 1.0}


def test_all_faults_of_sampling_are_told_at_once():
    with pytest.raises(ValueError, match="not task = 2, rpc = -1; and must leave join, leave out"):
        TelemetrySettings(sampling={"task": 2.0, "join": 0.5, "load": 0.5, "rpc": -1.0, "leave": 0.0})


def test_kinds_of_others_may_be_sampled():
    assert TelemetrySettings(sampling={"weather": 0.5, "task": 1.0}).sampling["weather"] == 0.5


@pytest.mark.real
def test_a_broker_that_does_not_use_it_does_not_load_pyarrow():
    code = "import sys, scale0_telemetry.plugin; print('pyarrow' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]
