"""A command of one product on a folder of another names the command that takes it. No Spark."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from mergerepl.cli.main import main

PUBLISHER, RECEIVER = "_transactional/MSpublications", "_transactional/MSreplication_subscriptions"


@pytest.mark.parametrize(
    ("folder", "arguments", "named"),
    [
        (PUBLISHER, ("capture", "{0}"), "mergerepl transactional logreader {0}"),
        (PUBLISHER, ("conflicts", "list", "{0}"), "mergerepl transactional errors {0}"),
        (PUBLISHER, ("row", "{0}", "--article", "a", "--key", "id=1"), "mergerepl status {0}"),
        (RECEIVER, ("sync", "{0}"), "mergerepl transactional distribute PUBLISHER"),
        ("_cdc", ("conflicts", "list", "{0}"), "mergerepl cdc status {0}"),
        ("_tracking", ("history", "{0}"), "mergerepl tracking status {0}"),
        ("_mergerepl", ("transactional", "logreader", "{0}"), "mergerepl status {0}"),
        ("_mergerepl", ("cdc", "status", "{0}"), "mergerepl status {0}"),
        ("_cdc", ("tracking", "status", "{0}"), "mergerepl cdc status {0}"),
        (PUBLISHER, ("tracking", "status", "{0}"), "mergerepl status {0}"),
    ],
)
def test_a_folder_of_another_product_is_answered_with_its_commands(
    tmp_path: Path, folder: str, arguments: tuple[str, ...], named: str
) -> None:
    root = tmp_path / "hq"
    (root / folder).mkdir(parents=True)
    shown = CliRunner().invoke(main, [each.format(root) for each in arguments])
    assert shown.exit_code != 0
    assert f"`{named.format(root)}`" in shown.output


def test_a_folder_of_none_names_none(tmp_path: Path) -> None:
    said = CliRunner().invoke(main, ["conflicts", "list", str(tmp_path)]).output
    assert "is not a replica" in said
    assert "take it" not in said
