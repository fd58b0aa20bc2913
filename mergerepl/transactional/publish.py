"""`mergerepl apply` of a transactional file: articles begin, subscribers get their snapshot (transactional.md 10)."""

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from mergerepl.config.stated import check_stated
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY
from mergerepl.delta.properties import retention_properties, set_properties
from mergerepl.delta.store_proof import require_proof
from mergerepl.delta.tables import head_version, open_table
from mergerepl.errors import StoreError, StoreUnavailableError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.log_reader import LogReader, make_log_reader, refuse_copy, refuse_other_key
from mergerepl.logreader.positions import has_log_reader, read_state
from mergerepl.logreader.scan import Begin, begin, checked_state, leave
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.results import ApplyResult, PlanStep
from mergerepl.model.transactional import Publication, Subscription
from mergerepl.publish.steps import Step, carry_out, check_steps
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.register import register_of
from mergerepl.store.storage import is_folder, is_local, make_folder, remove_table
from mergerepl.systables.transactional import (
    ARTICLES,
    PUBLICATIONS,
    QUEUED,
    READ_ONLY,
    SUBSCRIBED,
    SUBSCRIPTIONS,
    SYNC_AUTOMATIC,
    SYNC_NONE,
    PublicationRow,
    SubscriptionRow,
)
from mergerepl.systables.transactional import CONSUMER as NAME
from mergerepl.transactional.agents import forget_stop, held
from mergerepl.transactional.article_procedures import Shape, at_subscriber, called_procedures
from mergerepl.transactional.catalog import DistributionStore, SubscriberStore
from mergerepl.transactional.consumer import as_stated
from mergerepl.transactional.position import app_ids, other_publisher, redo_log, stored_position
from mergerepl.transactional.procedures import custom_operations
from mergerepl.transactional.refusals import (
    NO_PROCEDURES,
    OWN_PROCEDURES,
    TransactionalUsageError,
    refuse_in_store,
    skipped_numbers,
)
from mergerepl.transactional.snapshot import FILES_KEPT, check_equal, initialise
from mergerepl.transactional.stated_articles import (
    CheckedArticle,
    as_sent,
    changed_key,
    changed_methods,
    check_destinations,
    check_key,
    check_writers,
    checked_article,
)


@dataclass
class ApplyRun:
    """One run of `apply` for a transactional publication: the state its steps share.

    `equal`: by subscriber and article, the versions of source and table whose rows were compared.
    """

    publication: Publication
    distributor: DistributionStore
    reader: LogReader
    progress: Progress
    equal: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """What the distribution store holds: all publications, and one's articles and subscriptions by name."""

    publications: Sequence[PublicationRow] = ()
    articles: Mapping[str, Shape] = field(default_factory=dict)
    subscriptions: Mapping[str, SubscriptionRow] = field(default_factory=dict)

    def is_new(self, stated: Subscription) -> bool:
        """True if a subscription of the file has to begin, also after its first snapshot failed."""
        row = self.subscriptions.get(stated.subscriber)
        return row is None or row.status == SUBSCRIBED


def apply_publication(
    publication: Publication,
    *,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
    planned: Collection[PlanStep] | None = None,
) -> ApplyResult:
    """Make publisher and subscribers match a transactional publication; repeating it does nothing.

    Steps with `removes_rows` must be `planned`, if a plan was made before.

    Raises: TransactionalError 14088 for a table that cannot be published, TransactionalUsageError for a change under
        active subscriptions or an existing table; LogReaderBusyError, LeaseError (run again).
    """
    started = time.monotonic()
    root = Location.of(publication.publisher)
    shown = progress or NoProgress()
    distributor = DistributionStore(root)
    run = ApplyRun(publication, distributor, LogReader(root, spark, 60.0), shown)
    with plain_errors("a publication was applied"), ExitStack() as stack:
        check_stated(publication)
        _check_places(publication, with_proof=not dry_run)
        if not dry_run:
            stack.enter_context(lease(root, purpose="apply"))
        stored = _read_stored(distributor, publication.name)
        articles = [checked_article(root, as_sent(publication, each)) for each in publication.articles]
        check_writers(publication, articles)
        steps = difference(publication, articles, stored)
        for each in publication.subscriptions:
            if stored.is_new(each):
                check_destinations(each, stored.subscriptions.get(each.subscriber), articles)
        check_steps(steps, run)
        if not dry_run:
            carry_out(steps, run, shown, planned=planned)
    return ApplyResult(
        publication.name, tuple(step.plan for step in steps), dry_run, round(time.monotonic() - started, 3)
    )


