"""docs/system-tables.md is what the code's schemas say, and every table and column stands in it."""

import re
from pathlib import Path

import pytest

from mergerepl.systables.conflicts_info import CONFLICT_COLUMNS
from mergerepl.systables.registry import ALL
from tests.project_scripts import script

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "system-tables.md"


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_page_is_what_the_code_says():
    made = script("system_tables_reference").page()
    assert PAGE.read_text(encoding="utf-8") == made, "run: python scripts/system_tables_reference.py"


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.name)
def test_every_column_has_its_line(table):
    lines = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (.+) \|$", sections()[table.name], re.MULTILINE)
    assert lines == [(column.name, column.type, column.doc) for column in table.columns]


def test_the_conflict_tables_have_their_section():
    section = sections()["MSmerge_conflict_<publication>_<article>"]
    assert all(f"`{column.name}`" in section for column in CONFLICT_COLUMNS)
