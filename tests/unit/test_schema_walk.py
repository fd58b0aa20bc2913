"""The walk over a table's metadata commits: which column is which, and what each commit changed."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergerepl.delta.commits import Commit
from mergerepl.delta.feed.column_changes import REPLACE, RESTORE, statement
from mergerepl.delta.feed.schema_walk import identity_of, walk
from mergerepl.delta.marks import CommitMark, SchemaStep
from mergerepl.delta.metadata import TableMetadata
from tests.metadata_commits import alter, own, plain, replaced, restored, table

AB = {"a": "p1", "b": "p2"}
A_B = plain("a", "b")
DEFAULT_5 = {"metadata": {"CURRENT_DEFAULT": "5", "comment": "c"}}

# name: (before, commits, ends of the columns at the start, what the commits changed)
CASES: dict[str, tuple[TableMetadata, list[Commit], dict[str, str | None], str]] = {
    "ADD": (A_B, [alter(plain("a", "b", "c"))], {"a": "a", "b": "b"}, "add c"),
    "DROP": (table(AB), [alter(table({"a": "p1"}))], {"a": "a", "b": None}, "drop b"),
    "DROP, then ADD of the same name": (
        table(AB),
        [alter(table({"a": "p1"})), alter(table({"a": "p1", "b": "p3"}))],
        {"a": "a", "b": None},
        "drop b, add b",
    ),
    "RENAME": (table(AB), [alter(table({"x": "p1", "b": "p2"}))], {"a": "x", "b": "b"}, "rename a x"),
    "two columns exchange names": (
        table(AB),
        [alter(table(each)) for each in ({"t": "p1", "b": "p2"}, {"t": "p1", "a": "p2"}, {"b": "p1", "a": "p2"})],
        {"a": "b", "b": "a"},
        "rename a t, rename b a, rename t b",
    ),
    "a wider type": (A_B, [alter(plain("a", "b", a={"type": "long"}))], {"a": "a", "b": "b"}, "type a"),
    "nullability, default and comment": (
        A_B,
        [alter(plain("a", "b", a={"nullable": False, **DEFAULT_5}))],
        {"a": "a", "b": "b"},
        "nullability a, default a, comment a",
    ),
    "a column becomes generated": (
        A_B,
        [alter(plain("a", "b", a={"metadata": {"delta.generationExpression": "b + 1"}}))],
        {"a": "a", "b": "b"},
        "computed a",
    ),
    "mapping is switched on": (A_B, [alter(table(AB))], {"a": "a", "b": "b"}, "mapping"),
    "mapping is switched off after an exchange": (
        table({"a": "b", "b": "a"}),
        [alter(A_B)],
        {"a": "a", "b": "b"},
        "mapping",
    ),
    "CREATE OR REPLACE takes the mapping away": (
        table({"a": "b", "b": "a"}),
        [replaced(A_B)],
        {"a": "a", "b": "b"},
        "mapping, replace",
    ),
    "CREATE OR REPLACE under new physical names": (
        table(AB),
        [replaced(table({"a": "p7", "b": "p8"}))],
        {"a": "a", "b": "b"},
        "replace",
    ),
    "... with a column less and one more": (
        table(AB),
        [replaced(table({"a": "p7", "c": "p8"}))],
        {"a": "a", "b": None},
        "drop b, add c, replace",
    ),
    "... that keeps one under the name of another": (
        table(AB),
        [replaced(table({"a": "p2"}))],
        {"a": None, "b": "a"},
        "drop a, rename b a, replace",
    ),
    "a column is renamed, then replaced under its new name": (
        table(AB),
        [alter(table({"x": "p1", "b": "p2"})), replaced(table({"x": "p7", "a": "p8", "b": "p9"}))],
        {"a": "x", "b": "b"},
        "rename a x, add a, replace",
    ),
    "RESTORE brings a dropped column back": (
        table(AB),
        [alter(table({"a": "p1"})), restored(table(AB), 0)],
        {"a": "a", "b": "b"},
        "drop b, add b, restore",
    ),
    "RESTORE across replacements, without mapping": (
        A_B,
        [replaced(plain("a")), replaced(plain("a", "b")), restored(A_B, 0)],
        {"a": "a", "b": "b"},
        "drop b, replace, add b, replace, drop b, add b, restore",
    ),
    "two replacements drop and add a name": (
        A_B,
        [replaced(plain("a")), replaced(plain("a", "b"))],
        {"a": "a", "b": None},
        "drop b, replace, add b, replace",
    ),
    "RESTORE to a version before the window goes by identity": (
        table(AB),
        [restored(table({"x": "p1", "c": "p9"}), -7)],
        {"a": "x", "b": None},
        "rename a x, drop b, add c, restore",
    ),
    "an overwrite adds a column and keeps the table": (
        A_B,
        [Commit(0, "WRITE", None, True, plain("a", "b", "c"), replaces_rows=True)],
        {"a": "a", "b": "b"},
        "add c",
    ),
}  # fmt: skip


def numbered(commits: list[Commit]) -> list[Commit]:
    return [Commit(**{**vars(each), "version": version}) for version, each in enumerate(commits, 1)]


@pytest.mark.parametrize("case", CASES)
def test_a_column_is_followed_from_the_start_to_the_end(case: str) -> None:
    before, commits, ends, told = CASES[case]
    found = walk(before, numbered(commits))
    assert {each.first_name: each.name for each in found.top if each.start is not None} == ends
    said = [" ".join(filter(None, (each.kind, each.column, each.new_name))) for each in found.changes]
    short = [text if text.startswith("rename") else " ".join(text.split()[:2]) for text in said]
    assert ", ".join(short) == told


def test_a_restored_or_replaced_table_is_one_statement() -> None:
    found = walk(A_B, numbered([replaced(plain("a")), restored(A_B, 0)]))
    table_changes = [each for each in found.changes if each.kind in (REPLACE, RESTORE)]
    assert [statement(each, "/t") for each in table_changes] == [
        "REPLACE TABLE delta.`/t`",
        "RESTORE TABLE delta.`/t` TO VERSION AS OF 0",
    ]


@pytest.mark.parametrize(
    ("commits", "fields", "own_drop"),
    [
        ([own("add", 2, plain("a", "b", "c"))], {0: "a", 1: "b", 2: "c"}, []),
        ([own("adopt", 2, None, "c:d"), alter(plain("a", "b", "c:d"))], {0: "a", 1: "b"}, []),
        ([alter(plain("a", "b", "c:d")), own("adopt", 2, None, "c:d")], {0: "a", 1: "b", 2: "c:d"}, []),
        # Without column mapping the column stays in the table.
        ([own("drop", 1, None)], {0: "a"}, [1]),
        ([own("leave", 1, None), own("adopt", 4, None, "b")], {0: "a", 4: "b"}, [1]),
        # The mark of another replica is a user's commit to this one.
        ([alter(plain("a", "b", "c"), mark=CommitMark("s", "schema:add:c2", "other"))], {0: "a", 1: "b"}, []),
        ([own("add", 2, plain("a", "b", "c")), restored(A_B, 0)], {0: "a", 1: "b"}, []),
        ([replaced(plain("a"))], {0: "a"}, []),
    ],
)  # fmt: skip
def test_marks_of_own_commits_name_the_published_column(
    commits: list[Commit], fields: dict[int, str], own_drop: list[int]
) -> None:
    found = walk(A_B, numbered(commits), fields={"a": 0, "b": 1}, replid="me")
    assert {number: each.name for number, each in found.published().items()} == fields
    ends = (SchemaStep.DROP, SchemaStep.LEAVE)
    dropped = [each.first_field for each in found.columns if any(step.what in ends for step in each.own)]
    assert [field for field in dropped if field is not None] == own_drop


def test_an_own_drop_and_add_of_one_name_are_two_columns() -> None:
    commits = [own("drop", 1, table({"a": "p1"})), own("add", 2, table({"a": "p1", "b": "p3"}))]
    found = walk(table(AB), numbered(commits), fields={"p1": 0, "p2": 1}, replid="me")
    assert {number: each.identity for number, each in found.published().items()} == {0: "p1", 2: "p3"}
    assert [(each.kind, each.field) for each in found.changes] == [("drop", 1), ("add", 2)]


@dataclass
class Drawn:
    """A table whose columns are told apart by numbers that no reader sees: name -> (number, identity)."""

    mapped: bool
    columns: dict[str, tuple[int, str]] = field(default_factory=dict)
    states: list[tuple[bool, dict[str, tuple[int, str]]]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    last: int = 0

    def new(self, name: str) -> tuple[int, str]:
        self.last += 1
        return self.last, f"p{self.last}" if self.mapped else name

    def metadata(self) -> TableMetadata:
        return table({name: identity for name, (_, identity) in self.columns.items()}, mapped=self.mapped)

    def commit(self, made: Commit) -> None:
        self.commits.append(made)
        self.states.append((self.mapped, dict(self.columns)))

    def play(self, what: str, one: str, other: str, number: int) -> None:
        columns = self.columns
        if what == "add" and one not in columns:
            columns[one] = self.new(one)
        elif what == "drop" and self.mapped and one in columns and len(columns) > 1:
            del columns[one]
        elif what == "rename" and self.mapped and one in columns and other not in columns:
            columns[other] = columns.pop(one)
        elif what == "swap" and self.mapped and one in columns and other in columns:
            columns[one], columns[other] = columns[other], columns[one]
        elif what == "mapping":
            self.mapped = not self.mapped
            columns.update({name: (ghost, name) for name, (ghost, _) in columns.items()})
        elif what == "restore" and self.states:
            version = number % len(self.states)
            self.mapped, self.columns = self.states[version][0], dict(self.states[version][1])
            self.commit(restored(self.metadata(), version))
            return
        elif what in ("replace", "reuse", "unmap"):
            kept = {name: ghost for name, (ghost, _) in columns.items() if name != one or len(columns) == 1}
            if other not in columns:
                kept[other] = 0
            self.mapped = self.mapped and what != "unmap"
            self.columns = {
                name: (self.new(name)[0] if ghost == 0 else ghost, self.identity(name, ghost, what))
                for name, ghost in kept.items()
            }
            self.commit(replaced(self.metadata()))
            return
        else:
            return
        self.commit(alter(self.metadata()))

    def identity(self, name: str, ghost: int, what: str) -> str:
        if not self.mapped:
            return name
        return self.columns[name][1] if what == "reuse" and ghost else self.new(name)[1]


STEPS = st.tuples(
    st.sampled_from(["add", "drop", "rename", "swap", "mapping", "restore", "replace", "reuse", "unmap"]),
    *[st.sampled_from("abcd")] * 2,
    st.integers(0, 9),
)


@given(st.booleans(), st.lists(STEPS, max_size=10))
def test_drawn_histories_give_each_column_its_values(
    mapped: bool, steps: list[tuple[str, str, str, int]]
) -> None:
    drawn = Drawn(mapped)
    drawn.columns = {name: drawn.new(name) for name in "ab"}
    before = drawn.metadata()
    start = {ghost: name for name, (ghost, _) in drawn.columns.items()}
    drawn.states.append((mapped, dict(drawn.columns)))
    for step in steps:
        drawn.play(*step)
    found = walk(before, numbered(drawn.commits))
    expected = {name: start.get(ghost) for name, (ghost, _) in drawn.columns.items()}
    assert found.former_names == expected
    if all(commit.operation != "RESTORE" for commit in drawn.commits):
        # A dropped column comes back only within one window.
        assert read_one_by_one(before, numbered(drawn.commits)) == expected


def read_one_by_one(before: TableMetadata, commits: list[Commit]) -> dict[str, str | None]:
    """Return what the walk returns for all commits, if each is a window of its own and the numbers are handed on."""
    names = [each["name"] for each in before.fields]
    numbers = {identity_of(each): place for place, each in enumerate(before.fields)}
    for commit in commits:
        found = walk(before, [commit], fields=numbers)
        numbers = {each.identity: number for number, each in found.published().items()}
        assert commit.metadata is not None
        before = commit.metadata
    ends = {each["name"]: numbers.get(identity_of(each)) for each in before.fields}
    return {name: None if number is None else names[number] for name, number in ends.items()}
