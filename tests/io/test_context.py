"""The folders of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from scale0_core.config.files import BrokerConfig, read_config
from scale0_core.config.folders import broker_context
from scale0_core.errors import AddressError, Exit
from scale0_core.io.broker import make_folders
from scale0_core.plugin_types import BrokerContext


def made(config: BrokerConfig, environment: dict[str, str]) -> BrokerContext:
    context = broker_context(config.core.broker, environment)
    make_folders(config.core.broker, context)
    return context


def test_by_default_the_sockets_lie_in_the_users_runtime_folder(tmp_path: Path):
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": "/state"}
    context = made(read_config(None, ["broker.name=main"]), environment)
    runtime = tmp_path / "scale0" / "main"
    assert BrokerContext(name="main", runtime_dir=str(runtime), data_dir="/state/scale0/main") == context
    assert {0o700} == {folder.stat().st_mode & 0o777 for folder in (runtime, runtime.parent)}


def test_folders_that_were_set_are_taken(tmp_path: Path):
    overrides = [f"broker.runtime_dir={tmp_path}/run", f"broker.data_dir={tmp_path}/data"]
    context = made(read_config(None, overrides), {})
    assert (f"{tmp_path}/run", f"{tmp_path}/data") == (context.runtime_dir, context.data_dir)
    assert f"ipc://{tmp_path}/run/default" == context.address("ipc://{runtime}/{name}")


@pytest.mark.parametrize("place", ["file", "missing/folder", "file/folder"])
def test_a_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path, place: str):
    (tmp_path / "file").touch()
    with pytest.raises(AddressError) as caught:
        made(read_config(None, [f"broker.runtime_dir={tmp_path / place}"]), {})
    assert f"the folder {tmp_path / place} cannot be made" == caught.value.problem.what
    assert "broker.runtime_dir" in caught.value.problem.remedy
    assert caught.value.exit_code == Exit.UNREACHED


def test_a_runtime_folder_of_the_system_that_is_not_there(tmp_path: Path):
    with pytest.raises(AddressError, match="cannot be made"):
        made(read_config(None), {"XDG_RUNTIME_DIR": str(tmp_path / "missing")})
