"""The statements of `schema alter`: what is read, and what is refused."""

import pytest

from mergerepl.delta.feed.column_changes import ADD, DROP, RENAME, TYPE, ColumnChange, clause
from mergerepl.errors import ConfigurationError
from mergerepl.merge.schema.statement import parse_statement


@pytest.mark.parametrize(
    ("text", "change", "written"),
    [
        ("ADD COLUMN note STRING", (ADD, "note", "note", "string", ""), "ADD COLUMNS (`note` STRING)"),
        ("add column a Integer;", (ADD, "a", "a", "int", ""), "ADD COLUMNS (`a` INT)"),
        (
            "ADD COLUMN `a b` long COMMENT 'it''s'",
            (ADD, "a b", "a b", "bigint", "it's"),
            "ADD COLUMNS (`a b` BIGINT)",
        ),
        (
            "ADD COLUMN a decimal( 10 , 2 )",
            (ADD, "a", "a", "decimal(10,2)", ""),
            "ADD COLUMNS (`a` DECIMAL(10,2))",
        ),
        ("ADD COLUMN a numeric", (ADD, "a", "a", "decimal(10,0)", ""), "ADD COLUMNS (`a` DECIMAL(10,0))"),
        ("DROP COLUMN `a``b`", (DROP, "a`b", "a`b", "", ""), "DROP COLUMN `a``b`"),
        ("  rename column a to b ", (RENAME, "a", "b", "", ""), "RENAME COLUMN `a` TO `b`"),
        ("ALTER COLUMN a TYPE double", (TYPE, "a", "a", "double", ""), "ALTER COLUMN `a` TYPE DOUBLE"),
    ],
)
def test_a_statement_is_read_and_written_again(text: str, change: tuple[str, ...], written: str) -> None:
    kind, column, new_name, new_type, comment = change
    read = parse_statement(text)
    name = "" if kind == ADD else column
    assert read == ColumnChange(0, kind, name, new_name, new_type=new_type, new_text=comment)
    assert clause(read) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ADD COLUMN",
        "ADD COLUMN a",
        "ADD COLUMN a string NOT NULL",
        "ADD COLUMN a string DEFAULT 1",
        "ADD COLUMN a string, b string",
        "ADD COLUMN a string COMMENT 'a\\'",
        "ADD COLUMN a string); DROP TABLE x; --",
        "ADD COLUMNS (a string)",
        "ADD COLUMN a.b string",
        "ADD COLUMN a varchar(3)",
        "ADD COLUMN a string(3)",
        "ADD COLUMN a decimal(39,0)",
        "ADD COLUMN a decimal(3,4)",
        "ADD COLUMN a array<string>",
        "DROP COLUMN a, b",
        "DROP COLUMN IF EXISTS a",
        "RENAME COLUMN a b",
        "ALTER COLUMN a SET NOT NULL",
        "ALTER COLUMN a TYPE money",
        "SET TBLPROPERTIES ('a' = 'b')",
    ],
)
def test_other_statements_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_statement(text)
