"""The tasks of merge publications as the command line reports them, one folder at a time."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mergerepl import products, roots
from mergerepl.model.listing import Listing
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.tasks import CDC, MERGE, Pending, Run, Status
from mergerepl.places import types_at
from mergerepl.sessions import root_of

if TYPE_CHECKING:
    from mergerepl.model.results import CaptureResult


def capture(replica: str | Path, *, progress: Progress | None = None) -> CaptureResult:
    """`Replica.capture` of merge publications, for the command line."""
    found = products.capture([root_of(replica)], progress or NoProgress(), {MERGE})
    return cast("CaptureResult", found[0].details)


def status(replica: str | Path) -> Status:
    """`Replica.status` of merge publications, with the warnings of Change Data Capture, for the command line."""
    root = root_of(replica)
    found = products.status([root], {MERGE})[0]
    captured = products.status([root], {CDC}) if CDC in types_at(root) else ()
    texts = (
        replace(each, text=f"Change Data Capture of '{each.source}': {each.text}")
        for database in captured
        for each in database.warnings
    )
    return replace(found, warnings=(*found.warnings, *texts))


def pending(replica: str | Path) -> Listing[Pending]:
    """`Replica.pending`, for the command line."""
    return products.pending([root_of(replica)], {MERGE})


def history(replica: str | Path, *, limit: int = 20, subscriber: str | Path | None = None) -> Listing[Run]:
    """`Project.history` of merge sessions, for the command line."""
    only = None if subscriber is None else {roots.parse(os.fspath(subscriber))}
    return products.history([root_of(replica)], subscribers=only, types={MERGE}, limit=limit)


def resolver_functions() -> dict[str, str]:
    """Return this agent's functions for the resolver `custom`: name to description.

    Raises: ConfigurationError if the agent's file cannot be used.
    """
    from mergerepl.merge.resolvers.functions import known_functions

    return known_functions()
