"""Capture: the users' changes of a replica since the last time become rows of its contents and tombstones.

Two steps, so that `sync --dry-run` can do the first alone: `read_changes` computes (and keeps in memory) what
is new, `commit_changes` appends it. The commit point is MSmerge_replinfo: until it moves, appended runs do
not count, and a next capture removes them and starts from the same versions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from mergerepl.agent.feed_window import FeedWindow
from mergerepl.agent.net_rows import materialised_net
from mergerepl.apply.side import RUN_APP_ID, append_run, next_seq
from mergerepl.changes import CHANGE_COLUMNS, ROWGUID
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.transactions import Transaction, transaction_version
from mergerepl.engine.in_memory import Kept, keep_in_memory, let_go
from mergerepl.engine.session import require_utc
from mergerepl.failpoints import failpoint
from mergerepl.model.article import PublishedArticle
from mergerepl.store.replica import Replica
from mergerepl.store.runs import delete_runs_after, latest_of
from mergerepl.systables.genhistory import Generation, GenStatus
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.tracked_rows import KNOWN_COLUMNS, Origin, tracked_rows


@dataclass(frozen=True)
class CapturedArticle:
    """What is new in one article: `rows` (CHANGES columns), readable until `release`; None if nothing is new."""

    window: FeedWindow
    rows: DataFrame | None
    generation: Generation | None
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    in_memory: DataFrame | None = None

    @property
    def article(self) -> PublishedArticle:
        """The article."""
        return self.window.article

    @property
    def changes(self) -> int:
        """Changed rows."""
        return self.inserts + self.updates + self.deletes

    def release(self) -> None:
        """Let go of the memory."""
        if self.in_memory is not None:
            let_go(self.in_memory)


def read_changes(
    spark: SparkSession,
    replica: Replica,
    window: FeedWindow,
    info: ReplicaInfo,
    *,
    priority: float,
    generation: Generation,
    through_seq_inclusive: int | None = None,
    writer: int | None = None,
    known_meanwhile: DataFrame | None = None,
) -> CapturedArticle:
    """Compute the net changes of a window as CHANGES rows of the given open generation.

    `known_meanwhile` (KNOWN_COLUMNS) is newer than what the runs tell of its rows.

    Raises: NullKeyError, DuplicateKeyError naming keys; FeedGapError if neither the feed nor the old version
    is there; CaptureError if a generated column has values that this session computes otherwise; EngineError if the
    session would read timestamp partition columns otherwise.
    """
    if not window.has_changes:
        return CapturedArticle(window, None, None)
    require_utc(spark, window.article.name, window.table, window.timestamp_partitions)
    net, counts = materialised_net(spark, window)
    if counts["changes"] == 0:
        let_go(net)
        return CapturedArticle(window, None, None)
    seq = info.last_seq if through_seq_inclusive is None else through_seq_inclusive
    origin = Origin(writer or info.nickname, priority, generation.generation)
    lookup = Kept()
    try:
        known = None
        if seq > 0:
            known = latest_of(
                spark,
                replica.folder,
                window.article,
                net.select(ROWGUID),
                rows=counts["changes"],
                through_seq_inclusive=seq,
                columns=KNOWN_COLUMNS,
                kept=lookup,
            )
        if known_meanwhile is not None:
            newer = known_meanwhile.join(net.select(ROWGUID), on=ROWGUID, how="left_semi")
            if known is not None:
                newer = newer.unionByName(known.join(newer.select(ROWGUID), on=ROWGUID, how="left_anti"))
            known = newer
        rows = tracked_rows(net, known, window.article, origin).select(*CHANGE_COLUMNS)
        in_memory = net
        if known is not None:
            rows = in_memory = keep_in_memory(rows, now=True)
            let_go(net)
    except BaseException:
        let_go(net)
        raise
    finally:
        lookup.release()
    inserts, deletes = counts["inserts"], counts["deletes"]
    return CapturedArticle(
        window,
        rows,
        replace(generation, changecount=generation.changecount + counts["changes"]),
        inserts,
        counts["changes"] - inserts - deletes,
        deletes,
        in_memory,
    )


def open_generations(
    genhistory: Sequence[Generation], windows: Sequence[FeedWindow], info: ReplicaInfo
) -> list[Generation]:
    """Return the open generation that the changes of each window join; new ones are numbered in turn."""
    number = info.last_generation
    found = []
    for window in windows:
        number += window.has_changes
        found.append(open_generation(genhistory, window.article, info, number))
    return found


def open_generation(
    genhistory: Sequence[Generation], article: PublishedArticle, info: ReplicaInfo, number: int
) -> Generation:
    """Return the article's open generation, or a new one under the given number."""
    for row in genhistory:
        if row.art_nick == article.nickname and row.is_open:
            return row
    return new_generation(article, number=number, nicknames=[info.nickname], status=GenStatus.OPEN)


