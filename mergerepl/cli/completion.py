"""`mergerepl completion`: scripts for shells, and the names that a shell offers, from the YAML alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from mergerepl.cli.grammar import READS, command
from mergerepl.cli.invocation import Invocation
from mergerepl.roots import masked

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@command(READS, "SHELL", hidden=True)
def completion(run: Invocation, shell: str) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    bash: eval "$(mergerepl completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc; fish:
    mergerepl completion fish > ~/.config/fish/completions/mergerepl.fish

    Example:
      mergerepl completion bash
    """
    if shell not in _SHELLS:
        raise click.UsageError(
            f"There is no completion for {masked(shell)!r}: choose one of {', '.join(_SHELLS)}."
        )
    from mergerepl.cli.main import main

    kind = _SHELLS[shell]
    click.echo(kind.source_template % kind(main, {}, "mergerepl", "_MERGEREPL_COMPLETE").source_vars())


def names(ctx: click.Context, kind: str, incomplete: str) -> list[CompletionItem]:
    """Return the names of a kind in the place of a command that begin with some letters."""
    from mergerepl.errors import MergeReplError
    from mergerepl.places import find_places, roots_of_file

    if kind == "SHELL":
        return [CompletionItem(each) for each in _SHELLS if each.startswith(incomplete)]
    try:
        places = find_places(ctx.ensure_object(Invocation).files)
        files = [each.path for each in places if each.is_file]
        found = {
            "REPLICA": (each.name for path in files for each in roots_of_file(path)),
            "TABLE": (name for path in files for name in _tables(path)),
        }.get(kind.split("|")[0].replace("INSTANCE", "TABLE"), ())
        given = set(ctx.params.get(f"{kind.split('|')[0].lower()}s") or ())
        return [
            CompletionItem(name)
            for name in dict.fromkeys(found)
            if name.startswith(incomplete) and name not in given
        ]
    except (MergeReplError, OSError):
        return []


def _tables(path: str) -> Iterator[str]:
    from mergerepl.config import strict_yaml

    for document in strict_yaml.parse(Path(path).read_text(encoding="utf-8"), name=path):
        stated = document.value if isinstance(document.value, dict) else {}
        for each in [*(stated.get("articles") or ()), *(stated.get("tables") or ())]:
            name = (each.get("name") or each.get("table")) if isinstance(each, dict) else None
            if isinstance(name, str):
                yield name
