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
    star.sync("north")
    for key in (1, 2, 3):
        star.write("hq", key, {"c": f"C{key}"})
    star.project.capture("hq")
    # The tombstone has what the row had.
    star.delete("hq", 3)
    star.sync("south")
    for name in ("by_row", "by_column"):
        assert star.rows("hq", name) == star.rows("south", name)
        assert star.rows("hq", name) == {
            1: {"a": "s1", "b": "y", "c": "C1"},
            2: {"a": "x", "b": "same", "c": "C2"},
            3: {"a": "x", "b": "s3", "c": "C3"},
        }
        # Rows that differ only in a column of which one side says nothing merge.
        assert [row for row in star.conflicts("hq", name) if row["id"] == 2] == []
    assert [row["id"] for row in star.conflicts("hq", "by_row")] == [1]
    # From then on the row says what it took: a third replica's older value is compared with it, and the loser is logged.
    star.write("north", 3, {"c": "N3"})
    star.settle()
    for name in ("by_row", "by_column"):
        tables = star.tables(name)
        assert tables["hq"][3] == {"a": "x", "b": "y", "c": "N3"}
        assert tables["north"] == tables["south"] == tables["hq"]
        assert [(row["b"], row["c"]) for row in star.conflicts("hq", name) if row["id"] == 3] == [
            ("s3", "C3")
        ]
