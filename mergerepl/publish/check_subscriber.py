"""Check by files and logs, without rows, that subscribers are in step and that they can take new articles."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mergerepl.delta.contract.problems import OF_REPLICAS, OF_REPLICATED_COLUMNS, TableContract
from mergerepl.delta.feed.window import feed_window
from mergerepl.delta.metadata import CHAR_VARCHAR, DEFAULT_EXPRESSION, GENERATION_EXPRESSION
from mergerepl.delta.tables import TableState, is_delta_table, is_vacant, open_table
from mergerepl.delta.types import Field, bare, ddl_of
from mergerepl.errors import (
    PUBLISH_AGAIN,
    CaptureError,
    MergeReplError,
    PublicationError,
    SchemaMismatchError,
    StoreError,
    give_up_advice,
)
from mergerepl.model.publication import Subscription, SyncType
from mergerepl.publish.stated import Stated
from mergerepl.publish.stored import ReplicaState, Stored, SubscriberState
from mergerepl.publish.system_tables import check_unwritten, is_unfinished
from mergerepl.replica.damage import no_subscriptions, refuse_older_bookkeeping
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import captured_position
from mergerepl.roots import resolved
from mergerepl.store.lease import check_not_held
from mergerepl.store.location import Location
from mergerepl.systables.catalog import ArticleRow, relations
from triggers.schema_checks import ArticleTable, check_captured_table


def check_targets(stated: Stated, stored: Stored) -> None:
    """Check that each subscriber can get the articles that it lacks.

    Raises: PublicationError; LeaseError while an agent holds the publisher.
    """
    for each in stored.subscribers:
        missing = each.missing([*stated.new_rows, *stored.articles])
        if missing:
            check_no_session_open(stored.publisher, each.replica.root)
            _check_ends_heard(stored, each, missing)
        for row in missing:
            subid = each.row.subid if each.row else None
            check_target(stored.publisher.root, each.subscription, row, subid)


def _check_ends_heard(stored: Stored, subscriber: SubscriberState, missing: Sequence[ArticleRow]) -> None:
    """Check that an active subscriber has forgotten the ended articles whose places it would get copies at.

    Raises: PublicationError.
    """
    if not subscriber.is_active:
        return
    published, wanted = {row.artid for row in stored.articles}, {row.source_table for row in missing}
    for row in subscriber.replica.articles_of(stored.pubid):
        if row.artid not in published and row.source_table in wanted:
            root = subscriber.replica.root
            raise PublicationError(
                f"Article '{row.name}' ended, and subscriber '{root}' has yet to hear of it: it would get a copy in the "
                f"same place. Run `mergerepl sync {root.name} -f {stored.publisher.root}`, move its table away, and run "
                "`mergerepl apply` again.",
                article=row.name,
                replica=str(root),
            )


def check_in_step(stored: Stored) -> None:
    """Check, as a session does, that initialised replicas have their subscription and the captured tables.

    A subscriber to be initialised again is checked too: rows that older bookkeeping does not know would be removed with
    leftovers. If no subscriber ever had rows, the publisher's tables are taken as they are.

    Raises: EnumerationError, StoreError, CaptureError, SchemaMismatchError; PublicationError in their place for a
    publication without subscribers.
    """
    for state in (stored.publisher, *(each.replica for each in stored.subscribers)):
        if state.info is not None:
            refuse_older_bookkeeping(state.root, state.info, relations(state.subscriptions))
    relies = stored.active or (stored.is_waited_for and not stored.is_idle)
    for state in (stored.publisher, *stored.active) if relies else ():
        assert state.info is not None
        if not state.subscriptions:
            raise no_subscriptions(state.root)
        replica, info = Replica(state.root), state.info
        is_publisher = state is stored.publisher
        for row in state.articles_of(stored.pubid):
            article = row.published(stored.name)
            at = ArticleTable(article, replica.root, info.replid, is_publisher)
            window = feed_window(at.path, captured_position(replica, article, info))
            # A capture follows a replacement in the log, or says why not.
            goes_on = not window.is_another_commit
            if stored.is_subscribed or window.head_version is None:
                check_captured_table(at, window, is_followed=goes_on)
            else:
                with publish_again_otherwise(CaptureError, SchemaMismatchError):
                    check_captured_table(at, window)


def check_no_session_open(publisher: ReplicaState, subscriber: Location) -> None:
    """Check that no session of the subscriber runs or waits to be finished: its numbers are already planned.

    `apply` itself finishes a session whose subscription has ended, since no `sync` would. If a file at the subscriber
    names a session without a manifest, it is a leftover: that session was never staged.

    Raises: PublicationError; LeaseError while an agent holds the publisher.
    """
    from mergerepl.replica.subscription import pointers

    named = {pointer.session for pointer in pointers(Replica(subscriber))}
    manifests = [changeset.manifest for changeset in publisher.sessions]
    active = {row.subid for row in publisher.subscriptions if row.is_active}
    open_sessions = [each.session for each in manifests if each.session in named and each.subid in active]
    if open_sessions:
        check_not_held(publisher.root)
        raise PublicationError(
            f"Subscriber '{subscriber}' has a session that was interrupted. Run `mergerepl sync "
            f"{subscriber.name} -f {publisher.root}` first, which finishes it, then `mergerepl apply` "
            f"again. {give_up_advice(publisher.root, open_sessions[0])}",
            replica=str(subscriber),
            session=open_sessions[0],
        )


def check_target(
    publisher: Location, subscription: Subscription, article: ArticleRow, subid: str | None
) -> None:
    """Check an article's place at a subscriber: it is free or, without a snapshot, has a table like the article's.

    Raises: PublicationError.
    """
    table = Location.of(subscription.subscriber) / article.source_table
    if subscription.sync_type is SyncType.NONE:
        source = open_table(publisher / article.source_table)
        root = Location.of(resolved(subscription.subscriber))
        if root not in Location.of(resolved(table)).parents:
            raise PublicationError(
                f"Subscriber '{subscription.subscriber}': the table of article '{article.name}', '{table}', is a link "
                f"that leads out of the replica, to '{resolved(table)}'. Writers there would not be kept apart "
                "from sessions here. Move the table into the replica's folder.",
                article=article.name,
                replica=subscription.subscriber,
                table=str(table),
            )
        _check_schema(article, source, _facts_of_adopted(article, table, subid))
        return
    if not table.is_local:
        _refuse_defaults(article, open_table(publisher / article.source_table), table)
    if subid is not None and is_unfinished(table, subid):
        check_unwritten(Location.of(subscription.subscriber), table)
        return
    if is_vacant(table):
        return
    what = "there is a table already" if is_delta_table(table) else "the place is taken"
    raise PublicationError(
        f"Subscriber '{subscription.subscriber}': article '{article.name}' would be copied to '{table}', "
        f"but {what}. Move it away; or, if it holds the publisher's rows, say `sync_type: none` in the "
        "subscription.",
        article=article.name,
        replica=subscription.subscriber,
        table=str(table),
    )


def _refuse_defaults(article: ArticleRow, source: TableState, table: Location) -> None:
    """Check that a copy on a store gets no column defaults: their table feature keeps fences away."""
    fields = [each for each in source.fields if each["name"] in article.published_columns]
    if found := next((each["name"] for each in fields if DEFAULT_EXPRESSION in each["metadata"]), None):
        raise PublicationError(
            f"Article '{article.name}': column '{found}' has a default, so the copy at '{table}' would have the Delta "
            "table feature allowColumnDefaults, with which a table in an object store cannot be a replica. Drop the "
            "default, leave the column out, or put the subscriber in a folder.",
            article=article.name,
            table=str(table),
        )


def _facts_of_adopted(article: ArticleRow, table: Location, subid: str | None) -> TableState:
    # A table from an unfinished snapshot is not the user's: it will be dropped.
    if not is_delta_table(table) or (subid is not None and is_unfinished(table, subid)):
        raise PublicationError(
            f"Article '{article.name}': `sync_type: none` says that '{table}' holds the publisher's rows, "
            "but there is no Delta table, or only what a snapshot left unfinished. Create it, or leave `sync_type` out: "
            "the rows are then copied from the publisher.",
            article=article.name,
            table=str(table),
        )
    try:
        return open_table(table)
    except StoreError as error:
        raise PublicationError(f"Article '{article.name}': {error.message}", article=article.name) from error


def _check_schema(article: ArticleRow, source: TableState, table: TableState) -> None:
    """Check that both tables have the same published columns, in any order, and that sessions can write."""
    for name in article.published_columns:
        ours, theirs = source.field(name), table.field(name)
        if ours is None:
            raise columns_changed(article, source)
        if theirs is None:
            _differ(article, table.path, f"it has no column '{name}'")
        elif bare(theirs["type"]) != bare(ours["type"]) or _declared(theirs) != _declared(ours):
            how = f"is {_declared(theirs)} instead of {_declared(ours)}"
            if _declared(theirs) == _declared(ours):
                how = "has parts that may be NULL, and the publisher's may not, or the other way round"
            _differ(article, table.path, f"its column '{name}' {how}")
        elif ours["nullable"] and not theirs["nullable"]:
            _differ(article, table.path, f"its column '{name}' allows no NULL, while the publisher's does")
        elif _generated(ours) != _generated(theirs):
            how = f"its column '{name}' is {_generated(theirs)}, and the publisher's is {_generated(ours)}"
            _differ(article, table.path, how)
        elif source.keeps_empty_as_null(name) != table.keeps_empty_as_null(name):
            here, there = ("is one of", "is not") if table.keeps_empty_as_null(name) else ("is none of", "is")
            how = (
                f"its column '{name}' {here} its partition columns, and the publisher's {there}: Delta keeps an empty "
                "value as NULL there"
            )
            _differ(article, table.path, how)
    extra = [field["name"] for field in table.fields if field["name"] not in article.published_columns]
    if extra:
        _differ(article, table.path, f"it has the column '{extra[0]}', which is not published")

    problem = TableContract(table).explain({**OF_REPLICAS, **OF_REPLICATED_COLUMNS})
    if problem is not None:
        why, next_step = problem
        raise PublicationError(
            f"Article '{article.name}': `sync_type: none` takes table '{table.path}' as it is, but {why}. "
            f"{next_step}",
            article=article.name,
            table=str(table.path),
        )


def _declared(field: Field) -> str:
    """Return a column's declared type: Spark pads and measures strings by it; Delta stores it in the metadata."""
    return str(field["metadata"].get(CHAR_VARCHAR, ddl_of(field["type"])))


