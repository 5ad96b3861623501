"""`scale0 doctor`: one row for each thing, and a remedy for what is wrong."""

import subprocess

import pytest

from scale0_core.io.wire import native_problem


def checks(done):
    return {row["name"]: row for row in done.json["items"]}


def test_all_is_well_here(scale0):
    done = scale0("doctor", "-o", "json")
    assert (done.code, done.json["schema"]) == (0, "scale0.doctor/1")
    found = checks(done)
    assert {
        "python", "platform", "pyzmq", "libzmq", "curve", "wire", "descriptors", "runtime folder", "configuration",
        "plugins", "stevedore cache", "broker",
    } == set(found)  # fmt: skip
    assert "wrong" not in {row["state"] for row in found.values()}
    assert found["broker"]["found"] == "default does not run"


def test_whatever_is_not_well_has_a_remedy(scale0):
    scale0.install("mock", "raise RuntimeError('oh')")
    scale0.write("broker.toml", '[broker]\nplugins = ["mock"]\n[wire]\nbatch = 0\n')
    done = scale0("doctor", "-o", "json")
    assert done.code == 1
    found = checks(done)
    assert (found["plugin mock"]["state"], found["configuration"]["state"]) == ("wrong", "wrong")
    assert all(row["remedy"] for row in found.values() if row["state"] != "ok")
    assert "2 wrong, " in scale0("doctor").out


@pytest.mark.parametrize(
    ("setting", "words"), [("pure", "pure, as wire.implementation asks"), ("auto", "native"), ("native", "native")]
)
def test_the_wire_is_named(scale0, setting, words):
    if setting != "pure" and native_problem():
        pytest.skip(f"no native wire: {native_problem()}")
    scale0.write("broker.toml", f'[wire]\nimplementation = "{setting}"')
    assert words == checks(scale0("doctor", "-o", "json"))["wire"]["found"]


def test_a_missing_native_wire_is_a_warning_unless_it_is_asked_for(scale0):
    # stands before the real one on the path, as a build without a compiler would
    scale0.write("site/sitecustomize.py", "import sys; sys.modules['scale0_core.io._wire'] = None")
    assert checks(scale0("doctor", "-o", "json"))["wire"]["state"] == "warning"
    scale0.write("broker.toml", '[wire]\nimplementation = "native"')
    done = scale0("doctor", "-o", "json")
    assert (done.code, checks(done)["wire"]["state"]) == (1, "wrong")


def test_few_descriptors_are_a_warning(scale0):
    line = "ulimit -Hn 1000 -Sn 1000; " + " ".join(scale0.command("doctor"))
    done = subprocess.run(
        ["bash", "-c", line], env=scale0.environment, capture_output=True, encoding="utf-8", check=False, timeout=300
    )
    assert "raise the hard limit" in done.stdout


def test_a_runtime_folder_of_everybody_is_wrong(scale0):
    open_to_all = scale0.folder / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    scale0.write("broker.toml", f'[broker]\nruntime_dir = "{open_to_all}"')
    done = scale0("doctor", "-o", "json")
    if len(str(open_to_all)) <= 80:
        assert "chmod 700" in checks(done)["runtime folder"]["remedy"]
    assert (done.code, checks(done)["runtime folder"]["state"]) == (1, "wrong")


def test_a_long_runtime_folder_is_wrong(scale0):
    scale0.write("broker.toml", f'[broker]\nruntime_dir = "/tmp/{"x" * 100}"')
    assert "too long" in checks(scale0("doctor", "-o", "json"))["runtime folder"]["found"]
