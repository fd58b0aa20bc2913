"""One replica: the places of its tables and the content of its control plane."""

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from mergerepl.delta.sql_text import text_literal, text_literals
from mergerepl.delta.tables import (
    Chosen,
    commit_text,
    edited_table,
    is_delta_table,
    keep_knowledge,
    list_logs,
    open_table,
    row_constraints,
)
from mergerepl.errors import ConfigurationError, PublicationError, StoreError
from mergerepl.filters.publication_filters import has_next
from mergerepl.model.article import PublishedArticle
from mergerepl.model.definition import FIRST_VERSION
from mergerepl.replica.control import ControlPlane
from mergerepl.replica.counted_filters import counted_filters
from mergerepl.replica.damage import contradiction_of, no_subscriptions, refuse_edited, require_schema_version
from mergerepl.roots import resolved, uses
from mergerepl.store.lease import record_jvm
from mergerepl.store.location import Location
from mergerepl.store.notes import has_staged_session
from mergerepl.store.register import look_of
from mergerepl.store.storage import files_in, is_folder
from mergerepl.systables import (
    catalog,
    conflict_resolutions,
    contents,
    genhistory,
    partitions,
    registry,
    replinfo,
    tombstone,
)
from mergerepl.systables.catalog import (
    ArticleRow,
    ArticleState,
    PublicationRow,
    SchemaChangeRow,
    SubscriptionRow,
    relations,
)
from mergerepl.systables.conflicts_info import CONFLICT_TABLE_PREFIX
from mergerepl.systables.genhistory import ASKED_AGAIN, Generation, GenStatus
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import FOLDER, Plane

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_NAMED_AT_MOST = 1000
"""The most guids that a condition names; more are read by their bounds."""


def recording_jvm(
    spark_of: "Callable[[], SparkSession]", replicas: "Iterable[Replica]"
) -> "Callable[[], SparkSession]":
    """Return a function that starts Spark and notes its JVM at held replicas: a successor waits for its end."""

    def start() -> "SparkSession":
        from mergerepl.spark.session import jvm_pid

        session = spark_of()
        for replica in replicas:
            record_jvm(replica.root, jvm_pid())
        return session

    return start


