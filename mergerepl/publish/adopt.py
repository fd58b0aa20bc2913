"""Take a subscriber's own table into a publication (`sync_type: none`), if it holds the publisher's rows."""

from pathlib import Path

from mergerepl.delta.properties import missing_properties, set_properties
from mergerepl.delta.tables import TableState, foreign_file, open_table, read_version
from mergerepl.errors import PublicationError
from mergerepl.failpoints import failpoint
from mergerepl.publish.check_rows import check_generated
from mergerepl.publish.snapshot import KEY_PREFIX, differing_rows
from mergerepl.publish.unfinished import article_table
from mergerepl.publish.work import Work
from mergerepl.rows.images import with_readable
from mergerepl.spark.session import require_utc
from mergerepl.systables.catalog import ArticleRow

MOST_NAMED = 5


def adopt(
    work: Work, article: ArticleRow, source: TableState, source_version: int, root: Path
) -> tuple[int, str]:
    """Turn the table's feed on, compare its rows, and return its captured version and its id.

    Raises: As `check_same_rows`.
    """
    table = open_table(article_table(root, article))
    _require_utc(work, article, table)
    mark = work.mark(f"publish {article.name} at {root}")
    version = set_properties(work.spark, table, missing_properties(table, work.retention), mark)
    failpoint("initialise.after_adopt")
    # Again: both tables may have been written to since the plan was made.
    check_same_rows(work, article, source, source_version, table, version)
    return version, table.metadata.table_id


def check_same_rows(
    work: Work,
    article: ArticleRow,
    source: TableState,
    source_version: int,
    target: TableState,
    target_version: int,
) -> None:
    """Check that a subscriber's table holds the publisher's rows, in files of its own.

    Raises: PublicationError naming up to five keys that differ; EngineError if the session would read timestamp partition
        columns otherwise.
    """
    _require_utc(work, article, source, target)
    table = target.path
    rows = read_version(work.spark, table, target_version)
    foreign = foreign_file(work.spark, table, target_version)
    if foreign is not None:
        raise PublicationError(
            f"Article '{article.name}': table '{table}' has files outside its folder, such as '{foreign}' (a "
            "shallow clone?), whose owner may remove them. Copy it with CREATE TABLE … AS SELECT and put the copy in "
            "its place, or move it away and leave `sync_type` out: the rows are then copied from the publisher.",
            article=article.name,
            table=str(table),
        )
    check_generated(rows, target.generated_columns, article=article.name, table=table)
    differing = differing_rows(
        read_version(work.spark, source.path, source_version),
        rows,
        article.published_columns,
        article.key_columns,
    )
    keys = [f"{KEY_PREFIX}{i}" for i, _ in enumerate(article.key_columns)]
    found = with_readable(differing, keys).take(MOST_NAMED + 1)
    if not found:
        return
    named = [
        ", ".join(f"{name}={row[key]}" for name, key in zip(article.key_columns, keys, strict=True))
        + f" ({row['kind']})"
        for row in found[:MOST_NAMED]
    ]
    more = " and more" if len(found) > MOST_NAMED else ""
    raise PublicationError(
        f"Article '{article.name}': table '{table}' does not hold the publisher's rows, as `sync_type: "
        f"none` promises: {'; '.join(named)}{more}. Make the tables equal, or move this one away and leave "
        "`sync_type` out: the rows are then copied from the publisher.",
        article=article.name,
        table=str(table),
        keys="; ".join(named),
    )


def _require_utc(work: Work, article: ArticleRow, *tables: TableState) -> None:
    for table in tables:
        require_utc(work.spark, article.name, table.path, table.metadata.timestamp_partitions)
