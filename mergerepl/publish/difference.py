"""Compare the stated publication with the stored one, and list the steps of `apply` in order. Nothing is read here."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from mergerepl.delta.properties import describe, missing_properties
from mergerepl.filters.publication_filters import NO_FILTERS
from mergerepl.model.publication import Article, SyncType, Tracking
from mergerepl.publish import carry_out
from mergerepl.publish.agent import TrackingChange
from mergerepl.publish.carry_out import MergeStep
from mergerepl.publish.filters import (
    FilterChange,
    Values,
    added_columns,
    changed_filters,
    describe_rows,
    followed_filters,
    stored_filters,
)
from mergerepl.publish.partitions import values_of_group
from mergerepl.publish.rows import (
    PUBLISHER_NICKNAME,
    article_settings,
    definition,
    filter_columns,
    find_changes,
    publication_settings,
    subscription_settings,
)
from mergerepl.publish.stated import Stated, ended_upload_only, given_articles, is_removed
from mergerepl.publish.steps import Step
from mergerepl.publish.stored import ReplicaState, Stored, SubscriberState
from mergerepl.store.location import Location
from mergerepl.store.storage import same_place
from mergerepl.systables import catalog
from mergerepl.systables.catalog import ArticleRow, ArticleState, SubscriptionRow, SubscriptionState, SyncKind


def difference(stated: Stated, stored: Stored) -> list[MergeStep]:
    """Return the steps in order: moved folders, ends, new articles, changes, new subscribers, and the file as applied."""
    steps = list(_moves(stored))
    if stored.row is None:
        detail = "new publication"
        if stored.publisher.info is None:
            detail += ", with the publisher's system tables"
        steps.append(Step("create", stored.name, detail, partial(carry_out.create, stated, stored)))
    steps += _finishes(stored)
    # Before a new subscriber gets its rows.
    steps += _filters(stated, stored)
    steps += _partitions(stated, stored)
    # Before anything ends: a user's change to a table may make the capture fail.
    if stored.is_waited_for:
        steps.append(
            Step(
                "capture",
                str(stored.publisher.root),
                "bring the publisher's metadata up to date",
                partial(carry_out.capture, stored),
                partial(carry_out.check_captured, stored),
            )
        )
    steps += [_unsubscribe(stored, row, replica) for row, replica in stored.left]
    for replica in stored.back:
        detail = "record there that its subscription ended while it was out of reach; its tables stay"
        run = partial(carry_out.record_end, replica.root)
        steps.append(Step("unsubscribe", str(replica.root), detail, run))
    steps += _ends(stated, stored)
    # Before the resolver changes: it tells the next `apply` whether they are still to come.
    steps += _reinitialises(stated, stored)
    steps += _publishes(stated)
    if stored.row is not None:
        steps += _changes(stated, stored)
    steps += _subscribes(stated, stored)
    return [*steps, *_record(stated, stored, is_alone=not steps)]


# ---- places


def _moves(stored: Stored) -> Iterator[MergeStep]:
    publisher = stored.publisher
    subscribers = [each.replica for each in stored.subscribers]
    replicas = [publisher, *subscribers]
    known = [replica.root for replica in replicas if replica.info]
    for replica in replicas:
        if before := stored.moved.get(replica.root):
            run = partial(carry_out.move, replica, known)
            yield Step("move", str(replica.root), f"was at '{before}'", run)
    if publisher.root in stored.moved:
        return
    # Subscribers that have not recorded the publisher's move, such as those of another file.
    for subscriber in subscribers:
        about = {row.subscriber_server for row in subscriber.subscriptions if row.replid == publisher.repid}
        before = next(
            (Location.of(place) for place in about if not same_place(Location.of(place), publisher.root)),
            None,
        )
        if before is not None:
            detail = f"record there that its publisher is not at '{before}' any more"
            run = partial(carry_out.note_place, subscriber.root, publisher)
            yield Step("move", str(subscriber.root), detail, run)


# ---- the publication, its filters and partitions


def _partitions(stated: Stated, stored: Stored) -> Iterator[MergeStep]:
    """Yield the steps that add missing partitions of subscriptions that are not initialised yet.

    A partition is added before the capture that precedes its first snapshot, so that every change is in the snapshot or
    has mappings.
    """
    if stated.filters == NO_FILTERS:
        return
    known: list[Values] = [values_of_group(group, stated.filters.functions) for group in stored.groups]
    for each, values in zip(stored.subscribers, stated.values, strict=True):
        if not each.is_active and values not in known:
            known.append(values)
            given = ", ".join(f"{name}() = '{value}'" for name, value in values.items()) or "everybody's rows"
            detail = f"add the partition with {given}"
            run = partial(carry_out.partition, values)
            yield Step("partition", each.subscription.subscriber, detail, run)


def _filters(stated: Stated, stored: Stored) -> Iterator[MergeStep]:
    """Yield the step that changes filters of articles that subscribers have."""
    change = filter_change(stated, stored)
    if change is not None:
        said = "; ".join(f"{name}: rows by {text}" for name, text in change.articles.items())
        detail = f"{said}; each subscriber has them from its next session on"
        before, given = stored_filters(stored.row), given_articles(stated.publication, stored)
        late = {
            row.name: names
            for row in stored.articles
            if row.name in given
            and (names := _late_columns(row, added_columns(before, change.filters, row.name)))
        }
        run = partial(carry_out.change_definition, change, is_subscribed=True)
        check = partial(carry_out.check_late_columns, stored, late)
        yield Step("change", stored.name, detail, run, check)


def filter_change(stated: Stated, stored: Stored) -> FilterChange | None:
    """Return the change of filters of articles that subscribers have; None without one."""
    if stored.row is None or not stored.active:
        return None
    before, given = stored_filters(stored.row), given_articles(stated.publication, stored)
    filters = followed_filters(before, stated.filters, given)
    changed = changed_filters(before, filters, given)
    return FilterChange(filters, changed, filter_columns(filters)) if changed else None


def _late_columns(row: ArticleRow, names: Sequence[str]) -> list[str]:
    """Return those of an article's columns that were added after it was published."""
    first = {field.name for field in row.definitions[min(row.definitions)].fields}
    return [name for name in names if name not in first]


