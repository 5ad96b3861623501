"""The table [plugin.discovery]: its defaults, its help, and where the service listens."""

import attrs
import pytest

from scale0_core.api import BrokerContext
from scale0_discovery.plugin import DiscoveryPlugin
from scale0_discovery.settings import DiscoverySettings

CONTEXT = BrokerContext(name="here", runtime_dir="/run/here", data_dir="/data/here")


def test_every_setting_is_explained():
    assert all(field.metadata["help"] for field in attrs.fields(DiscoverySettings))


def test_listens_in_the_private_folder_of_the_broker():
    (service,) = DiscoveryPlugin().scale0_services(DiscoverySettings(), CONTEXT)
    assert service.endpoints["requests"].bind == ("ipc:///run/here/discovery",)
    assert service.endpoints["watch"].bind == ("ipc:///run/here/discovery-watch",)


def test_listens_where_it_is_told():
    settings = DiscoverySettings(bind=("tcp://127.0.0.1:5555",), watch=("ipc:///tmp/{name}",))
    (service,) = DiscoveryPlugin().scale0_services(settings, CONTEXT)
    assert service.endpoints["requests"].bind == ("tcp://127.0.0.1:5555",)
    assert service.endpoints["watch"].bind == ("ipc:///tmp/here",)


def test_making_it_changes_nothing():
    DiscoveryPlugin().scale0_services(DiscoverySettings(), CONTEXT)
    assert (CONTEXT.registry._watchers, CONTEXT.registry._grace) == ([], None)


def test_each_run_has_an_epoch_of_its_own():
    one, other = (DiscoveryPlugin().scale0_services(DiscoverySettings(), CONTEXT)[0] for _ in range(2))
    assert one._epoch != other._epoch


@pytest.mark.parametrize("wrong", [{"grace": -1.0}, {"memory": float("nan")}, {"bookmark": 0.0}, {"advice_keep": 0.0}])
def test_wrong_times_are_refused(wrong):
    with pytest.raises(ValueError, match="seconds"):
        DiscoverySettings(**wrong)


def test_says_what_it_is():
    info = DiscoveryPlugin().scale0_plugin_info()
    assert (DiscoverySettings, True) == (info.settings, info.safe_by_default)
    assert info.summary
