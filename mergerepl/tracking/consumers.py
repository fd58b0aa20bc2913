"""Consumers: the readers of windows, their acknowledged positions, and the check that windows have no gaps."""

import base64
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from mergerepl.delta.sql_text import quoted, text_literal, timestamp_literal
from mergerepl.delta.tables import count_rows, head_version, read_rows, remove_unused
from mergerepl.failpoints import failpoint
from mergerepl.model.tracking import Anchors, CommittedTransaction, ConsumerState, Purged
from mergerepl.model.words import parse_duration
from mergerepl.spark.callers import methods_keep_callers_session
from mergerepl.systables.tracking import (
    COMMIT_SEQUENCE,
    COMMITS,
    CONSUMERS,
    DELETE_CSN,
    DELETED_ROWS,
    DELETED_TIME,
    TABLE_NAME,
)
from mergerepl.tracking import counters
from mergerepl.tracking.commit import catch_up
from mergerepl.tracking.counters import change_counters, read_counters
from mergerepl.tracking.database import (
    Database,
    Session,
    commit_before,
    commits_from,
    context_guid,
    last_commit,
    tracked_table,
    tracked_tables,
    unpacked,
    versions_of,
)
from mergerepl.tracking.errors import ConsumerBehindError, TrackingError
from mergerepl.tracking.foreign import require_known_columns
from mergerepl.tracking.sweep import sweep
from mergerepl.tracking.windows import Window, WindowState, require_fresh

log = logging.getLogger(__name__)

_AGAIN = (
    "Initialise it again: `reader = ct.consumer(name, start='now', again=True)`, then take "
    "`ct.read(table, csn=reader.state.lcsn - 1)` as its copy."
)
"""The order matters: a commit between a copy and a later position would reach no window."""

Enumeration = Literal["exact", "documented"]
Start = Literal["beginning", "now"]


def consumer_states(database: Database) -> list[ConsumerState]:
    """Return the registered consumers."""
    return database.control.rows(CONSUMERS)


def present_anchors(session: Session, *, lbsn: int, lcsn: int) -> tuple[Anchors, CommittedTransaction | None]:
    """Return the bounds of a window up to now, and its last transaction."""
    # EBSN first: later commits have higher BSNs.
    ebsn = counters.lowest_open_bsn(session.database.root)
    last = last_commit(session.database)
    return Anchors(lbsn, lcsn, ebsn, last.csn + 1 if last else 1), last


