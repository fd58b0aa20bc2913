"""`mergerepl apply` of a transactional file: articles begin, subscribers get their snapshot (transactional.md 10)."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY
from mergerepl.delta.properties import retention_properties, set_properties
from mergerepl.delta.tables import head_version, open_table
from mergerepl.failpoints import failpoint
from mergerepl.logreader.guard import refuse_copy, refuse_other_key
from mergerepl.logreader.log_reader import LogReader, make_log_reader
from mergerepl.logreader.positions import has_log_reader, read_state
from mergerepl.logreader.scan import Begin, begin, leave
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.results import ApplyResult, PlanStep
from mergerepl.model.transactional import (
    TransactionalPublication,
    TransactionalSubscription,
)
from mergerepl.spark.errors import plain_errors
from mergerepl.store.folders import is_folder, make_folder, remove_table
from mergerepl.store.lease import lease
from mergerepl.systables.transactional import (
    ARTICLES,
    PUBLICATIONS,
    SUBSCRIBED,
    SUBSCRIPTIONS,
    SYNC_AUTOMATIC,
    SYNC_NONE,
    ArticleRow,
    PublicationRow,
    SubscriptionRow,
)
from mergerepl.systables.transactional import (
    CONSUMER as NAME,
)
from mergerepl.transactional.catalog import Distributor, Subscriber
from mergerepl.transactional.consumer import as_stated
from mergerepl.transactional.log_reader import held, log_reader
from mergerepl.transactional.refusals import TransactionalUsageError, skipped_numbers
from mergerepl.transactional.snapshot import check_equal, initialise
from mergerepl.transactional.stated_articles import (
    Wanted,
    changed_key,
    check_destinations,
    check_key,
    checked_article,
)
from mergerepl.transactional.stops import forget_stop

FILES_KEPT = timedelta(days=7)


@dataclass(frozen=True)
class Step:
    """A step of `apply`: its line in the plan, its function, and what that checks of the rows before any step runs."""

    action: str
    object: str
    detail: str
    run: Callable[[], Any]
    check: Callable[[], Any] | None = None

    @property
    def plan(self) -> PlanStep:
        """The line in the plan."""
        return PlanStep(self.action, self.object, self.detail)


def apply_transactional(
    publication: TransactionalPublication,
    *,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> ApplyResult:
    """Make publisher and subscribers match a transactional publication; done again, it does nothing.

    Raises: TransactionalError 14088 for a table that cannot be published, TransactionalUsageError for a change under active
        subscriptions or a table that is there; LogReaderBusyError, LeaseError (run again).
    """
    began = time.monotonic()
    root = Path(publication.publisher)
    shown = progress or NoProgress()
    distributor = Distributor(root)
    work = Publishing(publication, distributor, log_reader(distributor, spark=spark, wait_s=60.0))
    with plain_errors("a publication was applied"), ExitStack() as stack:
        if not dry_run:
            stack.enter_context(lease(root, purpose="apply"))
        steps = work.steps()
        for step in steps:
            if step.check is not None:
                shown.step(f"check {step.object}")
                step.check()
        if not dry_run:
            for step in steps:
                shown.step(f"{step.action} {step.object}")
                step.run()
    return ApplyResult(
        publication.name, tuple(step.plan for step in steps), dry_run, round(time.monotonic() - began, 3)
    )


@dataclass
class Publishing:
    """The work of one `apply`."""

    publication: TransactionalPublication
    distributor: Distributor
    reader: LogReader
    equal: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    """Subscriber and article to the versions of source and table whose rows were compared."""

    def steps(self) -> list[Step]:
        """Return the steps, after all checks that need no rows. Each step has the others."""
        known = self.distributor.publication(self.publication.name)
        rows = self.distributor.articles(known.publication_id) if known else []
        subscribed = self.distributor.subscriptions(known.publication_id) if known else []
        stated = {each.subscriber for each in self.publication.subscriptions}
        if stated and not self.publication.articles:
            raise TransactionalUsageError.without_articles(self.publication.name)
        staying = {row.subscriber: row for row in subscribed if row.subscriber in stated}
        wanted = [checked_article(self.distributor.root, each) for each in self.publication.articles]
        steps = [
            Step("unsubscribe", row.subscriber, "its tables stay", partial(self._unsubscribe, row))
            for row in subscribed
            if row.subscriber not in stated
        ]
        steps += self._article_steps(wanted, {row.article: row for row in rows}, is_subscribed=bool(staying))
        if known and self._publication_row() != known:
            steps.append(Step("change", known.publication, "distribution_retention", self._change_retention))
        if known and not wanted:
            steps.append(Step("unpublish", known.publication, "it has no article", self._unpublish))
        for each in self.publication.subscriptions:
            at = staying.get(each.subscriber)
            skipped_numbers(each.skip_errors)
            if at is not None and at.status != SUBSCRIBED and dict(at.destination) != dict(each.destination):
                raise TransactionalUsageError.later(
                    f"Another `destination` of subscriber '{each.subscriber}'",
                    "Take the subscription out of the file and apply; put it back and apply.",
                )
            if at is None or at.status == SUBSCRIBED:
                check_destinations(each, at, wanted)
                what = "initialise" if each.sync_type == "automatic" else "subscribe"
                check = (
                    partial(self._check_rows, each, wanted)
                    if each.sync_type == "none" and each.verify
                    else None
                )
                steps.append(
                    Step(what, each.subscriber, each.sync_type, partial(self._subscribe, each), check)
                )
            elif changed := [name for name, value in _options(each).items() if getattr(at, name) != value]:
                change = partial(self._change, each, at)
                steps.append(Step("change", each.subscriber, ", ".join(changed), change))
        return steps

    def _article_steps(
        self, wanted: Sequence[Wanted], known: Mapping[str, ArticleRow], *, is_subscribed: bool
    ) -> list[Step]:
        """Return the steps for articles.

        Raises: TransactionalUsageError for a change under active subscriptions.
        """
        named = {each.stated.name: each for each in wanted}
        leaving = {name: "place: it is not" for name in known if name not in named}
        for name, row in known.items():
            if name in named and (what := changed_key(named[name], row)):
                leaving[name] = what
        new = [each for name, each in named.items() if name not in known or name in leaving]
        if is_subscribed and leaving:
            name, what = next(iter(leaving.items()))
            raise TransactionalUsageError.changed_article(name, what)
        if is_subscribed and new:
            raise TransactionalUsageError.later(
                f"An article that is added ({new[0].stated.name}) while subscriptions are active",
                "Take the subscriptions out of the file and apply; put them back with the article and apply.",
            )
        steps = [
            Step("drop", name, "its commands go, its table stays", partial(self._drop, known[name]))
            for name in leaving
        ]
        if new:
            shown = "; ".join(
                f"{e.stated.name}: {e.stated.ins_cmd}, {e.stated.upd_cmd}, {e.stated.del_cmd}" for e in new
            )
            check = partial(self._check_keys, new)
            steps.append(Step("publish", self.publication.name, shown, partial(self._publish, new), check))
        return steps

    def _check_keys(self, new: Sequence[Wanted]) -> None:
        if has_log_reader(self.reader.control):
            state = read_state(self.reader.control)
            refuse_copy(self.reader.root, state)
            for each in new:
                refuse_other_key(state, self.reader.consumers, each.stated.table, each.stated.key)
        for each in new:
            check_key(self.reader.spark(), each)

    def _check_rows(self, stated: TransactionalSubscription, wanted: Sequence[Wanted]) -> None:
        compared = self.equal.setdefault(stated.subscriber, {})
        for each in wanted:
            article = each.row(0, 0, 0, bytes(10))
            table = Path(stated.subscriber) / stated.destination.get(
                article.article, article.destination_object
            )
            versions = head_version(each.state.path), head_version(table)
            check_equal(self.reader.spark(), each.state.path, versions[0], table, versions[1], article)
            compared[article.article] = versions

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _publish(self, new: Sequence[Wanted]) -> None:
        """Let the articles begin: a cycle of its own gives each source an LSN; MSpublications is written last."""
        with held(self.reader, "apply"):
            make_log_reader(self.reader, FILES_KEPT)
            state = read_state(self.reader.control)
            for each in new:
                refuse_other_key(state, self.reader.consumers, each.stated.table, each.stated.key)
            for each in new:
                self._set_properties(each, state.database.database_id)
            with self.distributor.writing():
                self.distributor.create()
                row = self._save_publication()
            failpoint("transactional.after_publication")
            first = max((each.article_id for each in self.distributor.shapes()), default=0) + 1

            def rows(plan: Any, sources: Sequence[Any], numbers: range) -> dict[str, Any]:
                del numbers
                stated = [
                    each.row(row.publication_id, first + i, source.source_object_id, bytes(plan.lsn(entry)))
                    for i, (each, source, entry) in enumerate(zip(new, sources, plan.entries, strict=True))
                ]
                return {"begin": [as_stated(one) for one in stated]}

            begin(self.reader, NAME, [_begin(each.stated.table) for each in new], rows)

    def _publication_row(self) -> PublicationRow:
        known = self.distributor.publication(self.publication.name)
        number = max((row.publication_id for row in self.distributor.publications()), default=0) + 1
        return PublicationRow(
            publication_id=known.publication_id if known else number,
            publication=self.publication.name,
            publisher_root=str(self.distributor.root),
            min_distretention=int(self.publication.min_retention.total_seconds() // 3600),
            max_distretention=int(self.publication.max_retention.total_seconds() // 3600),
            removed_through=known.removed_through if known else bytes(10),
        )

    def _save_publication(self) -> PublicationRow:
        row = self._publication_row()
        self.distributor.control.replace_where(PUBLICATIONS, [row], publication=row.publication)
        return row

    def _change_retention(self) -> None:
        with held(self.reader, "apply"), self.distributor.writing():
            self._save_publication()

    def _set_properties(self, wanted: Wanted, database_id: str) -> None:
        table = open_table(wanted.state.path)
        missing = {} if table.metadata.change_data_feed else {CDF_PROPERTY: "true"}
        missing |= retention_properties(table.properties, FILES_KEPT)
        set_properties(self.reader.spark(), table, missing, CommitMark(database_id, "setup:publish"))

    def _drop(self, row: ArticleRow) -> None:
        """Take an article out: its source is no longer read for it; its commands go."""
        with held(self.reader, "apply"):
            rows = [each for each in self.distributor.shapes() if each.article_id != row.article_id]
            is_last = all(each.source_object_id != row.source_object_id for each in rows)
            with self.distributor.writing():
                self.distributor.control.replace(ARTICLES, rows)
            if is_last and has_log_reader(self.reader.control):
                leave(self.reader, NAME, frozenset({row.source_object_id}))
            for version in range(1, row.schema_version + 1):
                remove_table(self.distributor.commands_table(replace(row, schema_version=version)))

    def _unpublish(self) -> None:
        with held(self.reader, "apply"), self.distributor.writing():
            self.distributor.control.remove_where(PUBLICATIONS, publication=self.publication.name)

    def _unsubscribe(self, row: SubscriptionRow) -> None:
        if is_folder(Path(row.subscriber)):
            with lease(Path(row.subscriber), purpose="apply"):
                Subscriber(Path(row.subscriber)).remove(row.subscription_guid)
        # Its number may be given to another agent.
        forget_stop(self.distributor, row)
        with self.distributor.writing():
            self.distributor.control.remove_where(SUBSCRIPTIONS, subscription_guid=row.subscription_guid)

    def _change(self, stated: TransactionalSubscription, row: SubscriptionRow) -> None:
        self.distributor.change_subscription(row.subscription_guid, **_options(stated))

    def _subscribe(self, stated: TransactionalSubscription) -> None:
        known = self.distributor.publication(self.publication.name)
        assert known is not None
        rows = self.distributor.subscriptions()
        row = next(
            (
                r
                for r in rows
                if r.subscriber == stated.subscriber and r.publication_id == known.publication_id
            ),
            None,
        )
        # A subscription that has not begun, since its snapshot failed, takes what the file says now.
        options = {**_options(stated), "destination": dict(stated.destination)}
        if row is None:
            row = SubscriptionRow(
                publication_id=known.publication_id,
                agent_id=max((each.agent_id for each in rows), default=0) + 1,
                subscriber=stated.subscriber,
                subscription_guid=str(uuid.uuid4()),
                **options,
            )
            self.distributor.add_subscription(row)
        else:
            self.distributor.change_subscription(row.subscription_guid, **options)
            row = replace(row, **options)
        failpoint("transactional.after_subscription")
        make_folder(Path(stated.subscriber))
        with lease(Path(stated.subscriber), purpose="apply"):
            initialise(
                self.distributor,
                self.reader,
                row,
                self.publication.name,
                verify=stated.verify,
                equal=self.equal.get(stated.subscriber, {}),
            )


def _options(stated: TransactionalSubscription) -> dict[str, Any]:
    """Return the columns of `MSsubscriptions` that may change at any time. A new `sync_type` is for the next snapshot."""
    return {
        "skip_errors": tuple(map(str, stated.skip_errors)),
        "subscription_streams": stated.subscription_streams,
        "sync_type": SYNC_AUTOMATIC if stated.sync_type == "automatic" else SYNC_NONE,
    }


def _begin(path: str) -> Begin:
    schema, _, name = path.rpartition("/")
    return Begin(path, schema or "dbo", name)