def _check_places(publication: Publication, *, with_proof: bool) -> None:
    """Check that the ends can be where they are; the proof of a store leaves objects there.

    Raises: TransactionalUsageError; StoreError: Spark does not work there, or the store loses commits.
    """
    root = Location.of(publication.publisher)
    for each in publication.subscriptions:
        subscriber = Location.of(each.subscriber)
        if each.updatable == "queued":
            for end in (root, subscriber):
                refuse_in_store(
                    end, "`updatable: queued` with an end", "Leave it out, or use merge replication."
                )
    for end in (root, *(Location.of(each.subscriber) for each in publication.subscriptions)):
        end.require_spark()
        if with_proof:
            require_proof(end)


def _read_stored(distributor: DistributionStore, name: str) -> Stored:
    publications = distributor.publications()
    number = next((row.publication_id for row in publications if row.publication == name), None)
    if number is None:
        return Stored(publications)
    return Stored(
        publications,
        {row.article: row for row in distributor.articles(number)},
        {row.subscriber: row for row in distributor.subscriptions(number)},
    )


# ---- the difference: nothing is read here


def difference(
    stated: Publication, articles: Sequence[CheckedArticle], stored: Stored
) -> list[Step[ApplyRun]]:
    """Return the steps, in order: ends, articles, the publication, new and changed subscriptions.

    Raises: TransactionalUsageError for a change under active subscriptions.
    """
    named = {each.subscriber for each in stated.subscriptions}
    if named and not articles:
        raise TransactionalUsageError(
            f"Publication '{stated.name}' has subscriptions and no article. Nothing was changed. State its articles. To "
            "end it, take its subscriptions out, too (`subscriptions: []`), and run `mergerepl apply`."
        )
    steps = [
        Step("unsubscribe", row.subscriber, "its tables stay", partial(_unsubscribe, row))
        for row in stored.subscriptions.values()
        if row.subscriber not in named
    ]
    steps += _article_steps(stated, articles, stored)
    known = next((row for row in stored.publications if row.publication == stated.name), None)
    if known is not None and _publication_row(stated, stored.publications) != known:
        steps.append(Step("change", stated.name, "retention", _change_retention))
    if known is not None and not articles:
        steps.append(Step("unpublish", stated.name, "it has no article", _unpublish))
    for each in stated.subscriptions:
        steps += _subscription_steps(each, articles, stored)
    return steps


def _article_steps(
    stated: Publication, articles: Sequence[CheckedArticle], stored: Stored
) -> list[Step[ApplyRun]]:
    named = {each.stated.name: each for each in articles}
    leaving = {name: "place: it is not" for name in stored.articles if name not in named}
    for name, row in stored.articles.items():
        if name in named and (key := changed_key(named[name], row)):
            leaving[name] = key
    new = [each for name, each in named.items() if name not in stored.articles or name in leaving]
    if any(each.subscriber in stored.subscriptions for each in stated.subscriptions):
        if leaving:
            article, what = next(iter(leaving.items()))
            raise TransactionalUsageError(
                f"Article '{article}' has another {what} in the file than published, and subscriptions are active. Nothing "
                "was changed. Take the subscriptions out of the file and run `mergerepl apply`; change the article "
                "and apply; put them back and apply.",
                article=article,
            )
        if new:
            raise TransactionalUsageError.later(
                f"An article that is added ({new[0].stated.name}) while subscriptions are active",
                "Take the subscriptions out of the file and apply; put them back with the article and apply.",
            )
    steps = [
        Step(
            "drop",
            name,
            "its commands go, its table stays",
            partial(_drop, stored.articles[name]),
            removes_rows=True,
        )
        for name in leaving
    ]
    for name, row in stored.articles.items():
        if name in named and name not in leaving and (methods := changed_methods(named[name], row)):
            shown = ", ".join(f"{key}: {getattr(row, key)} to {text}" for key, text in methods.items())
            steps.append(Step("change", name, shown, partial(_change_methods, name, methods, shown)))
    if new:
        shown = "; ".join(
            f"{e.stated.name}: {e.stated.ins_cmd}, {e.stated.upd_cmd}, {e.stated.del_cmd}" for e in new
        )
        steps.append(Step("publish", stated.name, shown, partial(_publish, new), partial(_check_keys, new)))
    return steps