@methods_keep_callers_session
@dataclass
class Consumer:
    """A named reader of changes, or one that keeps its own token."""

    name: str
    _session: Session = field(repr=False)
    _token: ConsumerState | None = field(default=None, repr=False)

    @property
    def state(self) -> ConsumerState:
        """The position that the consumer has acknowledged."""
        if self._token is not None:
            return self._token
        found = next(
            (each for each in consumer_states(self._session.database) if each.name == self.name), None
        )
        if found is None:
            raise TrackingError.no_consumer(self.name)
        return found

    def enumerate(
        self,
        tables: Sequence[str] | None = None,
        exclude_context: str | None = None,
        *,
        enumeration: Enumeration = "exact",
    ) -> Window:
        """Return the window from the last acknowledged one up to now, over one consistent snapshot.

        Args:
            tables: Only these tables. Acknowledging moves the consumer for all: it passes over the changes of the others.
            exclude_context: Leave out rows that a transaction of this context changed last: the consumer's own changes.
            enumeration: `documented` runs the printed queries, which lose changes in some orders.

        Raises: ConsumerBehindError if a purge removed changes that the consumer has not seen; TrackingError if the
            database was restored from an older copy, or a table is not tracked; ForeignCommitError.
        """
        if enumeration not in ("exact", "documented"):
            raise TrackingError.reserved("enumeration (exact or documented)", enumeration)
        context = context_guid(exclude_context)
        session, database = self._session, self._session.database
        chosen = tracked_tables(database)
        if tables is not None:
            names = [tables] if isinstance(tables, str) else tables
            chosen = {name: tracked_table(database, name) for name in names}
        if catch_up(session, "tracking enumerate", chosen):
            known = tracked_tables(database)
            chosen = {name: known[name] for name in chosen}
        stands = self.state
        anchors, last = present_anchors(session, lbsn=stands.lbsn, lcsn=stands.lcsn)
        before = self._known(stands)
        if enumeration == "documented":
            log.warning("documented queries lose changes in some orders of commits: see docs/compact.md")
            # The consumer may be beyond the last transaction after exact windows: it does not go back.
            ebsn, ecsn = (last.bsn, last.csn) if last else (0, 0)
            anchors = Anchors(anchors.lbsn, anchors.lcsn, ebsn, max(ecsn, anchors.lcsn))
            last = commit_before(database, anchors.ecsn)
        initial = tuple(
            name
            for name, each in chosen.items()
            if each.enabled_csn is not None and anchors.lcsn <= each.enabled_csn
        )
        for name in sorted(chosen.keys() - {*initial}):
            require_known_columns(database, chosen[name], versions_of(before))
        inside = commits_from(database, from_csn_inclusive=anchors.lcsn, through_csn_exclusive=anchors.ecsn)
        state = WindowState(self.name, anchors, last.nonce if last else None, initial, enumeration)
        deleted_version = head_version(database.deleted_rows)
        # After reading all of it: a purge records its bounds before it removes rows.
        self._require_served(anchors.lcsn, chosen)
        return Window(state, session, chosen, before, last, inside, context, deleted_version)

    def acknowledge(
        self, window: Window | WindowState | Mapping[str, Any], *, fresh: Collection[str] = ()
    ) -> None:
        """Note that the consumer has a window, independently of any download; once noted, it is without effect.

        Args:
            window: The window, its `state`, or the result of its `state.to_json()`.
            fresh: The initial tables of the window that were copied whole.

        Raises: TrackingError, with nothing changed, if the window does not begin where the consumer stands, or an initial
            table is not named.
        """
        state = window.state if isinstance(window, Window) else window
        state = state if isinstance(state, WindowState) else WindowState.of_json(state)
        if self._token is not None or state.consumer != self.name:
            raise TrackingError.bad_window(
                self.name, f"the window {state.id} is not of a registered consumer of this name."
            )
        require_fresh(state, fresh)
        with self._session.held("tracking acknowledge"):
            stands, anchors = self.state, state.anchors
            if (stands.lcsn, stands.nonce) == (anchors.ecsn, state.nonce):
                return
            if stands.lcsn != anchors.lcsn:
                raise TrackingError.bad_window(
                    self.name,
                    f"the window {state.id} begins at CSN {anchors.lcsn}, and the consumer stands at {stands.lcsn}: "
                    "windows are acknowledged in order, each once.",
                )
            failpoint("tracking.before_acknowledge")
            now = datetime.now(UTC)
            moved = replace(stands, lbsn=anchors.ebsn, lcsn=anchors.ecsn, nonce=state.nonce, last_time=now)
            _store(self._session.database, moved)

    def received(self, anchor: bytes) -> None:
        """Store the other side's own anchor, unchanged."""
        with self._session.held("tracking acknowledge"):
            _store(self._session.database, replace(self.state, received_anchor=anchor))

    def _known(self, stands: ConsumerState) -> CommittedTransaction | None:
        """Return the last transaction that the consumer has, None before the first.

        Raises: TrackingError if the database has another one under its number; ConsumerBehindError if it was purged.
        """
        before = commit_before(self._session.database, stands.lcsn)
        if stands.nonce is not None and (before is None or before.nonce != stands.nonce):
            self._require_served(stands.lcsn, ())
            raise TrackingError(
                f"Consumer '{self.name}' has seen a transaction {(stands.lcsn - 1)} that this database does not "
                f"have: it was put back to an older copy. {_AGAIN}",
                consumer=self.name,
            )
        return before

    def _require_served(self, lcsn: int, tables: Collection[str]) -> None:
        marks = counters.read_counters(self._session.database.root).purged_through
        for name in (*tables, COMMIT_SEQUENCE.name):
            if lcsn < marks.get(name, 0):
                what = f"table '{name}'" if name in tables else "the commit sequence"
                raise ConsumerBehindError(
                    f"Consumer '{self.name}' stands at CSN {lcsn}; rows of {what} that it needs were purged up to "
                    f"CSN {marks[name]}. {_AGAIN}",
                    consumer=self.name,
                    lcsn=lcsn,
                )


def register(session: Session, name: str, *, start: Start, again: bool) -> Consumer:
    """Return a named consumer, registered if it is not yet; `again` puts a known one to `start`."""
    if start not in ("beginning", "now"):
        raise TrackingError.reserved("start (beginning or now)", start)
    if not name or ":" in name:
        raise TrackingError.reserved("name of a consumer (some letters, no colon)", name)
    consumer = Consumer(name, session)
    database = session.database
    if not again and any(each.name == name for each in consumer_states(database)):
        return consumer
    with session.held("tracking consumer"):
        # Another process may have registered it while this one waited.
        if not again and any(each.name == name for each in consumer_states(database)):
            return consumer
        state = ConsumerState(name)
        if start == "now":
            anchors, last = present_anchors(session, lbsn=0, lcsn=0)
            state = replace(state, lbsn=anchors.ebsn, lcsn=anchors.ecsn, nonce=last.nonce if last else None)
        _store(database, state)
    return consumer


def forget(session: Session, name: str) -> None:
    """Remove a named consumer."""
    with session.held("tracking consumer"):
        if all(each.name != name for each in consumer_states(session.database)):
            raise TrackingError.no_consumer(name)
        session.database.control.remove_where(CONSUMERS, name=name)


def _store(database: Database, state: ConsumerState) -> None:
    database.control.replace_where(CONSUMERS, [state], name=state.name)


def of_token(session: Session, token: str) -> Consumer:
    """Return a consumer at the position of a window's token. Raises: TrackingError if it is not a token."""
    try:
        stated = json.loads(base64.urlsafe_b64decode(token.encode()))
        known = ConsumerState("token", int(stated["lbsn"]), int(stated["lcsn"]), stated["nonce"])
    except (ValueError, KeyError, TypeError) as error:
        raise TrackingError.bad_window("?", f"{token[:40]!r} is no token of a window.") from error
    return Consumer("token", session, known)


