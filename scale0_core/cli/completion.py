"""``scale0 completion``: click's own completion scripts, and how to install them."""

from __future__ import annotations

import click

VARIABLE = "_SCALE0_COMPLETE"

HOW = {
    "bash": "echo 'eval \"$(scale0 completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(scale0 completion zsh)\"' >> ~/.zshrc",
    "fish": "scale0 completion fish > ~/.config/fish/completions/scale0.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(tuple(HOW)))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; its first line says how to install it."""
    from click.shell_completion import get_completion_class

    from scale0_core.cli import scale0

    cls = get_completion_class(shell)
    assert cls is not None
    click.echo(f"# to have completion in every {shell}: {HOW[shell]}")
    click.echo(cls(scale0, {}, "scale0", VARIABLE).source().strip())
