"""The form for people. rich is loaded only to draw on a terminal: nothing to do is one plain line."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mergerepl.errors import MergeReplError
from mergerepl.model.results import (
    ApplyResult,
    ArticleValidation,
    CaptureResult,
    ConflictRecord,
    PendingSubscription,
    PhaseCounts,
    ReplicaStatus,
    RowInfo,
    SessionRecord,
    SessionResult,
    SyncResult,
)
from mergerepl.report.conflict_names import conflict_name
from mergerepl.report.output import Output
from mergerepl.report.table import Table, printable

if TYPE_CHECKING:
    from mergerepl.doctor import Check

_CLASHES, _DIFFERS = "*", "~"
_NO_CONFLICTS = "{}: no conflicts to show. They are logged at the publisher, unless `conflict_logging` in the file says otherwise."
_COUNTS = (">inserts", ">updates", ">deletes", ">conflicts")


class TextOutput(Output):
    """Writes tables and sentences."""

    def applied(self, result: ApplyResult) -> None:
        """List the steps."""
        if not result.steps:
            self._say(f"Publication {result.publication}: the replicas match the file, nothing to do.")
            return
        table = Table(("action", "object", "detail"))
        for step in result.steps:
            table.add(step.action, step.object, step.detail)
        self._table(table)
        count = _count(len(result.steps), "step")
        if result.dry_run:
            self._say(f"Publication {result.publication}: {count} to do; nothing was changed (--dry-run).")
        else:
            self._say(f"Publication {result.publication}: {count} done in {_seconds(result.duration_s)}.")

    def synced(self, result: SyncResult) -> None:
        """Show what travelled, by subscriber and direction; then how each session ended, conflicts to come, validation."""
        moved = [
            session for session in result.sessions if _counts(session).total or _counts(session).conflicts
        ]
        if moved:
            self._table(_sync_table(moved))
        for session in result.sessions:
            self._say(_session_line(session, in_full=session not in moved))
            self._previews(session)
            if session.validation is not None:
                self._validation(session.subscriber, session.validation)

    def synced_round(self, result: SyncResult, *, time: str) -> None:
        """Write the round on one line."""
        sessions = "; ".join(
            _session_line(session, in_full=True).rstrip(".")
            + (f": {session.reason.rstrip('.')}" if session.is_failed else "")
            for session in result.sessions
        )
        different = [
            f"{article.article} is not at the {article.missing_at}"
            if article.missing_at is not None
            else f"{article.article} differs in {_count(article.differing_rows, 'row')}"
            for session in result.sessions
            for article in session.validation or ()
            if not article.ok
        ]
        self._say("; ".join([f"{time}  {sessions}", *different]))

    def round_failed(self, error: MergeReplError, *, time: str) -> None:
        """Write the error on one line, on standard error."""
        sys.stderr.write(printable(f"{time}  {error.message} Trying again.") + "\n")
        sys.stderr.flush()

    def captured(self, result: CaptureResult) -> None:
        """Show the counts by article."""
        table = Table(("article", *_COUNTS[:3], "versions"), title=f"Captured at {printable(result.replica)}")
        for article in result.articles:
            first, last = article.from_version_exclusive + 1, article.through_version_inclusive
            versions = f"{first} to {last}" if first <= last else "none new"
            table.add(article.article, article.inserts, article.updates, article.deletes, versions)
        self._table(table)

    def status(self, status: ReplicaStatus) -> None:
        """Show who the replica is, its articles and how far each subscription is."""
        self._say(f"{status.role} {status.replica}  (replid {status.replid}, nickname {status.nickname})")
        if status.articles:
            self._table(_articles(status))
            triggers = Table(("article", "insert trigger", "update trigger", "delete trigger"))
            for article in status.articles:
                triggers.add(article.article, *article.triggers)
            self._table(triggers)
        if status.subscriptions:
            self._table(_subscriptions(status))
        self._say(
            f"{_count(status.conflicts, 'conflict')} logged."
            + (
                f" List them with `mergerepl conflicts list {_typed(status.replica)}`."
                * bool(status.conflicts)
            )
        )
        for problem in status.problems:
            self._say(f"Problem: {problem}")
        for session in status.open_sessions:
            self._say(f"Session {session} was interrupted: the next sync finishes it before anything else.")

    def pending(self, replica: str, subscriptions: Sequence[PendingSubscription]) -> None:
        """Show what waits, by subscription, article and direction."""
        table = _waiting(subscriptions)
        if table.rows:
            self._table(table)
            self._say(
                "`not captured` counts commits to the table that the next sync or `mergerepl capture` reads."
            )
        # Several subscriptions tell the same table.
        told = [
            problem
            for each in subscriptions
            for problem in (each.problem, *(a.problem for a in each.articles))
        ]
        problems = list(filter(None, dict.fromkeys(told)))
        for problem in problems:
            self._say(f"Problem: {problem}")
        if not table.rows and not problems:
            self._say(f"{replica}: nothing is pending.")

    def history(
        self, replica: str, sessions: Sequence[SessionRecord], *, subscriber: str | None = None
    ) -> None:
        """Show past sessions, newest first; of all subscribers or of one."""
        if not sessions:
            whose = f" of subscriber {subscriber}" if subscriber is not None else ""
            self._say(f"{replica}: no session{whose} has run yet.")
            return
        self._table(_sessions(sessions))
        for each in sessions:
            for message in each.messages:
                self._say(f"{_time(each.start_time)} {_short(each.subscriber)}: {message}")

    def conflict_list(self, replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> None:
        """Show one conflict on a line."""
        if not conflicts:
            self._say(_NO_CONFLICTS.format(replica))
            return
        table = Table(("id", "article", "key", ">type", "meaning", "winner", "time"))
        for each in conflicts:
            table.add(
                each.conflict_id,
                each.article,
                _key(each.key),
                each.conflict_type,
                conflict_name(each.conflict_type),
                _short(each.winner),
                _time(each.created),
            )
        self._table(table)
        newest = f"{_typed(replica)} {conflicts[0].conflict_id}"
        self._say(
            f"{_count(total, 'conflict')}. See the rows of one with `mergerepl conflicts show {newest}`."
        )
        self._older(len(conflicts), total)

    def conflict_rows(self, replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> None:
        """Show the losing row beside the winning row, columns in conflict marked with `*`, others that differ with `~`."""
        if not conflicts:
            self._say(_NO_CONFLICTS.format(replica))
        for each in conflicts:
            self._say(f"Conflict {each.conflict_id}: {each.article} {_key(each.key)}")
            name = conflict_name(each.conflict_type)
            self._say(f"  {name} (type {each.conflict_type}, reason {each.reason_code})")
            self._say(f"  {each.reason_text}")
            self._say(
                f"  lost: what {each.origin_datasource} held; won: what {each.winner} held; {_time(each.created)}"
            )
            if each.is_published:
                table = _side_by_side(each.losing_row, each.winning_row, each.conflict_columns)
                self._table(table)
                if any(mark == _DIFFERS for mark, *_ in table.rows):
                    self._say(f"  {_CLASHES} in conflict; {_DIFFERS} differs too, but was not in conflict")
            else:
                self._table(_alone(each.losing_row))
                self._say("  The article is not published any more, so only the losing row is told.")
        self._older(len(conflicts), total)

    def row(self, row: RowInfo) -> None:
        """Show the row's metadata and columns at every replica."""
        self._say(f"{row.publication}.{row.article} {_key(row.key)}  (rowguid {row.rowguid})")
        if row.is_known:
            self._table(_row_metadata(row))
        else:
            asked = ", ".join(each.replica for each in row.replicas if each.problem is None) or "none"
            self._say(
                f"No replica has this row, nor knows of one that was deleted (asked: {asked}). Check the key."
            )
        if any(each.row is not None for each in row.replicas):
            self._table(_values_by_replica(row))
        for root in row.out_of_reach:
            self._say(f"Replica {root} is out of reach: nobody knows the row there.")
        for each in row.replicas:
            if each.problem is not None:
                self._say(f"Problem: {each.problem}")
        for each in row.replicas:
            if each.columns:
                colv = ", ".join(f"{part.column} {part.nickname}:{part.version}" for part in each.columns)
                self._say(f"colv at {_short(each.replica)}: {colv}")

    def validated(self, validations: Mapping[str, Sequence[ArticleValidation]]) -> None:
        """Show each subscriber's comparison."""
        for subscriber, articles in validations.items():
            self._validation(subscriber, articles)

    def checked(self, checks: Sequence[Check]) -> None:
        """Show each check and what to do about it."""
        table = Table(("status", "check", "found"))
        for check in checks:
            table.add(str(check.status), check.name, check.detail)
        self._table(table)
        for check in checks:
            if check.remedy:
                self._say(f"{check.name}: {check.remedy}")

    def said(self, item: Any) -> None:
        """Print a line or a rich renderable."""
        if isinstance(item, str):
            self.out.write(item + "\n")
        else:
            from rich.console import Console

            width = None if self.out.isatty() else 200
            Console(file=self.out, width=width).print(item)
        self.out.flush()

    def _older(self, shown: int, total: int) -> None:
        """Say how many conflicts are left out, if any."""
        if total > shown:
            self._say(f"{total - shown:,} older not shown: see all with `--limit {total}`.")

    def _say(self, line: str) -> None:
        self.out.write(printable(line) + "\n")
        self.out.flush()

    def _table(self, table: Table) -> None:
        table.write(self.out)
        self.out.flush()

    def _previews(self, session: SessionResult) -> None:
        """Show who would win each conflict (`sync --dry-run`), and how many more of an article there are."""
        for each in session.conflicts:
            name = conflict_name(each.conflict_type)
            self._say(f"Conflict in {each.article} {_key(each.key)}: {name}; {each.winner} wins")
            self._table(_side_by_side(each.losing_row, each.winning_row))
        shown = Counter(each.article for each in session.conflicts)
        for article in session.articles if session.status == "planned" else ():
            if more := (article.upload + article.download).conflicts - shown[article.article]:
                self._say(f"{article.article}: {_count(more, 'more conflict')} not shown")

    def _validation(self, subscriber: str, articles: Sequence[ArticleValidation]) -> None:
        """Show the comparison of one subscriber with the publisher, differing keys by name."""
        table = Table(
            ("article", "level", ">publisher rows", ">subscriber rows", ">differing", "result"),
            title=f"Validation of {_short(subscriber)}",
        )
        several = len({article.publication for article in articles}) > 1
        names = [f"{each.publication}.{each.article}" if several else each.article for each in articles]
        for name, article in zip(names, articles, strict=True):
            if article.error is not None:
                table.add(name, article.level, None, None, None, "NOT COMPARED")
                continue
            table.add(
                name,
                article.level,
                article.publisher_rows,
                article.subscriber_rows,
                article.differing_rows,
                "equal" if article.ok else "DIFFERENT",
            )
        self._table(table)
        for problem in dict.fromkeys(each.error["message"] for each in articles if each.error is not None):
            self._say(f"Problem: {problem}")
        for name, article in zip(names, articles, strict=True):
            if article.missing_at is not None:
                self._say(
                    f"  {name}: the {article.missing_at} does not have this article; run `mergerepl apply FILE`"
                )
            for example in article.examples:
                self._say(f"  {name} {_key(example.key)}: {example.kind.replace('_', ' ')}")
            more = article.differing_rows - len(article.examples)
            if more and article.examples:
                self._say(f"  {name}: {more} more differing")


