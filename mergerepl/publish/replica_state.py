"""The state of a replica's control plane before `apply` changes anything, and the checks of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergerepl.delta.tables import commit_text, is_delta_table
from mergerepl.errors import PublicationError, StoreError
from mergerepl.replica.control import ControlPlane
from mergerepl.replica.replica import Replica, require_schema_version
from mergerepl.store.folders import same_place
from mergerepl.store.notes import has_staged_session
from mergerepl.systables import catalog, registry, replinfo
from mergerepl.systables.catalog import ArticleRow, PublicationRow, SubscriptionRow, relations
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import FOLDER, TypedTable

if TYPE_CHECKING:
    from mergerepl.store.changeset import Changeset


@dataclass(frozen=True)
class ReplicaState:
    """One replica root and the rows of its publications; without `info` it is no replica yet.

    `sessions` are interrupted sessions; they are staged at publishers.
    """

    root: Path
    info: ReplicaInfo | None = None
    publications: list[PublicationRow] = field(default_factory=list)
    articles: list[ArticleRow] = field(default_factory=list)
    subscriptions: list[SubscriptionRow] = field(default_factory=list)
    sessions: tuple["Changeset", ...] = ()

    @cached_property
    def control(self) -> ControlPlane:
        """The control plane of the replica."""
        return Replica(self.root).control

    @property
    def repid(self) -> str:
        """The identity of the replica, empty where there is none yet."""
        return self.info.repid if self.info else ""

    @property
    def captured(self) -> Mapping[int, int]:
        """Article nickname to captured version."""
        return self.info.captured if self.info else {}

    def publication(self, name: str) -> PublicationRow | None:
        """Return the row of a publication."""
        return next((row for row in self.publications if row.name == name), None)

    def articles_of(self, pubid: str) -> list[ArticleRow]:
        """Return the article rows of a publication."""
        return [row for row in self.articles if row.pubid == pubid]

    def is_active(self, subid: str) -> bool:
        """Return whether a subscription is active here."""
        return any(row.subid == subid and row.is_active for row in self.subscriptions)

    def others_of(self, pubid: str) -> list[SubscriptionRow]:
        """Return the subscription rows of a publication about the other side, if not deleted."""
        return [row for row in relations(self.subscriptions, pubid) if not row.is_ended]

    def ended_of(self, pubid: str) -> list[SubscriptionRow]:
        """Return the deleted subscription rows of a publication about the other side."""
        return [row for row in relations(self.subscriptions, pubid) if row.is_ended]


def read_replica(root: Path) -> ReplicaState:
    """Return the replica at `root`.

    Raises: PublicationError if system tables are missing or of another version of mergerepl; StoreError if
        one cannot be read.
    """
    control = Replica(root).control
    if not control.exists(replinfo.TABLE):
        _refuse_orphans(root)
        return ReplicaState(root)
    missing = [table.name for table in registry.ALL if not is_delta_table(control.path(table.name))]
    if missing:
        raise PublicationError(
            f"Replica '{root}' has lost its system tables {', '.join(missing)}. Restore the folder "
            f"'{root / FOLDER}' from a copy taken together with the tables, or initialise the replica again: "
            f"remove '{root / FOLDER}', take the subscription out of the file, run `mergerepl apply`, and "
            "put it in again.",
            replica=str(root),
            table=missing[0],
        )
    require_schema_version(root, _info(root, control).schema_version)
    publications, articles = control.rows(catalog.PUBLICATIONS), control.rows(catalog.ARTICLES)
    subscriptions = control.rows(catalog.SUBSCRIPTIONS)
    sessions = _staged_sessions(root)
    # Last, as no lease is held: a session writes it before the watermarks, and must not seem to have been put back.
    return ReplicaState(root, _info(root, control), publications, articles, subscriptions, sessions)


def _staged_sessions(root: Path) -> tuple["Changeset", ...]:
    """Return the sessions staged at a publisher, by name; one without a manifest does not count.

    Recovery needs the rows of the subscription and of its articles: the session is finished before they are removed.

    Raises: StoreError if a manifest is damaged.
    """
    if not has_staged_session(root):
        return ()
    from mergerepl.store.changeset import staged_changesets

    return tuple(staged_changesets(Replica(root).staging))


def _info(root: Path, control: ControlPlane) -> ReplicaInfo:
    rows = control.rows(replinfo.TABLE)
    if len(rows) != 1:
        raise PublicationError(
            f"Replica '{root}' does not know who it is: {replinfo.NAME} has {len(rows)} rows instead of one. "
            f"Restore the folder '{root / FOLDER}' from a copy.",
            replica=str(root),
        )
    return rows[0]


def _refuse_orphans(root: Path) -> None:
    """Refuse system tables that have rows but no MSmerge_replinfo, which identifies the replica.

    MSmerge_replinfo is made last: if a first `apply` was cut short, all the others are still empty.
    """
    control = Replica(root).control
    tables: tuple[TypedTable[Any], ...] = (catalog.ARTICLES, catalog.SUBSCRIPTIONS, catalog.PUBLICATIONS)
    for table in tables:
        if control.exists(table) and control.rows(table):
            raise PublicationError(
                f"Replica '{root}' has lost its system table {replinfo.NAME}. Restore the folder "
                f"'{root / FOLDER}' from a copy.",
                replica=str(root),
                table=replinfo.NAME,
            )


def where_it_was(replica: ReplicaState) -> Path | None:
    """Return the folder a replica was moved from, or None if it is where it was.

    Raises: PublicationError if it is still there too: one of the two is a copy, and changes made in both
        under one identity would overwrite each other unnoticed.
    """
    if replica.info is None:
        return None
    before = Path(replica.info.root)
    if same_place(before, replica.root):
        return None
    if _repid_at(before) == replica.repid:
        raise PublicationError(
            f"'{replica.root}' is a copy of the replica at '{before}' (both are {replica.repid}); a replica "
            "may exist only once. Use the original, or make the copy an independent table folder by "
            f"removing '{replica.root / FOLDER}', or remove the original if the copy is to take its place.",
            replica=str(replica.root),
            original=str(before),
        )
    return before


def _repid_at(root: Path) -> str | None:
    control = Replica(root).control
    try:
        rows = control.rows(replinfo.TABLE) if control.exists(replinfo.TABLE) else []
    except (StoreError, OSError):
        return None
    return rows[0].repid if rows else None


def change_info(replica: Path, /, **values: Any) -> None:
    """Change columns of MSmerge_replinfo, in one commit; maps (`captured`) are added to, not replaced."""
    control = Replica(replica).control
    (info,) = control.rows(replinfo.TABLE)
    added = {n: {**getattr(info, n), **value} for n, value in values.items() if isinstance(value, dict)}
    control.replace(replinfo.TABLE, [replace(info, **{**values, **added})])


def note_captured(replica: Path, /, tables: Mapping[int, tuple[Path, int, str]]) -> None:
    """Note tables as captured, in one commit: nickname -> the table, its version and its Delta table id.

    The version's commit is noted too, so that another table in this place is detected at once.
    """
    commits = {nickname: commit_text(table, version) for nickname, (table, version, _) in tables.items()}
    change_info(
        replica,
        captured={nickname: version for nickname, (_, version, _) in tables.items()},
        table_ids={nickname: table_id for nickname, (_, _, table_id) in tables.items()},
        captured_commits={nickname: text for nickname, text in commits.items() if text is not None},
    )
