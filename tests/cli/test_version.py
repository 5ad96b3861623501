"""`scale0 version`."""

import platform

import zmq

from scale0_core import __version__


def test_versions_of_everything(scale0, plugin_text):
    scale0.install("mock", plugin_text)
    about = scale0("version", "-o", "json").json
    assert about["schema"] == "scale0.version/1"
    assert about["scale0"] == __version__
    assert about["plugins"]["scale0-mock"] == "7.0"
    assert about["wire"] in ("native", "pure")
    assert about["python"].startswith(platform.python_version())
    assert (about["pyzmq"], about["libzmq"]) == (zmq.pyzmq_version(), zmq.zmq_version())
    assert scale0("version").out.split()[:2] == ["scale0", __version__]