def _generated(field: Field) -> str:
    expression = field["metadata"].get(GENERATION_EXPRESSION)
    return "not generated" if expression is None else f"generated as ({expression})"


def _differ(article: ArticleRow, table: Location, how: str) -> None:
    raise PublicationError(
        f"Article '{article.name}': `sync_type: none` needs a table like the publisher's at '{table}', "
        f"but {how}. Change the table, or move it away and leave `sync_type` out: the rows are then copied "
        "from the publisher.",
        article=article.name,
        table=str(table),
    )


def columns_changed(article: ArticleRow, table: TableState) -> PublicationError:
    """The error for a table whose published columns changed."""
    return PublicationError(
        f"Article '{article.name}': the columns of table '{table.path}' changed since it was published. Undo that; or "
        f"{PUBLISH_AGAIN}.",
        article=article.name,
        table=str(table.path),
    )


@contextmanager
def publish_again_otherwise(*errors: type[MergeReplError]) -> Iterator[None]:
    """Add the remedy to these errors, for a publication without subscribers that cannot be captured.

    Raises: PublicationError instead of them.
    """
    try:
        yield
    except errors as error:
        raise PublicationError(
            f"{error.message} The publication has no subscribers, so you may also {PUBLISH_AGAIN}.",
            **error.facts,
        ) from error
