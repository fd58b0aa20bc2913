"""Few rows of filtered articles.

Decide the subscriber's changes in one query, and find its partition's gains and losses. The rules are those of
`stage_partitioned`; the rows are in memory, or are read by Arrow (decision 0021).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from enumeration.partition_actions import without_strangers
from mergerepl.changes import (
    COLV1,
    DELETED,
    GENERATION,
    LINEAGE,
    PRIORITY,
    PUBLISHER,
    RESOLVED_COLUMNS,
    ROW,
    ROWGUID,
    SUBSCRIBER,
    TABLENICK,
    VERDICT,
    WRITTEN_VERDICTS,
)
from mergerepl.delta.commit_files import as_images, image_of, rows_with_values
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError, require_texts
from mergerepl.delta.small_writer import article_problem
from mergerepl.delta.tables import TableState, is_of_odd_text, open_table
from mergerepl.errors import StoreError
from mergerepl.frames import DataFrame
from mergerepl.merge.partitions.membership import AFTER, BEFORE, WRITTEN
from mergerepl.merge.partitions.runs import few_mappings
from mergerepl.merge.stage.article import Enumerated
from mergerepl.merge.stage.decision import Changed
from mergerepl.merge.stage.few import decided_few, few_sent, resolved_few
from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import PUBLISHER_PRIORITY
from mergerepl.model.session_terms import ArticleTerms, SessionTerms
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import SEQ, few_versions
from mergerepl.spark.in_memory import frame_of_images
from mergerepl.systables.replinfo import ReplicaInfo

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class FewUploaded:
    """A subscriber's changes of one article, the publisher's versions of these rows and their outcome.

    `sent` and `known` are CHANGES, `outcome` RESOLVED; `changed` is CHANGED of the publisher's table. `image` is the
    type of `row`.
    """

    sent: "pa.Table"
    known: "pa.Table"
    outcome: "pa.Table"
    changed: "pa.Table"
    image: StructType

    def frame(self, spark: SparkSession, rows: "pa.Table") -> DataFrame:
        """Return one of these tables as a frame."""
        return frame_of_images(spark, rows, self.image)


def few_uploaded(
    spark: SparkSession,
    replica: Replica,
    info: ReplicaInfo,
    sent: Mapping[str, tuple[Enumerated, ArticleTerms]],
    terms: SessionTerms,
    choice: EngineChoice,
) -> dict[str, FewUploaded] | None:
    """Decide the subscriber's changes of all articles (by name) in one query.

    Returns: None if an article has many, or Arrow must not read them.
    """
    changed: dict[str, tuple[Changed, dict[str, pa.Table | None], StructType]] = {}
    for name, (side, of_article) in sent.items():
        article = side.article
        few = few_sent(Changed(article, of_article, None, None, 0), {SUBSCRIBER: side})
        if few is None:
            return None
        mine = few[SUBSCRIBER]
        if mine is None:
            continue
        table = open_table(replica.table(article), info.captured[article.nickname])
        try:
            theirs = few_published(replica, article, table, mine, through_seq_inclusive=info.last_seq)
        except NeedsSparkError as error:
            choice.fall_back(table.path, error)
            return None
        if _may_be_inserted(mine, theirs):
            return None
        image = image_of(table, article.columns)
        at_subscriber, at_publisher = without_strangers(
            *(frame_of_images(spark, rows, image) for rows in (mine, theirs)), most=mine.num_rows
        )
        both = {PUBLISHER: theirs, SUBSCRIBER: mine}
        of_both = Changed(article, of_article, at_publisher, at_subscriber, mine.num_rows + theirs.num_rows)
        changed[name] = of_both, both, image
    if not changed:
        return {}
    decided = decided_few([each for each, _, _ in changed.values()], terms)
    found = {}
    for name, (each, both, image) in changed.items():
        theirs, mine = both[PUBLISHER], both[SUBSCRIBER]
        assert theirs is not None
        assert mine is not None
        outcome = resolved_few(decided, both, each.article).select([*RESOLVED_COLUMNS])
        found[name] = FewUploaded(mine, theirs, outcome, _changed(mine, theirs, outcome), image)
    return found


@dataclass(frozen=True)
class FewOfPartition:
    """The mapping rows of one article for a partition (`read_mappings`), and the publisher's versions of these rows.

    `image` is the type of `row` of `versions` (CHANGES).
    """

    mappings: "pa.Table"
    versions: "pa.Table"
    image: StructType


def few_windows(
    replica: Replica,
    info: ReplicaInfo,
    sent: Sequence[tuple[PublishedArticle, Collection[int], int]],
    partition_id: int,
    choice: EngineChoice,
) -> list[FewOfPartition] | None:
    """Return the mapping rows of these articles for a partition, in these generations and from these runs on.

    Returns: None if Arrow does not read the rows as Spark does.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    mappings = few_mappings(
        replica.folder,
        sorted({number for _, generations, _ in sent for number in generations}),
        partition_id,
        from_seq_inclusive=min(first_seq for _, _, first_seq in sent),
        through_seq_inclusive=info.last_seq,
    )
    found = []
    for article, generations, first_seq in sent:
        is_its = pc.equal(mappings[TABLENICK], article.nickname)
        mine = mappings.filter(pc.and_(is_its, pc.greater_equal(mappings[SEQ], first_seq)))
        mine = mine.filter(pc.is_in(mine[GENERATION], pa.array(sorted(generations), pa.int64())))
        table = open_table(replica.table(article), info.captured[article.nickname])
        guids = mine[ROWGUID].unique().to_pylist()
        try:
            versions = few_latest(replica, article, table, guids, through_seq_inclusive=info.last_seq)
        except NeedsSparkError as error:
            choice.fall_back(table.path, error)
            return None
        image = image_of(table, article.columns)
        found.append(FewOfPartition(mine.drop_columns([TABLENICK]), versions, image))
    return found


