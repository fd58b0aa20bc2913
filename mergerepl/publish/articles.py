"""Publish tables: the feed on, the article's system tables there, and last its row in sysmergearticles."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mergerepl.delta.marks import SETUP
from mergerepl.delta.properties import describe, missing_properties, set_properties
from mergerepl.delta.tables import TableState, open_table
from mergerepl.delta.types import Field
from mergerepl.errors import PublicationError
from mergerepl.failpoints import failpoint
from mergerepl.filters.publication_filters import PublicationFilters
from mergerepl.model.publication import Article
from mergerepl.model.results import PlanStep
from mergerepl.publish.check_article import check_article, published_fields
from mergerepl.publish.filters import described
from mergerepl.publish.replica_state import note_captured
from mergerepl.publish.rows import article_row
from mergerepl.publish.system_tables import add_image_columns, create_conflict_table
from mergerepl.publish.work import Step, Work
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog
from mergerepl.systables.conflicts_info import conflict_table_name


@dataclass(frozen=True)
class NewArticle:
    """An article to be published, with the table it was checked against."""

    article: Article
    table: TableState
    nickname: int

    @property
    def fields(self) -> list[Field]:
        """The published columns."""
        return published_fields(self.article, self.table)


def publish_steps(work: Work, articles: Sequence[NewArticle], filters: PublicationFilters) -> list[Step]:
    """Return one step per table to publish; its detail shows the article's filters as they were read."""
    return [Step(_plan(work, new, filters), partial(_publish, work, new)) for new in articles]


def _plan(work: Work, new: NewArticle, filters: PublicationFilters) -> PlanStep:
    properties = missing_properties(new.table, work.retention)
    detail = describe(properties) or "Change Data Feed is on and files are kept long enough"
    which = described(filters, new.article.name)
    return PlanStep("publish", new.article.name, f"{detail}; {which}" if which else detail)


def _publish(work: Work, new: NewArticle) -> None:
    """Publish one table. Its row in sysmergearticles is the commit point: without it, a run starts over."""
    root, table = work.publisher, new.table
    name = new.article.name
    failpoint("publish.before_alter")
    captured = set_properties(
        work.spark, table, missing_properties(table, work.retention), work.mark(f"publish {name}")
    )
    failpoint("publish.after_alter")
    _check_again(work, new, captured)
    mark = work.mark(f"system tables of {name}")
    conflict_table = conflict_table_name(work.publication.name, name)
    create_conflict_table(
        root,
        conflict_table,
        new.fields,
        spark_of=lambda: work.spark,
        retention=work.retention,
        mark=mark,
    )
    add_image_columns(lambda: work.spark, root, {new.nickname: new.fields})
    failpoint("publish.after_system_tables")
    note_captured(root, {new.nickname: (table.path, captured, table.metadata.table_id)})
    failpoint("publish.after_captured")
    control = Replica(root).control
    row = article_row(
        work.publication, new.article, table, pubid=work.pubid, artid=str(uuid.uuid4()), nickname=new.nickname
    )
    control.replace(catalog.ARTICLES, [*control.rows(catalog.ARTICLES), row])
    failpoint("publish.after_article")


def _check_again(work: Work, new: NewArticle, captured: int) -> None:
    """Check what was written between the plan's check and the captured version: the feed has later writes.

    Raises: PublicationError.
    """
    article, path = new.article, new.table.path
    table = open_table(path, captured)
    since = [commit for commit in table.commits_after(new.table.version) if commit.kind != SETUP]
    if not since:
        return
    check_article(article, table)
    if published_fields(article, table) != new.fields:
        raise PublicationError(
            f"Article '{article.name}': the columns of table '{path}' changed while it was being published. Run "
            "`mergerepl apply` again.",
            article=article.name,
            table=str(path),
        )
    if any(commit.data_change for commit in since):
        from mergerepl.publish.check_rows import check_rows

        check_rows(work.spark, article, table)


def unpublish(root: Path, artid: str) -> None:
    """Take an article out of the publication. Its table keeps the feed; the nickname is not reused."""
    control = Replica(root).control
    control.remove_where(catalog.ARTICLES, artid=artid)
