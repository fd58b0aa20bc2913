"""The statements of `schema alter`, read by a grammar of our own: none of a stranger's text reaches an engine. Pure."""

import re
from typing import Final

from mergerepl.delta.feed.column_changes import ADD, DROP, RENAME, TYPE, ColumnChange
from mergerepl.errors import ConfigurationError

_NAME: Final = r"(?:`(?:[^`]|``)+`|[A-Za-z_]\w*)"
_TYPE: Final = r"[A-Za-z_]+(?:\s*\(\s*\d+\s*(?:,\s*\d+\s*)?\))?"
_FORMS: Final = {
    ADD: rf"ADD\s+COLUMN\s+(?P<new>{_NAME})\s+(?P<type>{_TYPE})(?:\s+COMMENT\s+'(?P<text>(?:[^'\\]|'')*)')?",
    DROP: rf"DROP\s+COLUMN\s+(?P<old>{_NAME})",
    RENAME: rf"RENAME\s+COLUMN\s+(?P<old>{_NAME})\s+TO\s+(?P<new>{_NAME})",
    TYPE: rf"ALTER\s+COLUMN\s+(?P<old>{_NAME})\s+TYPE\s+(?P<type>{_TYPE})",
}
GRAMMAR: Final = (
    "ADD COLUMN name type [COMMENT 'text'], DROP COLUMN name, RENAME COLUMN name TO name, or ALTER COLUMN name TYPE "
    "type"
)
_SYNONYMS: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
}
_TYPES: Final = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "string", "boolean", "binary"),
    *("date", "timestamp", "timestamp_ntz"),
)
_DECIMAL: Final = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,(\d+))?\))?")
_MOST_DIGITS: Final = 38


def parse_statement(text: str) -> ColumnChange:
    """Return the change that a statement makes; what follows ALTER TABLE and the table's name is its text.

    Raises: ConfigurationError if the statement is of another form, or names another type than a plain one.
    """
    for kind, form in _FORMS.items():
        found = re.fullmatch(form, text.strip().rstrip(";").strip(), re.IGNORECASE)
        if found is None:
            continue
        given = found.groupdict()
        old, new = (_unquoted(given.get(part) or "") for part in ("old", "new"))
        type_ = _type(given["type"]) if given.get("type") else ""
        comment = (given.get("text") or "").replace("''", "'")
        return ColumnChange(0, kind, old, new or old, new_type=type_, new_text=comment)
    raise ConfigurationError(
        f"The statement {text!r} cannot be read. It is one of {GRAMMAR}. Another statement goes to your engine: the next "
        "`mergerepl sync` follows what it follows by any writer."
    )


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _type(text: str) -> str:
    plain = re.sub(r"\s", "", text).lower()
    if (decimal := _DECIMAL.fullmatch(plain)) is not None:
        precision, scale = int(decimal[1] or 10), int(decimal[2] or 0)
        if scale <= precision and 1 <= precision <= _MOST_DIGITS:
            return f"decimal({precision},{scale})"
    name = _SYNONYMS.get(plain, plain)
    if name not in _TYPES:
        raise ConfigurationError(
            f"The type {text!r} is not one of {', '.join(_TYPES)} and decimal(p,s) up to {_MOST_DIGITS} digits. A column "
            "of another type is added with your engine: the next `mergerepl sync` follows it."
        )
    return name
