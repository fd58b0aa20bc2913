"""The distribution store of a publisher, and the position of a subscriber, as values. Without Spark."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from mergerepl import roots
from mergerepl.delta.tables import Chosen, is_delta_table, open_table, transaction_version
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import control_of
from mergerepl.replica.control import ControlDatabase, ControlPlane
from mergerepl.roots import uses
from mergerepl.store.lease import DISTRIBUTION_LOCK, lease
from mergerepl.store.location import Location
from mergerepl.systables.transactional import (
    APP_ID,
    ARTICLES,
    AT_DISTRIBUTOR,
    FOLDER,
    NEWEST_TRANSACTION,
    OLDEST_TRANSACTION,
    POSITIONS,
    PUBLICATIONS,
    QUEUE,
    SCHEMA_VERSION,
    SUBSCRIPTIONS,
    TRANSACTIONS,
    WRITE_WAIT_S,
    PositionRow,
    PublicationRow,
    QueueRow,
    SubscriptionRow,
    TransactionRow,
    commands_table,
    conflicts_table,
)
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.refusals import TransactionalUsageError

_HIGHEST = b"\xff" * 10
Root = str | os.PathLike[str]


@dataclass(frozen=True)
class DistributionStore(ControlDatabase):
    """The distribution store in a folder of Delta tables that publishes, or shall publish, transactionally."""

    folder = FOLDER
    tables = AT_DISTRIBUTOR

    @cached_property
    def log(self) -> ControlPlane:
        """The tables of the log reader."""
        return control_of(self.root)

    def require(self) -> None:
        """Check that there is a distribution store, and that this version of mergerepl wrote it.

        Raises: TransactionalUsageError.
        """
        if not self.is_there:
            raise TransactionalUsageError(
                f"'{self.root}' publishes nothing transactionally: there is no table "
                "'_transactional/MSpublications'. Name the publisher, or run `mergerepl apply` with `type: "
                f"transactional`.{uses(self.root, but='_transactional/MSpub')}",
                root=str(self.root),
            )
        for row in self.control.rows(PUBLICATIONS):
            if row.schema_version != SCHEMA_VERSION:
                raise TransactionalUsageError.later(
                    f"The distribution store of '{self.root}' with the schema version {row.schema_version}",
                    "Use the mergerepl that wrote it, or remove '_transactional' and run `mergerepl apply` again.",
                )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the distribution store for one write.

        Raises: LeaseError if another process holds it for a minute.
        """
        with lease(self.root, purpose="write to _transactional", wait_s=WRITE_WAIT_S, file=DISTRIBUTION_LOCK):
            yield

    def publications(self) -> list[PublicationRow]:
        """Return the publications; empty without a distribution store."""
        return self.control.rows(PUBLICATIONS) if self.is_there else []

    def publication(self, name: str) -> PublicationRow | None:
        """Return a publication by its name."""
        return next((row for row in self.publications() if row.publication == name), None)

    def publication_of(self, publication_id: int) -> PublicationRow:
        """Return a publication by its number."""
        return next(row for row in self.publications() if row.publication_id == publication_id)

    def articles(self, publication_id: int | None = None) -> list[Shape]:
        """Return the articles in their newest shape, by number."""
        newest: dict[int, Shape] = {}
        for row in sorted(self.shapes(), key=lambda row: (row.article_id, row.schema_version)):
            if publication_id in (None, row.publication_id):
                newest[row.article_id] = row
        return list(newest.values())

    def articles_named(self, name: str | None) -> list[Shape]:
        """Return the articles of a name (None: all).

        Raises: TransactionalUsageError if no article has it.
        """
        rows = self.articles()
        chosen = [row for row in rows if name in (None, row.article)]
        if not chosen:
            known = ", ".join(row.article for row in rows) or "none"
            raise TransactionalUsageError(f"There is no article '{name}'. The articles are: {known}.")
        return chosen

    def shapes(self) -> list[Shape]:
        """Return the articles in all shapes that they have had."""
        return [Shape(**vars(row)) for row in self.control.rows(ARTICLES)] if self.is_there else []

    def shapes_with_commands(self, table: str | None) -> list[Shape]:
        """Return the shapes of an article, or of all, that have a table of commands.

        Raises: TransactionalUsageError if there is no such article.
        """
        wanted = {row.article_id for row in self.articles_named(table)}
        return [
            each
            for each in self.shapes()
            if each.article_id in wanted and is_delta_table(self.commands_table(each))
        ]

    def shape_at(self, article_id: int, seqno: bytes) -> Shape:
        """Return an article as it was at an LSN."""
        rows = (row for row in self.shapes() if row.article_id == article_id and row.first_seqno <= seqno)
        return max(rows, key=lambda row: row.schema_version)

    def changed_at(self, after: Shape) -> tuple[Shape, Shape, set[str]]:
        """Return the shape before the changes of columns that have a shape's LSN, that shape as one change, former columns.

        The last are names of columns that any earlier shape of the article had.
        """
        mine = [row for row in self.shapes() if row.article_id == after.article_id]
        shapes = {row.schema_version: row for row in mine if row.schema_version <= after.schema_version}
        version, former = after.schema_version, after.former
        # A gap of the feed is one transaction, whatever happened to columns in it.
        while version > 2 and shapes[version - 1].first_seqno == after.first_seqno:
            version -= 1
            earlier = dict(zip(shapes[version].columns, shapes[version].former, strict=True))
            former = tuple(earlier.get(name, "") for name in former)
        known = {name for row in shapes.values() if row.schema_version < version for name in row.columns}
        return shapes[version - 1], replace(after, former=former), known

    def subscriptions(self, publication_id: int | None = None) -> list[SubscriptionRow]:
        """Return the subscriptions, by agent_id."""
        rows = self.control.rows(SUBSCRIPTIONS) if self.is_there else []
        wanted = (row for row in rows if publication_id in (None, row.publication_id))
        return sorted(wanted, key=lambda row: row.agent_id)

    def subscription(self, guid: str) -> SubscriptionRow | None:
        """Return a subscription as it is now, None if it is gone."""
        return next((row for row in self.subscriptions() if row.subscription_guid == guid), None)

    def add_subscription(self, row: SubscriptionRow) -> None:
        """Add the row of a subscription."""
        with self.writing():
            self.control.edit(SUBSCRIPTIONS, lambda known: [*known, row])

    def change_subscription(self, guid: str, **values: Any) -> None:
        """Set some columns of a subscription's row; the others keep values that another process may have written."""
        with self.writing():
            self.control.change_where(SUBSCRIPTIONS, values, subscription_guid=guid)

    def bounds(self, from_: str | datetime | None, to: str | datetime | None) -> tuple[bytes, bytes]:
        """Return the first and the last LSN of a range whose ends are LSNs as text, or times of commits (None: no bound).

        Raises: TransactionalUsageError if a text is no LSN.
        """
        rows = self.control.rows(TRANSACTIONS) if datetime in map(type, (from_, to)) else []
        low, high = bytes(10), _HIGHEST
        if isinstance(from_, datetime):
            low = min((row.xact_seqno for row in rows if row.commit_time >= from_), default=_HIGHEST)
        elif from_ is not None:
            low = seqno_of(from_)
        if isinstance(to, datetime):
            high = max((row.xact_seqno for row in rows if row.commit_time <= to), default=bytes(10))
        elif to is not None:
            high = seqno_of(to)
        return low, high

    def subscriber(self, row: SubscriptionRow) -> "SubscriberStore":
        """Return the store of a subscription's subscriber; unchanged tables of it are read once."""
        return self._subscribers.setdefault(row.subscriber, SubscriberStore(Location.of(row.subscriber)))

    @cached_property
    def _subscribers(self) -> dict[str, "SubscriberStore"]:
        return {}

    def commands_table(self, row: Shape) -> Location:
        """Return the table of an article's commands in this shape."""
        return self.control.path(commands_table(row.article_id, row.schema_version))

    def conflicts_table(self, row: Shape) -> Location:
        """Return the table of an article's losers in this shape."""
        return self.control.path(conflicts_table(row.article_id, row.first_seqno))

    @property
    def gate_cycle(self) -> int:
        """The scan cycle that readers may see; -1 before the first one."""
        return transaction_version(self.control.path(TRANSACTIONS.name), APP_ID)

    @property
    def present(self) -> datetime:
        """The later of this machine's time and the newest transaction's, from which ages count (decisions/0165)."""
        newest = self.ends()[1:] if self.is_there else ()
        return max([datetime.now(UTC), *(row.commit_time for row in newest)])

    def ends(self) -> tuple[TransactionRow, ...]:
        """Return the oldest and the newest transaction; neither before the first one. Reads the files of these alone."""
        files = open_table(self.control.path(TRANSACTIONS.name)).files()
        cycles = [files[name].to_pylist() for name in files.column_names if name.endswith(".scan_cycle")]
        known = sorted(each for ends in cycles for each in ends if each is not None)
        is_stated = len(known) == 2 * files.num_rows > 0
        bounds = ((None, known[0]), (known[-1] - 1, None)) if is_stated else ((None, None), (None, None))
        found = [
            self.control.rows(TRANSACTIONS, where=Chosen({"scan_cycle": each}), order_limit=order)
            for each, order in zip(bounds, (OLDEST_TRANSACTION, NEWEST_TRANSACTION), strict=True)
        ]
        return tuple(row for rows in found for row in rows)

    def transactions_after(self, seqno: bytes) -> list[TransactionRow]:
        """Return the transactions after a position, by LSN."""
        cycle = Lsn(seqno).scan_cycle
        rows = self.control.rows(TRANSACTIONS, where=Chosen({"scan_cycle": (cycle - 1, None)}))
        return sorted((row for row in rows if row.xact_seqno > seqno), key=lambda row: row.xact_seqno)

    def meant_for(self, publication_id: int, rows: Iterable[TransactionRow]) -> list[TransactionRow]:
        """Return the transactions that have commands of a publication, or change the columns of one of its articles."""
        shapes = [row for row in self.shapes() if row.publication_id == publication_id]
        mine = {row.article_id for row in shapes}
        changes = {row.first_seqno for row in shapes if row.schema_version > 1}
        return [row for row in rows if row.xact_seqno in changes or mine & set(row.commands)]


