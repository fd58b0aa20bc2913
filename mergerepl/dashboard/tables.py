"""The sections of the dashboard about conflicts, metadata and tables."""

from __future__ import annotations

import shlex
from collections import Counter
from html import escape
from urllib.parse import urlencode

from mergerepl.dashboard.charts import count_bar
from mergerepl.dashboard.html import (
    FAINT,
    View,
    badge,
    command,
    lag,
    number,
    section,
    sentence,
    size,
    table,
    when,
)
from mergerepl.dashboard.states import OK, State, state_of_source, used_of
from mergerepl.model.cdc import DatabaseStatus
from mergerepl.model.delivery import DistributorStatus
from mergerepl.model.replica_status import ReplicaStatus
from mergerepl.model.tasks import CRITICAL
from mergerepl.model.tracking import TrackingStatus
from mergerepl.model.words import counted


def conflicts(view: View) -> str:
    """Return the conflicts by article and column, with links to the conflict report if there is one."""
    parts = []
    for one in view.found.conflicts:
        by_article: Counter[str] = Counter()
        by_column: Counter[tuple[str, str]] = Counter()
        for each in one.counts:
            by_article[each.article or ""] += each.conflicts
            for column, count in each.columns.items():
                by_column[each.article or "", column] += count
        if not by_article:
            continue
        most = max(by_article.values())
        rows = []
        for article, count in by_article.most_common():
            named = f"<strong>{_link(view, one.replica, article, '')}</strong>"
            rows.append((named, "all", count_bar(count, most)))
            rows += [
                (escape(article), _link(view, one.replica, article, column), count_bar(count, most))
                for (of, column), count in by_column.most_common(20)
                if of == article
            ]
        caption = f"Conflicts logged at {view.name(one.replica)}"
        parts.append(
            table(caption, ("article", "column", "conflicts"), rows)
            + command(f"mergerepl conflicts report -f {shlex.quote(one.replica)} -o conflicts.html")
        )
    note = "By article and by the columns that clashed. The report shows the rows."
    return section("conflicts", "Conflicts", *parts, note=note)


def _link(view: View, root: str, article: str, column: str) -> str:
    text = escape(column or article)
    file = view.reports.get(root)
    if file is None:
        return text
    chosen = urlencode({"article": article} | ({"column": column} if column else {}))
    return f'<a href="{escape(f"{file}#{chosen}")}">{text}</a>'


def metadata(view: View) -> str:
    """Return what keeps the metadata of rows, by publication."""
    rows = []
    for status in view.found.statuses:
        if not isinstance(status.details, ReplicaStatus):
            continue
        for each in status.details.metadata:
            held = [one for one in view.found.held if one.publication == each.publication]
            by = ", ".join(f"{view.name(one.subscriber)} ({counted(one.changes, 'change')})" for one in held)
            rows.append(
                (
                    escape(each.publication),
                    number(status.details.metadata_rows),
                    number(each.clock),
                    number(each.settled),
                    number(each.known),
                    escape(by) or FAINT,
                )
            )
    headings = ("publication", ">metadata rows", ">clock", ">settled", ">known", "held back by")
    return section(
        "metadata",
        "Metadata of rows",
        table("What holds metadata back", headings, rows, is_only=True) if rows else "",
        note="Metadata up to the known version may go. A sync with the subscribers that hold it back moves it on.",
    )


def tables(view: View) -> str:
    """Return the published, captured and tracked tables with their sizes and lags."""
    return section("tables", "Tables", _merge_tables(view), _other_tables(view), _consumers(view))


def _merge_tables(view: View) -> str:
    rows = [
        (
            f"<strong>{escape(each.article)}</strong>",
            f"{escape(each.publication)} at {escape(view.name(status.replica))}",
            number(each.rows),
            f"{size(each.bytes)} in {number(each.files)}",
            number(each.uncaptured_commits),
            lag(
                each.retention_used,
                f"{each.article}: part of the retention that the oldest uncaptured commit has waited",
            ),
            sentence(each.cost) or FAINT,
        )
        for status in view.found.statuses
        if isinstance(status.details, ReplicaStatus)
        for each in status.details.articles
    ]
    headings = ("article", "publication", ">rows", ">size in files", ">not captured", "lag", "advice")
    return table("Published tables", headings, rows) if rows else ""


def _other_tables(view: View) -> str:
    rows = []
    for status in view.found.statuses:
        at = escape(view.name(status.replica))
        match status.details:
            case DistributorStatus() as found:
                rows += [
                    (
                        f"<strong>{escape(each.article)}</strong>",
                        f"transactional at {at}",
                        FAINT,
                        FAINT,
                        FAINT,
                    )
                    for each in found.articles
                ]
            case DatabaseStatus() as database:
                for source in database.sources:
                    used = used_of(source, view.found.time)
                    label = f"{source.source}: part of the retention that the oldest unread commit has waited"
                    rows.append(
                        (
                            f"<strong>{escape(source.source)}</strong>",
                            f"captured at {at}",
                            badge(state_of_source(source)),
                            number(source.unread_commits),
                            lag(used, label),
                        )
                    )
            case TrackingStatus() as tracking:
                rows += [
                    (
                        f"<strong>{escape(each.name)}</strong>",
                        f"tracked at {at}",
                        badge(State(CRITICAL, "cannot be read on"))
                        if each.name in tracking.problems
                        else badge(State(OK, "tracked")),
                        number(sum(one.table == each.name for one in tracking.foreign_commits)),
                        FAINT,
                    )
                    for each in tracking.tables
                ]
    headings = ("table", "used by", "state", ">unread commits", "lag")
    return table("One-way, captured and tracked tables", headings, rows) if rows else ""


def _consumers(view: View) -> str:
    rows = [
        (
            f"<strong>{escape(each.name)}</strong>",
            escape(view.name(status.replica)),
            number(max(0, status.details.last_committed_csn + 1 - each.lcsn)),
            when(each.last_time),
        )
        for status in view.found.statuses
        if isinstance(status.details, TrackingStatus)
        for each in status.details.consumers
    ]
    headings = ("consumer", "database", ">transactions behind", "last window")
    return table("Consumers of tracked changes", headings, rows) if rows else ""
