"""A command of one product on a folder of another names the command that takes it. No Spark."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from mergerepl.cli.main import main

PUBLISHER, RECEIVER = "_transactional/MSpublications", "_transactional/MSreplication_subscriptions"


@pytest.mark.parametrize(
    ("folder", "arguments", "named"),
    [
        (PUBLISHER, ("conflicts", "drop", "1", "--yes"), "There is no conflict '1'"),
        (PUBLISHER, ("row", "a", "--key", "id=1"), "`mergerepl status -f {0}`"),
        (RECEIVER, ("status",), "`mergerepl sync -f PUBLISHER`"),
        ("_cdc", ("conflicts", "list"), "hq is cdc: no conflicts."),
        ("_mergerepl", ("transactional", "browse"), "`mergerepl status -f {0}`"),
        ("_mergerepl", ("cdc", "list"), "`mergerepl cdc enable TABLE -f {0}`"),
        ("_mergerepl", ("status", "--type", "cdc"), "hq is merge: nothing of type cdc."),
        ("_cdc", ("tracking", "enumerate", "c"), "`mergerepl status -f {0}`"),
        (PUBLISHER, ("tracking", "enumerate", "c"), "`mergerepl status -f {0}`"),
        ("_cdc", ("repair",), "hq is cdc: no repair of rows."),
        ("_tracking", ("partitions", "list"), "hq is tracking: no partitions."),
    ],
)
def test_a_folder_of_another_product_is_answered_with_its_commands_or_its_type(
    tmp_path: Path, folder: str, arguments: tuple[str, ...], named: str
) -> None:
    root = tmp_path / "hq"
    (root / folder).mkdir(parents=True)
    shown = CliRunner().invoke(main, [*arguments, "-f", str(root)])
    assert shown.exit_code != 0
    assert named.format(root) in shown.output


def test_a_folder_of_none_names_none(tmp_path: Path) -> None:
    said = CliRunner().invoke(main, ["conflicts", "list", "-f", str(tmp_path)]).output
    assert "is not a replica" in said
    assert "take it" not in said
