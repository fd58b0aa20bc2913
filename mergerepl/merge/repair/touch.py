"""`touch`: rows get a new version as if they had been updated to themselves (sp_mergedummyupdate), and travel again.

With `without_metadata` only rows that contents and tombstones do not know (sp_addtabletocontents), such as rows that were
loaded while the change feed was off.
"""

from dataclasses import replace

from pyspark.sql import functions as F

from enumeration.horizon import clock_of
from mergerepl.changes import DELETED, ROW, ROWGUID
from mergerepl.delta.tables import read_version
from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.filters.chosen_rows import NOTHING, ChosenRows
from mergerepl.merge.capture.windows import last_sent
from mergerepl.merge.repair.stamp import (
    CHANGED_COLUMNS,
    IS_NEW,
    OTHER,
    OWN,
    all_columns,
    open_generations_of,
    record,
    stamped,
    stamped_article,
    with_known,
)
from mergerepl.model.results import PhaseCounts, TouchResult
from mergerepl.monitoring.fixed_article import check_present_columns
from mergerepl.monitoring.parties import article_named
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.runs import ArticleRuns
from mergerepl.replica.subscription import captured_position, own_priorities, refuse_copies, refuse_staged
from mergerepl.rows.images import all_true, image_type, rowguid_of_image, stored_image
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from triggers.tracked_rows import Origin


def touch_rows(
    root: Location, article: str, chosen: ChosenRows, *, publication: str | None, without_metadata: bool
) -> TouchResult:
    """Give the chosen rows of an article's table, as it was captured, one more version each.

    Raises: ConfigurationError if the folder is not a replica, or a name, the key or the condition does not fit;
    PublicationError if a key has several rows; ConflictError if a session is interrupted; SchemaMismatchError,
    StoreError, CaptureError; LeaseError (run again).
    """
    from mergerepl.spark import session as engine

    with plain_errors(f"touching rows of '{root}'"), lease(root, purpose="mergerepl touch"):
        replica = Replica(root).require()
        refuse_copies(replica)
        replica.require_unedited()
        refuse_staged(replica)
        info, of = replica.info(), article_named(replica, article, publication)
        info = replace(info, clock=clock_of(info, replica.subscriptions()))
        check_present_columns(replica, of)
        version = captured_position(replica, of, info).version
        spark = recording_jvm(engine.session, (replica,))()
        types = dict(zip(of.columns, of.types, strict=True))
        conditions = chosen.conditions(
            of.name,
            types,
            of.identity,
            key_column=lambda name: F.col(quote(name)),
            rows=[lambda name: F.col(quote(name))],
        )
        rows = read_version(spark, replica.table(of), version)
        rows = rows.where(all_true(conditions)) if conditions else rows
        images = rows.select(stored_image(of).alias(ROW))
        is_guid = of.rowguid_column is not None
        guid = rowguid_of_image(ROW, image_type(images, ROW), of.identity_fields, existing=is_guid)
        images = images.select(guid.alias(ROWGUID), ROW)
        if without_metadata and info.last_seq:
            known = ArticleRuns.of(spark, replica, of, info.last_seq).read().select(ROWGUID)
            images = images.join(known, on=ROWGUID, how="left_anti")
        kept = Kept()
        try:
            images = kept.keep(images)
            counted = images.agg(F.count(F.lit(1)), F.count_distinct(ROWGUID)).collect()[0]
            count = int(counted[0])
            if counted[0] != counted[1]:
                raise PublicationError(
                    f"Several rows of '{replica.table(of)}' have one key. {NOTHING} Remove the duplicates, or choose other "
                    "rows with --key or --where.",
                    article=of.name,
                )
            if not count:
                return TouchResult(str(replica.root), of.name, 0)
            genhistory = replica.genhistory(from_generation_exclusive=last_sent(replica, [of.pubid]))
            (generation,) = open_generations_of(genhistory, [of], info)
            priority = own_priorities(replica).get(of.pubid)
            if priority is None:
                raise ConfigurationError(
                    f"'{replica.root}' has no active subscription for this table: nothing would be sent. {NOTHING}"
                )
            origin = Origin(info.nickname, priority, generation.generation, info.clock)
            described = images.select(
                ROWGUID,
                ROW,
                F.lit(False).alias(DELETED),
                F.lit(True).alias("own_exists"),
                F.lit(False).alias("other_exists"),
                F.lit(False).alias(IS_NEW),
                all_columns(of).alias(CHANGED_COLUMNS),
            )
            known_rows = with_known(spark, described, replica, of, info, kept, count=count, name=OWN)
            nothing = F.lit(None).cast(known_rows.schema[OWN].dataType)
            changes = kept.keep(stamped(known_rows.withColumn(OTHER, nothing), of, origin))
            moved = changes.select(ROWGUID, F.col(ROW).alias("before"), F.col(ROW).alias("after"))
            is_filtered = any(row.filters for row in replica.published if row.pubid == of.pubid)
            counts, there = PhaseCounts(updates=count), moved if is_filtered else None
            touched = stamped_article(replica, of, version, generation, changes, counts, there)
            record(spark, replica, info, genhistory, [touched])
            return TouchResult(str(replica.root), of.name, count)
        finally:
            kept.release()