@dataclass(frozen=True)
class SubscriberStore(ControlDatabase):
    """The position of a subscriber."""

    folder = FOLDER
    tables = (POSITIONS,)

    def positions(self) -> list[PositionRow]:
        """Return the positions of all subscriptions; empty without a table."""
        return self.control.rows_if_any(POSITIONS)

    def position(self, guid: str) -> PositionRow | None:
        """Return the position of a subscription, None before its snapshot is done."""
        return next((row for row in self.positions() if row.subscription_guid == guid), None)

    def save(self, row: PositionRow) -> None:
        """Replace the position of a subscription, or add it."""
        others = [each for each in self.positions() if each.subscription_guid != row.subscription_guid]
        self.control.replace(POSITIONS, [*others, row])

    def remove(self, guid: str) -> None:
        """Remove the positions of a subscription."""
        for table in (POSITIONS, QUEUE):
            if self.control.exists(table):
                self.control.remove_where(table, subscription_guid=guid)

    def queue(self, guid: str) -> dict[int, QueueRow]:
        """Return how far the edits of a subscription's tables were sent, by article_id."""
        rows = self.control.rows_if_any(QUEUE)
        return {row.article_id: row for row in rows if row.subscription_guid == guid}

    def save_queue(self, *rows: QueueRow) -> None:
        """Replace the positions of the queues of some articles, or add them, in one commit."""
        new = {(row.subscription_guid, row.article_id) for row in rows}
        known = self.control.rows_if_any(QUEUE)
        others = [row for row in known if (row.subscription_guid, row.article_id) not in new]
        self.control.replace(QUEUE, [*others, *rows])

    def table(self, subscription: SubscriptionRow, article: Shape) -> Location:
        """Return the table of an article here."""
        return self.root / subscription.destination.get(article.article, article.destination_object)


