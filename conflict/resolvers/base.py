"""What a resolver is: a function from the detected rows to the same rows with their winner.

Rules by role or priority are Columns, and one adapter makes a resolver of them, which decides the conflicts of all articles
in the session's one plan. A resolver that reads or makes values is a function of frames as well: it may join what it needs,
by (tablenick, rowguid).
"""

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conflict.detect import is_conflict
from mergerepl.changes import ARTICLE, PUBLISHER_WINS, RESOLVER

Resolver = Callable[[DataFrame], DataFrame]
"""From detected PAIRS to the same rows, each (tablenick, rowguid) once, with `publisher_wins` (NULL: no conflict)."""

Rule = Callable[[], Column]
"""Whether the publisher's change of a conflict wins, as a Column of detected PAIRS."""


def by_rules(rules: Mapping[str, Rule]) -> Resolver:
    """Return the resolver that decides each conflict by the rule that its article names."""

    def resolver(detected: DataFrame) -> DataFrame:
        wins = F.lit(None).cast("boolean")
        for name, rule in rules.items():
            wins = F.when(F.col(f"{ARTICLE}.{RESOLVER}") == name, rule()).otherwise(wins)
        return detected.withColumn(PUBLISHER_WINS, F.when(is_conflict(), wins))

    return resolver