class Replica:
    """A replica root with its system tables."""

    def __init__(self, root: Location | str) -> None:
        self.root = Location.of(resolved(os.path.expanduser(str(root))))
        self.folder = self.root / FOLDER
        self.control = ControlPlane(self.folder)
        self.contents = self.folder / contents.NAME
        self.tombstone = self.folder / tombstone.NAME
        self.staging = self.folder / "staging"

    def reread(self) -> "Replica":
        """Return the replica as it is now; reuses the parts that its control plane finds unchanged."""
        replica = Replica(self.root)
        replica.control = self.control
        return replica

    def conflict_tables(self) -> list[Location]:
        """The folders of all conflict tables, by name, including those of removed articles."""
        tables = [each for each in files_in(self.folder) if each.name.startswith(CONFLICT_TABLE_PREFIX)]
        return [each for each in tables if each.name != conflict_resolutions.NAME]

    def conflict_tables_of(self, pubid: str) -> list[str]:
        """The names of a publication's conflict tables; at its publisher also those of articles that ended."""
        return sorted({row.conflict_table for row in self._article_rows if row.pubid == pubid})

    def require(self) -> "Replica":
        """Return the replica itself.

        Raises: StoreError if the root has no folder, or it cannot be read; ConfigurationError if it has no system
        tables; PublicationError if they are of another version.
        """
        try:
            # A root in a store whose register is looked at is there.
            if look_of(self.root) is None or not self.control.exists(replinfo.TABLE):
                self._require_folders()
        except OSError as error:
            raise StoreError(
                f"Replica '{self.root}' cannot be read: {error.strerror}. Nothing was changed. Check where it leads, "
                "its permissions and its mount, then run again.",
                replica=str(self.root),
            ) from error
        info = self.info()
        require_schema_version(self.root, info.schema_version)
        return self

    def _require_folders(self) -> None:
        if not is_folder(self.root):
            raise StoreError(
                f"Replica '{self.root}' does not exist. If it is not mounted, mount it. If it was moved, or never "
                "applied, correct its path in the file and run `mergerepl apply`.",
                replica=str(self.root),
            )
        if not is_folder(self.folder / replinfo.NAME):
            if is_folder(self.folder):
                raise ConfigurationError(
                    f"'{self.root}' is no complete replica: its '{FOLDER}' folder has no {replinfo.NAME}. Restore "
                    "the folder from a copy; or, if a first `mergerepl apply` was cut short, run it again.",
                    replica=str(self.root),
                )
            others = uses(self.root, but=FOLDER) or (
                " Without a publication, `mergerepl cdc enable` captures tables here, and `mergerepl tracking enable` "
                "tracks them."
            )
            raise ConfigurationError(
                f"'{self.root}' is not a replica: it has no '{FOLDER}' folder with system tables. "
                f"Name a publisher or subscriber root, or run `mergerepl apply` first.{others}",
                replica=str(self.root),
            )

    def appended_tables(self) -> dict[Location, Plane]:
        """The system tables that every session may append to, each with its writer."""
        planes = {table.name: table.plane for table in registry.ALL if table.plane is not Plane.CONTROL}
        planes.update({article.conflict_table: Plane.DATA for article in self.articles})
        return {self.folder / name: plane for name, plane in planes.items()}

    def has_staged(self) -> bool:
        """True if a session is staged here, or a pointer names one that is staged elsewhere."""
        return has_staged_session(self.root)

    def require_tables(self) -> None:
        """Check that all system tables exist: the next write would recreate a missing one, without its past rows.

        Raises: StoreError naming the missing tables.
        """
        list_logs([self.folder / table.name for table in registry.ALL])
        missing = [table.name for table in registry.ALL if not is_delta_table(self.folder / table.name)]
        if missing:
            raise StoreError(
                f"Replica '{self.root}' has lost its system tables {', '.join(missing)}. Nothing was changed. "
                f"Restore the folder '{self.folder}' from a copy taken together with the tables, or run "
                "`mergerepl apply`, which says what else can be done.",
                replica=str(self.root),
                table=missing[0],
            )

    def keep_knowledge(self) -> None:
        """Keep what this process knows of the tables of a replica in a store, for the next process."""
        keep_knowledge(self.root, [self.folder / table.name for table in registry.ALL])

    def require_unedited(self) -> None:
        """Check that mergerepl made the last change of rows in contents, tombstone and the partition mappings.

        Raises: StoreError naming the commit.
        """
        is_filtered = any(row.filters for row in self.publications)
        mappings = [self.folder / table.name for table in partitions.MAPPINGS] if is_filtered else []
        for table in (self.contents, self.tombstone, *mappings):
            if is_delta_table(table):
                refuse_edited(table)

    def info(self) -> ReplicaInfo:
        """Return the replica's identity and the progress of its bookkeeping."""
        rows = self.control.rows(replinfo.TABLE)
        if len(rows) != 1:
            raise PublicationError(
                f"MSmerge_replinfo of '{self.root}' holds {len(rows)} rows and must hold one: it was edited "
                "or damaged. Restore the '_mergerepl' folder from a copy.",
                replica=str(self.root),
            )
        return rows[0]

    def save_info(self, info: ReplicaInfo) -> None:
        """Store the row of MSmerge_replinfo: the commit point of a capture or an apply.

        Notes the commit of each captured version and the time, so that callers need not know them.
        """
        noted = replace(info, captured_commits=self._noted(info), last_time=self._time_after(info.last_time))
        self.control.replace(replinfo.TABLE, [noted])

    def accept_clock(self) -> None:
        """Store the present time, however long ago the last one is."""
        self.control.replace(replinfo.TABLE, [replace(self.info(), last_time=datetime.now(UTC))])

    def present(self, last: datetime | None = None) -> datetime:
        """Return the time from which ages count: the present one, never before the last that was stored.

        If that is longer ago than the retention, the clock may have jumped: no time has passed until it is accepted.
        """
        last, now = last or self.info().last_time, datetime.now(UTC)
        if last is None:
            return now
        kept = [row.keeps for row in self.publications if row.keeps is not None]
        return last if kept and now - last > max(kept) else max(now, last)

    def _time_after(self, last: datetime | None) -> datetime:
        if last is None:
            return datetime.now(UTC)
        present = self.present(last)
        if present == last and datetime.now(UTC) > last:
            log.warning(
                "%s: it was written at %s last, longer ago than the retention: no subscription expires, and nothing is "
                "removed by age. If the clock is right, run `mergerepl cleanup --only metadata` there.",
                self.root,
                last,
            )
        return present

    def _noted(self, info: ReplicaInfo) -> dict[int, str]:
        """Return the commits of the captured versions; reads the logs only for commits that are not noted yet."""
        noted = {}
        for article in self.articles:
            version = info.captured.get(article.nickname)
            if version is None:
                continue
            commit = self.noted_commit(article, info) or commit_text(self.table(article), version)
            if commit is not None:
                noted[article.nickname] = commit
        return noted

    def noted_commit(self, article: PublishedArticle, info: ReplicaInfo) -> str | None:
        """Return the noted commit of the article's captured version, or None."""
        known = info.captured_commits.get(article.nickname, "")
        return known if known.startswith(f"{info.captured[article.nickname]}:") else None

    @cached_property
    def publications(self) -> list[PublicationRow]:
        """The rows of sysmergepublications, with the row filters that count."""
        rows = self.control.rows(catalog.PUBLICATIONS)
        if not any(has_next(row.filters) for row in rows):
            return rows
        versions = self.info().article_versions
        return [counted_filters(row, self._article_rows, versions) for row in rows]

    @cached_property
    def _article_rows(self) -> list[ArticleRow]:
        return self.control.rows(catalog.ARTICLES)

    def ended(self, pubid: str) -> set[int]:
        """Return the tablenicks of the articles of a publication that ended at this publisher."""
        return self._nicknames(pubid, ArticleState.ENDED)

    @property
    def all_ended(self) -> set[int]:
        """The tablenicks of all articles that ended at this publisher."""
        return {row.nickname for row in self._article_rows if row.status == ArticleState.ENDED}

    def ending(self, pubid: str) -> set[int]:
        """Return the tablenicks of the articles of a publication that end as soon as all have uploaded once more."""
        return self._nicknames(pubid, ArticleState.ENDING)

    def _nicknames(self, pubid: str, state: ArticleState) -> set[int]:
        return {row.nickname for row in self._article_rows if (row.pubid, row.status) == (pubid, state)}

    @cached_property
    def articles(self) -> list[PublishedArticle]:
        """The articles of all publications at this replica, by nickname.

        Raises: StoreError if a row of sysmergearticles contradicts sysmergepublications, or itself.
        """
        names = {row.pubid: row.name for row in self.publications}
        rows = [row for row in self._article_rows if row.status != ArticleState.ENDED]
        for row in rows:
            wrong = contradiction_of(row, names)
            if wrong is not None:
                path = self.control.path(catalog.ARTICLES.name)
                raise edited_table(path, f"has {wrong} for article '{row.name}'", article=row.name)
        versions = self.info().article_versions if any(row.fields is not None for row in rows) else {}
        found = (row.published(names[row.pubid], versions.get(row.nickname, FIRST_VERSION)) for row in rows)
        return sorted(found, key=lambda article: article.nickname)

    def article(self, tablenick: int) -> PublishedArticle:
        """Return one of `articles`."""
        return next(each for each in self.articles if each.nickname == tablenick)

    def articles_of(self, pubid: str) -> list[PublishedArticle]:
        """Return the articles of one publication."""
        return [article for article in self.articles if article.pubid == pubid]

    @property
    def published(self) -> list[PublicationRow]:
        """The publications that the replica publishes; it subscribes to the others that it knows."""
        replid = self.info().replid
        return [row for row in self.publications if row.is_published_by(replid)]

    def publishes(self, pubid: str) -> bool:
        """True if the replica is the publisher of a publication."""
        return any(row.pubid == pubid for row in self.published)

    def subscriptions(self) -> list[SubscriptionRow]:
        """Return the rows of sysmergesubscriptions as they are now.

        Raises: StoreError if the table is empty: a replica of a publication has at least the row about itself.
        """
        rows = self.control.rows(catalog.SUBSCRIPTIONS)
        if not rows and self.publications:
            raise no_subscriptions(self.root)
        return rows

    def relations(self, pubid: str | None = None) -> list[SubscriptionRow]:
        """Return the rows of sysmergesubscriptions about the other sides, including ended subscriptions.

        Raises: As `subscriptions`.
        """
        return relations(self.subscriptions(), pubid)

    def rows_of(self, pubid: str) -> list[SubscriptionRow]:
        """Return the replica's rows of sysmergesubscriptions in a publication, with the one about itself.

        Raises: StoreError if that one is missing.
        """
        rows = [row for row in self.subscriptions() if row.pubid == pubid]
        if not any(row.is_own for row in rows):
            raise edited_table(self.control.path(catalog.SUBSCRIPTIONS.name), "has no row about the replica")
        return rows

    def schema_changes(self) -> list[SchemaChangeRow]:
        """Return the schema changes that count.

        A publisher may have recorded one and refused its rows: its article has no such version.
        """
        versions = self.info().article_versions
        counted = {
            article.artid: versions.get(article.nickname, FIRST_VERSION)
            for article in self.articles
            if self.publishes(article.pubid)
        }
        return [
            row
            for row in self.control.rows(catalog.SCHEMACHANGE)
            if row.stated.get("article_version", 0) <= counted.get(row.artid or "", math.inf)
        ]

    def settled(self, pubid: str) -> int:
        """Return the version up to which the replica knows all changes of a publication."""
        return max((row.settled for row in self.rows_of(pubid) if row.is_own), default=0)

    def cleaned(self, tablenicks: Iterable[int]) -> int:
        """Return the last generation of these articles whose metadata was cleaned up."""
        cleaned = self.info().cleaned
        return max((cleaned.get(nickname, 0) for nickname in tablenicks), default=0)

    def sent_from_partition(self, pubid: str) -> int | None:
        """Return the last generation that the subscriber of a part of the rows has sent; None at any other replica."""
        if self.publishes(pubid):
            return None
        return next((row.sentgen for row in self.relations(pubid) if row.partition_id is not None), None)

    def relation(self, subid: str, replid: str) -> SubscriptionRow | None:
        """Return the row of a subscription about the replica with this id, or None.

        Raises: As `subscriptions`.
        """
        return next((row for row in self.relations() if (row.subid, row.replid) == (subid, replid)), None)

    def genhistory(self, *, from_generation_exclusive: int = 0) -> list[Generation]:
        """Return the generations after one, by number, as they are now.

        A run beyond the last committed one does not count: its capture or session never reached its commit point, and
        its changes are captured again.
        """
        rows = self._generations(Chosen({"generation": (from_generation_exclusive, None)}))
        latest = {row.guidsrc: row for row in sorted(rows, key=lambda row: row.seq)}
        return sorted(latest.values(), key=lambda row: row.generation)

    def held(self, guids: Collection[str]) -> set[str]:
        """Return those of these generations that the replica has."""
        if not guids:
            return set()
        among: str | Chosen = Chosen(among={"guidsrc": guids})
        if len(guids) > _NAMED_AT_MOST:
            among = f"guidsrc between {text_literal(min(guids))} and {text_literal(max(guids))}"
        return {row.guidsrc for row in self._generations(among)}.intersection(guids)

    def last_generation(self, pubid: str) -> Generation | None:
        """Return a publication's highest generation, or None."""
        last = self._generations(
            f"pubid = {text_literal(pubid)}", "order by generation desc, seq desc limit 1"
        )
        return last[0] if last else None

    def _generations(self, where: str | Chosen, order_limit: str = "") -> list[Generation]:
        # An edited row must be found, not skipped.
        needed, last_seq = ("generation", "guidsrc", "pubid", "seq"), self.info().last_seq
        if isinstance(where, Chosen):
            where = Chosen({**where.bounds, "seq": (None, last_seq)}, where.among, needed)
        else:
            edited = " or ".join(f"{name} is null" for name in needed)
            where = f"({where}) and seq <= {last_seq} or {edited}"
        return self.control.rows(genhistory.TABLE, where=where, order_limit=order_limit)

    def append_generations(self, rows: Iterable[Generation], *, seq: int) -> None:
        """Append a run of generations; it counts once `last_seq` reaches its number.

        A machine's clock that went back would make them older than the retention: none is older than the last stored time.
        """
        last, now = self.info().last_time, datetime.now(UTC)
        if last is not None and now < last:
            rows = [replace(row, coldate=max(row.coldate or last, last)) for row in rows]
        self.control.append(genhistory.TABLE, [replace(row, seq=seq) for row in rows])

    def close_generations(self, guids: Collection[str]) -> None:
        """Close these generations of this replica in place. It is not a run, so it counts at once."""
        values = {"genstatus": str(int(GenStatus.CLOSED))}
        self.control.update(genhistory.TABLE, values, where=f"guidsrc in ({text_literals(guids)})")

    def waiting_generations(self) -> list[Generation]:
        """Return the generations that wait here because another replica's table refuses their rows."""
        sent = {row.replid: row.sentgen for row in self.relations() if not row.is_ended}
        if not sent:
            return []
        rows = self.genhistory(from_generation_exclusive=min(sent.values()))
        return [
            row
            for row in rows
            if row.waits_for in sent and row.generation > sent[row.waits_for] and row.changecount
        ]

    def ask_again(self, guids: Collection[str]) -> None:
        """Let the next session send these waiting generations again. It is not a run, so it counts at once."""
        values = {"refused_by": f"concat({text_literal(ASKED_AGAIN)}, refused_by)"}
        chosen = (
            f"guidsrc in ({text_literals(guids)}) and refused_by not like {text_literal(ASKED_AGAIN + '%')}"
        )
        self.control.update(genhistory.TABLE, values, where=chosen)

    def forget_generations(self, tablenicks: Collection[int]) -> None:
        """Remove the open generations of these articles.

        Keep the closed ones, without changes: watermarks may name them.
        """
        theirs = f"art_nick in ({', '.join(map(str, tablenicks))})"
        self.control.delete(genhistory.TABLE, where=f"{theirs} and genstatus = {int(GenStatus.OPEN)}")
        self.control.update(genhistory.TABLE, {"changecount": "0"}, where=f"{theirs} and changecount > 0")

    def drop_uncounted_generations(self) -> None:
        """Remove runs that a crash left after the last committed one: `last_seq` is about to pass them."""
        after = self.info().last_seq
        if self.control.rows(genhistory.TABLE, where=Chosen({"seq": (after, None)})):
            self.control.delete(genhistory.TABLE, where=f"seq > {after}")

    def row_constraints(self, tablenick: int) -> str:
        """Return the row conditions of an article's table, for comparison; '' if they cannot be read."""
        article = self.article(tablenick)
        try:
            return row_constraints(open_table(self.table(article)), article)
        except StoreError:
            # A session that reads the table again reports the reason.
            return ""

    def table(self, article: PublishedArticle) -> Location:
        """The place of an article's table at this replica."""
        return self.root / article.table

    def publication(self, name: str | None = None, *, pubid: str | None = None) -> PublicationRow:
        """Return one row of sysmergepublications, by name or id; without either the only one.

        Raises: ConfigurationError naming the existing publications.
        """
        chosen = [
            row for row in self.publications if (name in (None, row.name)) and (pubid in (None, row.pubid))
        ]
        if len(chosen) == 1:
            return chosen[0]
        known = ", ".join(sorted(row.name for row in self.publications)) or "none"
        what = f"has no publication {name!r}" if name is not None else "holds several publications; name one"
        raise ConfigurationError(f"Replica '{self.root}' {what}. Known: {known}.", replica=str(self.root))
