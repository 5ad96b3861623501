"""The table [plugin.echo]: its defaults, its help, and where the service listens."""

import attrs

from scale0_core.api import BrokerContext
from scale0_echo.plugin import EchoPlugin
from scale0_echo.settings import EchoSettings

CONTEXT = BrokerContext(name="here", runtime_dir="/run/here", data_dir="/data/here")


def test_every_setting_is_explained():
    assert all(field.metadata["help"] for field in attrs.fields(EchoSettings))


def test_listens_in_the_private_folder_of_the_broker():
    (service,) = EchoPlugin().scale0_services(EchoSettings(), CONTEXT)
    assert service.endpoints["requests"].bind == ("ipc:///run/here/echo",)


def test_listens_where_it_is_told():
    settings = EchoSettings(bind=("tcp://127.0.0.1:5555", "ipc:///tmp/{name}"), max_message=99)
    (service,) = EchoPlugin().scale0_services(settings, CONTEXT)
    endpoint = service.endpoints["requests"]
    assert (endpoint.bind, endpoint.max_message) == (("tcp://127.0.0.1:5555", "ipc:///tmp/here"), 99)


def test_says_what_it_is():
    info = EchoPlugin().scale0_plugin_info()
    assert (EchoSettings, True) == (info.settings, info.safe_by_default)
    assert info.summary
