"""The changes of a file that apply to a running publication, and those that are refused."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mergerepl.delta.marks import SETUP
from mergerepl.delta.properties import describe, missing_properties, set_properties
from mergerepl.delta.tables import TableState, edited_table, is_delta_table, open_table
from mergerepl.delta.types import ddl_of
from mergerepl.errors import PUBLISH_AGAIN, MergeReplError, PublicationError, StoreError
from mergerepl.failpoints import failpoint
from mergerepl.model.publication import Article, Subscription
from mergerepl.model.results import PlanStep
from mergerepl.publish.replica_state import (
    ReplicaState,
    change_info,
    note_captured,
)
from mergerepl.publish.rows import (
    Columns,
    article_settings,
    definition,
    publication_settings,
    subscription_settings,
)
from mergerepl.publish.unfinished import article_table, drop_unfinished
from mergerepl.publish.unsent import unsent_changes
from mergerepl.publish.work import Step, Work
from mergerepl.replica.replica import Replica
from mergerepl.store.folders import same_place
from mergerepl.systables import catalog
from mergerepl.systables.catalog import (
    ArticleRow,
    PublicationRow,
    SubscriberKind,
    SubscriptionRow,
    SubscriptionState,
    SyncKind,
)
from mergerepl.systables.table import RowT, TypedTable
from triggers.errors import table_gone


def check_article_unchanged(article: Article, row: ArticleRow) -> None:
    """Refuse settings that cannot change because replicas hold metadata that depends on them.

    Raises: PublicationError naming the setting, its value then and now.
    """
    wanted: dict[str, tuple[Any, Any]] = {
        "table": (row.source_table, os.path.normpath(article.table)),
        "key": (list(row.key_columns), list(article.identity)),
        "rowguid": (row.rowguid_column, article.rowguid),
        "tracking": ("column" if row.column_tracking else "row", article.tracking.value),
        "columns": (_columns(row), _wanted_columns(article)),
    }
    for name, (before, now) in wanted.items():
        if before != now:
            raise PublicationError(
                f"Article '{article.name}': `{name}` was {_shown(before)} and is {_shown(now)} in the file. "
                f"It cannot change while the article is published. Put it back; or {PUBLISH_AGAIN}.",
                article=article.name,
            )


def _columns(row: ArticleRow) -> list[str] | None:
    return sorted(row.published_columns) if row.vertical_partition else None


def _wanted_columns(article: Article) -> list[str] | None:
    return None if article.columns is None else sorted({*article.columns, *article.identity})


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else f"'{value}'"


def check_subscription_unchanged(publisher: Path, subscription: Subscription, row: SubscriptionRow) -> None:
    """Refuse a change of a subscription's type: earlier conflicts were decided by the old one.

    Raises: PublicationError; StoreError if the publisher's row has no known type.
    """
    if row.subscriber_type not in list(SubscriberKind):
        path = Replica(publisher).control.path(catalog.SUBSCRIPTIONS.name)
        raise edited_table(path, f"has {row.subscriber_type} in column 'subscriber_type'")
    before = SubscriberKind(row.subscriber_type).name.lower()
    if before != subscription.type.value:
        raise PublicationError(
            f"Subscriber '{subscription.subscriber}': `type` was {before} and is {subscription.type.value} "
            "in the file. It cannot change while the subscription lasts. Put it back; or remove the "
            "subscription, run `mergerepl apply`, and add it again.",
            replica=subscription.subscriber,
        )


def update_rows(root: Path, table: TypedTable[RowT], change: Columns, **where: object) -> None:
    """Change columns of the rows with these values, in one commit."""
    Replica(root).control.change_where(table, change, **where)


def _update_everywhere(
    replicas: Sequence[ReplicaState], table: TypedTable[RowT], change: Columns, **where: object
) -> None:
    """Change rows at all replicas, the publisher (the first) last: the next `apply` continues from its rows."""
    for replica in reversed(replicas):
        update_rows(replica.root, table, change, **where)
        failpoint("change.after_replica")


def _differing(rows: Sequence[object], wanted: Columns) -> Columns:
    """Return the values that one of the rows lacks; a change that was cut short reached only some replicas."""
    return {name: value for name, value in wanted.items() if any(getattr(row, name) != value for row in rows)}


def _changed_from(rows: Sequence[object], change: Columns) -> str:
    before = {
        name: next(former for row in rows if (former := getattr(row, name)) != value)
        for name, value in change.items()
    }
    return ", ".join(f"{name} {before[name]} → {value}" for name, value in change.items())


def publication_steps(work: Work, replicas: Sequence[ReplicaState]) -> list[Step]:
    """Return the step that changes retention or conflict logging, if the file changed them."""
    rows = [row for replica in replicas for row in replica.publications if row.pubid == work.pubid]
    change = _differing(rows, publication_settings(work.publication))
    if not change:
        return []
    run = partial(_update_everywhere, replicas, catalog.PUBLICATIONS, change, pubid=work.pubid)
    return [Step(PlanStep("change", work.publication.name, _changed_from(rows, change)), run)]


def article_steps(
    articles: Sequence[tuple[Article, ArticleRow]], replicas: Sequence[ReplicaState]
) -> list[Step]:
    """Return a step for each article of which the file changed a setting, such as the resolver."""
    steps = []
    for article, known in articles:
        artid = known.artid
        rows = [row for replica in replicas for row in replica.articles if row.artid == artid]
        change = _differing(rows, article_settings(article))
        if change:
            run = partial(_update_everywhere, replicas, catalog.ARTICLES, change, artid=artid)
            steps.append(Step(PlanStep("change", article.name, _changed_from(rows, change)), run))
    return steps


def subscription_steps(
    work: Work, subscription: Subscription, row: SubscriptionRow, subscriber: ReplicaState
) -> list[Step]:
    """Return the step that changes priority or host name of a subscription, at both sides."""
    # The subscriber has two rows: about itself and about the publisher. Ending a subscription may have been cut short
    # between the two sides, and the file taken back.
    ids = {row.subid, row.pubid}
    rows = [row, *(each for each in subscriber.subscriptions if each.subid in ids)]
    wanted = {**subscription_settings(subscription), "status": int(SubscriptionState.ACTIVE)}
    change = _differing(rows, wanted)
    if not change:
        return []

    def run() -> None:
        for subid in sorted(ids):
            update_rows(subscriber.root, catalog.SUBSCRIPTIONS, change, subid=subid)
        failpoint("change.between_sides")
        update_rows(work.publisher, catalog.SUBSCRIPTIONS, change, subid=row.subid)

    return [Step(PlanStep("change", subscription.subscriber, _changed_from(rows, change)), run)]


def unsubscribe_step(
    work: Work,
    row: SubscriptionRow,
    subscriber: ReplicaState | None,
    articles: Sequence[ArticleRow],
    *,
    staged: Collection[str],
) -> Step:
    """Return the step that ends a subscription. The subscriber keeps its tables, if it has them all.

    Its detail names what was never uploaded; `staged` are guids of generations that an earlier step uploads.
    """
    is_unfinished = row.status == SubscriptionState.INACTIVE
    is_copied = row.sync_type == SyncKind.AUTOMATIC
    detail = "end the subscription; its tables " + (
        "were not finished: removed" if is_unfinished and is_copied else "stay"
    )
    if subscriber is None:
        detail += " (the replica cannot be reached: the end is not recorded there, and it may have changes never uploaded)"
    elif not is_unfinished:
        try:
            unsent = unsent_changes(work.publisher, subscriber.root, work.pubid, staged=staged)
        except StoreError as error:
            # It is about to leave; damage there must not keep it.
            unsent = f"an unknown number of changes ({error.message})"
        if unsent:
            detail += (
                f"; never uploaded: {unsent}. To send them first, run `mergerepl sync {work.publisher} "
                f"--subscriber {subscriber.root}`"
            )

    def run() -> None:
        if is_unfinished and subscriber is not None:
            drop_unfinished([article_table(subscriber.root, a) for a in articles], row.subid)
        ended = {"status": int(SubscriptionState.DELETED)}
        if subscriber is not None:
            update_rows(subscriber.root, catalog.SUBSCRIPTIONS, ended, pubid=work.pubid)
            failpoint("unsubscribe.between_sides")
        # The publisher last: no later `apply` finishes or cleans up a subscription that is ended there.
        update_rows(work.publisher, catalog.SUBSCRIPTIONS, ended, subid=row.subid)

    return Step(PlanStep("unsubscribe", row.subscriber_server, detail), run)


def record_end_step(work: Work, subscriber: Path) -> Step:
    """Return the step that records at a subscriber that its subscription ended while it was out of reach."""
    ended = {"status": int(SubscriptionState.DELETED)}
    run = partial(update_rows, subscriber, catalog.SUBSCRIPTIONS, ended, pubid=work.pubid)
    detail = "record there that its subscription ended while it was out of reach; its tables stay"
    return Step(PlanStep("unsubscribe", str(subscriber), detail), run)


def moved_step(work: Work, replica: ReplicaState, before: Path, others: Sequence[ReplicaState]) -> Step:
    """Return the step that records a replica's new place, at itself and at the replicas that know it."""

    def run() -> None:
        for other in (each for each in others if each.info):
            _note_place(work, other.root, replica)
        # Last: it says to the next `apply` that every replica has the new place.
        change_info(replica.root, root=str(replica.root))

    return Step(PlanStep("move", str(replica.root), f"was at '{before}'"), run)