def _subscription_steps(
    stated: Subscription, articles: Sequence[CheckedArticle], stored: Stored
) -> list[Step[ApplyRun]]:
    row = stored.subscriptions.get(stated.subscriber)
    skipped_numbers(stated.skip_errors)
    _check_procedures(stated, articles)
    if row is None or stored.is_new(stated):
        is_copied = stated.sync_type == "automatic"
        check = None if is_copied or not stated.verify else partial(_check_rows, stated, articles)
        action = "initialise" if is_copied else "subscribe"
        return [Step(action, stated.subscriber, stated.sync_type, partial(_subscribe, stated), check)]
    if dict(row.destination) != dict(stated.destination):
        raise TransactionalUsageError.later(
            f"Another `destination` of subscriber '{stated.subscriber}'",
            "Take the subscription out of the file and apply; put it back and apply.",
        )
    if row.update_mode != _update_mode(stated):
        raise TransactionalUsageError.later(
            f"Another `updatable` of subscriber '{stated.subscriber}'",
            "Take the subscription out of the file and apply; move its tables away; put it back and apply.",
        )
    changed = [name for name, value in _options(stated).items() if getattr(row, name) != value]
    if not changed:
        return []
    return [Step("change", stated.subscriber, ", ".join(changed), partial(_change, stated, row))]


def _check_procedures(stated: Subscription, articles: Sequence[CheckedArticle]) -> None:
    rows = [each.row(0, 0, 0, bytes(10)) for each in articles]
    known = [name for row in rows for name in called_procedures(row).values()]
    if missing := next((name for name in stated.procedures if name not in known), None):
        raise TransactionalUsageError(
            f"Subscriber '{stated.subscriber}' replaces the procedure '{missing}', which no article calls. Nothing was "
            f"changed. Name one of: {', '.join(known) or 'none'}.",
            subscriber=stated.subscriber,
        )
    if any(custom_operations(at_subscriber(row, stated.procedures)) for row in rows):
        refuse_in_store(Location.of(stated.subscriber), OWN_PROCEDURES, NO_PROCEDURES)