def _changes(stated: Stated, stored: Stored) -> Iterator[MergeStep]:
    publication, pubid = stated.publication, stored.pubid
    given = given_articles(publication, stored) if stored.active else []
    before = stored_filters(stored.row)
    followed = followed_filters(before, stated.filters, given)
    after = followed if changed_filters(before, followed, given) else before
    if after != stated.filters or pubid in stored.publisher.unsettled:
        yield Step("change", stored.name, "row filters", partial(carry_out.change_filters, stated.filters))
    replicas = [stored.publisher, *stored.active]
    roots = [replica.root for replica in replicas]
    # The tables before the publication's row: the next run would skip a retention that the row has already.
    articles = {article.name: article for article in publication.articles}
    for replica in replicas:
        yield from _properties(stated, stored, replica, articles)
    rows = [row for replica in replicas for row in replica.publications if row.pubid == pubid]
    change, detail = find_changes(rows, publication_settings(publication))
    if change:
        run = partial(carry_out.change_everywhere, roots, catalog.PUBLICATIONS, change, {"pubid": pubid})
        yield Step("change", stored.name, detail, run)
    yield from _trackings(stored, articles)
    for known in stored.articles:
        if known.name in articles:
            copies = [row for replica in replicas for row in replica.articles if row.artid == known.artid]
            change, detail = find_changes(copies, article_settings(articles[known.name]))
            if change:
                if change.get("compensate_for_errors"):
                    detail += (
                        "; changes of subscribers that wait, refused here, are undone by their next session"
                    )
                where = {"artid": known.artid}
                run = partial(carry_out.change_everywhere, roots, catalog.ARTICLES, change, where)
                yield Step("change", known.name, detail, run)
    # After the resolvers: one that read a column that is left out does so no more.
    yield from _columns(stated, stored)
    for each in stored.subscribers:
        if each.row is None or not each.is_active:
            continue
        subids = (each.row.subid, pubid)
        abouts = [each.row, *(row for row in each.replica.subscriptions if row.subid in subids)]
        # An interrupted run may have ended a subscription at one side only, before the file was reverted.
        status = {"status": int(SubscriptionState.ACTIVE)}
        change, detail = find_changes(abouts, subscription_settings(each.subscription) | status)
        if change:
            if any(function.lower() in change for function in stated.filters.functions):
                detail += "; the next session of it moves it to that partition"
            run = partial(carry_out.change_subscription, each.row, each.replica.root, change)
            yield Step("change", each.subscription.subscriber, detail, run)


