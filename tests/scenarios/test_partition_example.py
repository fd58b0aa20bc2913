"""The worked example of the mapping tables is what the model does, and the file of docs/filters.md is valid."""

import re
from pathlib import Path

from tests import project_files as config
from tests.properties import partition_histories

PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text(encoding="utf-8")
EXAMPLE = (Path(__file__).parents[1] / "properties" / "partition_example.md").read_text(encoding="utf-8")
TABLE = re.search(r"^\| after \|.*?(?=\n\n)", EXAMPLE, re.MULTILINE | re.DOTALL)


def without_partchangegen(table: str) -> str:
    """Return the model's page in the form of ours: the model also shows when a row's partitions changed last."""
    lines = [line.split(" | ") for line in table.split("\n")]
    return "\n".join(
        " | ".join([line[0], re.sub(r"(\d)/-?\d+", r"\1", line[1]), *line[2:]]) if len(line) > 3 else line[0]
        for line in lines
    )


def test_the_page_is_what_the_model_does() -> None:
    assert TABLE is not None
    assert TABLE[0] == without_partchangegen(partition_histories.example())


def test_the_file_of_the_page_is_valid(tmp_path: Path) -> None:
    (tmp_path / "hq").mkdir()
    file = re.findall(r"```yaml\n(.*?)```", PAGE.partition("## Try it")[2], re.DOTALL)[0]
    (tmp_path / "sales.yml").write_text(file)
    publication = config.load(tmp_path / "sales.yml")
    assert [join.article for join in publication.joins] == ["orders", "lines"]
