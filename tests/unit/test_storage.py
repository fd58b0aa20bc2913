"""Places of a replica, and the files of a folder."""

import errno
import itertools
import os
import re
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergerepl import roots
from mergerepl.config.project_file import load_documents
from mergerepl.errors import ConfigurationError, StoreError
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.storage import put_text, read_text, storage
from tests.faults.deaths import small_disk

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


def test_a_place_is_below_its_parents():
    every = [
        *map(
            Location.of, ("/", "/a", "/ab", "/a/b", "a", "a/b", ".", "..", "s3://a", "s3://a/a", "s3://b/a/b")
        )
    ]
    for one, other in itertools.product(every, repeat=2):
        assert one.is_below(other) is (other in one.parents), (one, other)


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
    with pytest.raises(StoreError, match="'s3://lake/sales/hq/orders' is in an object store"):
        os.fspath(table)


def test_a_place_in_a_store_is_the_one_that_its_text_names():
    for text in ("s3://lake/sales/hq", "s3a://lake/sales/hq", "s3://lake//sales/hq/"):
        assert Location.of(text) == STORE
    top = Location.of("s3://lake")
    assert (str(top), str(top / "a"), top.parent, (top / "a").parent) == (
        "s3://lake",
        "s3://lake/a",
        top,
        top,
    )
    assert STORE.parents == (top / "sales", top)


STORE_TEXTS = {
    "s3://lake/sales/hq": None,
    "s3a://lake/hq/": None,
    "s3://lake/Île de Ré": None,
    "s3://lake": None,
    "az://lake/hq": None,
    "az://key:secret@lake/hq": "holds credentials",
    "s3://key:secret@lake/hq": "holds credentials",
    "s3://lake/hq?token=secret": "holds credentials",
    "s3://lake/a/../b": "`.` or `..`",
    "s3://lake//b": "an empty segment",
    "s3://lake/a%20b": "has % in its key",
    "s3://lake/a#b": "has # in its key",
    "s3://lake/a\nb": "a control character",
    "s3://Lake/a": "names no bucket",
    "s3:/lake/a": "roots at s3:// are not supported",
    "gs://lake/a": "roots at gs:// are not supported",
    "abfss://lake@account.dfs.core.windows.net/a": "AZURE_STORAGE_ACCOUNT_NAME is 'shop': a command works with one account",
    "abfss://lake@shop.dfs.core.windows.net/a/../b": "`.` or `..`",
    "abfss://lake@shop.blob.core.windows.net/a": "roots at abfss:// are not supported",
    "abfss://lake:secret@shop.dfs.core.windows.net/a": "roots at abfss:// are not supported",
}


@pytest.mark.parametrize("text", STORE_TEXTS)
def test_roots_in_a_store_are_checked(text, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    if (problem := STORE_TEXTS[text]) is None:
        parsed = roots.parse(text, may_be_stored=True)
        assert Location.of(parsed) == Location.of(text)
        assert roots.parse(parsed, may_be_stored=True) == roots.resolved(parsed) == parsed
        return
    with pytest.raises(ConfigurationError, match=re.escape(problem)) as raised:
        roots.parse(text, may_be_stored=True)
    assert "secret" not in str(raised.value)


def test_spark_is_refused_at_azures_store_and_its_account_comes_from_the_environment(monkeypatch):
    at = Location.of("az://lake/hq")
    with pytest.raises(StoreError, match="needs Spark, which does not work there"):
        at.spark_uri  # noqa: B018
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigurationError, match="AZURE_STORAGE_ACCOUNT_NAME is not set"):
        storage_options(at)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "secret")
    assert storage_options(at) == {"AZURE_STORAGE_ACCOUNT_NAME": "shop"}


def test_sparks_name_of_a_place_at_azure_is_the_same_place(monkeypatch, tmp_path):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    text = "abfss://lake@shop.dfs.core.windows.net/hq"
    assert roots.parse(f"{text}/", may_be_stored=True) == "az://lake/hq"
    (tmp_path / "mergerepl.yml").write_text(
        f"publication: sales\npublisher: {text}\narticles:\n  - {{name: orders, key: [id]}}\n"
    )
    (stated,) = load_documents(tmp_path / "mergerepl.yml")
    assert stated.publisher == "az://lake/hq"


def test_a_root_in_a_store_has_no_other_products():
    assert roots.uses("s3://lake/hq", but="_mergerepl") == ""


def test_roots_in_a_store_overlap_by_their_prefixes():
    hq, inside, beside = "s3://lake/hq", "s3://lake/hq/north", "s3://lake/hq2"
    found = [
        roots.overlap(*pair)
        for pair in ((hq, hq), (inside, hq), (hq, inside), (hq, beside), (hq, "/lake/hq"))
    ]
    assert found == ["same", "inside", "around", None, None]


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
    assert storage(at).read(at)[0] == b"first"
    assert storage(at).list_from(at.parent) == ["0.json"]


def test_a_write_that_fails_leaves_no_half_file(tmp_path):
    (tmp_path / "folder").mkdir()
    at = Location.of(tmp_path)
    with pytest.raises(IsADirectoryError):
        storage(at).put(at / "folder", b"x")
    with pytest.raises(OSError, match="File too large"), small_disk():
        storage(at).put(at / "file", b"x" * 1000)
    assert os.listdir(tmp_path) == ["folder"]
