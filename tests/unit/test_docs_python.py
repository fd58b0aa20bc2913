"""docs/sql-server.md names the original's procedures, and docs/api.md is what the docstrings say."""

import re
from pathlib import Path

import pytest

import mergerepl
from mergerepl import cdc, tracking, transactional
from mergerepl.cdc import tsql
from tests.project_scripts import script

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_reference_is_what_the_docstrings_say() -> None:
    made = script("api_reference")
    assert made.page() == API, "run: python scripts/api_reference.py"
    assert made.prose(made.entry) == "Return a method with its signature and docstring.\n"
    assert made.escaped("a_b *and* `c_d`") == r"a\_b \*and\* `c_d`"


@pytest.mark.parametrize("package", [mergerepl, cdc, tracking, transactional])
def test_every_public_name_is_in_the_reference(package: object) -> None:
    names = {name for name in package.__all__ if not name.endswith("Error")}  # type: ignore[attr-defined]
    named = set(re.findall(r"^(?:### |- \*\*|\*\*`)(\w+)", API, re.MULTILINE))
    # An error has a page of its own; the members of the last one are those of the original.
    assert names - named <= {"Transient", "SqlCeChangeTracking"}


def test_the_originals_names_are_all_there() -> None:
    page = (ROOT / "docs" / "sql-server.md").read_text(encoding="utf-8")
    ours = {name for name in vars(tsql) if name.startswith(("sp_", "fn_", "dm_"))}
    ours |= {name for name in vars(tracking.SqlCeChangeTracking) if name[0].isupper()}
    assert ours - set(re.findall(r"\w+", page)) == set()