def _articles(status: ReplicaStatus) -> Table:
    """Return what is known of each article's table."""
    table = Table(("article", "publication", "tracking", ">version", ">captured", ">not captured"))
    for each in status.articles:
        versions = each.version, each.captured_version, each.uncaptured_commits
        table.add(each.article, each.publication, each.tracking, *versions)
    return table


def _subscriptions(status: ReplicaStatus) -> Table:
    """Return how far each subscription is."""
    head = ("subscription", "publication", "type", ">priority", "status", ">unsent", "last sync", "result")
    table = Table(head)
    for each in status.subscriptions:
        table.add(
            _short(each.subscriber),
            each.publication,
            each.subscriber_type,
            f"{each.priority:.2f}",
            each.status,
            each.unsent_generations,
            _time(each.last_sync_date) or "never",
            each.last_sync_summary or each.last_sync_status,
        )
    return table


def _waiting(subscriptions: Sequence[PendingSubscription]) -> Table:
    """Return what waits to travel; articles of which nothing does are left out."""
    names = ("subscription", "publication", "article", "direction")
    table = Table((*names, ">generations", ">changes", ">not captured"))
    for each in subscriptions:
        for article in each.articles:
            numbers = article.generations, article.changes, article.uncaptured_commits
            if any(numbers):
                table.add(
                    _short(each.subscriber), each.publication, article.article, article.direction, *numbers
                )
    return table


