"""Rows that a table refuses, as a verdict.

Merge session step: after resolve and staging, for rows that a constraint at their destination would not take. No session
withholds one yet: it leaves the article out (ApplyError), as it has nowhere to keep a change that waits.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mergerepl.changes import PUBLISHER_ACTION, ROWGUID, SUBSCRIBER_ACTION, VERDICT, Verdict

_IS_REFUSED = "is_refused"


def withheld(resolved: DataFrame, refused: DataFrame) -> DataFrame:
    """Return RESOLVED with the refused rows withheld: nothing is done with them at either side.

    A row that one side sent stays there alone. Of a row that both sides changed each keeps its own.

    Reads: RESOLVED of one article; REFUSED, the rows of it that one of the two tables would not take.
    """
    named = refused.select(ROWGUID).distinct().withColumn(_IS_REFUSED, F.lit(True))
    rows = resolved.join(named, on=ROWGUID, how="left")
    stays = F.col(_IS_REFUSED).isNull()
    values = {
        VERDICT: F.when(stays, F.col(VERDICT)).otherwise(Verdict.REFUSED.value),
        **{action: F.when(stays, F.col(action)) for action in (PUBLISHER_ACTION, SUBSCRIBER_ACTION)},
    }
    return rows.withColumns(values).select(*resolved.columns)