def new_generation(
    article: PublishedArticle,
    *,
    number: int,
    nicknames: Sequence[int],
    status: GenStatus,
    guid: str | None = None,
) -> Generation:
    """Return a new row of MSmerge_genhistory."""
    return Generation(
        guidsrc=guid or str(uuid4()),
        pubid=article.pubid,
        generation=number,
        art_nick=article.nickname,
        nicknames=tuple(sorted(nicknames)),
        coldate=datetime.now(UTC),
        genstatus=status,
        changecount=0,
    )


def commit_changes(
    replica: Replica,
    captured: Sequence[CapturedArticle],
    genhistory: Sequence[Generation],
    info: ReplicaInfo,
) -> tuple[ReplicaInfo, list[Generation]]:
    """Append the captured rows, then move the captured versions. Returns the new replinfo and genhistory.

    Windows without changes (OPTIMIZE, property changes) only move the captured version.
    """
    changed = [item for item in captured if item.rows is not None]
    history = list(genhistory)
    seq = info.last_seq
    if changed:
        history = upserted(genhistory, [item.generation for item in changed if item.generation])
        seq = next_seq(replica.root, info.last_seq)
        marker = str(uuid4())
        mark = CommitMark(marker, f"capture:{seq}", info.replid)
        failpoint("capture.before_genhistory")
        replica.save_genhistory(history)
        failpoint("capture.before_contents")
        append_run(
            [(item.article, item.rows) for item in changed if item.rows is not None],
            replica,
            Transaction(RUN_APP_ID, seq, mark),
            contents=any(item.inserts + item.updates for item in changed),
            tombstones=any(item.deletes for item in changed),
        )
        failpoint("capture.before_replinfo")
    moved = {item.article.nickname: item.window.through_version_inclusive for item in captured}
    if moved.items() <= info.captured.items() and not changed:
        return info, history
    last = max([info.last_generation, *(item.generation.generation for item in changed if item.generation)])
    info = replace(info, last_seq=seq, last_generation=last, captured={**info.captured, **moved})
    replica.save_info(info)
    failpoint("capture.after_replinfo")
    return info, history


def remove_leftovers(spark_of: Callable[[], SparkSession], replica: Replica, info: ReplicaInfo) -> bool:
    """Remove runs that a crashed capture appended without reaching its commit point. Returns whether there were any."""
    found = False
    for path in (replica.contents, replica.tombstone):
        if transaction_version(path, RUN_APP_ID) > info.last_seq:
            found = delete_runs_after(spark_of(), path, through_seq_inclusive=info.last_seq) or found
    return found


def upserted(genhistory: Sequence[Generation], rows: Sequence[Generation]) -> list[Generation]:
    """Return genhistory with rows added, or replaced where the guid is there already."""
    by_guid = {row.guidsrc: row for row in genhistory}
    by_guid.update({row.guidsrc: row for row in rows})
    return sorted(by_guid.values(), key=lambda row: row.generation)