def _sessions(sessions: Sequence[SessionRecord]) -> Table:
    """Return past sessions, one on a line."""
    names = ("started", "subscription", "publication", "result")
    table = Table((*names, ">seconds", "uploaded", "downloaded", ">conflicts", "session"))
    for each in sessions:
        table.add(
            _time(each.start_time),
            _short(each.subscriber),
            each.publication,
            each.runstatus,
            f"{each.duration_s:.1f}",
            _changes(each.upload),
            _changes(each.download),
            (each.upload + each.download).conflicts,
            each.session_id,
        )
    return table


def _sync_table(sessions: Iterable[SessionResult]) -> Table:
    """Return what travelled: by direction, and by article where there are several."""
    table = Table(("subscriber", "direction", "article", *_COUNTS))
    for session in sessions:
        for direction in ("upload", "download"):
            total: PhaseCounts = getattr(session, direction)
            articles = [(each.article, getattr(each, direction)) for each in session.articles]
            moved = [(name, counts) for name, counts in articles if counts.total or counts.conflicts]
            for name, counts in moved or [("(all)", total)]:
                table.add(_short(session.subscriber), direction, name, *_numbers(counts))
            if len(moved) > 1:
                table.add(_short(session.subscriber), direction, "(all)", *_numbers(total))
    return table


