"""Make rows equal that differ though no change waits: the row at the right side gets a new version, which sessions carry.

No users' table gets a commit here. Order: log the other side's rows, append the run, move MSmerge_replinfo. Until that
the rows differ as before, so a repair that died is run again; it logs no row twice.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from enumeration.horizon import clock_of
from mergerepl.changes import DELETED, OTHER_SIDE, PUBLISHER, ROW, ROWGUID, SUBSCRIBER
from mergerepl.errors import ConfigurationError
from mergerepl.failpoints import failpoint
from mergerepl.filters.chosen_rows import NOTHING, ChosenRows
from mergerepl.merge.capture.capture import CapturedArticle
from mergerepl.merge.capture.windows import last_sent
from mergerepl.merge.repair.certificate import forget_divergence
from mergerepl.merge.repair.differing import (
    IMAGE,
    compared,
    examples,
    key_columns,
    refuse_duplicates,
    with_images,
)
from mergerepl.merge.repair.losers import Losers, log_losers
from mergerepl.merge.repair.stamp import (
    CHANGED_COLUMNS,
    IS_NEW,
    OTHER,
    OWN,
    changed_fields,
    open_generations_of,
    record,
    stamped,
    stamped_article,
    with_known,
)
from mergerepl.model.results import KeyDifference, PhaseCounts
from mergerepl.model.tasks import Repair
from mergerepl.monitoring.fixed_article import FixedArticle, article_pairs, subscribed
from mergerepl.monitoring.fixed_versions import FixedEnd, fixed_ends
from mergerepl.publish.snapshot import DIFFERENT, EXTRA, MISSING
from mergerepl.replica.replica import recording_jvm
from mergerepl.replica.subscription import own_priority, refuse_copies, refuse_staged, require_ends
from mergerepl.rows.images import all_true
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import leases
from mergerepl.store.location import Location
from triggers.tracked_rows import Origin

_LACKS = {PUBLISHER: EXTRA, SUBSCRIBER: MISSING}
"""Side -> the kind of the rows that only the other side has."""


@dataclass(frozen=True)
class RepairTerms:
    """The rows to repair, the side that is right, and whether a subscriber may bring rows back that are not named."""

    chosen: ChosenRows
    source: str = PUBLISHER
    may_insert: bool = False
    is_dry: bool = False


@dataclass(frozen=True)
class _Found:
    """The chosen rows of an article that differ: keys, rowguid, `ours`, `theirs` and kind; kept in memory."""

    article: FixedArticle
    rows: DataFrame
    counts: dict[str, int]
    others: int
    examples: tuple[KeyDifference, ...]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def repair_subscription(
    publisher: Location, subscriber: Location, publication: str, terms: RepairTerms
) -> list[Repair]:
    """Repair one subscription: return for each article what the next session does at the other side.

    Rows with changes that wait for a sync are left out.

    Raises: ConfigurationError if a name, the key or the condition does not fit, if the source may not write an article, or
    rows would be inserted that the caller did not name; PublicationError for a key of several rows; ConflictError if a
    session is interrupted; SchemaMismatchError, StoreError, CaptureError if tables cannot be compared; LeaseError.
    """
    from mergerepl.spark import session as engine

    doing = f"repairing '{subscriber}'"
    with plain_errors(doing), leases(publisher, subscriber, purpose="mergerepl repair"):
        at_publisher, at_subscriber = require_ends(publisher, subscriber)
        refuse_copies(at_publisher, at_subscriber)
        for replica in (at_publisher, at_subscriber):
            replica.require_unedited()
            refuse_staged(replica)
        pubid = subscribed(at_publisher, at_subscriber, publication)
        ends = fixed_ends(at_publisher, at_subscriber, pubid)
        pairs = [
            FixedArticle(ends, {PUBLISHER: here, SUBSCRIBER: there})
            for here, there in article_pairs(at_publisher, at_subscriber, pubid)
            if here is not None and there is not None
        ]
        names = terms.chosen.tables([each.name for each in pairs])
        articles = [each for each in pairs if each.name in names and _is_for(each, terms)]
        for each in articles:
            each.check_columns()
        spark = recording_jvm(engine.session, (at_publisher, at_subscriber))()
        kept = Kept()
        try:
            found = [_differing(spark, each, terms, kept) for each in articles]
            _refuse_inserts(found, terms, str(publisher))
            if not terms.is_dry and any(each.total for each in found):
                _carry_out(spark, ends, [each for each in found if each.total], terms, kept)
            if not terms.is_dry:
                whole = [each for each in found if not each.others and not sum(each.article.unsent.values())]
                nicknames = {each.article.articles[PUBLISHER].nickname for each in whole}
                subid = ends[PUBLISHER].other.subid
                forget_divergence((at_publisher, at_subscriber), subid, nicknames)
            return [_result(each, publication, str(subscriber), terms) for each in found]
        finally:
            kept.release()


def _is_for(article: FixedArticle, terms: RepairTerms) -> bool:
    """True if the article can be repaired from the source; False if it cannot, and was not named.

    Raises: ConfigurationError.
    """
    rejects = article.articles[PUBLISHER].rejects
    problem = None
    if rejects == PUBLISHER:
        problem = "it is upload_only: its sides may differ. Write the rows at the subscriber, then run `mergerepl sync`"
    elif rejects == SUBSCRIBER and terms.source == SUBSCRIBER:
        problem = "it is download_only: the publisher takes nothing from a subscriber. Leave out --source"
    elif article.is_filtered and terms.source == SUBSCRIBER:
        problem = (
            "it has a row filter, and rows outside of the partition must not go up. Leave out --source, or write the rows "
            "at the publisher"
        )
    if problem is not None and terms.chosen.table is not None:
        raise ConfigurationError(
            f"Article '{article.name}' cannot be repaired from the {terms.source}: {problem}. {NOTHING}",
            article=article.name,
        )
    return problem is None


def _differing(spark: SparkSession, article: FixedArticle, terms: RepairTerms, kept: Kept) -> _Found:
    of = article.articles[PUBLISHER]
    rows = article.rows(kept)
    both = compared(rows, of)
    types = dict(zip(of.columns, of.types, strict=True))
    fields = {name: f"c{i}" for i, name in enumerate(of.columns)}
    numbers = dict(zip(of.identity, key_columns(of), strict=True))
    conditions = terms.chosen.conditions(
        of.name,
        types,
        of.identity,
        key_column=lambda name: F.col(numbers[name]),
        rows=[lambda name, side=side: F.col(f"{side}.{fields[name]}") for side in IMAGE.values()],  # type: ignore[misc]
    )
    is_chosen = F.coalesce(all_true(conditions), F.lit(False)) if conditions else F.lit(True)
    differ = kept.keep(both.where(F.col("kind").isNotNull()).withColumn("is_chosen", is_chosen))
    counted = differ.groupBy("is_chosen", "kind").agg(F.count(F.lit(1)).alias("rows")).collect()
    counts = {row["kind"]: row["rows"] for row in counted if row["is_chosen"]}
    chosen = differ.where("is_chosen")
    if counts:
        remedy = f"{NOTHING} Remove the duplicates there, or choose other rows with --key or --where."
        refuse_duplicates(both, chosen, of, done="repaired", remedy=remedy)
        _refuse_strangers(article, counts.get(EXTRA, 0))
    with_guid = kept.keep(with_images(chosen, of))
    others = sum(row["rows"] for row in counted if not row["is_chosen"])
    return _Found(article, with_guid, counts, others, examples(with_guid, of) if counts else ())


def _refuse_strangers(article: FixedArticle, rows: int) -> None:
    """Refuse rows of a filtered article that the subscriber has and its partition lacks.

    The publisher may have such a row in other partitions, and a delete would reach them, too.

    Raises: ConfigurationError.
    """
    if article.is_filtered and rows:
        raise ConfigurationError(
            f"Article '{article.name}' has a row filter, and the subscriber has {rows} rows that are not in its partition: "
            f"`repair` does not remove these. {NOTHING} Choose other rows with --key or --where, or fill the subscriber "
            "again.",
            article=article.name,
        )


def _refuse_inserts(found: Sequence[_Found], terms: RepairTerms, publisher: str) -> None:
    """Refuse rows that a subscriber would bring back though the caller did not name them.

    Raises: ConfigurationError.
    """
    if terms.source == PUBLISHER or terms.chosen.is_narrow or terms.may_insert or terms.is_dry:
        return
    rows = sum(each.counts.get(EXTRA, 0) for each in found)
    if rows:
        raise ConfigurationError(
            f"{rows} rows that '{publisher}' lacks would be brought back from the subscriber. {NOTHING} Name them with "
            "--key or --where, or say --yes; `--dry-run` lists them."
        )


def _carry_out(
    spark: SparkSession, ends: dict[str, FixedEnd], found: Sequence[_Found], terms: RepairTerms, kept: Kept
) -> None:
    source, other = ends[terms.source], ends[OTHER_SIDE[terms.source]]
    own = [each.article.articles[terms.source] for each in found]
    clock = max(clock_of(end.info, end.replica.subscriptions()) for end in ends.values())
    info = replace(source.info, clock=clock)
    genhistory = source.replica.genhistory(
        from_generation_exclusive=last_sent(source.replica, {each.pubid for each in own})
    )
    repaired: list[CapturedArticle] = []
    losers: list[Losers] = []
    for each, generation in zip(found, open_generations_of(genhistory, own, info), strict=True):
        article = each.article.articles[terms.source]
        priority = own_priority(terms.source, source.other)
        origin = Origin(info.nickname, priority, generation.generation, clock)
        mine, theirs = IMAGE[terms.source], IMAGE[OTHER_SIDE[terms.source]]
        rows = each.rows.select(
            ROWGUID,
            F.col(mine).isNull().alias(DELETED),
            F.coalesce(mine, theirs).alias(ROW),
            F.col(mine).isNotNull().alias("own_exists"),
            F.col(theirs).isNotNull().alias("other_exists"),
            F.col(theirs).isNull().alias(IS_NEW),
            changed_fields(each.rows, article).alias(CHANGED_COLUMNS),
            F.col(theirs).alias("losing"),
        )
        for end, name in ((source, OWN), (other, OTHER)):
            of = each.article.articles[terms.source if end is source else OTHER_SIDE[terms.source]]
            rows = with_known(spark, rows, end.replica, of, end.info, kept, count=each.total, name=name)
        rows = kept.keep(rows)
        changes = kept.keep(stamped(rows, article, origin))
        inserts, deletes = _directed(each, terms)
        # From now on both sides have the source's row.
        images = changes.select(
            ROWGUID, F.col(ROW).alias("before"), F.when(~F.col(DELETED), F.col(ROW)).alias("after")
        )
        repaired.append(
            stamped_article(
                source.replica,
                article,
                each.article.versions[terms.source],
                generation,
                changes,
                PhaseCounts(inserts, each.counts.get(DIFFERENT, 0), deletes),
                images if source.filtered is not None else None,
            )
        )
        losers.append(Losers(article, rows, changes))
    session = _session_of(source, other, found)
    log_losers(spark, ends, losers, session=session, source=terms.source)
    failpoint("repair.after_losers")
    record(spark, source.replica, info, genhistory, repaired)


def _directed(found: _Found, terms: RepairTerms) -> tuple[int, int]:
    """Return the rows that the other side gets and those that it loses."""
    counts = found.counts
    return counts.get(_LACKS[OTHER_SIDE[terms.source]], 0), counts.get(_LACKS[terms.source], 0)


def _session_of(source: FixedEnd, other: FixedEnd, found: Sequence[_Found]) -> str:
    """Return an id for these ends in this state: a repair that died and is run again has the same."""
    parts = [source.info.replid, other.info.replid, str(source.info.last_seq), str(other.info.last_seq)]
    for each in found:
        parts += [str(each.article.articles[PUBLISHER].nickname), *map(str, each.article.versions.values())]
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "|".join(parts)))


def _result(found: _Found, publication: str, subscriber: str, terms: RepairTerms) -> Repair:
    inserts, deletes = _directed(found, terms)
    done = Repair(
        publication,
        subscriber,
        found.article.name,
        inserts=inserts,
        updates=found.counts.get(DIFFERENT, 0),
        deletes=deletes,
        examples=found.examples,
        source=terms.source,
        unsent=sum(found.article.unsent.values()),
        uncaptured=sum(found.article.uncaptured.values()),
    )
    return done if terms.is_dry else replace(done, differing=found.others)
