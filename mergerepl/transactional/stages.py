"""The end of a batch in which one call of each procedure covers all of its commands (transactional.md 9). Pure."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from mergerepl.transactional.commands import PHASE_BITS

_LAST = b"\xff" * 10


@dataclass(frozen=True)
class StageEnd:
    """The batch has the transactions through one LSN, and those before another one (None: no bound)."""

    through: bytes = _LAST
    before: bytes | None = None

    def has(self, xact_seqno: bytes) -> bool:
        """True if a transaction belongs to the stage."""
        return xact_seqno <= self.through and (self.before is None or xact_seqno < self.before)


def stage_end(commands: DataFrame) -> StageEnd:
    """Return the end of the first stage of an article's commands.

    A row has commands of one operation in a stage, and an update of a key is alone in it. Inside a transaction a row has
    one command, so every transaction is part of one stage. If two keys share a hash, a stage ends earlier than necessary.

    Reads: commands (MSrepl_commands).
    """
    key = F.col("command_id").bitwiseAND((1 << PHASE_BITS) - 1)
    of_row = Window.partitionBy("key").orderBy("xact_seqno", "command_id")
    with_key = commands.select("xact_seqno", "command_id", "operation", "key_change", key.alias("key"))
    followed = with_key.select(
        *("xact_seqno", "key_change"),
        (
            (F.lag("operation").over(of_row) != F.col("operation"))
            & (F.lag("xact_seqno").over(of_row) != F.col("xact_seqno"))
        ).alias("is_other"),
    )
    found = followed.agg(
        F.min("xact_seqno").alias("first"),
        F.min(F.when(F.col("is_other"), F.col("xact_seqno"))).alias("other"),
        F.min(F.when(F.col("key_change"), F.col("xact_seqno"))).alias("moved"),
    ).collect()[0]
    other, moved = (None if found[name] is None else bytes(found[name]) for name in ("other", "moved"))
    if moved is not None and moved == bytes(found["first"]):
        return StageEnd(through=moved)
    return StageEnd(before=min((each for each in (other, moved) if each is not None), default=None))
