"""The table [plugin.majordomo]."""

from __future__ import annotations

import pytest

from scale0_core.api import BrokerContext
from scale0_majordomo.plugin import MajordomoPlugin
from scale0_majordomo.settings import MajordomoSettings, ServiceSettings

from .conversation import Majordomo


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (MajordomoSettings, "heartbeat", 0), (MajordomoSettings, "liveness", 0), (MajordomoSettings, "busy_timeout", 0),
        (MajordomoSettings, "max_message", 0), (MajordomoSettings, "max_services", 0),
        (MajordomoSettings, "max_workers", 0), (ServiceSettings, "max_tries", 0), (ServiceSettings, "expiry", 0),
        (ServiceSettings, "max_queue", -1), (ServiceSettings, "max_queue_bytes", -1),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused(kind, name, value):
    with pytest.raises(ValueError, match=name):
        kind(**{name: value})


def test_a_service_may_have_a_table_of_its_own():
    majordomo = Majordomo(
        max_queue=1, services={"big": ServiceSettings(max_queue=3), "\u00fc": ServiceSettings(max_queue=2)}
    )
    for service in ("small", "big", "\u00fc"):
        for _ in range(5):
            majordomo.ask("c", service=service)
    waiting = {name: figures["waiting"] for name, figures in majordomo.mmi("stats", "")[1].items()}
    assert waiting == {"small": 1, "big": 3, "\u00fc": 2}


def test_the_limits_of_the_socket_are_those_of_the_settings():
    endpoint = Majordomo(max_message=4711).service.endpoints["requests"]
    assert endpoint.max_message == 4711
    assert endpoint.options == {"SNDHWM": 1000}


def test_the_plugin_says_what_it_is():
    info = MajordomoPlugin().scale0_plugin_info()
    assert info.settings is MajordomoSettings
    assert info.safe_by_default
    assert (
        BrokerContext(name="n", runtime_dir="/run/x", data_dir="/data").address("ipc://{runtime}/m") == "ipc:///run/x/m"
    )
