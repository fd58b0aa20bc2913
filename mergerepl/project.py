"""`Project`: the publications and databases of a place, with one method for each task of the command line."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

from mergerepl import products, roots
from mergerepl.calls import Caller, methods_of_caller, require_choice
from mergerepl.errors import ConfigurationError, MergeReplError, Transient
from mergerepl.model.alerts import Alerts
from mergerepl.model.folders import Capture, Document, FolderTracking
from mergerepl.model.listing import Listing
from mergerepl.model.products import MERGE, TYPES
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.results import ApplyResult, InitResult, SessionResult, SyncResult
from mergerepl.model.tasks import (
    Captured,
    CleanupResult,
    Pending,
    PendingRow,
    ReinitResult,
    RepairResult,
    Run,
    Status,
    ValidationResult,
)
from mergerepl.places import SUBSCRIBER, NamedRoot, choose_root, find_places
from mergerepl.products import upkeep
from mergerepl.products.stated_roots import alerts_of, roots_known_at, roots_stated_by, type_of
from mergerepl.sessions import Direction, Engine, Level, SessionLevel, synchronize
from mergerepl.sessions.targets import Item
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mergerepl.dashboard.page import Page
    from mergerepl.model.snapshot import Snapshot
    from mergerepl.monitoring.doctor import Check
    from mergerepl.replicas import Replica

log = logging.getLogger(__name__)


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
        self.is_long_running = False
        """Whether an embedded engine is tuned for many sessions rather than for one."""
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

    def _repr_html_(self) -> str:
        return Listing(self.replicas())._repr_html_()

    @property
    def items(self) -> tuple[Item, ...]:
        """The documents and the folders."""
        return (*self.documents, *self._folders)

    def replicas(self) -> tuple[NamedRoot, ...]:
        """Return the replicas and databases with their names: the stated ones, or those that a folder knows.

        Raises: ConfigurationError if a folder cannot be read as what it is.
        """
        found = [named for each in self.documents for named in roots_stated_by(each)]
        for folder in self._folders:
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
        stated = (named for each in self.documents for named in roots_stated_by(each))
        own = [each.root for each in stated if each.role != SUBSCRIBER]
        return list(dict.fromkeys([*own, *map(str, self._folders)]))

    def _roots(self, names: Sequence[str]) -> list[Location]:
        return [Location.of(root) for root in sorted(self._chosen(names) or ()) or self.own_roots()]

    def _chosen(self, names: Sequence[str]) -> set[str] | None:
        """Return the roots of some names, without links; None without names."""
        known = self.replicas() if names else ()
        return {roots.resolved(choose_root(known, name)) for name in names} or None

    def apply(
        self, *, dry_run: bool = False, planned: ApplyResult | None = None, progress: Progress | None = None
    ) -> ApplyResult:
        """Make the replicas match the documents; `dry_run` only reports the steps.

        All documents are checked before the first one is applied. Nothing is asked: steps with `removes_rows` remove what
        cannot be brought back. With `planned`, the result of a dry run, only such steps of it are carried out.

        Raises: ConfigurationError, PublicationError, CaptureError, TransactionalError (nothing was changed); LeaseError
            (run again).
        """
        if not self.documents:
            raise ConfigurationError(
                f"{', '.join(map(repr, map(str, self._folders))) or 'This'} is a folder, and `apply` needs a project file. "
                "Name one with `-f FILE`; `mergerepl init ROOT...` writes a first one."
            )
        shown = progress or NoProgress()
        may_remove = None if planned is None else planned.steps
        typed = [(type_of(each), each) for each in self.documents]
        if len(typed) == 1:
            return products.apply(*typed[0], dry_run, shown, may_remove)
        results = [products.apply(kind, each, True, shown) for kind, each in typed]
        if not dry_run:
            results = [
                products.apply(kind, each, False, shown, may_remove) if plan.steps else plan
                for (kind, each), plan in zip(typed, results, strict=True)
            ]
        return ApplyResult(
            ", ".join(each.publication for each in results),
            tuple(step for each in results for step in each.steps),
            dry_run,
            round(sum(each.duration_s for each in results), 3),
            tuple(one for each in results for one in each.subscriptions),
        )

    def sync(
        self,
        *replicas: str,
        direction: Direction = "both",
        validate: SessionLevel | None = None,
        validate_interval: timedelta | None = None,
        retries: int = 0,
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
            validate: `rowcount`, `touched` (the rows of this session) or `checksum`: compare the replicas after the
                session, and record the result. Merge only.
            validate_interval: Compare at most this often.
            retries: How often a merge session is run again that failed for a reason that may pass, after the others.
            dry_run: Report the changes and the winners of conflicts without writing; of transactional subscriptions the
                commands that wait, and the commits to read first.
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
            validate_interval=validate_interval,
            retries=retries,
            dry_run=dry_run,
            engine=engine,
            streams=streams,
            skip_errors=skip_errors,
            procedures=procedures,
            long_running=self.is_long_running,
            progress=progress,
        )

    def rounds(
        self, *replicas: str, interval: float, progress: Progress | None = None, **options: Any
    ) -> Iterator[SyncResult]:
        """Synchronise again and again, and yield the result of each round; a transient error is logged and tried again.

        Args:
            replicas: Names, as for `sync`.
            interval: Seconds from the start of a round to the start of the next.
            progress: Receives the steps.
            options: Those of `sync`.

        Raises: as `sync`, but for transient errors.
        """
        self.is_long_running = True
        while True:
            began = time.monotonic()
            try:
                yield self.sync(*replicas, progress=progress, **options)
            except MergeReplError as error:
                if not isinstance(error, Transient):
                    raise
                log.warning("%s", error.message)
            time.sleep(max(0.0, began + interval - time.monotonic()))

    def capture(self, *replicas: str, progress: Progress | None = None) -> Listing[Captured]:
        """Record new changes without sending them: those of users' tables (merge), of the log (transactional, cdc).

        Without names at the publishers and databases. A log that both transactional publications and Change Data
        Capture read is read once.

        Raises: ConfigurationError, CaptureError, SchemaMismatchError (nothing was changed), LogReaderError, StoreError,
            EngineError; LeaseError (run again).
        """
        return products.capture(self._roots(replicas), progress or NoProgress())

    def status(self, *replicas: str, type: str | None = None) -> Listing[Status]:
        """Return the state of each product at each replica, with its problems. Starts no Java.

        Without names the publishers and databases. Faults of a table are warnings, not errors; of several products one
        that cannot be read has the warning `unknown`.

        Args:
            replicas: Names.
            type: merge, transactional, cdc or tracking: only this one.

        Raises: ConfigurationError if no product uses a folder; PublicationError, StoreError, TrackingError if the only
            product there cannot be read.
        """
        return products.status(self._roots(replicas), _types(type), alerts_of=self._alerts)

    def snapshot(self, *replicas: str, days: float = 7.0) -> Snapshot:
        """Return the state of each product, with its runs of some days and its conflicts. Starts no Java.

        `status`, the dashboard and the metrics are views of it.

        Args:
            replicas: Names, as for `status`.
            days: How far back runs are read.

        Raises: as `status`.
        """
        from mergerepl.products.snapshot import snapshot

        since = datetime.now(UTC) - timedelta(days=days)
        return snapshot(self._roots(replicas), since=since, alerts_of=self._alerts)

    def dashboard(self, *, with_values: bool = False, interval_s: float | None = None) -> Page:
        """Return one self-contained HTML page about the place; `write` it to a file. Starts no Java.

        Args:
            with_values: Add the conflict report of each publisher, which has values of rows, as a page of its own.
            interval_s: Seconds until it is made again: the page turns grey after three of them.

        Raises: as `status`.
        """
        from mergerepl.dashboard.page import dashboard_page

        names = {each.root: each.name for each in self.replicas()}
        found = self.snapshot()
        reports: dict[str, tuple[str, str]] = {}
        for each in found.conflicts if with_values else ():
            text = StringIO()
            from mergerepl.conflicts.selection import Conflicts

            Conflicts(Location.of(each.replica), spark=self.spark).report(text)
            stem = re.sub(r"[^\w-]", "_", names.get(each.replica, "replica"))
            reports[each.replica] = (f"conflicts-{len(reports) + 1}-{stem}.html", text.getvalue())
        title = ", ".join(dict.fromkeys(map(_title, self.documents))) or ", ".join(
            each.name for each in map(Location.of, self.own_roots())
        )
        return dashboard_page(found, title=title, names=names, reports=reports, interval_s=interval_s)

    def _alerts(self, kind: str, root: Location) -> Alerts:
        """Return the thresholds that the documents of a type state for a folder."""
        return alerts_of(self.documents, kind, str(root))

    def pending(self, *replicas: str) -> Listing[Pending]:
        """Return the changes that wait for the next sync, by subscription, article and direction. Starts no Java.

        Raises: as `status`; ConfigurationError if no type here has subscriptions.
        """
        return products.pending(self._roots(replicas))

    def pending_rows(self, *replicas: str, limit: int = 20) -> Listing[PendingRow]:
        """Return the captured rows that wait for the next sync, the oldest generations of an article first. Merge only.

        Args:
            replicas: Names. A publisher stands for all its subscriptions.
            limit: The highest number of rows, of all subscriptions together; 0 to 1,000,000,000.

        Raises: ConfigurationError if no merge subscription is meant, or the limit is out of range; PublicationError,
            EnumerationError if two replicas do not fit together; StoreError, EngineError; LeaseError (run again).
        """
        return products.pending_rows(self.items, self._chosen(replicas), limit=limit)

    def history(
        self, *replicas: str, failed: bool = False, type: str | None = None, limit: int = 20
    ) -> Listing[Run]:
        """Return the last sessions, batches, scans and transactions, newest first. Starts no Java.

        Args:
            replicas: Names. For a subscriber its sessions, as its publisher recorded them.
            failed: Only those that failed: errors of log readers, why agents stopped, what was skipped.
            type: merge, transactional, cdc or tracking: only this one.
            limit: The highest number of runs, of all types together; 0 to 1,000,000,000.

        Raises: as `status`; ConfigurationError if the limit is out of range.
        """
        found = products.history(**self._runs(replicas, type), failed=failed, limit=limit)
        count = partial(self.count_history, *replicas, failed=failed, type=type)
        return Listing.limited(found, limit, count)

    def count_history(self, *replicas: str, failed: bool = False, type: str | None = None) -> int:
        """Return the number of runs that `history` lists without a limit.

        Raises: as `history`.
        """
        return products.count_history(**self._runs(replicas, type), failed=failed)

    def _runs(self, names: Sequence[str], type: str | None) -> dict[str, Any]:
        """Return whose runs are meant: of the publishers, some subscribers (None: all), some types."""
        own = self.own_roots()
        chosen = self._chosen(names) or set(own)
        return {
            "roots": [Location.of(root) for root in own],
            "subscribers": None if chosen & set(own) else chosen,
            "types": _types(type),
        }

    def validate(
        self, *replicas: str, level: Level = "checksum", table: str | Sequence[str] = ()
    ) -> ValidationResult:
        """Compare subscribers with their publishers, without names all of them; nothing is changed.

        Changes that were not synchronized yet are differences; a transactional subscriber is compared with the
        publisher's rows at its last batch.

        Args:
            replicas: Names.
            level: `rowcount`, which starts Java only for tables whose log does not give the number of rows, or
                `checksum`, row by row.
            table: Names of articles; empty for all.

        Returns: One row for each article and subscriber, with examples of differing keys. A subscriber that cannot be
            compared has the `error` at its articles when there are several; the only one raises.

        Raises: ConfigurationError if an argument is wrong, a root is not a replica or there is no subscription. If there
            is one subscription only: SchemaMismatchError if published columns are gone; StoreError if a table cannot be
            read; OutOfReachError (run again); EngineError.
        """
        tables = (table,) if isinstance(table, str) else tuple(table)
        return products.validate(self.items, self._chosen(replicas), level, tables)

    def reinit(
        self,
        *replicas: str,
        all: bool = False,
        upload_first: bool = False,
        discard_local: bool = False,
        table: str | Sequence[str] = (),
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ReinitResult:
        """Fill subscribers again from the publisher.

        Merge: the rows that differ are made the publisher's, all metadata begins again. So a subscription goes on that has
        expired, or whose replica was restored from an older copy. Rows that are taken from the subscriber are exported
        first, to Delta tables below its `_mergerepl/unsent`. Transactional: a new snapshot replaces the rows of all tables;
        chosen ones are made equal to the publisher's at the subscriber's position.

        Args:
            replicas: Names.
            all: All subscribers, in place of names.
            upload_first: Compare changes that the subscriber has not sent with the publisher's rows; the resolver decides
                where they differ, and what loses is logged. Merge only.
            discard_local: Give them up. Without either there must be none. Merge only.
            table: Names of articles; empty for all. In a merge publication the others are synchronized first.
            dry_run: Only count.
            progress: Receives the steps.

        Raises: ConfigurationError if no replica is named, its type cannot be filled again, or changes would be given up
            that were not mentioned; PublicationError if its publication cannot be filled again by difference, or a key has
            several rows; ApplyError if a table would refuse a row; CaptureError, SchemaMismatchError, StoreError if a
            table cannot be read on; EnumerationError if a session has to be ended first; TransactionalError; LeaseError,
            CommitConflictError (run again).
        """
        if bool(replicas) == all:
            raise ConfigurationError("Name the replicas to fill again, or choose all of them.")
        tables = (table,) if isinstance(table, str) else tuple(table)
        return upkeep.reinit(
            self.items,
            self._chosen(replicas),
            upload_first=upload_first,
            discard_local=discard_local,
            tables=tables,
            dry_run=dry_run,
            progress=progress or NoProgress(),
        )

    def repair(
        self,
        *replicas: str,
        publication: str | None = None,
        table: str | None = None,
        key: Mapping[str, str] | None = None,
        where: str | None = None,
        source: Literal["publisher", "subscriber"] = "publisher",
        may_insert: bool = False,
        procedures: Sequence[str] = (),
        dry_run: bool = False,
    ) -> RepairResult:
        """Make rows equal that differ between subscribers and the publisher; whole tables without `key` and `where`.

        Merge: the rows of the right side get new versions there, which the next sync carries like any change; the other
        side's rows are logged as conflicts. Rows with changes that wait are left out. Transactional: the publisher's rows
        come back to the subscriber's tables, as of its last batch.

        Args:
            replicas: Names; without any all subscribers. A publisher stands for all its subscriptions.
            publication: Only this one.
            table: Only this article.
            key: Column to value as text: only this row of `table`.
            where: Only rows of `table` that meet this condition at either side.
            source: The side that is right. Merge only.
            may_insert: Let a subscriber bring back rows that the publisher lacks, without `key` and `where`. Merge only.
            procedures: Modules that register procedures. Transactional only.
            dry_run: Only count.

        Raises: ConfigurationError if a name is unknown, the rows cannot be chosen so, or no subscription is meant;
            PublicationError if a key has several rows; ConflictError if a session is interrupted; SchemaMismatchError,
            StoreError, CaptureError if tables cannot be compared; TransactionalError if a table has to begin again;
            LeaseError, CommitConflictError (run again).
        """
        from mergerepl.filters.chosen_rows import ChosenRows

        return upkeep.repair(
            self.items,
            self._chosen(replicas),
            publication=publication,
            rows=ChosenRows(table, key, where),
            source=source,
            may_insert=may_insert,
            procedures=procedures,
            dry_run=dry_run,
        )

    def cleanup(
        self, *, only: Sequence[str] = (), older_than: timedelta | None = None, dry_run: bool = False
    ) -> CleanupResult:
        """Remove rows past their retention, and unused files, at the publishers and databases. Starts no Java.

        Args:
            only: metadata, history, files (merge), conflicts (merge, transactional), commands (transactional), changes
                (cdc), tombstones (tracking); empty for all.
            older_than: An age in place of the retention. Files do not go by it.
            dry_run: Only count.

        Raises: ConfigurationError if a kind is unknown, no type here has one, or `older_than` does not apply to it;
            LeaseError, StoreError.
        """
        own = [Location.of(root) for root in self.own_roots()]
        return upkeep.cleanup(own, only=only, older_than=older_than, dry_run=dry_run)

    def doctor(self, *replicas: str, start_engine: bool = False, fix: bool = False) -> Listing[Check]:
        """Check Java, JARs, versions, and storage, locks and files of the replicas, without names of all.

        Args:
            replicas: Names.
            start_engine: Also start the engine, or reach the running session.
            fix: Write files again that other libraries read or remove wrongly; no row changes.

        Raises: LeaseError if such a replica is in use; StoreError, CommitConflictError if files cannot be written.
        """
        # A folder with a damaged catalog is examined, too: it need not name its replicas.
        stated = (named.root for each in self.documents for named in roots_stated_by(each))
        chosen = self._chosen(replicas) or dict.fromkeys([*self.own_roots(), *stated])
        return examined(list(chosen), start_engine=start_engine, fix=fix)

    def abort(self, session: str) -> SessionResult:
        """End a staged session that cannot be finished; one that can be finished is finished.

        Its writes count as users' changes from then on. Its rows are kept below `_mergerepl/unsent` at the
        publisher, and the next session sends again the changes that had not arrived.

        Args:
            session: Its id, or the beginning of it.

        Raises: ConfigurationError if no publisher here has it staged, or several ids match; PublicationError for a
            copy; LeaseError, CommitConflictError, EngineLostError (run again: it may still be finished); EngineError.
        """
        from mergerepl.products import merge

        own = map(Location.of, self.own_roots())
        return merge.abort(
            list(own), session, are_publishers=bool(self.documents), lock_wait_s=self.lock_wait_s
        )


def project_of(
    items: Sequence[Item], *, spark: SparkSession | None = None, lock_wait_s: float = 0.0
) -> Project:
    """Return the project of documents and folders."""
    documents = (each for each in items if not isinstance(each, Location))
    project = Project(*documents, spark=spark, lock_wait_s=lock_wait_s)
    project._folders = tuple(each for each in items if isinstance(each, Location))
    return project


def examined(folders: Sequence[str], *, start_engine: bool = False, fix: bool = False) -> Listing[Check]:
    """Return what `doctor` finds at some folders, which need not exist, and on this machine."""
    from mergerepl.monitoring.doctor import checks

    found = checks(folders, start_engine=start_engine, mend=fix)
    return Listing([*found, *products.captured_checks(map(Location.of, folders))])


def _types(type: str | None) -> Collection[str]:
    if type is None:
        return TYPES
    require_choice("type", type, TYPES)
    return (type,)


def _title(document: Document) -> str:
    return document.root if isinstance(document, Capture | FolderTracking) else document.name
