"""The file that `apply` is given, and that stands for a publisher elsewhere."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_inputs.bad_texts import BAD_TEXTS, HOSTILE_NAMES
from tests.bad_inputs.conftest import Refused
from tests.bad_inputs.unprivileged import refused_without_privileges
from tests.networks import FILE, Network, write_table

pytestmark = pytest.mark.usefixtures("no_engine")


@pytest.mark.parametrize(
    ("command", "case"),
    [
        *(("apply", case) for case in BAD_TEXTS),
        *((each, next(iter(BAD_TEXTS))) for each in ("sync", "status")),
    ],
)
def test_inv_43_a_bad_text_is_refused_by_every_command(
    folder: Path, refused: Refused, command: str, case: str
) -> None:
    """`test_config` says what each message holds; here it is the only one, and the command's exit code."""
    text, expected = BAD_TEXTS[case]
    write_table(folder / "hq" / "orders")
    (folder / FILE).write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(command, "-f", FILE, code=2, says=(FILE, expected))
    assert len(message) < 700


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_21_a_hostile_name_never_becomes_a_folder(network: Network, refused: Refused, name: str) -> None:
    network.write_file("bad.yml", publication=name)
    refused("apply", "-f", "bad.yml", code=2, says=("bad.yml",))


def make_folder(path: Path) -> None:
    path.mkdir()


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_dangling(path: Path) -> None:
    path.symlink_to(path.with_name("gone"))


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 100_000_000)


FILES: list[object] = [
    pytest.param(lambda path: None, ("bad.yml does not exist", "check the path"), id="4 missing"),
    pytest.param(make_folder, ("bad.yml' is a folder", "Name one with `-f FILE`"), id="5 folder"),
    pytest.param(make_huge, ("bad.yml is larger than 1 MB", "is it the project file?"), id="23 huge"),
    pytest.param(make_loop, ("bad.yml cannot be read", "symbolic links", "Check the path"), id="31 loop"),
    pytest.param(make_dangling, ("bad.yml does not exist", "check the path"), id="25 dangling link"),
]


@pytest.mark.parametrize(("make", "says"), FILES)
def test_what_is_no_file_is_refused(
    folder: Path, refused: Refused, make: Callable[[Path], None], says: tuple[str, ...]
) -> None:
    make(folder / "bad.yml")
    refused("apply", "-f", "bad.yml", code=2, says=says)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("x" * 5000, "File name too long", id="20 long"),
        pytest.param("a\0b", "control character", id="21 NUL"),
        pytest.param("", "is empty", id="empty"),
        pytest.param("sales.yml/x", "lies inside one", id="26 inside a file"),
    ],
)
def test_a_name_that_no_file_has(network: Network, refused: Refused, name: str, says: str) -> None:
    refused("apply", "-f", name, code=2, says=(says,))


def test_24_an_unreadable_file(network: Network) -> None:
    (network.folder / FILE).chmod(0)
    says = (FILE, "Permission denied", "Check the path and its permissions")
    refused_without_privileges(network.folder, "apply", "-f", FILE, code=2, says=says)


def test_29_paths_in_the_file_are_relative_to_it(network: Network, refused: Refused) -> None:
    """From another working directory the same file means the same replicas, and none that is not there."""
    (network.folder / "elsewhere").mkdir()
    network.write_file("elsewhere/moved.yml")
    refused(
        "apply", "-f", "elsewhere/moved.yml", code=2, says=("publisher is './hq'", "elsewhere/hq", "check")
    )
