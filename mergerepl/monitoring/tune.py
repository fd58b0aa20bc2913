"""`mergerepl tune`: rewrite articles' tables into files that make a few changes inexpensive. No row changes."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from uuid import uuid4

from mergerepl.delta.layout import layout, refuse_unclustered, write_in_key_order
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.properties import set_properties
from mergerepl.delta.tables import open_table
from mergerepl.errors import ConfigurationError
from mergerepl.model.article import PublishedArticle
from mergerepl.model.progress import Progress
from mergerepl.model.results import ArticleTuning, TuneResult
from mergerepl.monitoring.cost import layout_reasons
from mergerepl.monitoring.parties import others
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import refuse_staged
from mergerepl.store.lease import lease, record_jvm
from mergerepl.store.location import Location
from mergerepl.tracking.sweep import sweep_root

TUNE = "tune"
"""The kind of its commits. They change no data, so no reader of a feed takes them for changes."""


def tune_replica(
    root: Location, *, articles: Sequence[str], file_bytes: int, dry_run: bool, progress: Progress
) -> TuneResult:
    """Rewrite a replica's tables whose files are too large, or lack bounds of the key.

    Args:
        root: The replica.
        articles: Names of articles; empty for all.
        file_bytes: The approximate size of the new files; files of up to twice that size are left alone.
        dry_run: Only report the tables to rewrite.
        progress: Receives each table.

    Raises: ConfigurationError if a name is unknown, or that of an ended subscription; ConflictError if a session is
    staged; StoreError if a table cannot be written; PublicationError if Delta refuses a property; LeaseError,
    CommitConflictError (run again: each table is written whole or not at all).
    """
    started = time.monotonic()
    replica = Replica(root).require()
    chosen = _chosen(replica, articles)
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(lease(replica.root, purpose=f"mergerepl tune {replica.root}"))
            sweep_root(replica.root)
            refuse_staged(replica)
        done = tuple(_tuned(replica, article, file_bytes, dry_run, progress) for article in chosen)
    return TuneResult(str(replica.root), done, dry_run, round(time.monotonic() - started, 3))


def _chosen(replica: Replica, names: Sequence[str]) -> list[PublishedArticle]:
    """Return the articles of these names, or all published or received here; one article per table."""
    part = {*(row.pubid for row in replica.published), *(row.pubid for row in others(replica))}
    there = [each for each in replica.articles if each.pubid in part]
    known = {each.name for each in there}
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"Replica '{replica.root}' has no article {name!r} that it publishes or subscribes to. Known: "
                f"{', '.join(sorted(known)) or 'none'}.",
                replica=str(replica.root),
                article=name,
            )
    found = [each for each in there if not names or each.name in names]
    return list({replica.table(article): article for article in found}.values())


def _tuned(
    replica: Replica, article: PublishedArticle, file_bytes: int, dry_run: bool, progress: Progress
) -> ArticleTuning:
    table = open_table(replica.table(article))
    before = after = layout(table, article.bounded_identity)
    reasons = layout_reasons(before, file_bytes)
    status, version = ("planned" if reasons else "fine"), None
    properties = before.properties if reasons else {}
    if reasons and not dry_run:
        from mergerepl.spark import session as engine
        from mergerepl.spark.plain import plain_errors

        progress.step(TUNE, article=article.name, rows=before.rows)
        with plain_errors(f"writing the files of '{table.path}' again"):
            spark = engine.session()
            record_jvm(replica.root, engine.jvm_pid())
            refuse_unclustered(spark, table, article.identity)
            session, replid = str(uuid4()), replica.info().replid
            set_properties(
                lambda: spark, table, properties, CommitMark(session, f"{TUNE}:properties", replid)
            )
            mark = CommitMark(session, TUNE, replid)
            head = open_table(table.path)
            table = write_in_key_order(spark, head, article.identity, file_bytes, mark)
        after = layout(table, article.bounded_identity)
        status, version = ("unchanged", None) if table is head else ("tuned", table.version)
    return ArticleTuning(
        article.publication,
        article.name,
        str(table.path),
        status,
        tuple(reasons),
        properties,
        before.files,
        before.largest_bytes,
        after.files,
        after.largest_bytes,
        version,
    )
