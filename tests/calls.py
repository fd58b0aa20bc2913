"""What the public objects return, as tests compare it: the merge product's part, by its fields."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mergerepl import Project, Replica
from mergerepl.conflicts.selection import Conflicts
from mergerepl.model.conflict_filter import ConflictFilter
from mergerepl.model.listing import shown_fields
from mergerepl.model.replica_status import SessionRecord
from mergerepl.model.results import ArticleValidation, CaptureResult
from mergerepl.store.location import Location

Root = str | Path | Location


def merge_status(root: Root) -> Any:
    """The state of a replica with its role and the texts of its problems."""
    found = next(each for each in Replica(root).status() if each.type == "merge")
    problems = tuple(each.text for each in found.warnings)
    return SimpleNamespace(
        **shown_fields(found.details), replica=found.replica, role=found.role, problems=problems
    )


def merge_history(root: Root, **options: Any) -> tuple[SessionRecord, ...]:
    """The last sessions that a replica took part in."""
    return tuple(each.details for each in Replica(root).history(**options))


def merge_capture(root: Root) -> CaptureResult:
    """Capture the users' changes of a replica."""
    found: CaptureResult = Replica(root).capture()[0].details
    return found


def validated(
    place: Root | Project, *names: str, level: Any = "checksum"
) -> dict[str, Sequence[ArticleValidation]]:
    """The results of a validation by subscriber."""
    project = place if isinstance(place, Project) else Project.load(place)
    found: dict[str, list[ArticleValidation]] = {}
    for each in project.validate(*names, level=level).articles:
        found.setdefault(each.subscriber, []).append(each)
    return {name: tuple(each) for name, each in found.items()}


def conflicts_of(
    root: Root,
    chosen: ConflictFilter | None = None,
    *,
    article: str | None = None,
    publication: str | None = None,
) -> Conflicts:
    """The conflicts of a replica that meet some conditions."""
    found = Replica(root).conflicts.where(article, publication=publication)
    return found if chosen is None else Conflicts(Replica(root).root, chosen=chosen)