def seqno_of(text: str) -> bytes:
    """Return the bytes of an LSN.

    Raises: TransactionalUsageError if it is none.
    """
    try:
        return bytes(Lsn.parse(text))
    except ValueError as error:
        raise TransactionalUsageError(f"{error}. Nothing was changed.") from error


def folder_of(root: Root) -> Location:
    """Return the place of a root.

    Raises: ConfigurationError if the folder does not exist.
    """
    return Location.of(roots.existing(_text(root), may_be_stored=True))


def _text(root: Root) -> str:
    return str(root) if isinstance(root, Location) else os.fspath(root)


def distributor_at(root: Root) -> DistributionStore:
    """Return the distribution store in a folder.

    Raises: ConfigurationError if the folder does not exist.
    """
    return DistributionStore(folder_of(root))


def required(root: Root) -> DistributionStore:
    """Return the distribution store of a publisher.

    Raises: TransactionalUsageError if nothing is published there.
    """
    distributor = distributor_at(root)
    distributor.require()
    return distributor


def subscriptions_of(
    distributor: DistributionStore, *, subscriber: Root | None = None, publication: str | None = None
) -> list[tuple[str, SubscriptionRow]]:
    """Return publications' names with their subscriptions. `subscriber` is a folder, or its last part.

    Raises: TransactionalUsageError if a named publication or subscriber does not exist, or several have the name.
    """
    names = {row.publication_id: row.publication for row in distributor.publications()}
    wanted = None if subscriber is None else roots.parse(_text(subscriber), may_be_stored=True)
    rows = distributor.subscriptions()
    called = {row.subscriber for row in rows if Location.of(row.subscriber).name == str(subscriber)}
    if called and wanted not in {row.subscriber for row in rows}:
        if len(called) > 1:
            raise TransactionalUsageError(
                f"'{distributor.root}' has several subscribers called '{subscriber}': {', '.join(sorted(called))}. Nothing "
                "was changed. Name the folder."
            )
        (wanted,) = called
    found = [
        (names[row.publication_id], row)
        for row in rows
        if wanted in (None, row.subscriber) and publication in (None, names[row.publication_id])
    ]
    if not found and (subscriber is not None or publication is not None):
        known = ", ".join(row.subscriber for row in rows) or "none"
        raise TransactionalUsageError(
            f"'{distributor.root}' has no subscription of {publication or 'a publication'} for "
            f"{wanted or 'anybody'}. Subscribers known: {known}. Name one of them, or add it to the file and run "
            "`mergerepl apply`."
        )
    return found