def _publication_row(stated: Publication, publications: Sequence[PublicationRow]) -> PublicationRow:
    known = next((row for row in publications if row.publication == stated.name), None)
    number = max((row.publication_id for row in publications), default=0) + 1
    return PublicationRow(
        publication_id=known.publication_id if known else number,
        publication=stated.name,
        publisher_root=str(Location.of(stated.publisher)),
        min_distretention=int(stated.min_retention.total_seconds() // 3600),
        max_distretention=int(stated.max_retention.total_seconds() // 3600),
        removed_through=known.removed_through if known else bytes(10),
        conflict_retention=stated.conflict_retention,
    )


def _update_mode(stated: Subscription) -> int:
    return QUEUED if stated.updatable == "queued" else READ_ONLY


def _options(stated: Subscription) -> dict[str, Any]:
    """Return the columns of `MSsubscriptions` that may change at any time. A new `sync_type` is for the next snapshot."""
    return {
        "skip_errors": tuple(map(str, stated.skip_errors)),
        "subscription_streams": stated.streams,
        "procedures": dict(stated.procedures),
        "sync_type": SYNC_AUTOMATIC if stated.sync_type == "automatic" else SYNC_NONE,
    }


# ---- the work of the steps


def _check_keys(new: Sequence[CheckedArticle], run: ApplyRun) -> None:
    run.progress.step(f"check {run.publication.name}")
    if has_log_reader(run.reader.control):
        state = read_state(run.reader.control)
        refuse_copy(run.reader.root, state)
        for each in new:
            refuse_other_key(state, run.reader.consumers, each.stated.table, each.stated.key)
    for each in new:
        check_key(run.reader.spark, each)


def _check_rows(stated: Subscription, articles: Sequence[CheckedArticle], run: ApplyRun) -> None:
    run.progress.step(f"check {stated.subscriber}")
    compared = run.equal.setdefault(stated.subscriber, {})
    for each in articles:
        article = each.row(0, 0, 0, bytes(10))
        destination = stated.destination.get(article.article, article.destination_object)
        source, table = each.state.path, Location.of(stated.subscriber) / destination
        versions = head_version(source), head_version(table)
        check_equal(run.reader.spark(), source, versions[0], table, versions[1], article)
        compared[article.article] = versions


def _publish(new: Sequence[CheckedArticle], run: ApplyRun) -> None:
    """Begin the articles: a separate cycle gives each source an LSN; MSpublications is written last."""
    reader, distributor = run.reader, run.distributor
    with held(reader, "apply"):
        make_log_reader(reader, FILES_KEPT)
        state = read_state(reader.control)
        for each in new:
            refuse_other_key(state, reader.consumers, each.stated.table, each.stated.key)
        for each in new:
            _set_properties(each, state.database.database_id, run)
        with distributor.writing():
            distributor.create()
            row = _save_publication(run)
        failpoint("transactional.after_publication")
        first = max((each.article_id for each in distributor.shapes()), default=0) + 1
        is_stored = not is_local(distributor.root)

        def rows(plan: Any, sources: Sequence[Any], numbers: range) -> dict[str, Any]:
            # In a store no number is given twice: what a displaced agent removes late is never a later article's table.
            ids = numbers if is_stored else range(first, first + len(new))
            stated = [
                each.row(row.publication_id, number, source.source_object_id, bytes(plan.lsn(entry)))
                for number, each, source, entry in zip(ids, new, sources, plan.entries, strict=True)
            ]
            return {"begin": [as_stated(one) for one in stated]}

        places = [(each.stated.table, *each.stated.table.rpartition("/")) for each in new]
        begins = [Begin(path, schema or "dbo", name) for path, schema, _, name in places]
        begin(reader, NAME, begins, rows, object_ids=len(new) if is_stored else 0)


def _set_properties(article: CheckedArticle, database_id: str, run: ApplyRun) -> None:
    table = open_table(article.state.path)
    missing = {} if table.metadata.change_data_feed else {CDF_PROPERTY: "true"}
    missing |= retention_properties(table.properties, FILES_KEPT)
    set_properties(run.reader.spark, table, missing, CommitMark(database_id, "setup:publish"))


def _save_publication(run: ApplyRun) -> PublicationRow:
    row = _publication_row(run.publication, run.distributor.publications())
    run.distributor.control.replace_where(PUBLICATIONS, [row], publication=row.publication)
    return row


def _change_methods(article: str, methods: Mapping[str, Any], shown: str, run: ApplyRun) -> None:
    """Cut the log: commits that are not read yet are sent by the new methods, in a new shape of the article."""
    with held(run.reader, "apply"):
        # A run that died may have decided it.
        checked_state(run.reader)
        row = _read_stored(run.distributor, run.publication.name).articles[article]
        if all(getattr(row, name) == text for name, text in methods.items()):
            return

        def rows(plan: Any, sources: Sequence[Any], numbers: range) -> dict[str, Any]:
            del sources, numbers
            new = replace(
                row,
                **methods,
                schema_version=row.schema_version + 1,
                first_seqno=bytes(plan.lsn(plan.entries[0])),
                schema_text=shown,
                former=row.columns,
            )
            return {"shapes": [as_stated(new)]}

        schema, _, name = row.source_object.rpartition("/")
        begin(run.reader, NAME, [Begin(row.source_object, schema or "dbo", name)], rows)


def _change_retention(run: ApplyRun) -> None:
    with held(run.reader, "apply"), run.distributor.writing():
        _save_publication(run)


def _drop(row: Shape, run: ApplyRun) -> None:
    """Drop an article: stop reading its source for it, and remove its commands."""
    distributor = run.distributor
    with held(run.reader, "apply"):
        rows = [each for each in distributor.shapes() if each.article_id != row.article_id]
        is_last = all(each.source_object_id != row.source_object_id for each in rows)
        with distributor.writing():
            distributor.control.replace(ARTICLES, rows)
        if is_last and has_log_reader(run.reader.control):
            leave(run.reader, NAME, frozenset({row.source_object_id}))
        for version in range(1, row.schema_version + 1):
            remove_table(distributor.commands_table(replace(row, schema_version=version)))


def _unpublish(run: ApplyRun) -> None:
    with held(run.reader, "apply"), run.distributor.writing():
        run.distributor.control.remove_where(PUBLICATIONS, publication=run.publication.name)


def _unsubscribe(row: SubscriptionRow, run: ApplyRun) -> None:
    if _is_there(Location.of(row.subscriber)):
        with lease(Location.of(row.subscriber), purpose="apply"):
            # A copy of a publisher's folder lists its subscriptions, too.
            if other_publisher(run.distributor, stored_position(run.distributor, row)) is None:
                _leave(run.distributor.subscriber(row), row.subscription_guid)
    # Its number may be given to another agent.
    forget_stop(run.distributor, row)
    with run.distributor.writing():
        run.distributor.control.remove_where(SUBSCRIPTIONS, subscription_guid=row.subscription_guid)


def _is_there(subscriber: Location) -> bool:
    """Return whether a subscriber can be told that its subscription ends: not if its bucket is gone, or closed to us.

    Raises: StoreUnavailableError: it may be told later.
    """
    try:
        return is_folder(subscriber)
    except StoreUnavailableError:
        raise
    except StoreError:
        return False


def _leave(subscriber: SubscriberStore, guid: str) -> None:
    """Forget a subscription at its subscriber, which the caller holds."""
    subscriber.remove(guid)
    # A batch that a dead run began is not finished any more: readers of these tables' logs do not wait for it.
    redo_log(subscriber.root, guid).finish()
    if not is_local(subscriber.root):
        register_of(subscriber.root).state_writers(dict.fromkeys(app_ids(guid), ()))


def _change(stated: Subscription, row: SubscriptionRow, run: ApplyRun) -> None:
    run.distributor.change_subscription(row.subscription_guid, **_options(stated))


def _subscribe(stated: Subscription, run: ApplyRun) -> None:
    distributor = run.distributor
    # Read again: steps before this one wrote the publication's row.
    known = distributor.publication(run.publication.name)
    assert known is not None
    rows = distributor.subscriptions()
    mine = (each for each in rows if each.publication_id == known.publication_id)
    row = next((each for each in mine if each.subscriber == stated.subscriber), None)
    # A subscription that has not begun, since its snapshot failed, takes the file's present options.
    options = {
        **_options(stated),
        "destination": dict(stated.destination),
        "update_mode": _update_mode(stated),
    }
    if row is None:
        row = SubscriptionRow(
            publication_id=known.publication_id,
            agent_id=max((each.agent_id for each in rows), default=0) + 1,
            subscriber=stated.subscriber,
            subscription_guid=str(uuid.uuid4()),
            **options,
        )
        distributor.add_subscription(row)
    else:
        distributor.change_subscription(row.subscription_guid, **options)
        row = replace(row, **options)
    failpoint("transactional.after_subscription")
    make_folder(Location.of(stated.subscriber))
    with lease(Location.of(stated.subscriber), purpose="apply"):
        initialise(
            distributor,
            run.reader,
            row,
            run.publication.name,
            verify=stated.verify,
            equal=run.equal.get(stated.subscriber, {}),
        )
