"""Targets of a call: a project, a publication file, or replica roots; and their subscriptions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mergerepl import roots
from mergerepl.agents.agent_socket import is_there
from mergerepl.errors import ConfigurationError, MergeReplError
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.spark.callers import methods_keep_callers_session
from mergerepl.store.folders import has_system_tables
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl.model.publication import Publication
    from mergerepl.model.results import ApplyResult
    from mergerepl.model.transactional import TransactionalPublication


@methods_keep_callers_session
@dataclass(frozen=True)
class Project:
    """A publication that a file (or code) states."""

    publication: Publication

    def apply(self, *, dry_run: bool = False, progress: Progress | None = None) -> ApplyResult:
        """Make the replicas match the publication; `dry_run` only reports the steps.

        Raises: ConfigurationError, PublicationError, CaptureError (nothing was changed), LeaseError (run again).
        """
        from mergerepl.publish.apply import apply_publication
        from mergerepl.tracking.sweep import sweep_root

        shown = progress or NoProgress()

        def capture_publisher(root: Location, pubid: str) -> None:
            from mergerepl.merge.session.capture_replica import capture_held
            from mergerepl.replica.replica import Replica

            capture_held(Replica(root), pubid, progress=shown)

        def finish(publisher: Location, subscriber: Location | None, session: str) -> None:
            from mergerepl.merge.session.recovery import finish_session
            from mergerepl.replica.replica import Replica

            finish_session(Replica(publisher), Replica(subscriber) if subscriber else None, session)

        return apply_publication(
            self.publication,
            dry_run=dry_run,
            progress=shown,
            capture=capture_publisher,
            finish=finish,
            sweep=sweep_root,
        )


@methods_keep_callers_session
@dataclass(frozen=True)
class TransactionalProject(Project):
    """A transactional publication that a file (or code) states."""

    publication: TransactionalPublication  # type: ignore[assignment]

    def apply(self, *, dry_run: bool = False, progress: Progress | None = None) -> ApplyResult:
        """Make publisher and subscribers match the publication; `dry_run` only reports the steps.

        Raises: TransactionalError, TransactionalUsageError (nothing was changed); LeaseError (run again).
        """
        from mergerepl.transactional import apply_transactional

        return apply_transactional(self.publication, dry_run=dry_run, progress=progress)


def load(path: str | Path) -> Project:
    """Read a publication file.

    Raises: ConfigurationError naming the file, the place in it and the remedy.
    """
    from mergerepl.config.project_file import load_any
    from mergerepl.model.transactional import TransactionalPublication

    stated = load_any(path)
    return TransactionalProject(stated) if isinstance(stated, TransactionalPublication) else Project(stated)


def transactional_target(item: object) -> tuple[Location, str | None] | None:
    """Return the transactional publisher and publication of a target; None for other targets.

    A file with `type: transactional` means its publication; the folder of a publisher that is not a merge replica means
    all of them (None).

    Raises: ConfigurationError if a file is wrong, or the folder does not exist.
    """
    if isinstance(item, TransactionalProject):
        return Location.of(item.publication.publisher), item.publication.name
    if not isinstance(item, str | os.PathLike):
        return None
    if roots.names_file(os.fspath(item)):
        # The file check takes as long to load as a session without changes.
        return transactional_target(load(os.fspath(item)))
    root = roots.transactional_publisher(os.fspath(item))
    return None if root is None else (Location.of(root), None)


@dataclass(frozen=True)
class Target:
    """One subscription: both replica roots and the publication."""

    publisher: Location
    subscriber: Location
    publication: str
    engine: str = "auto"


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
        from mergerepl.config import strict_yaml

        file = Path(text)
        content = file.read_text(encoding="utf-8")
        if "${" in content:
            # The agent's environment may give the variables other values.
            return []
        documents = strict_yaml.parse(content, name=file.name)
        places = [each.value["publisher" if "publisher" in each.value else "root"] for each in documents]
        return [Location.of(roots.parse(place, base=file.absolute().parent)) for place in places]
    root = root_of(text)
    if is_there(root) or not has_system_tables(root):
        return [root]
    return [target.publisher for target in _of_item(root)] or [root]


def items_of(target: Project | str | Path | Sequence[Project | str | Path]) -> list[Project | str | Path]:
    """Return the items of a target, which may be one item by itself."""
    return [target] if isinstance(target, Project | str | os.PathLike) else list(target)


def targets_of(
    target: Project | str | Path | Sequence[Project | str | Path], subscriber: str | Path | None
) -> list[Target]:
    """Return the subscriptions of a target, each once; `subscriber`: only that one.

    Raises: ConfigurationError if the target has no subscription, or a root is not a replica.
    """
    found = [resolved for item in items_of(target) for resolved in _of_item(item)]
    unique = list({(t.publisher, t.subscriber, t.publication): t for t in found}.values())
    if subscriber is not None:
        wanted = Location.of(roots.parse(os.fspath(subscriber)))
        # The recorded folder may have become a link to the new place; the requested path has no links.
        chosen = [item for item in unique if os.path.realpath(item.subscriber) == str(wanted)]
        if not chosen:
            known = ", ".join(sorted(str(item.subscriber) for item in unique)) or "none"
            raise ConfigurationError(
                f"There is no subscription for '{wanted}'. Subscribers known: {known}. Name one of them, or "
                "add the subscription to the file and run `mergerepl apply FILE`.",
                subscriber=str(wanted),
            )
        unique = chosen
    if not unique:
        raise ConfigurationError(
            "There is no subscription. Add `subscriptions:` to the file and run `mergerepl apply FILE`."
        )
    return unique


def _read(item: Project | str | os.PathLike[str]) -> Project | str | os.PathLike[str]:
    """Return the project of a merge publication's file; other items unchanged."""
    if isinstance(item, Project) or not roots.names_file(os.fspath(item)):
        return item
    from mergerepl.config import project_file as config

    return Project(config.load(item))


def _of_item(item: Project | str | os.PathLike[str]) -> list[Target]:
    item = _read(item)
    if isinstance(item, Project):
        publication = item.publication
        publisher = Location.of(roots.parse(publication.publisher))
        return [
            Target(publisher, Location.of(roots.parse(sub.subscriber)), publication.name, publication.engine)
            for sub in publication.subscriptions
        ]
    from mergerepl.monitoring.quiet import noted_subscriptions

    root = root_of(item)
    noted = noted_subscriptions(root)
    if noted is None:
        from mergerepl.replica.subscription import subscriptions_of_root

        noted = subscriptions_of_root(root)
    return [Target(*found) for found in noted]


def root_of(replica: str | os.PathLike[str]) -> Location:
    """Return the folder of a replica. Messages about an invalid text mask its credentials."""
    return Location.of(roots.existing(os.fspath(replica)))


def publishers_of(item: Project | str | os.PathLike[str]) -> set[Location]:
    """Return the publisher of a file, a publisher's folder itself, or the publishers of a subscriber's."""
    item = _read(item)
    if isinstance(item, Project):
        return {Location.of(roots.parse(item.publication.publisher))}
    from mergerepl.replica.replica import Replica

    root = root_of(item)
    if Replica(root).require().published:
        return {root}
    return {target.publisher for target in _of_item(root)}
