"""``scale0 broker``: run a broker in the foreground."""

from __future__ import annotations

import os

import click

from scale0_core.cli.kit import config_option, overrides_of, set_option


@click.command()
@config_option
@click.option("-n", "--name", metavar="NAME", help="Name of the broker; by default as the configuration says.")
@set_option
@click.option("--safe-mode", is_flag=True, help="Start without any plugin.")
def broker(file: str | None, name: str | None, overrides: tuple[str, ...], *, safe_mode: bool) -> None:
    """Run a broker in the foreground. TERM or INT ends it; a second signal ends it at once.

    Without a file it runs on embedded defaults, with every installed plugin that is safe by default. Only one broker
    of a name runs on a machine: a second one says so and exits with 69.
    """
    from scale0_core.config.files import find_config, read_config
    from scale0_core.io.broker import Broker
    from scale0_core.io.log_output import LogOutput

    config = read_config(find_config(file, os.environ), overrides_of(name, overrides))
    log = LogOutput(config.core.log)
    try:
        Broker(config, safe_mode=safe_mode).serve()
    finally:
        log.close()