def _trackings(stored: Stored, articles: Mapping[str, Article]) -> Iterator[MergeStep]:
    """Yield the steps that change the tracking of articles: a new definition, which each subscriber gets when it syncs."""
    for row in stored.articles:
        wanted = articles[row.name].tracking if row.name in articles else stored.tracking(row)
        if wanted is not stored.tracking(row):
            is_subscribed = stored.is_subscribed
            detail = f"tracking {stored.tracking(row).value} → {wanted.value}"
            detail += "; each subscriber has it from its next session on" if is_subscribed else ""
            change = TrackingChange(row.nickname, by_column=wanted is Tracking.COLUMN)
            run = partial(carry_out.change_definition, change, is_subscribed=is_subscribed)
            yield Step("change", row.name, detail, run)


def _columns(stated: Stated, stored: Stored) -> Iterator[MergeStep]:
    """Yield the steps that publish other columns: a new definition, which each subscriber gets when it syncs."""
    names = ", ".join(stated.filled_by_row)
    for subscriber in stored.live if names else ():
        detail = f"its changes go up, before rows of {names} get values of other columns"
        run = partial(carry_out.synchronise, subscriber.replica.root)
        yield Step("sync", subscriber.subscription.subscriber, detail, run)
    for each in stated.columns:
        is_subscribed = stored.is_subscribed
        detail = f"columns: {each.detail}"
        detail += "; each subscriber follows with its next session" if is_subscribed else ""
        run = partial(carry_out.change_definition, each.change, is_subscribed=is_subscribed)
        check = partial(carry_out.check_columns, each.row, each.names) if each.added else None
        yield Step("change", each.row.name, detail, run, check)


def _reinitialises(stated: Stated, stored: Stored) -> Iterator[MergeStep]:
    """Yield the steps that make articles equal that were upload_only, where replicas differ by design."""
    names = ended_upload_only(stated.publication, stored)
    for each in stored.subscribers if names else ():
        if each.is_active:
            detail = f"compare {', '.join(names)} with the publisher, after its changes went up: rows that differ become "
            detail += "the publisher's, and are kept in _mergerepl/unsent"
            run = partial(carry_out.reinitialise, each.replica.root, names)
            yield Step("reinit", each.subscription.subscriber, detail, run)


def _properties(
    stated: Stated, stored: Stored, replica: ReplicaState, articles: dict[str, Article]
) -> Iterator[MergeStep]:
    """Yield a step for each published table that lacks a property replication needs. Leaving articles need none."""
    for row in replica.articles:
        if row.pubid == stored.pubid and row.name in articles:
            table = stored.table(replica, row)
            if missing := missing_properties(table, stated.publication.retention):
                run = partial(carry_out.change_properties, row, replica.root, table)
                yield Step("change", str(table.path), describe(missing), run)


def _record(stated: Stated, stored: Stored, *, is_alone: bool) -> Iterator[MergeStep]:
    """Yield the last step, which stores the file as applied and makes a new publication active."""
    row = stored.row
    if row is not None and row.definition == definition(stated.publication) and row.status == 1:
        return
    if row is None:
        detail = "make the publication active"
    else:
        detail = f"note the {'file' if is_alone else 'changes'} as applied"
    roots = [replica.root for replica in stored.active]
    yield Step("record", stored.name, detail, partial(carry_out.record, roots))


# ---- articles


def _ends(stated: Stated, stored: Stored) -> Iterator[MergeStep]:
    """Yield the steps for articles that the file no longer has, and for those that it has again before they ended."""
    active = [each.row.subid for each in stored.subscribers if each.row is not None and each.is_active]
    for row in stored.articles:
        is_ending = row.status == ArticleState.ENDING
        there = [each.row.subid for each in stored.subscribers if each.row is not None and each.has(row)]
        waiting = [subid for subid in row.ends_after if subid in there]
        if not is_removed(stated.publication, stored, row):
            if is_ending:
                detail = "it does not end: the file has it again"
                yield Step("change", row.name, detail, partial(carry_out.keep, row))
        elif not active:
            detail = "take it out of the publication; its table stays"
            yield Step("unpublish", row.name, detail, partial(carry_out.unpublish, row.artid))
        elif not is_ending:
            detail = "it ends as soon as each subscription has uploaded once more; its tables stay"
            yield Step("end", row.name, detail, partial(carry_out.end, row, active))
        elif not waiting:
            detail = "it ends: no subscription has to upload any more; its tables stay"
            yield Step("end", row.name, detail, partial(carry_out.end, row, []))


