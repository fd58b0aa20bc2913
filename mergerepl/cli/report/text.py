"""The form for people. rich is loaded only to draw on a terminal: nothing to do is one plain line."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mergerepl.cli.report import tables
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Table, printable
from mergerepl.errors import MergeReplError
from mergerepl.model.conflict_names import REFUSED, conflict_name, how_settled, stays_at_source
from mergerepl.model.results import (
    ApplyResult,
    ArticleValidation,
    CaptureResult,
    ConflictPreview,
    ConflictRecord,
    PendingSubscription,
    PhaseCounts,
    ReplicaStatus,
    RowInfo,
    SessionRecord,
    SessionResult,
    SyncResult,
)
from mergerepl.model.words import changes, counted, key_text, moment_text, seconds, short, typed

if TYPE_CHECKING:
    from mergerepl.monitoring.doctor import Check

_NO_CONFLICTS = (
    "{}: no conflicts to show. They are logged at the publisher, unless `conflict_logging` says otherwise."
)


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
        count = counted(len(result.steps), "step")
        if result.dry_run:
            self._say(f"Publication {result.publication}: {count} to do; nothing was changed (--dry-run).")
        else:
            self._say(f"Publication {result.publication}: {count} done in {seconds(result.duration_s)}.")

    def synced(self, result: SyncResult) -> None:
        """Show what travelled, by subscriber and direction; then how each session ended, conflicts to come, validation."""
        moved = [
            session for session in result.sessions if _counts(session).total or _counts(session).conflicts
        ]
        if moved:
            self._table(tables.travelled(moved))
        for session in result.sessions:
            self._say(_session_line(session, in_full=session not in moved))
            if session.given_up is not None:
                self._say(f"It could not be finished: {session.given_up.reason}")
                self._say(f"What it had staged is kept in '{session.given_up.kept}'.")
                self._say(session.given_up.next_step)
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
            else f"{article.article} differs in {counted(article.differing_rows, 'row')}"
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
        table = Table(
            ("article", *tables.COUNTS[:3], "versions"), title=f"Captured at {printable(result.replica)}"
        )
        for article in result.articles:
            first, last = article.from_version_exclusive + 1, article.through_version_inclusive
            versions = f"{first} to {last}" if first <= last else "none new"
            table.add(article.article, article.inserts, article.updates, article.deletes, versions)
        self._table(table)

    def status(self, status: ReplicaStatus) -> None:
        """Show who the replica is, its articles and how far each subscription is."""
        self._say(f"{status.role} {status.replica}  (replid {status.replid}, nickname {status.nickname})")
        if status.articles:
            self._table(tables.articles(status))
            triggers = Table(("article", "insert trigger", "update trigger", "delete trigger"))
            for article in status.articles:
                triggers.add(article.article, *article.triggers)
            self._table(triggers)
            for article in status.articles:
                if article.cost:
                    self._say(f"Cost of {article.article}: {article.cost}")
        if status.subscriptions:
            self._table(tables.subscriptions(status))
        where = f" List them with `mergerepl conflicts list {typed(status.replica)}`."
        self._say(f"{counted(status.conflicts, 'conflict')} logged.{where if status.conflicts else ''}")
        for problem in status.problems:
            self._say(f"Problem: {problem}")
        for session in status.open_sessions:
            self._say(
                f"Session {session} was interrupted: the next sync finishes it before anything else. If it fails for good, "
                f"`mergerepl sync {typed(status.replica)} --give-up {session}` ends it."
            )

    def pending(self, replica: str, subscriptions: Sequence[PendingSubscription]) -> None:
        """Show what waits, by subscription, article and direction."""
        table = tables.waiting(subscriptions)
        if table.rows:
            self._table(table)
            self._say(
                "`not captured` counts commits to the table that the next sync or `mergerepl capture` reads."
            )
        # Several subscriptions report the same table.
        found = [
            problem
            for each in subscriptions
            for problem in (each.problem, *(a.problem for a in each.articles))
        ]
        problems = list(filter(None, dict.fromkeys(found)))
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
        self._table(tables.sessions(sessions))
        for each in sessions:
            for message in each.messages:
                self._say(f"{moment_text(each.start_time)} {short(each.subscriber)}: {message}")

    def conflict_list(self, replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> None:
        """Show one conflict on a line."""
        if not conflicts:
            self._say(_NO_CONFLICTS.format(replica))
            return
        table = Table(("id", "article", "key", ">type", "meaning", "winner", "time", "status"))
        for each in conflicts:
            table.add(
                each.conflict_id,
                each.article,
                key_text(each.key),
                each.conflict_type,
                conflict_name(each.conflict_type),
                short(each.winner),
                moment_text(each.created),
                each.status,
            )
        self._table(table)
        newest = f"{typed(replica)} {conflicts[0].conflict_id}"
        self._say(
            f"{counted(total, 'conflict')}. See the rows of one with `mergerepl conflicts show {newest}`."
        )
        self._older(len(conflicts), total)

    def conflict_rows(self, replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> None:
        """Show the losing row beside the winning row, columns in conflict marked with `*`, others that differ with `~`."""
        if not conflicts:
            self._say(_NO_CONFLICTS.format(replica))
        for each in conflicts:
            self._say(f"Conflict {each.conflict_id}: {each.article} {key_text(each.key)}")
            name = conflict_name(each.conflict_type)
            self._say(f"  {name} (type {each.conflict_type}, reason {each.reason_code})")
            self._say(f"  {each.reason_text}")
            if each.resolver is not None:
                self._say(f"  resolver: {each.resolver}" + (f" ({each.note})" if each.note else ""))
            if settled := how_settled(each):
                self._say(f"  {settled}")
            if stays_at_source(each):
                refused = each.conflict_type in REFUSED
                words = ("refused at", "waits at") if refused else ("not taken by", "stays at")
                self._say(
                    f"  {words[0]} {each.winner}, {words[1]} {each.origin_datasource}; {moment_text(each.created)}"
                )
                self._table(tables.alone(each.losing_row, "refused row" if refused else "rejected row"))
                continue
            self._say(
                f"  lost: what {each.origin_datasource} held; won: what {each.winner} held; {moment_text(each.created)}"
            )
            if each.is_published:
                self._two_rows(each)
            else:
                self._table(tables.alone(each.losing_row))
                self._say("  The article is not published any more, so only the losing row is shown.")
        self._older(len(conflicts), total)

    def row(self, row: RowInfo) -> None:
        """Show the row's metadata and columns at every replica."""
        self._say(f"{row.publication}.{row.article} {key_text(row.key)}  (rowguid {row.rowguid})")
        if row.is_known:
            self._table(tables.row_metadata(row))
        else:
            asked = ", ".join(each.replica for each in row.replicas if each.problem is None) or "none"
            self._say(
                f"No replica has this row, nor knows of one that was deleted (asked: {asked}). Check the key."
            )
        if any(each.row is not None for each in row.replicas):
            self._table(tables.values_by_replica(row))
        if row.partitions:
            self._table(tables.row_partitions(row))
        for root in row.out_of_reach:
            self._say(f"Replica {root} is out of reach: its row is unknown.")
        for each in row.replicas:
            if each.problem is not None:
                self._say(f"Problem: {each.problem}")
        for each in row.replicas:
            if each.columns:
                colv = ", ".join(f"{part.column} {part.nickname}:{part.version}" for part in each.columns)
                self._say(f"colv at {short(each.replica)}: {colv}")

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

    def reported(self, value: object, parts: Sequence[Table | str]) -> None:
        """Write the tables, without those that have no rows, and the sentences."""
        for part in parts:
            if isinstance(part, str):
                self._say(part)
            elif part.rows:
                self._table(part)

    def noted(self, value: object, text: str) -> None:
        """Write the line."""
        self._say(text)
        self.out.flush()

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

    def _two_rows(self, each: ConflictRecord | ConflictPreview) -> None:
        """Show the losing row beside the winning row, and what the marks mean."""
        table = tables.side_by_side(
            each.losing_row, each.winning_row, each.conflict_columns, each.made_columns
        )
        self._table(table)
        if each.made_columns:
            self._say(f"  {tables.MADE} made of both sides' values by `{each.resolver}`")
        if any(mark == tables.DIFFERS for mark, *_ in table.rows):
            self._say(
                f"  {tables.CLASHES} in conflict; {tables.DIFFERS} differs too, but was not in conflict"
            )

    def _previews(self, session: SessionResult) -> None:
        """Show who would lose each conflict (`sync --dry-run`), and how many more of an article there are."""
        for each in session.conflicts:
            name = conflict_name(each.conflict_type)
            stays = stays_at_source(each)
            ends = f"it stays at the {each.loser}" if stays else f"{each.winner} wins, {each.loser} loses"
            why = ", ".join(part for part in (each.resolver, each.note) if part)
            reason = f" ({why})" if why else ""
            self._say(f"Conflict in {each.article} {key_text(each.key)}: {name}; {ends}{reason}")
            if stays:
                self._table(tables.alone(each.losing_row, "row"))
            else:
                self._two_rows(each)
        shown = Counter(each.article for each in session.conflicts)
        for article in session.articles if session.status == "planned" else ():
            if more := (article.upload + article.download).conflicts - shown[article.article]:
                self._say(f"{article.article}: {counted(more, 'more conflict')} not shown")

    def _validation(self, subscriber: str, articles: Sequence[ArticleValidation]) -> None:
        """Show the comparison of one subscriber with the publisher, differing keys by name."""
        ids = {each.partition_id for each in articles if each.partition_id is not None}
        compared_with = "".join(f", partition {number}" for number in sorted(ids))
        table = Table(
            ("article", "level", ">publisher rows", ">subscriber rows", ">differing", "result"),
            title=f"Validation of {short(subscriber)}{compared_with}",
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
                "not compared (upload only)"
                if article.may_differ and article.ok
                else "equal"
                if article.ok
                else "DIFFERENT",
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
                self._say(f"  {name} {key_text(example.key)}: {example.kind.replace('_', ' ')}")
            more = article.differing_rows - len(article.examples)
            if more and article.examples:
                self._say(f"  {name}: {more} more differing")


def _session_line(session: SessionResult, *, in_full: bool) -> str:
    """Return how a session ended; `in_full` with its counts, where no table shows them."""
    who = short(session.subscriber)
    took = seconds(session.duration_s)
    if session.status == "failed":
        return f"{who}: failed after {took}."
    if session.given_up is not None:
        return f"Session {session.given_up.session} is given up."
    if session.refused:
        problem = f", but for {', '.join(session.refused)}"
    else:
        problem = ", not validated" if session.is_failed else ""
    waits = f", {counted(session.waiting, 'refused change')} waiting" if session.waiting else ""
    if session.status == "nothing_to_do":
        return f"{who}: nothing to do{problem}{waits} ({took})."
    words = {"planned": "planned, nothing was changed (--dry-run)", "succeeded": "synchronized"}
    parts = [f"{who}: {words.get(session.status, session.status)}"]
    if in_full:
        conflicts = _counts(session).conflicts
        parts.append(f"uploaded {changes(session.upload)}, downloaded {changes(session.download)}")
        parts += [counted(conflicts, "conflict")] if conflicts else []
    if session.recovered:
        parts.append(f"finished {counted(session.recovered, 'interrupted session')} first")
    parts[-1] += problem
    if session.late_changes:
        parts.append(f"{counted(session.late_changes, 'change')} made meanwhile will travel next time")
    return f"{', '.join(parts)}{waits} ({took})."


def _counts(session: SessionResult) -> PhaseCounts:
    return session.upload + session.download