def record_move_steps(work: Work, publisher: ReplicaState, subscribers: Sequence[ReplicaState]) -> list[Step]:
    """Return a step for each subscriber where the publisher's move is not recorded, such as those of another file."""
    steps = []
    for subscriber in subscribers:
        about = [row for row in subscriber.subscriptions if row.replid == publisher.repid]
        known = {str(row.subscriber_server) for row in about}
        before = next((place for place in known if not same_place(Path(place), publisher.root)), None)
        if before is not None:
            run = partial(_note_place, work, subscriber.root, publisher)
            detail = f"record there that its publisher is not at '{before}' any more"
            steps.append(Step(PlanStep("move", str(subscriber.root), detail), run))
    return steps


def _note_place(work: Work, root: Path, replica: ReplicaState) -> None:
    """Note a replica's place in the tables of the replica at `root`; all publications there have one publisher."""
    update_rows(root, catalog.PUBLICATIONS, {"publisher": str(work.publisher)})
    failpoint("move.between_tables")
    change = {"subscriber_server": str(replica.root)}
    update_rows(root, catalog.SUBSCRIPTIONS, change, replid=replica.repid)
    failpoint("move.after_replica")


def property_steps(work: Work, replica: ReplicaState) -> list[Step]:
    """Return a step for each published table that lacks a property replication needs.

    An article that leaves needs none.

    Raises: CaptureError if a table is gone.
    """
    steps = []
    stated = {article.name for article in work.publication.articles}
    for row in replica.articles_of(work.pubid):
        if row.name not in stated:
            continue
        path = replica.root / row.source_table
        if not is_delta_table(path):
            raise table_gone(row.name, path, replica.root, is_publisher=replica.root == work.publisher)
        table = open_table(path)
        properties = missing_properties(table, work.retention)
        if properties:
            mark = work.mark(f"properties of {row.name} at {replica.root}")

            def run(table: Any = table, properties: dict[str, str] = properties, mark: Any = mark) -> None:
                set_properties(work.spark, table, properties, mark)

            steps.append(Step(PlanStep("change", str(path), describe(properties)), run))
    return steps


