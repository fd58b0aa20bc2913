"""The reports of the merge replication commands: for each kind of result the value for programs, and tables and sentences.

The keys of the values are described in docs/cli-json.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mergerepl.cli.report.columns import listing
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Part, Report, Table
from mergerepl.errors import MergeReplError
from mergerepl.model.listing import Listing, shown_fields
from mergerepl.model.words import (
    REFUSED,
    changes,
    counted,
    ends_without_winner,
    how_settled,
    key_text,
    moment_text,
    seconds,
    short,
    stays_at_source,
    text_of,
    typed,
    value_text,
)

if TYPE_CHECKING:
    from mergerepl.model.conflicts import ConflictRecord
    from mergerepl.model.replica_status import RowInfo
    from mergerepl.model.results import (
        ApplyResult,
        ArticleValidation,
        ConflictPreview,
        PhaseCounts,
        SessionResult,
        SyncResult,
    )
    from mergerepl.model.tasks import ValidationResult

_NO_CONFLICTS = (
    "{}: no conflicts to show. They are logged at the publisher, unless `conflict_logging` says otherwise; "
    "values that a subscriber had not sent of a column that is no longer published, at that subscriber (-f)."
)
_CLASHES, _DIFFERS, _MADE = "*", "~", "+"
_STYLES = {_CLASHES: "red", _DIFFERS: "yellow", _MADE: "green"}


def applied(result: ApplyResult) -> Report:
    """Report the steps of `apply`, done or planned."""
    who = f"Publication {result.publication}"
    if not result.steps:
        return result, f"{who}: the replicas match the file, nothing to do."
    count = counted(len(result.steps), "step")
    end = (
        f"{who}: {count} to do; nothing was changed (--dry-run)."
        if result.dry_run
        else f"{who}: {count} done in {seconds(result.duration_s)}."
    )
    return result, listing(result.steps), listing(result.subscriptions), end


# -- sync ------------------------------------------------------------------------------------------------------------


def synced(result: SyncResult) -> Report:
    """Report the changes by subscriber and direction, then each session's end, conflicts to come, validation."""
    moved = [each for each in result.sessions if _counts(each).total or _counts(each).conflicts]
    table = Table(("subscriber", "direction", "article", ">inserts", ">updates", ">deletes", ">conflicts"))
    for row in (row for session in moved for row in _travelled(session)):
        table.add(*row)
    parts: list[Part] = [table]
    for session in result.sessions:
        parts.append(_session_line(session, in_full=session not in moved))
        if session.given_up is not None:
            parts += [
                f"It could not be finished: {session.given_up.reason}",
                f"What it had staged is kept in '{session.given_up.kept}'.",
                session.given_up.next_step,
            ]
        parts += _previews(session)
        if session.validation is not None:
            parts += _validation(session.subscriber, session.validation)
    return sync_object(result), *parts


