"""What Arrow reads of few files of a system table is what delta-rs' SQL reads."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from mergerepl.delta import chosen_rows
from mergerepl.delta.chosen_rows import Chosen, rows_of_few_files
from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.small_tables import delete_rows, read_rows, typed_rows, write_rows
from mergerepl.errors import StoreError
from mergerepl.store.location import Location

NAMES = ("seq", "low", "guid")
FIELDS = [
    {"name": name, "type": type_, "nullable": True, "metadata": {}}
    for name, type_ in zip(NAMES, ("long", "integer", "string"), strict=True)
]
NUMBERS = (-(2**63), -1, 0, 1, 2, 2**63 - 1)
TEXTS = ("", "a", "A", "it's", "é", "\0")


def rows(*values: tuple[int | None, int | None, str | None]) -> pa.Table:
    columns = [*zip(*values, strict=True)]
    types = (pa.int64(), pa.int32(), pa.string())
    return pa.table({n: pa.array(c, t) for n, c, t in zip(NAMES, columns, types, strict=True)})


def made(folder: Path) -> Location:
    table = Location.of(folder) / "_mergerepl" / "t"
    create_table(table, NewTable(FIELDS, (), {}), CommitMark("s", "setup:create"))
    for number, text in zip((*NUMBERS, None), (*TEXTS, None), strict=True):
        write_rows(table, rows((number, 1, text), (0, None, text)), mode="append", properties={})
    # delta-rs rewrites a file, with texts of another type.
    delete_rows(table, where="seq = 0 and guid = ''")
    return table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Location:
    return made(tmp_path_factory.mktemp("chosen"))


def found(table: Location, where: str | Chosen) -> list[str]:
    return sorted(map(str, read_rows(table, NAMES, where=where)))


@st.composite
def choices(draw: st.DrawFn) -> Chosen:
    number = st.none() | st.sampled_from(NUMBERS)
    bounds = draw(st.dictionaries(st.just("seq"), st.tuples(number, number)))
    among = draw(st.dictionaries(st.just("guid"), st.sets(st.sampled_from((*TEXTS, "z")))))
    among |= draw(st.dictionaries(st.just("low"), st.sets(st.sampled_from((0, 1)))))
    return Chosen(bounds, among, draw(st.sets(st.sampled_from(NAMES))))


@given(chosen=choices())
def test_arrow_chooses_as_sql(table: Location, chosen: Chosen) -> None:
    assert rows_of_few_files(table) is not None
    assert found(table, chosen) == found(table, chosen.sql)


def test_many_files_a_column_that_files_lack_and_damage_are_left_to_delta_rs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_rows, "_MOST_FILES", 24)
    table, chosen = made(tmp_path), Chosen({"seq": (0, None)})
    write_deltalake(
        str(table),
        rows((7, 7, "a")).append_column("more", pa.array(["x"])),
        mode="append",
        schema_mode="merge",
    )
    before = rows_of_few_files(table)
    assert before is not None
    assert {*before[1].column_names} == {*NAMES, "more"}
    texts = typed_rows(table, {"more": pa.string()}, where=Chosen({"seq": (1, 8)}))["more"].to_pylist()
    assert sorted(texts, key=str) == [None, "x"]
    for number in range(25):
        more = rows((number, 0, "")).append_column("more", pa.array(["y"]))
        write_rows(table, more, mode="append", properties={})
    assert rows_of_few_files(table) is None
    assert len(found(table, chosen)) == 3 + 1 + 24
    other = made(tmp_path / "other")
    for file in Path(str(other)).glob("*.parquet"):
        file.write_bytes(b"PAR1")
    assert rows_of_few_files(other) is None
    with pytest.raises(StoreError, match="cannot be read"):
        found(other, chosen)


def test_rows_that_were_read_are_kept_until_their_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, chosen, opened = made(tmp_path), Chosen(), []
    parquet_file = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda at: opened.append(at) or parquet_file(at))
    before = found(table, chosen)
    files = len(opened)
    assert found(table, chosen) == before
    assert len(opened) == files > 1
    write_rows(table, rows((9, 9, "new")), mode="append", properties={})
    assert len(found(table, chosen)) == len(before) + 1
    assert len(opened) == files + 1

    # As a copy that is put in its place.
    file = Path(str(opened[-1]))
    pq.write_table(rows((10, 9, "other")), file)
    assert len(found(table, chosen)) == len(before) + 1
    assert len(opened) == files + 2
    monkeypatch.setattr(chosen_rows, "_MOST_KEPT_BYTES", 64 << 10)
    file.touch()
    # The bytes of a row are the least of what its file costs in memory.
    assert len(found(table, chosen)) == len(before) + 1
    assert 0 < len(chosen_rows._kept) <= 4
    monkeypatch.setattr(chosen_rows, "_MOST_KEPT_BYTES", 0)
    file.touch()
    assert found(table, chosen) == found(table, chosen)
    assert len(opened) > files + 3
    file.unlink()
    assert rows_of_few_files(table) is None
