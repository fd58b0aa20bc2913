"""Targets of the flat functions: a project, a publication file, or replica roots."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from mergerepl import roots
from mergerepl.agents.agent_socket import is_there
from mergerepl.errors import ConfigurationError, MergeReplError
from mergerepl.places import SUBSCRIBER, roots_of_file
from mergerepl.project import Project
from mergerepl.sessions import (
    NO_SUBSCRIPTION,
    Distribution,
    Item,
    Target,
    distributions,
    merge_targets,
    root_of,
)
from mergerepl.store.location import Location
from mergerepl.store.storage import has_system_tables


def load(path: str | Path) -> Project:
    """Return the project of a file."""
    return Project.load(path)


def transactional_target(item: object) -> tuple[Location, str | None] | None:
    """Return the transactional publisher and publication of a target; None for other targets."""
    found: list[Distribution] = []
    for each in _items(item):
        if isinstance(each, Location) and has_system_tables(each):
            return None
        found += distributions([each])
    return (found[0].publisher, found[0].publication) if found else None


def agent_roots(texts: Sequence[str]) -> list[Location]:
    """Return the publishers of files and roots, where an agent may listen. Invalid items are left to later checks.

    It loads little: a file is read, but not checked.
    """
    found: list[Location] = []
    for text in texts:
        with contextlib.suppress(MergeReplError, OSError, ValueError, LookupError, TypeError):
            found += _publishers(text)
    return list(dict.fromkeys(found))


def _publishers(text: str) -> list[Location]:
    if roots.names_file(text):
        if "${" in Path(text).read_text(encoding="utf-8"):
            # The agent's environment may give the variables other values.
            return []
        return [Location.of(each.root) for each in roots_of_file(text) if each.role != SUBSCRIBER]
    root = root_of(text)
    if is_there(root) or not has_system_tables(root):
        return [root]
    return [target.publisher for target in merge_targets([root])] or [root]


def _items(item: object) -> list[Item]:
    if isinstance(item, Project):
        return list(item.items)
    if not isinstance(item, str | os.PathLike):
        return []
    return list(Project.load(item).items) if roots.names_file(os.fspath(item)) else [root_of(item)]


def items_of(target: Project | str | Path | Sequence[Project | str | Path]) -> list[Item]:
    """Return the items of a target, which may be one item by itself."""
    each = [target] if isinstance(target, Project | str | os.PathLike) else list(target)
    return [item for part in each for item in _items(part)]


def targets_of(
    target: Project | str | Path | Sequence[Project | str | Path], subscriber: str | Path | None
) -> list[Target]:
    """Return the subscriptions of a target, each once; `subscriber`: only that one.

    Raises: ConfigurationError if the target has no subscription, or a root is not a replica.
    """
    unique = merge_targets(items_of(target))
    if subscriber is not None:
        wanted = roots.parse(os.fspath(subscriber))
        chosen = [item for item in unique if os.path.realpath(item.subscriber) == wanted]
        if not chosen:
            known = ", ".join(sorted(str(item.subscriber) for item in unique)) or "none"
            raise ConfigurationError(
                f"There is no subscription for '{wanted}'. Subscribers known: {known}. Name one of them, or "
                "add the subscription to the file and run `mergerepl apply`.",
                subscriber=wanted,
            )
        unique = chosen
    if not unique:
        raise ConfigurationError(NO_SUBSCRIPTION)
    return unique