def definition_step(
    work: Work, row: PublicationRow | None, replicas: Sequence[ReplicaState], *, is_alone: bool
) -> list[Step]:
    """Return the step that stores the file as applied: the last one, which makes a new publication active."""
    wanted = definition(work.publication)
    if row is not None and row.definition == wanted and row.status == 1:
        return []

    def run() -> None:
        shared = definition(work.publication, with_subscriptions=False)
        for replica in replicas:
            update_rows(replica.root, catalog.PUBLICATIONS, {"definition": shared}, pubid=work.pubid)
            failpoint("record.after_subscriber")
        # The publisher last: by its row the next `apply` knows that the file was applied.
        update_rows(
            work.publisher, catalog.PUBLICATIONS, {"definition": wanted, "status": 1}, pubid=work.pubid
        )

    if row is None:
        detail = "make the publication active"
    elif is_alone:
        detail = "note the file as applied"
    else:
        detail = "note the changes as applied"
    return [Step(PlanStep("record", work.publication.name, detail), run)]


def check_uncaptured(work: Work, articles: Sequence[ArticleRow]) -> dict[int, TableState]:
    """Check the tables of a publication without subscribers as a capture would: columns as published, real keys.

    Returns: Nickname -> the table at the version that was checked.

    Raises: PublicationError naming the columns or up to five of the offending keys.
    """
    found = {}
    for article in articles:
        found[article.nickname] = table = open_table(work.publisher / article.source_table)
        _check_columns(article, table)
        _check_keys(work, article, table)
    return found


