"""Who wins a conflict, by the priorities of the publisher's and of the subscriber's change."""

import pytest
from pyspark.sql import SparkSession

from conflict.errors import UnknownResolverError
from conflict.resolvers.registry import resolver_of
from mergerepl.model.resolvers import RESOLVERS
from tests import phases

pytestmark = pytest.mark.spark

PRIORITY = {
    "the publisher's own change against a server's": (100.0, 75.0, "hq"),
    "the publisher's own change against the highest server's": (100.0, 99.99, "hq"),
    "the publisher's own change against a client's": (100.0, 0.0, "hq"),
    "a lower server's change at the publisher": (25.0, 75.0, "north"),
    "a higher server's change at the publisher": (80.0, 75.0, "hq"),
    "a hundredth decides": (74.99, 75.0, "north"),
    "of equals the one that reached the publisher first": (75.0, 75.0, "hq"),
    "of two without a priority the one that reached the publisher first": (0.0, 0.0, "hq"),
}


def test_resolvers_are_those_that_a_file_may_name() -> None:
    resolver_of({name: name for name in RESOLVERS})
    with pytest.raises(
        UnknownResolverError, match=f"'orders' names the resolver 'odd'.*Known: {', '.join(RESOLVERS)}"
    ):
        resolver_of({"lines": RESOLVERS[0], "orders": "odd"})


@pytest.fixture(scope="module")
def winners(spark: SparkSession) -> dict[str, str]:
    return phases.winners(
        spark, "priority", {rule: (one, other) for rule, (one, other, _) in PRIORITY.items()}
    )


@pytest.mark.parametrize("rule", PRIORITY)
def test_the_higher_priority_wins(winners: dict[str, str], rule: str) -> None:
    assert winners[rule] == PRIORITY[rule][2]
