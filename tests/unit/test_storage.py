"""Places of a replica, and the files of a folder."""

import errno
import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergerepl.errors import StoreError
from mergerepl.store.location import Location
from mergerepl.store.storage import HALF_WRITTEN, files_in, put_text, read_text, storage

STORE = Location("s3", "lake", "sales/hq")
NAMES = st.lists(st.sampled_from(["a", "b.c", "_mergerepl", "x y", "ü"]), min_size=1, max_size=4)


@given(NAMES, NAMES)
def test_a_location_of_this_machine_is_joined_and_taken_apart_as_a_path(above, below):
    path = PurePosixPath("/", *above)
    here = Location.of(path)
    there = here.join(*below)
    expected = path.joinpath(*below)
    assert (str(there), there.name, there.stem, there.suffix) == (
        str(expected),
        expected.name,
        expected.stem,
        expected.suffix,
    )
    assert [str(each) for each in there.parents] == [str(each) for each in expected.parents]
    assert there.is_below(here)
    assert not here.is_below(there)
    assert here.join(*there.relative_to(here).split("/")) == there
    assert os.fspath(there) == str(expected)


@pytest.mark.parametrize(
    ("text", "plain"), [("/a//b/", "/a/b"), ("a/./b", "a/b"), (".", "."), ("/", "/"), ("/a/../b", "/a/../b")]
)
def test_segments_without_a_name_are_left_out(text, plain):
    assert str(Location.of(text)) == str(Path(text)) == plain


def test_a_place_in_a_store_has_names_for_each_reader_but_no_path():
    table = STORE / "orders"
    assert (table.uri, table.spark_uri, str(table)) == (
        "s3://lake/sales/hq/orders",
        "s3a://lake/sales/hq/orders",
        "s3://lake/sales/hq/orders",
    )
    assert table.is_below(STORE)
    assert table.relative_to(STORE) == "orders"
    for use in (table.local_path, lambda: storage(table), lambda: os.fspath(table)):
        with pytest.raises(StoreError, match="'s3://lake/sales/hq/orders' is in an object store"):
            use()


def test_a_place_outside_has_no_relative_path():
    with pytest.raises(ValueError, match="is not below"):
        Location.of("/a/bc").relative_to(Location.of("/a/b"))


def test_a_file_is_replaced_whole_and_makes_its_folders(tmp_path):
    at = Location.of(tmp_path) / "_mergerepl" / "plan.json"
    assert read_text(at) is None
    put_text(at, "one")
    put_text(at, "zwölf")
    assert read_text(at) == "zwölf"
    assert storage(at).list_from(at.parent) == ["plan.json"]
    storage(at).delete(at, at)
    assert read_text(at) is None


@pytest.mark.parametrize("has_links", [True, False])
def test_one_of_two_writers_makes_a_file(tmp_path, monkeypatch, has_links):
    def no_links(*_):
        raise OSError(errno.EPERM, "no links")

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    at = Location.of(tmp_path) / "0.json"
    storage(at).put_if_absent(at, b"first")
    with pytest.raises(FileExistsError):
        storage(at).put_if_absent(at, b"second")
    assert storage(at).read(at) == b"first"
    assert storage(at).list_from(at.parent) == ["0.json"]


def test_names_are_listed_in_order_behind_a_name(tmp_path):
    for name in ("3.json", "1.json", "2.json", "9.json.tmp"):
        (tmp_path / name).write_text("")
    folder = Location.of(tmp_path)
    assert storage(folder).list_from(folder, after="1.json") == ["2.json", "3.json", "9.json.tmp"]
    assert files_in(folder, HALF_WRITTEN) == [folder / "9.json.tmp"]
    assert storage(folder).list_from(folder / "none") == []
