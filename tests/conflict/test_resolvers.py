"""Who wins a conflict, by the priorities of the publisher's and of the subscriber's change."""

import pytest
from pyspark.sql import SparkSession

from conflict.errors import ResolverInfoError, UnknownResolverError
from conflict.resolvers.registry import RULES, require_resolver
from mergerepl.model.resolvers import RESOLVERS, OfDeletes, ResolverInfo, resolver_info
from tests import phases
from tests.networks import article_row

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
    assert set(RULES) == set(RESOLVERS)
    with pytest.raises(
        UnknownResolverError, match=r"'orders' names the resolver 'odd'.*Known: additive, .*priority"
    ):
        require_resolver(article_row("orders", 1, article_resolver="odd").published("sales"))


INFO = '{"columns": ["a"], "delimiter": null, "update_delete": "priority"}'


@pytest.mark.parametrize(
    ("resolver", "info"),
    {
        "no column": ("additive", None),
        "a column for a rule without one": ("priority", INFO),
        "no JSON": ("additive", "a"),
        "a number": ("additive", "7"),
        "keys that are missing": ("additive", "{}"),
        "a column that the article does not have": ("additive", INFO.replace('"a"', '"b"')),
        "a column of the key": ("additive", INFO.replace('"a"', '"id"')),
        "an unknown rule for deletes": ("additive", INFO.replace("priority", "odd")),
        "columns that are no texts": ("additive", INFO.replace('"a"', "1")),
    }.values(),
)
def test_what_a_replica_states_for_a_resolver_is_checked(resolver: str, info: str | None) -> None:
    columns = {"published_columns": ("id", "a"), "published_types": ("bigint", "int")}
    row = article_row("orders", 1, article_resolver=resolver, resolver_info=info, **columns)
    with pytest.raises(ResolverInfoError, match=r"'orders'.*sysmergearticles.*mergerepl apply"):
        require_resolver(row.published("sales"))


def test_what_is_stated_for_a_resolver_is_read_as_it_is_stored() -> None:
    info = ResolverInfo(("größe", 'b"c'), "[==]", OfDeletes.UPDATE_WINS.value)
    assert resolver_info(info.stored) == info
    assert ResolverInfo().stored is None


@pytest.fixture(scope="module")
def winners(spark: SparkSession) -> dict[str, str]:
    return phases.winners(
        spark, "priority", {rule: (one, other) for rule, (one, other, _) in PRIORITY.items()}
    )


@pytest.mark.parametrize("rule", PRIORITY)
def test_the_higher_priority_wins(winners: dict[str, str], rule: str) -> None:
    assert winners[rule] == PRIORITY[rule][2]