def skip_to_head(work: Work, articles: Sequence[ArticleRow], checked: Mapping[int, TableState]) -> None:
    """Note the publisher's tables as captured at their present versions: no subscriber has rows of them yet.

    Args:
        work: This run.
        articles: The publication's articles.
        checked: Their tables as `check_uncaptured` found them; what was written since is checked too.

    Raises: PublicationError.
    """
    tables = {}
    for article in articles:
        table = open_table(work.publisher / article.source_table)
        _check_columns(article, table)
        before = checked[article.nickname].version
        if any(commit.data_change and commit.kind != SETUP for commit in table.commits_after(before)):
            _check_keys(work, article, table)
        tables[article.nickname] = table.path, table.version, table.metadata.table_id
    note_captured(work.publisher, tables)


def _check_columns(article: ArticleRow, table: TableState) -> None:
    types = {field["name"]: ddl_of(field["type"]) for field in table.fields}
    published = dict(zip(article.published_columns, article.published_types, strict=True))
    generated = {name: text for name, text in table.generated_columns.items() if name in published}
    if (
        any(types.get(name) != type_ for name, type_ in published.items())
        or (not article.vertical_partition and len(types) != len(published))
        or generated != dict(article.generated_columns)
    ):
        raise columns_changed(article, table)


def columns_changed(article: ArticleRow, table: TableState) -> PublicationError:
    """Return the error that a published table no longer has its published columns."""
    return PublicationError(
        f"Article '{article.name}': the columns of table '{table.path}' changed since it was published. Undo that; or "
        f"{PUBLISH_AGAIN}.",
        article=article.name,
        table=str(table.path),
    )


@contextmanager
def publish_again_otherwise(*errors: type[MergeReplError]) -> Iterator[None]:
    """Add a way out to these errors, for a publication without subscribers that cannot be captured.

    Raises: PublicationError instead of them.
    """
    try:
        yield
    except errors as error:
        raise PublicationError(
            f"{error.message} The publication has no subscribers, so you may also {PUBLISH_AGAIN}.",
            **error.facts,
        ) from error


def check_copied(work: Work, articles: Sequence[ArticleRow]) -> None:
    """Check that copies of published tables would take and keep their values, also those written since they were published.

    Raises: PublicationError naming the column and up to three keys.
    """
    for article in articles:
        table = open_table(work.publisher / article.source_table)
        names = article.published_columns
        if any(table.may_hold_uncopied(name) for name in names):
            from mergerepl.publish.check_rows import check_texts

            work.progress.step("check", article=article.name)
            check_texts(work.spark, _stated(work, article), table)


def _check_keys(work: Work, row: ArticleRow, table: TableState) -> None:
    from mergerepl.publish.check_rows import check_rows

    work.progress.step("check", article=row.name)
    check_rows(work.spark, _stated(work, row), table)


def _stated(work: Work, row: ArticleRow) -> Article:
    return next(article for article in work.publication.articles if article.name == row.name)
