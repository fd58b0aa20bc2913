"""`Project`: the publications and databases of a place, with one method for each task of the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mergerepl import roots
from mergerepl.calls import Caller, methods_of_caller
from mergerepl.errors import ConfigurationError
from mergerepl.model.folders import Capture, Document, FolderTracking
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.publication import Publication
from mergerepl.model.results import ApplyResult, InitResult, SessionResult, SyncResult
from mergerepl.model.transactional import Publication as TransactionalPublication
from mergerepl.places import (
    CDC,
    DATABASE,
    MERGE,
    PUBLISHER,
    SUBSCRIBER,
    TRACKING,
    TRANSACTIONAL,
    NamedRoot,
    choose_root,
    find_places,
    named_root,
)
from mergerepl.sessions import Direction, Engine, Item, Level, synchronize
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mergerepl.replicas import Replica


@methods_of_caller
class Project(Caller):
    """The publications and databases of a project file, of the folder of a replica, or of documents made in code.

    Args:
        documents: `Publication`, `TransactionalPublication`, `Capture`, `FolderTracking`.
        spark: The session to work in; None: the running one, else an embedded one that starts when it is needed.
        lock_wait_s: Seconds to wait for another process that holds a replica.
    """

    def __init__(
        self, *documents: Document, spark: SparkSession | None = None, lock_wait_s: float = 0.0
    ) -> None:
        super().__init__(spark, lock_wait_s)
        self.documents = documents
        self._folders: tuple[Location, ...] = ()

    @classmethod
    def load(
        cls, *paths: str | os.PathLike[str], spark: SparkSession | None = None, lock_wait_s: float = 0.0
    ) -> Project:
        """Return the project of these files and folders.

        Without paths it is that of `MERGEREPL_FILE`, else of the nearest `mergerepl.yml` here or above, else of this
        folder, as on the command line. Nothing is written, and Spark does not start.

        Raises: ConfigurationError if nothing is found or a file is wrong; it names the line, the key and the remedy.
        """
        items: list[Item] = []
        for place in find_places(paths):
            if place.is_file:
                from mergerepl.config.project_file import load_documents

                items += load_documents(place.path)
            else:
                items.append(Location.of(place.path))
        return project_of(items, spark=spark, lock_wait_s=lock_wait_s)

    @classmethod
    def init(
        cls,
        *folders: str | os.PathLike[str],
        type: str = MERGE,
        output: str | os.PathLike[str] = "mergerepl.yml",
        dry_run: bool = False,
    ) -> InitResult:
        """Write a project file for the tables below some folders; `dry_run` only returns it. Starts no Java.

        The first folder publishes, the others subscribe; with the type `cdc` or `tracking` each is a document of its own.
        The key of a table is the one that an instance there states, else `rowguid`, `id` or `<table>_id` if a scan
        shows neither NULLs nor duplicates. Tables that cannot take part are comments with the reason.

        Raises: ConfigurationError if the file exists, a folder cannot be used, or no table can be published;
            PublicationError if the first folder is a subscriber.
        """
        from mergerepl.new_project import init_project

        return init_project([os.fspath(each) for each in folders], type_=type, output=output, dry_run=dry_run)

    def __repr__(self) -> str:
        parts = [*map(_title, self.documents), *map(str, self._folders)]
        return f"Project({', '.join(map(repr, parts))})"

    @property
    def items(self) -> tuple[Item, ...]:
        """The documents and the folders."""
        return (*self.documents, *self._folders)

    def replicas(self) -> tuple[NamedRoot, ...]:
        """Return the replicas and databases with their names: the stated ones, or those that a folder knows.

        Raises: ConfigurationError if a folder cannot be read as what it is.
        """
        found = [named for each in self.documents for named in _named_roots(each)]
        for folder in self._folders:
            from mergerepl.products import roots_known_at

            found += roots_known_at(folder)
        return tuple(dict.fromkeys(found))

    def at(self, name: str | None = None) -> Replica:
        """Return a replica by its name; without a name the publisher, or the folder that the project was loaded from.

        Raises: ConfigurationError if the name is a path, unknown or ambiguous, or without a name there are several.
        """
        from mergerepl.replicas import Replica

        if name is None:
            own = self.own_roots()
            if len(own) != 1:
                raise ConfigurationError(
                    f"Several folders are meant: {', '.join(own) or 'none'}. Name one of the replicas: "
                    f"{', '.join(sorted({each.name for each in self.replicas()}))}."
                )
            return Replica(own[0], spark=self.spark, lock_wait_s=self.lock_wait_s)
        return Replica(choose_root(self.replicas(), name), spark=self.spark, lock_wait_s=self.lock_wait_s)

    def own_roots(self) -> list[str]:
        """Return the folders of the publishers and databases that are stated, and those that were loaded."""
        stated = (named for each in self.documents for named in _named_roots(each))
        own = [each.root for each in stated if each.role != SUBSCRIBER]
        return list(dict.fromkeys([*own, *map(str, self._folders)]))

    def _chosen(self, names: Sequence[str]) -> set[str] | None:
        """Return the roots of some names; None without names."""
        known = self.replicas() if names else ()
        return {choose_root(known, name) for name in names} or None

    def apply(self, *, dry_run: bool = False, progress: Progress | None = None) -> ApplyResult:
        """Make the replicas match the documents; `dry_run` only reports the steps.

        Raises: ConfigurationError, PublicationError, CaptureError, TransactionalError (nothing was changed); LeaseError
            (run again).
        """
        if not self.documents:
            raise ConfigurationError(
                f"{self!r} is a folder, and `apply` needs a project file. Name one with `-f FILE`."
            )
        shown = progress or NoProgress()
        if len(self.documents) == 1:
            return _APPLY[type(self.documents[0])](self.documents[0], dry_run, shown)
        # All documents are checked before the first one is applied.
        results = [_APPLY[type(each)](each, True, shown) for each in self.documents]
        if not dry_run:
            results = [
                _APPLY[type(each)](each, False, shown) if planned.steps else planned
                for each, planned in zip(self.documents, results, strict=True)
            ]
        return ApplyResult(
            ", ".join(each.publication for each in results),
            tuple(step for each in results for step in each.steps),
            dry_run,
            round(sum(each.duration_s for each in results), 3),
        )

    def sync(
        self,
        *replicas: str,
        direction: Direction = "both",
        validate: Level | None = None,
        dry_run: bool = False,
        engine: Engine | None = None,
        streams: int | None = None,
        skip_errors: Sequence[int] = (),
        procedures: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> SyncResult:
        """Synchronise subscriptions, one session each; without names all of them.

        Args:
            replicas: Names. A publisher stands for all its subscriptions.
            direction: `both`, `upload` (from the subscriber to the publisher) or `download`. Merge only.
            validate: `rowcount` or `checksum`: compare the replicas after the session. Merge only.
            dry_run: Report the changes and the winners of conflicts without writing. Merge only.
            engine: With `spark` Spark writes all tables; with `auto` delta-rs writes where up to 100,000 rows changed
                and the table uses no feature that only Spark writes. The resulting tables are the same; the default is
                the file's `engine`, else `auto`. Merge only.
            streams: Articles applied at a time, instead of the subscription's own number. Transactional only.
            skip_errors: Numbers of errors to skip, such as 20598. Transactional only.
            procedures: Modules that register procedures. Transactional only.
            progress: Receives the steps.

        Returns: One result per session. If there are several, a session that fails has the status `failed`; the only
            one raises. An article that fails while others go on is listed in `refused` of its session, which then has
            an `error`: check `ok`.

        Raises: ConfigurationError if an argument is wrong, a root is not a replica or there is no subscription (no
            session has begun). If there is one session only: PublicationError, CaptureError, SchemaMismatchError,
            EnumerationError, ConflictError, ApplyError, RefusedArticlesError (no article could go on);
            UnfinishedSessionError, StoreError, EngineError (the next run finishes the staged session);
            TransactionalError (a command cannot be applied); LeaseError, CommitConflictError, OutOfReachError,
            EngineLostError (run again).
        """
        return synchronize(
            self.items,
            chosen=self._chosen(replicas),
            direction=direction,
            validate=validate,
            dry_run=dry_run,
            engine=engine,
            streams=streams,
            skip_errors=skip_errors,
            procedures=procedures,
            progress=progress,
        )

    def abort(self, session: str) -> SessionResult:
        """End a staged session that cannot be finished; one that can be finished is finished.

        What it had written counts as users' changes from then on. Its rows are kept below `_mergerepl/unsent` at the
        publisher, and the next session sends again what had not arrived.

        Args:
            session: Its id, or the beginning of it.

        Raises: ConfigurationError if no publisher here has it staged, or several ids match; PublicationError for a
            copy; LeaseError, CommitConflictError, EngineLostError (run again: it may still be finished); EngineError.
        """
        from mergerepl.merge.session.recovery import give_up_session
        from mergerepl.replica.replica import Replica as Files
        from mergerepl.sessions import merge_targets
        from mergerepl.spark import session as engine

        publishers: set[Location] = set()
        for root in map(Location.of, self.own_roots()):
            is_publisher = bool(self.documents) or Files(root).require().published
            publishers |= {root} if is_publisher else {each.publisher for each in merge_targets([root])}
        if len(publishers) != 1:
            named = ", ".join(map(str, sorted(publishers))) or "none"
            raise ConfigurationError(
                f"A session is aborted at one publisher; here are {named}. Name its folder with `-f`."
            )
        return give_up_session(
            Files(publishers.pop()).require(), session, spark_of=engine.session, lease_wait_s=self.lock_wait_s
        )


def project_of(
    items: Sequence[Item], *, spark: SparkSession | None = None, lock_wait_s: float = 0.0
) -> Project:
    """Return the project of documents and folders."""
    documents = (each for each in items if not isinstance(each, Location))
    project = Project(*documents, spark=spark, lock_wait_s=lock_wait_s)
    project._folders = tuple(each for each in items if isinstance(each, Location))
    return project


def _title(document: Document) -> str:
    return document.root if isinstance(document, Capture | FolderTracking) else document.name


def _named_roots(document: Document) -> list[NamedRoot]:
    kind = _TYPES[type(document)]
    if isinstance(document, Capture | FolderTracking):
        return [named_root(document.root, kind, DATABASE)]
    ends = [
        (document.publisher, PUBLISHER, None),
        *((each.subscriber, SUBSCRIBER, each.name) for each in document.subscriptions),
    ]
    return [named_root(roots.parse(root), kind, role, document.name, name) for root, role, name in ends]


def _apply_merge(publication: Publication, dry_run: bool, progress: Progress) -> ApplyResult:
    from mergerepl.publish.apply import apply_publication
    from mergerepl.tracking.sweep import sweep_root

    def capture_publisher(root: Location, pubid: str) -> None:
        from mergerepl.merge.session.capture_replica import capture_held
        from mergerepl.replica.replica import Replica as Files

        capture_held(Files(root), pubid, progress=progress)

    def finish(publisher: Location, subscriber: Location | None, session: str) -> None:
        from mergerepl.merge.session.recovery import finish_session
        from mergerepl.replica.replica import Replica as Files

        finish_session(Files(publisher), Files(subscriber) if subscriber else None, session)

    return apply_publication(
        publication,
        dry_run=dry_run,
        progress=progress,
        capture=capture_publisher,
        finish=finish,
        sweep=sweep_root,
    )


def _apply_transactional(
    publication: TransactionalPublication, dry_run: bool, progress: Progress
) -> ApplyResult:
    from mergerepl.transactional.publish import apply_publication

    return apply_publication(publication, dry_run=dry_run, progress=progress)


def _apply_capture(capture: Capture, dry_run: bool, progress: Progress) -> ApplyResult:
    from mergerepl.cdc.apply import apply_capture

    return apply_capture(capture, dry_run=dry_run, progress=progress)


def _apply_tracking(folder: FolderTracking, dry_run: bool, progress: Progress) -> ApplyResult:
    from mergerepl.tracking.apply import apply_tracking

    return apply_tracking(folder, dry_run=dry_run, progress=progress)


_TYPES: dict[type, str] = {
    Publication: MERGE,
    TransactionalPublication: TRANSACTIONAL,
    Capture: CDC,
    FolderTracking: TRACKING,
}
_APPLY: dict[type, Callable[[Any, bool, Progress], ApplyResult]] = {
    Publication: _apply_merge,
    TransactionalPublication: _apply_transactional,
    Capture: _apply_capture,
    FolderTracking: _apply_tracking,
}
