"""A row that was edited before its table had a column says nothing of it, also where it wins a conflict."""

from pathlib import Path

from tests.schema.stars import Star


def test_a_winner_without_the_column_takes_it_from_the_loser(tmp_path: Path) -> None:
    star = Star(tmp_path, "subscriber_wins")
    star.write("south", 1, {"a": "s1"})
    star.write("south", 2, {"b": "same"})
    star.write("south", 3, {"b": "s3"})
    star.write("hq", 2, {"b": "same"})
    star.add("hq", "c")
    for key in (1, 2, 3):
        star.write("hq", key, {"c": f"C{key}"})
    star.sync("north")
    # The tombstone has what the row had.
    star.delete("hq", 3)
    star.sync("south")
    star.settle()
    for name in ("by_row", "by_column"):
        tables = star.tables(name)
        assert tables["hq"] == {
            1: {"a": "s1", "b": "y", "c": "C1"},
            2: {"a": "x", "b": "same", "c": "C2"},
            3: {"a": "x", "b": "s3", "c": "C3"},
        }
        assert tables["north"] == tables["south"] == tables["hq"]
        # Rows that differ only in a column of which one side says nothing merge.
        assert [row for row in star.conflicts("hq", name) if row["id"] == 2] == []
    assert [row["id"] for row in star.conflicts("hq", "by_row")] == [1]