def few_published(
    replica: Replica,
    article: PublishedArticle,
    table: TableState,
    sent: "pa.Table",
    *,
    through_seq_inclusive: int,
) -> "pa.Table":
    """Return CHANGES of rows, as `partitions.versions.versions_of` does, from the table at its captured version.

    Raises: NeedsSparkError if Arrow does not read the rows as Spark does.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    known = few_latest(
        replica, article, table, sent[ROWGUID].to_pylist(), through_seq_inclusive=through_seq_inclusive
    )
    others = sent.filter(pc.invert(pc.is_in(sent[ROWGUID], known[ROWGUID].combine_chunks())))
    if not others.num_rows:
        return known
    if article.rowguid_column is not None:
        raise NeedsSparkError("rows by GUID that have no metadata yet")
    places = [int(field[1:]) for field in article.identity_fields]
    keys = {f"k{i}": pc.struct_field(others[ROW], place) for i, place in enumerate(places)}
    there = as_images(
        rows_with_values(table, article.columns, article.identity[0], keys["k0"].combine_chunks().unique()),
        article.columns,
    )
    there_keys = {f"k{i}": pc.struct_field(there[ROW], place) for i, place in enumerate(places)}
    matched = pa.table({**keys, ROWGUID: others[ROWGUID]}).join(
        pa.table({**there_keys, "place": pa.array(range(there.num_rows), pa.int32())}),
        keys=list(keys),
        join_type="inner",
    )
    count = matched.num_rows
    if not count:
        return known
    image = known.schema.field(ROW).type
    no_column = pa.scalar([], known.schema.field(COLV1).type)
    constants: dict[str, Any] = {
        DELETED: pa.scalar(False),
        GENERATION: pa.scalar(0, pa.int64()),
        LINEAGE: pa.scalar([(0, 1)], known.schema.field(LINEAGE).type),
        PRIORITY: pa.scalar(PUBLISHER_PRIORITY, pa.float64()),
        **({COLV1: no_column} if article.column_tracking else {}),
    }
    published = {
        field.name: pa.repeat(constants[field.name], count)
        if field.name in constants
        else pa.nulls(count, field.type)
        for field in known.schema
    }
    published[ROWGUID] = matched[ROWGUID]
    published[ROW] = there[ROW].combine_chunks().take(matched["place"].combine_chunks()).cast(image)
    return pa.concat_tables([known, pa.table(published).cast(known.schema)])


def few_latest(
    replica: Replica,
    article: PublishedArticle,
    table: TableState,
    guids: list[str],
    *,
    through_seq_inclusive: int,
) -> "pa.Table":
    """Return CHANGES of the latest recorded versions of some rows of an article; `table` is its table.

    Raises: NeedsSparkError if Arrow does not read the rows as Spark does.
    """
    import pyarrow as pa

    if (problem := article_problem(table, article)) is not None:
        raise NeedsSparkError(problem)
    image = pa.struct(
        [(f"c{i}", table.arrow_schema.field(name).type) for i, name in enumerate(article.columns)]
    )
    try:
        rows = few_versions(
            replica.folder, article, guids, image, through_seq_inclusive=through_seq_inclusive
        )
    except StoreError as error:
        if is_of_odd_text(error.__cause__):
            raise NeedsSparkError("its recorded rows hold text that is no UTF-8") from error
        raise
    require_texts(rows)
    return rows


def _may_be_inserted(mine: "pa.Table", theirs: "pa.Table") -> bool:
    """True if a live row meets a tombstone: it may be another row of that key (`without_strangers`)."""
    import pyarrow.compute as pc

    live, gone = mine.filter(pc.invert(mine[DELETED])), theirs.filter(theirs[DELETED])
    return bool(pc.any(pc.is_in(live[ROWGUID], gone[ROWGUID].combine_chunks())).as_py())


def _changed(mine: "pa.Table", theirs: "pa.Table", outcome: "pa.Table") -> "pa.Table":
    """CHANGED of the publisher's table: its rows before the session and after it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    guids = mine[ROWGUID].combine_chunks()
    written = outcome.filter(pc.is_in(outcome[VERDICT], pa.array(WRITTEN_VERDICTS)))
    of_written = pc.index_in(guids, written[ROWGUID].combine_chunks())

    def live(rows: "pa.Table") -> "pa.Array[Any]":
        place = pa.array(range(rows.num_rows), pa.int32())
        place = pc.if_else(rows[DELETED].combine_chunks(), pa.scalar(None, pa.int32()), place)
        return rows[ROW].combine_chunks().take(place)

    images = pa.concat_arrays([live(theirs), live(written).cast(theirs.schema.field(ROW).type)])
    before = pc.index_in(guids, theirs[ROWGUID].combine_chunks())
    after = pc.if_else(
        pc.is_valid(of_written), pc.add(of_written, pa.scalar(theirs.num_rows, pa.int32())), before
    )
    return pa.table(
        {
            ROWGUID: guids,
            BEFORE: images.take(before),
            AFTER: images.take(after),
            WRITTEN: pc.is_valid(of_written),
        }
    )