class Rounds:
    """Reports the rounds of `sync --interval`, one line each; `time` is when a round ended."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def synced_round(self, result: SyncResult, *, time: str) -> None:
        """Report a round."""
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
        text = "; ".join([sessions, *different])
        self._output.noted(
            {"time": time, **sync_object(result)},
            f"{time}  {text}",
            level="INFO" if result.ok else "ERROR",
            event=text,
            publication=result.publication,
        )

    def round_failed(self, error: MergeReplError, *, time: str) -> None:
        """Report a round that failed and is tried again."""
        value = {"time": time, "error": error.details()}
        text = f"{error.message} Trying again."
        self._output.noted(value, f"{time}  {text}", is_failure=True, event=text, error=type(error).__name__)


def sync_object(result: SyncResult) -> dict[str, Any]:
    """Return the object of `sync --json`."""
    from mergerepl.model.tasks import ValidationResult

    compared = (
        None if each.validation is None else ValidationResult(Listing(each.validation))
        for each in result.sessions
    )
    sessions = [
        {**shown_fields(each), "validation": found}
        for each, found in zip(result.sessions, compared, strict=True)
    ]
    return {"publication": result.publication, "ok": result.ok, "sessions": sessions}


def _travelled(session: SessionResult) -> Iterator[tuple[object, ...]]:
    """Yield the changes by direction, and by article if there are several."""
    for direction in ("upload", "download"):
        articles = [(each.article, getattr(each, direction)) for each in session.articles]
        moved = [(name, counts) for name, counts in articles if counts.total or counts.conflicts]
        total = ("(all)", getattr(session, direction))
        for name, counts in moved if len(moved) == 1 else [*moved, total]:
            numbers = counts.inserts, counts.updates, counts.deletes, counts.conflicts
            yield short(session.subscriber), direction, name, *numbers


def _session_line(session: SessionResult, *, in_full: bool) -> str:
    """Return how a session ended; `in_full` with its counts, for sessions without a table."""
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
        done = f"schema changes: {'; '.join(session.schema)}" if session.schema else "nothing to do"
        return f"{who}: {done}{problem}{waits} ({took})."
    words = {"planned": "planned, nothing was changed (--dry-run)", "succeeded": "synchronized"}
    parts = [f"{who}: {words.get(session.status, session.status)}"]
    if in_full:
        conflicts = _counts(session).conflicts
        parts.append(f"uploaded {changes(session.upload)}, downloaded {changes(session.download)}")
        parts += [counted(conflicts, "conflict")] if conflicts else []
    if session.uncaptured_commits:
        parts.append(f"{counted(session.uncaptured_commits, 'commit')} to read first")
    if session.recovered:
        parts.append(f"finished {counted(session.recovered, 'interrupted session')} first")
    parts[-1] += problem
    if session.late_changes:
        parts.append(f"{counted(session.late_changes, 'change')} made meanwhile will travel next time")
    return f"{', '.join(parts)}{waits} ({took})."


def _counts(session: SessionResult) -> PhaseCounts:
    return session.upload + session.download


def _previews(session: SessionResult) -> list[Part]:
    """Return the losers of each conflict (`sync --dry-run`), and the number of further conflicts per article."""
    parts: list[Part] = []
    for each in session.conflicts:
        stays = stays_at_source(each)
        ends = f"it stays at the {each.loser}" if stays else f"{each.winner} wins, {each.loser} loses"
        why = ", ".join(part for part in (each.resolver, each.note) if part)
        reason = f" ({why})" if why else ""
        parts.append(f"Conflict in {each.article} {key_text(each.key)}: {each.conflict_name}; {ends}{reason}")
        parts += [_alone(each.losing_row, "row")] if stays else _two_rows(each)
    shown = Counter(each.article for each in session.conflicts)
    for article in session.articles if session.status == "planned" else ():
        if more := (article.upload + article.download).conflicts - shown[article.article]:
            parts.append(f"{article.article}: {counted(more, 'more conflict')} not shown")
    return parts


# -- validation ------------------------------------------------------------------------------------------------------


def validated(result: ValidationResult) -> Report:
    """Report how the articles of each subscriber compare with the publisher's."""
    by_subscriber: dict[str, list[ArticleValidation]] = {}
    for each in result.articles:
        by_subscriber.setdefault(each.subscriber, []).append(each)
    parts = [part for name, found in by_subscriber.items() for part in _validation(name, found)]
    return result, *parts


def _validation(subscriber: str, articles: Sequence[ArticleValidation]) -> list[Part]:
    ids = {each.partition_id for each in articles if each.partition_id is not None}
    compared_with = "".join(f", partition {number}" for number in sorted(ids))
    several = len({article.publication for article in articles}) > 1
    table = Table(
        ("article", "level", ">publisher rows", ">subscriber rows", ">differing", "result"),
        title=f"Validation of {short(subscriber)}{compared_with}",
    )
    parts: list[Part] = [table]
    parts += [
        f"Problem: {problem}"
        for problem in dict.fromkeys(each.error["message"] for each in articles if each.error is not None)
    ]
    for article in articles:
        name = f"{article.publication}.{article.article}" if several else article.article
        counts = article.publisher_rows, article.subscriber_rows, article.differing_rows
        if article.error is not None:
            table.add(name, article.level, None, None, None, "NOT COMPARED")
        elif article.ok:
            result = "not compared (upload only)" if article.may_differ else "equal"
            table.add(name, article.level, *counts, result)
        else:
            table.add(name, article.level, *counts, "DIFFERENT")
        if article.missing_at is not None:
            parts.append(
                f"  {name}: the {article.missing_at} does not have this article; run `mergerepl apply`"
            )
        parts += [f"  {name}: not compared: {each}." for each in article.not_compared]
        for example in article.examples:
            parts.append(f"  {name} {key_text(example.key)}: {example.kind.replace('_', ' ')}")
        parts += [f"  {name}: {left_out}"] if (left_out := _left_out(article)) else []
        more = article.differing_rows - len(article.examples)
        if more and article.examples:
            parts.append(f"  {name}: {more} more differing")
    if subscriber and any(each.result == "different" and each.missing_at is None for each in articles):
        parts.append(f"See what would make them equal: `mergerepl repair {short(subscriber)} --dry-run`.")
    return parts


def _left_out(article: ArticleValidation) -> str:
    """Return a sentence about the changes that were not compared; '' without any."""
    unsent = article.unsent_at_publisher + article.unsent_at_subscriber
    commits = article.uncaptured_at_publisher + article.uncaptured_at_subscriber
    waiting = [counted(unsent, "change") + " not sent yet"] if unsent else []
    waiting += [counted(commits, "commit") + " not captured yet"] if commits else []
    return f"not compared: {' and '.join(waiting)}." if waiting else ""


# -- conflicts -------------------------------------------------------------------------------------------------------


