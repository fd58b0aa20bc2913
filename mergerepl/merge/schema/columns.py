"""`columns` of an article change in the file: the publisher's definition gets another version, after a capture.

A column that is left out stays in every table. For one that is published, the capture in the commit of the new version
compares the table with itself without the column: each row that has a value there is a change.
"""

from dataclasses import dataclass, replace

from enumeration.horizon import clock_of
from mergerepl.changes import PUBLISHER
from mergerepl.delta.feed.column_changes import ADD, COLUMNS, LEAVE, ColumnChange
from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY
from mergerepl.delta.properties import set_properties
from mergerepl.delta.tables import TableState, open_table
from mergerepl.errors import PublicationError, SchemaStoppedError
from mergerepl.failpoints import failpoint
from mergerepl.merge.capture.record import Recorder
from mergerepl.merge.capture.windows import article_window, windows_beside
from mergerepl.merge.schema.follow import article_row, follower_of, recorder_of_followed, state_definition
from mergerepl.merge.schema.moves import published_field
from mergerepl.merge.schema.subscribers_table import table_at
from mergerepl.model.article import PublishedArticle
from mergerepl.model.definition import Definition
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog
from mergerepl.systables.catalog import ArticleRow
from triggers.window import Followed


@dataclass(frozen=True)
class _Change:
    """The definition of an article that counts, the next one, and the changes that lead there."""

    before: Definition
    after: Definition
    changes: tuple[ColumnChange, ...]

    @property
    def added(self) -> list[str]:
        """The columns that the next definition publishes."""
        return [each.name for each in self.after.fields if each.number not in self.before.by_number]


def check_columns(publisher: Replica, nickname: int, names: tuple[str, ...]) -> None:
    """Check that columns of a publisher's table can be published in an article that has subscribers.

    Raises: PublicationError naming the first one that cannot.
    """
    row, article = article_row(publisher, nickname), publisher.article(nickname)
    table, follower = open_table(publisher.table(article)), follower_of(publisher, article, publisher.info())
    change = _change(row, article, table, names, is_listed=article.vertical)
    for each in change.after.fields:
        if each.number in change.before.by_number:
            continue
        problem = follower.problem_of_new(table, each, is_added=True)
        if problem is not None:
            raise PublicationError(
                f"Article '{article.name}': `columns` publishes '{each.name}' from now on, and its subscribers cannot get "
                f"it: {problem}. Nothing was changed. Leave it out, change it in table '{table.path}', or publish it under "
                "another name.",
                article=article.name,
                table=str(table.path),
            )


def stops_at(
    publisher: Replica, subscriber: Replica, nickname: int, names: tuple[str, ...], *, is_listed: bool
) -> str | None:
    """Return why a subscriber's table could not take these columns of the publisher's; None if it could."""
    row, article = article_row(publisher, nickname), publisher.article(nickname)
    there = next((each for each in subscriber.articles if each.artid == article.artid), None)
    if there is None:
        return None
    table = open_table(publisher.table(article))
    change = _change(row, article, table, names, is_listed=is_listed)
    try:
        table_at(publisher, subscriber, there, change.after, table, change.changes).steps()
    except SchemaStoppedError as error:
        return error.reason
    return None


def change_columns(
    recorder: Recorder, nickname: int, names: tuple[str, ...], *, is_listed: bool, is_captured: bool = True
) -> None:
    """Publish these columns of an article of a held publisher, and no others, after a capture of what was published.

    `is_listed`: the file lists them; otherwise columns that the table gains later are published. `is_captured`: whether
    there are subscribers, so that changes are to be captured.

    Raises: SchemaMismatchError if its columns changed in a way that is not followed; as a capture.
    """
    recorder = recorder_of_followed(recorder, nickname, is_captured=is_captured)
    replica = recorder.replica
    row, article, info = article_row(replica, nickname), replica.article(nickname), replica.info()
    table = open_table(replica.table(article))
    change = _change(row, article, table, names, is_listed=is_listed)
    if not change.changes:
        _forget_uncounted(replica, row, change.before)
        return
    info = replace(info, clock=clock_of(info, replica.relations()))
    windows = [article_window(replica, article, info)] if is_captured else []
    state_definition(recorder, row, change.after, change.changes)
    info = replace(info, article_versions={**info.article_versions, nickname: change.after.version})
    if change.added and is_captured and article.rejects != PUBLISHER:
        published = row.with_definition(change.after).published(article.publication, change.after.version)
        mark = CommitMark("schema", f"{SETUP}:columns", info.replid)
        # A commit that changes nothing: the versions before and after it are compared.
        through = set_properties(recorder.spark_of, table, {CDF_PROPERTY: "true"}, mark)
        # For its checks: what is compared must have these columns.
        article_window(replica, published, info, through_version_inclusive=through)
        followed = Followed("a column is published", dict.fromkeys(change.added))
        windows = [
            article_window(replica, published, info, through_version_inclusive=through, followed=followed)
        ]
        failpoint("schema.before_published_columns")
    recorder.record(info, [*windows, *(windows_beside(replica, article, info) if is_captured else [])])
    failpoint("schema.after_capture")


def _change(
    row: ArticleRow, article: PublishedArticle, table: TableState, names: tuple[str, ...], *, is_listed: bool
) -> _Change:
    """Return the change of an article's definition that publishes these columns of its table."""
    before = row.definitions[article.version]
    # Versions and numbers of definitions that an `apply` which died left are passed over.
    version = max(row.definitions) + 1
    first = 1 + max(each.number for known in row.definitions.values() for each in known.fields)
    known = {each.name for each in before.fields}
    new = [each for each in table.fields if each["name"] in names and each["name"] not in known]
    added = [published_field(number, each) for number, each in enumerate(new, first)]
    left = [each for each in before.fields if each.name not in names]
    kept = [each for each in before.fields if each.name in names]
    changes = [ColumnChange(0, LEAVE, each.name, field=each.number) for each in left]
    changes += [
        ColumnChange(
            *(0, ADD, "", each.name, "", each.type, each.nullable),
            new_text=each.default or "",
            field=each.number,
        )
        for each in added
    ]
    if is_listed != article.vertical:
        changes.append(ColumnChange(0, COLUMNS, new_text="listed" if is_listed else "all"))
    if not changes:
        return _Change(before, before, ())
    after = before.next([*kept, *added], version, is_root=True, is_changed=True)
    return _Change(before, replace(after, vertical=is_listed), tuple(changes))


def _forget_uncounted(replica: Replica, row: ArticleRow, definition: Definition) -> None:
    """State the columns of the definition that counts where an `apply` that died, and was taken back, left others."""
    stated = row.with_definition(definition)
    if stated != row:
        replica.control.replace_where(catalog.ARTICLES, [stated], artid=row.artid)
