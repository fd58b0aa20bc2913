"""Articles that accept changes of one side only: the other side's are rejected, also without a conflict.

Merge session step: around detect and resolve, for articles with a one-way resolver. Pure. Rules: merge_replication.md 3.3.

`download_only` rejects the subscriber's: its row is reset to the publisher's. `upload_only` rejects the publisher's: it is
not sent, both sides keep their rows, and the subscriber records the change as known. Without that record its next change
would conflict with the publisher's.
"""

from collections.abc import Collection, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conflict.detect import is_conflict
from mergerepl import changes
from mergerepl.changes import (
    COLV1,
    LINEAGE,
    PRIORITY,
    PUBLISHER,
    SUBSCRIBER,
    TABLENICK,
    VERDICT,
    Action,
    Verdict,
)
from mergerepl.model.session_terms import ArticleTerms, SessionTerms
from mergerepl.systables.conflicts_info import ConflictType

REJECTED: Final = "rejected"
"""Column of PAIRS: the verdict of a row that only one side changed and whose article rejects that; NULL for others."""

_SENT_BY = {PUBLISHER: Verdict.DOWNLOAD.value, SUBSCRIBER: Verdict.UPLOAD.value}


def with_rejected(pairs: DataFrame, articles: Collection[ArticleTerms], terms: SessionTerms) -> DataFrame:
    """Return PAIRS in which changes that these articles reject are candidates, with `rejected`.

    A change in a direction that does not run is not rejected yet.
    """
    runs = {PUBLISHER: terms.download, SUBSCRIBER: terms.upload}
    is_rejected = F.lit(False)
    for side, verdict in _SENT_BY.items():
        tablenicks = [each.tablenick for each in articles if each.rejects == side]
        if tablenicks and runs[side]:
            is_rejected |= F.col(TABLENICK).isin(tablenicks) & (F.col(VERDICT) == verdict)
    candidate = F.when(F.col(REJECTED).isNotNull(), Verdict.CANDIDATE.value).otherwise(F.col(VERDICT))
    return pairs.withColumn(REJECTED, F.when(is_rejected, F.col(VERDICT))).withColumn(VERDICT, candidate)


def without_equal(detected: DataFrame) -> DataFrame:
    """Return detected rows in which a rejected change is sent after all if both sides' rows are equal."""
    is_equal = F.col(VERDICT) == Verdict.MERGE.value
    verdict = F.when(is_equal & F.col(REJECTED).isNotNull(), F.col(REJECTED)).otherwise(F.col(VERDICT))
    return detected.withColumn(VERDICT, verdict)


def outcome_of_rejected(outcome: Mapping[str, Column], joined_lineage: Column) -> dict[str, Column]:
    """Return the columns of DECIDED in which rejected changes differ from a conflict.

    Args:
        outcome: The outcome of a conflict, by column.
        joined_lineage: The lineage that covers both sides' versions.
    """
    is_rejected = is_conflict() & F.col(REJECTED).isNotNull()
    is_not_sent = is_rejected & (F.col(REJECTED) == _SENT_BY[PUBLISHER])
    nothing = F.lit(None)
    not_sent = {
        VERDICT: F.lit(_SENT_BY[PUBLISHER]),
        LINEAGE: joined_lineage,
        COLV1: F.col(f"{SUBSCRIBER}.{COLV1}"),
        PRIORITY: F.col(f"{SUBSCRIBER}.{PRIORITY}"),
        changes.PUBLISHER_ACTION: nothing,
        changes.PUBLISHER_GENERATION: nothing,
        changes.SUBSCRIBER_ACTION: F.lit(Action.METADATA.value),
        changes.SUBSCRIBER_GENERATION: F.col(changes.SUBSCRIBER_GENERATION),
    }
    found = {
        name: F.when(is_not_sent, value).otherwise(outcome.get(name, F.col(name)))
        for name, value in not_sent.items()
    }
    kind = F.when(is_rejected, int(ConflictType.RESOLUTION))
    return found | {changes.CONFLICT_TYPE: kind.otherwise(outcome[changes.CONFLICT_TYPE])}