def conflict_list(replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> Report:
    """Report conflicts, one line each: the newest of `total`."""
    value = {"replica": replica, "total": total, "conflicts": conflicts}
    if not conflicts:
        return value, _NO_CONFLICTS.format(replica)
    newest = f"{conflicts[0].conflict_id} -f {typed(replica)}"
    rows = f"{counted(total, 'conflict')}. See the rows of one with `mergerepl conflicts show {newest}`."
    return value, listing(conflicts), rows, *_older(len(conflicts), total)


def conflict_rows(replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> Report:
    """Report the losing and the winning row side by side: `*` marks columns in conflict, `~` others that differ."""
    value, *parts = conflict_list(replica, conflicts, total=total)
    parts = [] if conflicts else parts
    for each in conflicts:
        parts += [
            f"Conflict {each.conflict_id}: {each.article} {key_text(each.key)}",
            f"  {each.conflict_name} (type {each.conflict_type}, reason {each.reason_code})",
            f"  {each.reason_text}",
        ]
        if each.resolver is not None:
            parts.append(f"  resolver: {each.resolver}" + (f" ({each.note})" if each.note else ""))
        if settled := how_settled(each):
            parts.append(f"  {settled}")
        when = moment_text(each.created)
        if (ends := ends_without_winner(each)) is not None:
            parts.append(f"  {ends[0]} {each.winner}, {ends[1]} {each.origin_datasource}; {when}")
            parts.append(
                _alone(each.losing_row, "refused row" if each.conflict_type in REFUSED else "rejected row")
            )
            continue
        parts.append(f"  lost: what {each.origin_datasource} held; won: what {each.winner} held; {when}")
        if each.is_published:
            parts += _two_rows(each)
        else:
            parts.append(_alone(each.losing_row, "losing row"))
            parts.append("  The article is not published any more, so only the losing row is shown.")
    return value, *parts, *_older(len(conflicts), total)


def _older(shown: int, total: int) -> list[str]:
    more = total - shown
    return [f"{more:,} older not shown: see all with `--limit {total}`."] if more > 0 else []


def _two_rows(each: ConflictRecord | ConflictPreview) -> list[Part]:
    """Return two rows column by column, and a legend of the marks.

    A missing row was a delete. If no column is known to conflict, all differing columns do.
    """
    losing, winning = each.losing_row, each.winning_row
    table = Table(("", "column", "losing row", "winning row"), styles=_STYLES)
    for column in [*(winning or {}), *(name for name in losing or {} if name not in (winning or {}))]:
        differs = losing is not None and winning is not None and _differs((losing, winning), column)
        is_clash = column in each.conflict_columns if each.conflict_columns else differs
        is_made = column in each.made_columns
        mark = _MADE if is_made else _CLASHES if is_clash else _DIFFERS if differs else ""
        table.add(mark, column, _shown(losing, column), _shown(winning, column))
    if losing is None or winning is None:
        table.add("", "", "(deleted)" if losing is None else "", "(deleted)" if winning is None else "")
    parts: list[Part] = [table]
    if each.made_columns:
        parts.append(f"  {_MADE} made of both sides' values by `{each.resolver}`")
    if any(mark == _DIFFERS for mark, *_ in table.rows):
        parts.append(f"  {_CLASHES} in conflict; {_DIFFERS} differs too, but was not in conflict")
    return parts


def _alone(losing: Mapping[str, object] | None, title: str) -> Table:
    """Return the losing row alone; a missing row was a delete."""
    table = Table(("column", title))
    for column in losing or {}:
        table.add(column, _shown(losing, column))
    if losing is None:
        table.add("", "(deleted)")
    return table


# -- row -------------------------------------------------------------------------------------------------------------


def row(found: RowInfo) -> Report:
    """Report one row's lineage, colv and values at every replica, and whether any of them knows it."""
    parts: list[Part] = [
        f"{found.publication}.{found.article} {key_text(found.key)}  (rowguid {found.rowguid})"
    ]
    if found.is_known:
        parts.append(listing(found.replicas))
    else:
        asked = ", ".join(each.replica for each in found.replicas if each.problem is None) or "none"
        parts.append(
            f"No replica has this row, nor knows of one that was deleted (asked: {asked}). Check the key."
        )
    rows = [each.row for each in found.replicas]
    values = Table(("", "column", *(short(each.replica) for each in found.replicas)))
    for column in dict.fromkeys(column for each in rows for column in each or {}):
        mark = _CLASHES if _differs(rows, column) else ""
        values.add(mark, column, *(_shown(each, column) for each in rows))
    parts += [values, listing(found.partitions)]
    parts += [f"Replica {root} is out of reach: its row is unknown." for root in found.out_of_reach]
    parts += [f"Problem: {each.problem}" for each in found.replicas if each.problem is not None]
    for each in found.replicas:
        if each.columns:
            colv = ", ".join(f"{part.column} {part.nickname}:{part.version}" for part in each.columns)
            parts.append(f"colv at {short(each.replica)}: {colv}")
    return found, *parts


def _differs(rows: Iterable[Mapping[str, object] | None], column: str) -> bool:
    """Whether rows have several values in a column, even if they are displayed alike."""
    return len({(row is None, text_of(row.get(column)) if row is not None else None) for row in rows}) > 1


def _shown(row: Mapping[str, object] | None, column: str) -> str:
    return "" if row is None else value_text(row.get(column))
