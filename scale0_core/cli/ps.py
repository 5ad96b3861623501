"""``scale0 ps``: which brokers run on this machine."""

from __future__ import annotations

import os
from typing import Any

import attrs
import click

from scale0_core.cli import kit

COLUMNS = {name: name for name in ("name", "pid", "state", "since", "config", "addresses")}


@click.command()
@kit.output_option
def ps() -> None:
    """List the brokers that run on this machine.

    Of a broker whose record cannot be read, such as another user's, only name and process are known.
    """
    from scale0_core.config.running import BrokerRecord, running_brokers
    from scale0_core.io.instance import BrokerName, held_names

    records, problems = running_brokers(os.environ)
    rows: dict[str, dict[str, Any]] = {record.name: attrs.asdict(record) for record in records}
    for name in held_names():
        if name not in rows and (pid := BrokerName(name).holder()) is not None:
            unknown = dict.fromkeys(attrs.fields_dict(BrokerRecord))
            rows[name] = {**unknown, "name": name, "pid": pid or None, "state": "unknown", "addresses": {}}
    found = [rows[name] for name in sorted(rows)]
    if kit.output_format() == "table":
        for row in found:
            row["config"] = "embedded defaults" if row["config"] == "" else row["config"]
            row["addresses"] = [
                each for sockets in row["addresses"].values() for bound in sockets.values() for each in bound
            ]
    kit.emit("scale0.brokers/1", found, columns=COLUMNS)
    for problem in problems:
        kit.say(f"a record cannot be read: {problem}")
