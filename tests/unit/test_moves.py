"""Where a move of a subscriber's definition ends, and that a column which came and went is none of it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mergerepl.delta.feed.window import FeedPosition, FeedWindow
from mergerepl.delta.log import Commit
from mergerepl.errors import SchemaMismatchError
from mergerepl.merge.schema.moves import Follower, Move
from mergerepl.model.article import PublishedArticle
from mergerepl.model.definition import first_definition
from mergerepl.store.location import Location
from tests.metadata_commits import alter, own, plain, replaced, restored
from triggers.schema_checks import ArticleTable

ARTICLE = PublishedArticle(
    *("p", "pubid", "orders", "artid", 1, "orders", ("id",), ("id", "note"), ("bigint", "string")),
    *(False, "row", "priority", "", False),
)

A, A_C = plain("a"), plain("a", "c")
ADD_C = own("add", 2, A_C, "c")
EDIT = replace(alter(None), data_change=True)


def next_move(commits: Sequence[Commit], filtered: Sequence[str] = ()) -> Move | None:
    numbered = tuple(replace(each, version=version) for version, each in enumerate(commits, 1))
    window = FeedWindow(
        Location.of("/t"), FeedPosition("t", 0, "0:x"), len(numbered), len(numbered), numbered
    )
    window.__dict__["before"] = A
    definition = first_definition(["a"], ["int"])
    # Nothing of the article counts at a subscriber.
    at = ArticleTable(ARTICLE, Location.of("/r"), "me", is_publisher=False)
    return Follower(at, definition, {1: definition}, filtered).next_move(window)


@pytest.mark.parametrize(
    ("commits", "first", "through"),
    [
        ([replaced(A), replaced(A)], 1, 2),
        # The rows of the replacement say nothing of the column that the agent adds afterwards.
        ([replaced(A), ADD_C], 1, 1),
        ([replaced(A), EDIT, ADD_C, EDIT], 1, 2),
        # A step died, and then a user took its column away: the table is compared as a whole.
        ([ADD_C, EDIT, replaced(A)], 1, 3),
        ([ADD_C, alter(A), EDIT], 1, 3),
    ],
)
def test_a_move_of_a_subscriber_ends_before_its_own_alter(
    commits: Sequence[Commit], first: int, through: int
) -> None:
    move = next_move(commits)
    assert move is not None
    assert (move.first, move.through) == (first, through)
    assert move.definition.version == 1
    assert move.gap is not None


def test_a_published_column_that_is_lost_is_no_move() -> None:
    assert next_move([alter(plain("b"))]) is None


@pytest.mark.parametrize("commits", [[alter(plain("b"))], [replaced(plain("b")), EDIT]])
def test_a_column_that_a_row_filter_reads_stays(commits: Sequence[Commit]) -> None:
    with pytest.raises(SchemaMismatchError, match="column 'a', which a row filter reads"):
        next_move(commits, ["a"])
    assert next_move(commits, ["id"]) is None


def test_a_restored_column_of_a_row_filter_is_no_refusal() -> None:
    next_move([alter(plain("b")), restored(A, 0)], ["a"])
