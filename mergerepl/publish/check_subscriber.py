"""Whether a replica root can be a subscriber, and whether an article can be put there."""

from pathlib import Path

from mergerepl.delta.metadata import CHAR_VARCHAR, GENERATION_EXPRESSION
from mergerepl.delta.tables import TableState, is_delta_table, is_vacant, open_table
from mergerepl.delta.types import Field, bare, ddl_of
from mergerepl.errors import PublicationError, StoreError, give_up_advice
from mergerepl.model.publication import Subscription, SyncType
from mergerepl.publish.changes import columns_changed
from mergerepl.publish.check_article import column_problem, table_problem
from mergerepl.publish.replica_state import ReplicaState
from mergerepl.publish.unfinished import article_table, check_unwritten, is_unfinished
from mergerepl.publish.work import Work
from mergerepl.roots import resolved
from mergerepl.store.lease import check_not_held
from mergerepl.systables.catalog import ArticleRow, SubscriptionRow, SubscriptionState, relations
from mergerepl.systables.table import FOLDER


def check_was_ours(publisher: ReplicaState, subscriber: ReplicaState, row: SubscriptionRow | None) -> None:
    """Check that a replica at the subscriber's root belongs to this publisher, and that a subscribed one still exists.

    Raises: PublicationError.
    """
    root = subscriber.root
    if subscriber.info is None:
        if row is not None and row.is_active:
            raise PublicationError(
                f"Subscriber '{root}' has lost its replica: there are no system tables below it. If the "
                "folder is elsewhere or not mounted, bring it back. To initialise it again, take the "
                "subscription out of the file, run `mergerepl apply`, move the old tables away and put the "
                "subscription in again.",
                replica=str(root),
            )
        return
    # A subscription that was cut short before its replica was made has an id that no replica got: another
    # publication's may have come there since.
    is_known_by = row is not None and row.status != SubscriptionState.INACTIVE
    if row is not None and is_known_by and row.replid != subscriber.repid:
        raise PublicationError(
            f"Subscriber '{root}' is another replica than the one subscribed from there (it is "
            f"{subscriber.repid}, the subscription {row.subid} is of {row.replid}). Bring the right "
            "folder back, or take the subscription out of the file, run `mergerepl apply`, and put it in "
            "again.",
            replica=str(root),
        )
    if any(row.is_published_by(subscriber.repid) for row in subscriber.publications):
        raise PublicationError(
            f"'{root}' is a publisher; this version of mergerepl cannot make a publisher a subscriber. Give "
            "a folder of its own.",
            replica=str(root),
        )
    publishers = {r.replid: r.subscriber_server for r in relations(subscriber.subscriptions)}
    others = {replid: server for replid, server in publishers.items() if replid != publisher.repid}
    is_known = any(r.replid == subscriber.repid for r in publisher.subscriptions)
    if publisher.repid in publishers and not is_known:
        # Rows of subscriptions that have ended stay. The nickname of this one may be another's by now.
        raise PublicationError(
            f"'{root}' is a subscriber of '{publisher.root}', which does not know of it: the publisher was put back to an "
            "older copy. Nothing was changed. Bring the newer copy back; or move the subscriber's folder away, run "
            "`mergerepl apply FILE`, and bring in by hand what was written there only.",
            replica=str(root),
        )
    if others or not is_known:
        other = next(iter(others.values()), "an unfinished initialisation")
        raise PublicationError(
            f"'{root}' is already a subscriber of '{other}'; a replica has one publisher. Give another "
            f"folder, or, if that subscription has ended, remove '{root / FOLDER}'.",
            replica=str(root),
        )


def check_no_session_open(publisher: ReplicaState, subscriber: Path) -> None:
    """Check that no session of the subscriber runs or waits to be finished: its numbers are planned already.

    `apply` itself finishes a session whose subscription has ended, since no `sync` would. A file at the
    subscriber that names a session without a manifest is left over: that session was never staged.

    Raises: PublicationError; LeaseError while an agent holds the publisher.
    """
    from mergerepl.replica.pointers import pointers
    from mergerepl.replica.replica import Replica

    named = {pointer.session for pointer in pointers(Replica(subscriber))}
    manifests = [changeset.manifest for changeset in publisher.sessions]
    open_sessions = [
        each.session for each in manifests if each.session in named and publisher.is_active(each.subid)
    ]
    if open_sessions:
        check_not_held(publisher.root)
        raise PublicationError(
            f"Subscriber '{subscriber}' has a session that was interrupted. Run `mergerepl sync "
            f"{publisher.root} --subscriber {subscriber}` first, which finishes it, then `mergerepl apply` "
            f"again. {give_up_advice(publisher.root, open_sessions[0])}",
            replica=str(subscriber),
            session=open_sessions[0],
        )


def check_target(publisher: Path, subscription: Subscription, article: ArticleRow, subid: str | None) -> None:
    """Check that an article can be put there: its place is free or, without a snapshot, holds a table like it.

    Raises: PublicationError.
    """
    table = article_table(Path(subscription.subscriber), article)
    if subscription.sync_type is SyncType.NONE:
        source = open_table(publisher / article.source_table)
        root = Path(resolved(subscription.subscriber))
        if root not in Path(resolved(table)).parents:
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
    if subid is not None and is_unfinished(table, subid):
        check_unwritten(Path(subscription.subscriber), table)
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


def _facts_of_adopted(article: ArticleRow, table: Path, subid: str | None) -> TableState:
    # A table that a snapshot left unfinished is not the user's: it will be dropped.
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

    problem = table_problem(table) or column_problem(table.fields)
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


def _differ(article: ArticleRow, table: Path, how: str) -> None:
    raise PublicationError(
        f"Article '{article.name}': `sync_type: none` needs a table like the publisher's at '{table}', "
        f"but {how}. Change the table, or move it away and leave `sync_type` out: the rows are then copied "
        "from the publisher.",
        article=article.name,
        table=str(table),
    )


def check_same_rows_now(work: Work, article: ArticleRow, root: Path) -> None:
    """Check that an adopted table holds the publisher's rows as they are now.

    Raises: As `adopt.check_same_rows`.
    """
    from mergerepl.publish.adopt import check_same_rows

    source = open_table(work.publisher / article.source_table)
    target = open_table(article_table(root, article))
    check_same_rows(work, article, source, source.version, target, target.version)
