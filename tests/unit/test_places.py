"""Places and names: what a path, a variable or a folder means, and how replicas are called in it. No Spark."""

import subprocess
import sys
from pathlib import Path

import pytest

from mergerepl import Project, Replica
from mergerepl.errors import ConfigurationError
from mergerepl.places import NamedRoot, Place, choose_root, find_places, roots_of_file, types_at
from tests.networks import make_pair

SALES = """
publication: sales
publisher: ./hq
articles:
  - {name: orders, key: [id]}
subscriptions:
  - {subscriber: ./north}
  - {subscriber: ./far/south, type: client}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one; no variable names a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MERGEREPL_FILE", raising=False)
    return tmp_path


def sales(folder: Path, name: str = "mergerepl.yml") -> Path:
    (folder / name).write_text(SALES)
    return folder / name


def test_the_nearest_file_is_found_here_or_above(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no project here.*`-f PATH`"):
        find_places()
    outer = sales(folder)
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    assert find_places(here=below) == (Place(str(outer), is_file=True, is_given=False),)
    inner = sales(folder / "a")
    assert find_places(here=below) == (Place(str(inner), is_file=True, is_given=False),)


def test_a_variable_names_the_file_and_a_path_counts_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales(folder)
    other = sales(folder, "other.yml")
    monkeypatch.setenv("MERGEREPL_FILE", "other.yml")
    assert find_places() == (Place(str(other), is_file=True, is_given=False),)
    assert [each.path for each in find_places(["mergerepl.yml", "."])] == [
        str(folder / "mergerepl.yml"),
        str(folder),
    ]


@pytest.mark.parametrize("product", ["_mergerepl", "_cdc", "_tracking", "_transactional/MSpublications"])
def test_this_folder_counts_if_a_product_uses_it(folder: Path, product: str) -> None:
    (folder / product).mkdir(parents=True)
    assert len(types_at(folder)) == 1
    assert find_places() == (Place(str(folder), is_file=False, is_given=False),)


def test_a_folder_that_is_missing_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        find_places(["nowhere"])


def test_names_come_from_the_yaml_alone(folder: Path) -> None:
    file = sales(folder)
    (folder / "hq").mkdir()
    stated = roots_of_file(file)
    assert [(each.name, each.role, each.publication) for each in stated] == [
        ("hq", "publisher", "sales"),
        ("north", "subscriber", "sales"),
        ("south", "subscriber", "sales"),
    ]
    assert stated == Project.load(file).replicas()
    file.write_text(SALES.replace("{subscriber: ./north}", "{subscriber: ./north, name: branch}"))
    assert roots_of_file(file)[1].name == "branch"
    file.write_text("type: cdc\nroot: ./hq\ntables: nonsense\n")
    assert roots_of_file(file) == (NamedRoot("hq", str(folder / "hq"), "cdc", "database"),)


KNOWN = [
    NamedRoot("hq", "/lake/hq", "merge", "publisher", "sales"),
    NamedRoot("hq", "/lake/hq", "cdc", "database"),
    NamedRoot("north", "/lake/north", "merge", "subscriber", "sales"),
    NamedRoot("south", "/a/south", "merge", "subscriber", "sales"),
    NamedRoot("south", "/b/south", "merge", "subscriber", "sales"),
]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sales.yml", r"'sales\.yml' is a path.*`-f sales\.yml`"),
        ("./north", r"'\./north' is a path"),
        ("", "is a path"),
        ("nort", r"no replica 'nort' here\. Did you mean 'north'\? Known: hq, north, south\."),
        ("west", r"no replica 'west' here\. Known: hq, north, south\."),
        ("south", r"Several folders are called 'south': /a/south, /b/south\. Give one of them a `name:`"),
    ],
)
def test_what_is_no_name_is_refused_with_the_next_step(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        choose_root(KNOWN, name)


def test_a_folder_of_several_products_has_one_name() -> None:
    assert choose_root(KNOWN, "hq") == "/lake/hq"


def test_a_folder_knows_the_other_ends_of_its_subscriptions(folder: Path) -> None:
    make_pair(folder)
    for asked in ("hq", "north"):
        project = Project.load(folder / asked)
        assert {each.name for each in project.replicas()} == {"hq", "north"}
        assert project.at().root.name == asked
        assert project.at("north").root == Replica(folder / "north").root


def test_several_publishers_need_a_name(folder: Path) -> None:
    for name in ("hq", "other"):
        (folder / name).mkdir()
    project = Project.load("hq", "other")
    with pytest.raises(
        ConfigurationError, match=r"Several folders are meant.*Name one of the replicas: hq, other\."
    ):
        project.at()
    assert project.at("other").root.name == "other"


def test_names_load_no_library(folder: Path) -> None:
    file = sales(folder)
    script = (
        "import sys\nfrom mergerepl.places import find_places, roots_of_file\n"
        "assert len(roots_of_file(find_places()[0].path)) == 3\n"
        "assert not {'pyspark', 'deltalake', 'pyarrow', 'pydantic'} & sys.modules.keys()\n"
    )
    assert file.exists()
    subprocess.run([sys.executable, "-c", script], check=True)
