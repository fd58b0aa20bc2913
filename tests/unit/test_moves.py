"""Where a move of a subscriber's definition ends, and that a column which came and went is none of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from mergerepl.delta.commits import Commit
from mergerepl.delta.feed.window import FeedPosition, FeedWindow
from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.tables import TableState
from mergerepl.errors import SchemaMismatchError
from mergerepl.merge.schema.moves import Follower, Move
from mergerepl.model.article import PublishedArticle
from mergerepl.model.definition import Definition, first_definition
from mergerepl.store.location import Location
from tests.metadata_commits import alter, own, plain, replaced, restored, table
from triggers.schema_checks import ArticleTable

ARTICLE = PublishedArticle(
    *("p", "pubid", "orders", "artid", 1, "orders", ("id",), ("id", "note"), ("bigint", "string")),
    *(False, "row", "priority", "", False),
)

A, A_C = plain("a"), plain("a", "c")
ADD_C = own("add", 2, A_C, "c")
EDIT = replace(alter(None), data_change=True)


def next_move(
    commits: Sequence[Commit],
    filtered: Sequence[str] = (),
    *,
    before: TableMetadata = A,
    is_publisher: bool = False,
    published: Sequence[str] = (),
    left: Callable[[Definition], Definition] | None = None,
) -> Move | None:
    """Return the next move of a definition; `left` makes of it one that died before it counted."""
    window = window_of(commits, before)
    return follower(before, filtered, is_publisher=is_publisher, published=published, left=left).next_move(
        window
    )


def window_of(commits: Sequence[Commit], before: TableMetadata = A) -> FeedWindow:
    """Return a window of these commits."""
    numbered = tuple(replace(each, version=version) for version, each in enumerate(commits, 1))
    window = FeedWindow(
        Location.of("/t"), FeedPosition("t", 0, "0:x"), len(numbered), len(numbered), numbered
    )
    window.__dict__["before"] = before
    last = [each.metadata for each in numbered if each.metadata is not None][-1]
    window.__dict__["table"] = TableState(
        *(Location.of("/t"), 0, last, 1, 7, frozenset(), frozenset(), None, None)  # type: ignore[arg-type]
    )
    return window


def follower(
    before: TableMetadata = A,
    filtered: Sequence[str] = (),
    *,
    is_publisher: bool = True,
    published: Sequence[str] = (),
    left: Callable[[Definition], Definition] | None = None,
) -> Follower:
    """Return the follower of an article whose table had these columns."""
    columns = published or [column["name"] for column in before.fields]
    definition = first_definition(columns, ["int"] * len(columns))
    # Of the article only its names count.
    at = ArticleTable(ARTICLE, Location.of("/r"), "me", is_publisher=is_publisher)
    entered = {1: definition} | ({} if left is None else {2: left(definition)})
    return Follower(at, definition, entered, filtered)


def test_columns_have_ended_that_are_gone_at_the_end_of_the_window() -> None:
    gone = [EDIT, alter(A_C), EDIT, replaced(plain("c"))]
    assert follower().ended(window_of(gone)) == ("a",)
    assert follower().ended(window_of([*gone, restored(A, 0)])) == ()


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


def test_an_adoption_is_compared_from_the_commit_before_it() -> None:
    adopt = own("adopt", 2, A_C, "c")
    move = next_move([EDIT, adopt, alter(None), EDIT], before=A_C, published=["a"])
    assert move is not None
    assert (move.first, move.through) == (2, 3)
    assert move.former["c"] is None
    assert move.gap == "a column of the table's own was adopted"
    assert names(move) == [(0, "a"), (2, "c")]


def test_a_comment_at_the_publisher_is_a_version_of_the_definition() -> None:
    said = plain("a", a={"metadata": {"comment": "said"}})
    move = next_move([alter(said), EDIT], is_publisher=True)
    assert move is not None
    assert (move.first, move.through, move.gap) == (1, 1, None)
    assert (move.definition.version, move.definition.image) == (2, 1)
    assert move.definition.by_number[0].comment == "said"
    assert next_move([alter(said), EDIT]) is None


@pytest.mark.parametrize(
    ("left", "version"),
    [
        # It died in a capture of the same commits, which is made again.
        (lambda one: replace(one, version=2, root=2), 2),
        # It died in an `apply`: what else it states must not count with these commits.
        (lambda one: one.filtered(2), 3),
        (lambda one: one.tracked(2, by_column=True, is_root=True), 3),
        (lambda one: replace(one, version=2, root=2, vertical=True), 3),
    ],
)
def test_a_definition_that_died_is_taken_again_only_if_it_states_the_same(
    left: Callable[[Definition], Definition], version: int
) -> None:
    said = plain("a", a={"metadata": {"comment": "said"}})
    move = next_move([alter(said), alter(A)], is_publisher=True, left=left)
    assert move is not None
    after = move.definition
    assert (after.version, after.filter_number, after.column_tracking, after.vertical) == (
        version,
        0,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("commits", "through"), [([False], 1), ([True], None), ([False, True], 2), ([True, False], 2)]
)
def test_not_null_may_be_set_and_dropped_at_the_publisher(
    commits: Sequence[bool], through: int | None
) -> None:
    stated = [alter(plain("a", a={"nullable": each})) for each in commits]
    before = plain("a", a={"nullable": True})
    move = next_move(stated, before=before, is_publisher=True)
    assert (None if move is None else move.through) == through
    assert move is None or move.definition.by_number[0].nullable == commits[-1]
    assert next_move(stated, before=before) is None
    dropped = next_move([alter(before)], before=plain("a", a={"nullable": False}), is_publisher=True)
    assert dropped is not None
    assert next_move([alter(before)], before=plain("a", a={"nullable": False})) is None
    taken = next_move([own("nullable", 0, before, "a")], before=plain("a", a={"nullable": False}))
    assert taken is not None
    assert taken.definition.version == 1


def test_a_published_column_that_is_lost_is_no_move() -> None:
    assert next_move([alter(plain("b"))]) is None


@pytest.mark.parametrize("commits", [[alter(plain("b"))], [replaced(plain("b")), EDIT]])
def test_a_column_that_a_row_filter_reads_stays(commits: Sequence[Commit]) -> None:
    with pytest.raises(SchemaMismatchError, match="column 'a', which a row filter reads"):
        next_move(commits, ["a"])
    assert next_move(commits, ["id"]) is None


def test_a_restored_column_of_a_row_filter_is_no_refusal() -> None:
    next_move([alter(plain("b")), restored(A, 0)], ["a"])


MAPPED = table({"id": "id", "a": "p1", "b": "p2"})
EXCHANGED = table({"id": "id", "b": "p1", "a": "p2"})
RENAMES = [alter(table({"id": "id", "x": "p1", "b": "p2"})), alter(table({"id": "id", "x": "p1", "a": "p2"}))]


def names(move: Move | None) -> list[tuple[int, str]]:
    assert move is not None
    return [(field.number, field.name) for field in move.definition.fields]


def test_renames_at_the_publisher_are_moves_up_to_the_next_rows() -> None:
    move = next_move([*RENAMES, alter(EXCHANGED), EDIT], before=MAPPED, is_publisher=True)
    assert names(move) == [(0, "id"), (1, "b"), (2, "a")]
    assert move is not None
    # A rename needs no new image column.
    assert (move.first, move.through, move.gap, move.definition.image) == (1, 3, None, 1)
    move = next_move([RENAMES[0], EDIT, *RENAMES[1:], alter(EXCHANGED)], before=MAPPED, is_publisher=True)
    assert names(move) == [(0, "id"), (1, "x"), (2, "b")]


def test_at_a_subscriber_only_the_agents_renames_are_moves() -> None:
    assert next_move([RENAMES[0]], before=MAPPED) is None
    (renamed,) = (each.metadata for each in RENAMES[:1])
    assert names(next_move([own("rename", 1, renamed, "x")], before=MAPPED)) == [
        (0, "id"),
        (1, "x"),
        (2, "b"),
    ]


@pytest.mark.parametrize(
    "columns", [{"key": "id", "a": "p1", "b": "p2"}, {"id": "id", "a": "p1", "key": "p2"}]
)
def test_a_named_column_is_not_renamed(columns: dict[str, str]) -> None:
    move = next_move([alter(table(columns))], before=MAPPED, is_publisher=True)
    assert (move is None) == ("id" not in columns)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"id": "id", "A": "p1", "b": "p2"},
            "a column was renamed to 'A', which differs from another one in letter case",
        ),
        (
            {"id": "id", "a": "p1", "_change_type": "p2"},
            "a column was renamed to '_change_type', which cannot be published",
        ),
    ],
)
def test_a_name_that_does_not_travel(columns: dict[str, str], says: str) -> None:
    with pytest.raises(SchemaMismatchError, match=says):
        next_move([alter(table(columns))], before=MAPPED, is_publisher=True)


def typed(**types: str) -> TableMetadata:
    """Return metadata whose columns have these types, as the log states them."""
    return plain(*types, **{name: {"type": type_} for name, type_ in types.items()})


INT, LONG, SHORT = (typed(a=each) for each in ("integer", "long", "short"))
TAKEN_OVER = own("type", 0, None, "a")


@pytest.mark.parametrize(
    ("commits", "through", "type_", "is_compared"),
    [
        ([alter(LONG), EDIT], 1, "bigint", False),
        ([alter(LONG), alter(typed(a="decimal(20,0)")), EDIT], 2, "decimal(20,0)", False),
        ([alter(typed(a="double")), EDIT], 1, "double", False),
        # A replacement compares the rows.
        ([replaced(LONG), EDIT], 2, "bigint", True),
        # What RESTORE takes back was never there.
        ([alter(LONG), EDIT, restored(INT, 0)], 3, "int", True),
        ([alter(LONG), EDIT, restored(INT, 0), alter(LONG)], 4, "bigint", True),
        ([alter(SHORT)], None, "", False),
        ([alter(typed(a="float"))], None, "", False),
        ([alter(typed(a="string"))], None, "", False),
        ([replaced(SHORT)], None, "", False),
    ],
)
def test_a_wider_type_travels(
    commits: Sequence[Commit], through: int | None, type_: str, is_compared: bool
) -> None:
    move = next_move(commits, before=INT, is_publisher=True)
    if through is None:
        assert move is None
        return
    assert move is not None
    assert (move.through, move.gap is not None) == (through, is_compared)
    assert move.definition.by_number[0].type == type_
    # Another type has an image column of its own.
    assert move.definition.image == (1 if type_ == "int" else 2)


@pytest.mark.parametrize("wide", ["long", "double", "decimal(12,0)"])
def test_a_key_gets_a_wider_type_if_it_stays_a_whole_number(wide: str) -> None:
    move = next_move(
        [alter(typed(id=wide, a="integer"))], before=typed(id="integer", a="integer"), is_publisher=True
    )
    assert (move is not None) == (wide == "long")


@pytest.mark.parametrize(
    ("commits", "through"),
    [
        ([alter(LONG), EDIT], None),
        # The publisher's column has that type, too: the rows after the user's ALTER are read with it.
        ([alter(LONG), EDIT, TAKEN_OVER], 1),
        ([alter(INT), EDIT, own("type", 0, LONG, "a"), EDIT], 1),
        # Wider than the publisher's once more.
        ([alter(LONG), TAKEN_OVER, alter(typed(a="decimal(20,0)"))], None),
        ([own("type", 0, LONG, "a"), EDIT], 1),
    ],
)
def test_at_a_subscriber_a_type_changes_with_the_publishers(
    commits: Sequence[Commit], through: int | None
) -> None:
    move = next_move(commits, before=SHORT if commits[0].metadata is INT else INT)
    assert (None if move is None else move.through) == through


def test_the_conflict_table_has_one_column_for_all_fields_of_a_name() -> None:
    now = replace(first_definition(["a"], ["int"]), version=2)
    text = replace(first_definition(["c", "a"], ["int", "string"]), version=1)
    window = FeedWindow(
        Location.of("/t"), FeedPosition("t", 0, "0:x"), 1, 1, (replace(alter(LONG), version=1),)
    )
    window.__dict__["before"] = INT
    window.__dict__["table"] = TableState(
        *(Location.of("/t"), 0, LONG, 1, 7, frozenset(), frozenset(), None, None)  # type: ignore[arg-type]
    )
    at = ArticleTable(ARTICLE, Location.of("/r"), "me", is_publisher=True)
    with pytest.raises(
        SchemaMismatchError, match="column 'a' is bigint now, and another column of that name was string"
    ):
        Follower(at, now, {1: text, 2: now}).next_move(window)