def _publishes(stated: Stated) -> Iterator[MergeStep]:
    """Yield one step per table to publish; its detail shows the article's filters as they were read."""
    for new in stated.new:
        properties = missing_properties(new.table, stated.publication.retention)
        detail = describe(properties) or "Change Data Feed is on and files are kept long enough"
        if which := describe_rows(stated.filters, new.article.name):
            detail += f"; {which}"
        yield Step(
            "publish",
            new.article.name,
            detail,
            partial(carry_out.publish, new),
            partial(carry_out.check_new_rows, new),
        )


# ---- subscriptions


def _finishes(stored: Stored) -> Iterator[MergeStep]:
    for changeset, replica in stored.interrupted:
        subscriber = changeset.manifest.subscriber
        detail = "finish the session that was interrupted"
        if replica is None:
            detail += ", at the publisher only (the replica cannot be reached, or its subscription has ended)"
        root = replica.root if replica is not None else None
        run = partial(carry_out.finish, root, changeset.manifest.session)
        yield Step("finish", subscriber.root if subscriber is not None else "", detail, run)


def _unsubscribe(stored: Stored, row: SubscriptionRow, replica: ReplicaState | None) -> MergeStep:
    is_unfinished = row.status == SubscriptionState.INACTIVE
    outcome = "stay"
    if is_unfinished and row.sync_type == SyncKind.AUTOMATIC:
        outcome = "were not finished: removed"
    detail = f"end the subscription; its tables {outcome}"
    if replica is None:
        detail += " (the replica cannot be reached: the end is not recorded there, and it may have changes never uploaded)"
    elif unsent := stored.unsent.get(row.subid):
        detail += (
            f"; never uploaded: {unsent}. To send them first, run `mergerepl sync {replica.root.name} "
            f"-f {stored.publisher.root}`"
        )
    root = replica.root if replica is not None else None
    unfinished = stored.articles if is_unfinished else []
    return Step(
        "unsubscribe",
        row.subscriber_server,
        detail,
        partial(carry_out.unsubscribe, row, root, unfinished),
        partial(carry_out.check_unfinished, row, root, unfinished) if root is not None else None,
    )


def _subscribes(stated: Stated, stored: Stored) -> Iterator[MergeStep]:
    given = nicknames(stored)
    for each in stored.subscribers:
        rows = [*each.missing(stored.articles), *stated.new_rows]
        if rows or not each.is_active:
            yield _subscribe(stored, each, rows, given[each.subscription.subscriber])


def nicknames(stored: Stored) -> dict[str, int]:
    """Return the nicknames by subscriber; new ones differ from all that this publisher ever used."""
    publisher = stored.publisher
    own = publisher.info.nickname if publisher.info is not None else PUBLISHER_NICKNAME
    last = max([own, *(row.replnickname for row in publisher.subscriptions)])
    given = {}
    for each in stored.subscribers:
        if each.replica.info is not None:
            nickname = each.replica.info.nickname
        elif each.row is not None:
            nickname = each.row.replnickname
        else:
            last = nickname = last + 1
        given[each.subscription.subscriber] = nickname
    return given


def _subscribe(
    stored: Stored, subscriber: SubscriberState, rows: Sequence[ArticleRow], nickname: int
) -> MergeStep:
    subscription, known = subscriber.subscription, subscriber.row
    is_copied = subscription.sync_type is SyncType.AUTOMATIC
    names = ", ".join(row.name for row in rows)
    # An existing table stays as it is.
    without = [name for row in rows if is_copied for name in stored.unusable.get(row.name, ())]
    lacking = (
        f", without CHECK {', '.join(without)} (not all of their columns are published)" if without else ""
    )
    check = None if is_copied else partial(carry_out.check_rows_there, subscriber.replica.root, rows)
    if known is not None and subscriber.is_active:
        run = partial(carry_out.initialise_new, subscription, known.subid, [row.name for row in rows])
        return Step("initialise", subscription.subscriber, f"add {names}{lacking}", run, check)
    detail = f"copy {names} from the publisher" if is_copied else f"{names} are there already"
    if known is not None:
        detail += ", again: it was interrupted"
    return Step(
        "subscribe",
        subscription.subscriber,
        detail + lacking,
        partial(carry_out.subscribe, subscriber, nickname),
        check,
    )