def _session_line(session: SessionResult, *, in_full: bool) -> str:
    """Return how a session ended; `in_full` with its counts, where no table shows them."""
    who = _short(session.subscriber)
    took = _seconds(session.duration_s)
    if session.status == "failed":
        return f"{who}: failed after {took}."
    if session.status == "nothing_to_do":
        return f"{who}: nothing to do{', not validated' * session.is_failed} ({took})."
    words = {"planned": "planned, nothing was changed (--dry-run)", "succeeded": "synchronized"}
    parts = [f"{who}: {words.get(session.status, session.status)}"]
    if in_full:
        conflicts = _counts(session).conflicts
        parts.append(f"uploaded {_changes(session.upload)}, downloaded {_changes(session.download)}")
        parts += [_count(conflicts, "conflict")] if conflicts else []
    if session.recovered:
        parts.append(f"finished {_count(session.recovered, 'interrupted session')} first")
    if session.error is not None:
        parts.append("not validated")
    if session.late_changes:
        parts.append(f"{_count(session.late_changes, 'change')} made meanwhile will travel next time")
    return f"{', '.join(parts)} ({took})."


def _side_by_side(
    losing: Mapping[str, object] | None,
    winning: Mapping[str, object] | None,
    clashing: Collection[str] = (),
) -> Table:
    """Return two rows column by column; a missing row was a delete. Where none is known to clash, all that differ do."""
    table = Table(("", "column", "losing row", "winning row"))
    for column in [*(winning or {}), *(name for name in losing or {} if name not in (winning or {}))]:
        lost, won = _cell(losing, column), _cell(winning, column)
        is_clash = column in clashing if clashing else lost != won
        table.add(_CLASHES if is_clash else _DIFFERS if lost != won else "", column, lost, won)
    if losing is None or winning is None:
        table.add("", "", "(deleted)" if losing is None else "", "(deleted)" if winning is None else "")
    return table


def _alone(losing: Mapping[str, object] | None) -> Table:
    """Return the losing row alone; a missing row was a delete."""
    table = Table(("column", "losing row"))
    for column in losing or {}:
        table.add(column, _cell(losing, column))
    if losing is None:
        table.add("", "(deleted)")
    return table


def _row_metadata(row: RowInfo) -> Table:
    """Return what each replica knows of the row."""
    table = Table(("replica", ">nickname", "source", ">generation", "lineage", "up to date"))
    for each in row.replicas:
        lineage = ", ".join(f"{nickname}:{version}" for nickname, version in sorted(each.lineage.items()))
        is_current = "yes" if each.current else "no"
        table.add(
            _short(each.replica), each.nickname, each.source, each.generation, lineage or "{}", is_current
        )
    return table


def _values_by_replica(row: RowInfo) -> Table:
    """Return the row's columns, one replica in each column; differing ones marked."""
    table = Table(("", "column", *(_short(each.replica) for each in row.replicas)))
    columns = dict.fromkeys(column for each in row.replicas for column in each.row or {})
    for column in columns:
        cells = [_cell(each.row, column) for each in row.replicas]
        table.add("*" if len(set(cells)) > 1 else "", column, *cells)
    return table


def _cell(row: Mapping[str, object] | None, column: str) -> str:
    """Return one value; a NULL can be told from empty text, and a row that is not there from both."""
    if row is None:
        return ""
    return "NULL" if row.get(column) is None else str(row[column])


def _counts(session: SessionResult) -> PhaseCounts:
    return session.upload + session.download


def _numbers(counts: PhaseCounts) -> tuple[int, int, int, int]:
    return counts.inserts, counts.updates, counts.deletes, counts.conflicts


def _changes(counts: PhaseCounts) -> str:
    """Return a direction in a few letters: `+12 ~3 -1`, or `0`."""
    signs = (("+", counts.inserts), ("~", counts.updates), ("-", counts.deletes))
    return " ".join(f"{sign}{number}" for sign, number in signs if number) or "0"


def _key(key: Mapping[str, object]) -> str:
    return ", ".join(f"{column}={value}" for column, value in key.items())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _seconds(duration_s: float) -> str:
    return f"{duration_s:.1f} s"


def _short(root: str) -> str:
    """Return a root relative to the working directory where that is shorter."""
    if not os.path.isabs(root):
        return root
    relative = os.path.relpath(root)
    return relative if len(relative) < len(root) and not relative.startswith("../..") else root


def _typed(root: str) -> str:
    """Return a root as one types it in a shell."""
    return shlex.quote(_short(root))


def _time(moment: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    if moment is None:
        return ""
    in_utc = moment.astimezone(UTC) if moment.tzinfo else moment
    return in_utc.strftime("%Y-%m-%d %H:%M:%SZ")