def purge(
    session: Session, name: str | None, *, older_than: timedelta | str | None, to: int | None, dry_run: bool
) -> Purged:
    """Remove tombstones of a table; without one, rows of the commit sequence.

    Raises: TrackingError, with nothing removed, if the table is not tracked or an argument is wrong.
    """
    cutoff = _cutoff(older_than, to)
    below = 0 if to is None else to + 1
    with session.held("tracking purge"):
        sweep(session)
        if name is None:
            done = _purge_sequence(session.database, cutoff, below, dry_run=dry_run)
        else:
            done = _purge_tombstones(session.database, name, cutoff, below, dry_run=dry_run)
        if not dry_run:
            remove_unused(session.database.control.folder)
        return done


def _purge_tombstones(
    database: Database, name: str, cutoff: datetime | None, below: int, *, dry_run: bool
) -> Purged:
    tracked_table(database, name)
    bound, path = _bound(database), database.deleted_rows
    chosen = f"{quoted(TABLE_NAME)} = {text_literal(name)} and "
    if cutoff is None:
        chosen += f"{quoted(DELETE_CSN)} < {below}"
    else:
        chosen += f"{quoted(DELETED_TIME)} < {timestamp_literal(cutoff)}"
    free = chosen if bound is None else f"{chosen} and {quoted(DELETE_CSN)} < {bound}"
    removed, wanted = count_rows(path, where=free), count_rows(path, where=chosen)
    if removed and not dry_run:
        newest = f"order by {quoted(DELETE_CSN)} desc limit 1"
        (highest,) = read_rows(path, [DELETE_CSN], where=free, order_limit=newest)
        _note(database, name, int(highest[DELETE_CSN]) + 1)
        failpoint("tracking.after_purge_mark")
        database.control.delete(DELETED_ROWS, where=free)
    return Purged(name, removed, wanted - removed, bound, dry_run)


def _purge_sequence(database: Database, cutoff: datetime | None, below: int, *, dry_run: bool) -> Purged:
    """Remove rows of the commit sequence, and rows of `tracking_commits` that all windows have passed."""
    bound = _bound(database)
    rows = database.control.rows(COMMIT_SEQUENCE)
    wanted = [
        row for row in rows if (unpacked(row.csn) < below if cutoff is None else row.commit_time < cutoff)
    ]
    gone = [row for row in wanted if bound is None or max(unpacked(row.bsn), unpacked(row.csn)) < bound]
    if not dry_run:
        kept = [row for row in rows if row not in gone]
        _purge_commits(database, bound, cutoff, below)
        if gone:
            highest = max(max(unpacked(row.bsn), unpacked(row.csn)) for row in gone)
            _note(database, COMMIT_SEQUENCE.name, highest + 1)
            failpoint("tracking.after_purge_mark")
            database.control.replace(COMMIT_SEQUENCE, kept)
    return Purged(COMMIT_SEQUENCE.name, len(gone), len(wanted) - len(gone), bound, dry_run)


def _purge_commits(database: Database, bound: int | None, cutoff: datetime | None, to_csn: int) -> None:
    """Remove published transactions below the last one that a consumer, or an application's own anchors, begin at."""
    last = read_counters(database.root).last_csn + 1
    below = min(last if bound is None else bound, last if cutoff is not None else to_csn)
    first = commit_before(database, below)
    if first is None:
        return
    chosen = f"csn < {first.csn}"
    if cutoff is not None:
        chosen += f" and commit_time < {timestamp_literal(cutoff)}"
    newest = database.control.rows(COMMITS, where=chosen, order_limit="order by csn desc limit 1")
    if newest:
        # A window that begins right after the newest removed transaction has lost its first snapshot.
        _note(database, COMMIT_SEQUENCE.name, newest[0].csn + 2)
        database.control.delete(COMMITS, where=chosen)


def _cutoff(older_than: timedelta | str | None, to: int | None) -> datetime | None:
    """Return the time before which rows go, None where they go by CSN. Raises: TrackingError."""
    if (older_than is None) == (to is None):
        raise TrackingError.reserved("range of a purge (either `older_than` or `to`)", (older_than, to))
    if older_than is None:
        if to is not None and to < -1:
            raise TrackingError.reserved("CSN of a purge", to)
        return None
    age = parse_duration(older_than) if isinstance(older_than, str) else older_than
    try:
        if age is None or age < timedelta():
            raise ValueError
        return datetime.now(UTC) - age
    except (OverflowError, ValueError) as error:
        raise TrackingError.reserved("age of a purge (such as '90 days')", older_than) from error


def _bound(database: Database) -> int | None:
    return min((each.lcsn for each in consumer_states(database)), default=None)


def _note(database: Database, what: str, lowest_lcsn: int) -> None:
    """Note the lowest LCSN that is still served exactly, before anything is removed."""
    change_counters(
        database.root,
        lambda each: replace(
            each,
            purged_through={**each.purged_through, what: max(lowest_lcsn, each.purged_through.get(what, 0))},
        ),
    )
