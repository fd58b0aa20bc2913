"""The keys of the configuration file, their types and the rules of single values."""

import re
import unicodedata
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mergerepl.config.wording import known, shown
from mergerepl.model.later import instead_of
from mergerepl.model.publication import DEFAULT_CONFLICT_RETENTION, DEFAULT_RETENTION
from mergerepl.model.resolvers import ALIASES, PRIORITY, RESOLVERS

LONGEST_NAME = 128
LONGEST_RETENTION = timedelta(days=36_500)

_RETENTION = re.compile(r"(-?\d{1,100})\s*(hour|day|week)s?", re.IGNORECASE)
_HOURS = {"hour": 1, "day": 24, "week": 7 * 24}
_RESERVED_FOLDERS = ("_mergerepl", "_delta_log", "_tracking", "_logreader", "_cdc", "_transactional")


def folded(text: str) -> str:
    """Return a form that is equal for names that a file system or Spark may treat as one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _name(text: str) -> str:
    """Return a publication's or article's name; it also names folders and conflict tables."""
    composed = unicodedata.normalize("NFC", text)
    if not 1 <= len(composed) <= LONGEST_NAME:
        raise ValueError(f"must have 1 to {LONGEST_NAME} characters, and has {len(composed)}")
    is_plain = all(unicodedata.category(letter)[0] in "LMN" or letter in "_-. " for letter in composed)
    if not is_plain or composed[0] in "-. " or composed[-1] in ". ":
        raise ValueError(
            f"is {shown(text)}; a name has letters, digits, `_`, `-`, `.` and spaces only, begins with a "
            "letter, digit or `_` and does not end in `.` or a space (it names folders too)"
        )
    return text


def _table(text: str) -> str:
    """Return a table's folder, relative to the replica root, in one spelling."""
    if text.startswith(("/", "~")) or "://" in text:
        raise ValueError(f"is {shown(text)}; give a folder inside the replica root, such as `bronze/orders`")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise ValueError(f"is {shown(text)}; the table must lie inside the replica root")
    if any(part in _RESERVED_FOLDERS for part in parts):
        raise ValueError(f"is {shown(text)}; {', '.join(_RESERVED_FOLDERS)} are not folders of users' tables")
    if any(unicodedata.category(letter)[0] == "C" or letter in "\\:`" for letter in text):
        raise ValueError(f"is {shown(text)}; a control character, `\\`, `:` and a backtick are not allowed")
    return "/".join(parts)


def _columns(names: list[str]) -> list[str]:
    """Return column names: at least one, each once (Spark does not distinguish case)."""
    if not names:
        raise ValueError("is an empty list; name at least one column, or leave the key out")
    if not all(name.strip() for name in names):
        raise ValueError("holds an empty column name")
    if twice := first_twice(names):
        raise ValueError(f"names the column {shown(twice)} twice")
    return names


def _retention(stated: object) -> timedelta:
    """Return the retention: a number of days, or text such as "36 hours"."""
    text = f"{stated} days" if isinstance(stated, int) and not isinstance(stated, bool) else stated
    match = _RETENTION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"is {shown(stated)}; write it as `14 days`, `2 weeks` or `36 hours`")
    hours = int(match.group(1)) * _HOURS[match.group(2).lower()]
    if hours <= 0:
        raise ValueError(f"is {shown(stated)}; it must be more than 0 (leave the key out for 14 days)")
    if hours > LONGEST_RETENTION // timedelta(hours=1):
        raise ValueError(f"is {shown(stated)}; the longest is {LONGEST_RETENTION.days} days")
    return timedelta(hours=hours)


def _conflict_retention(stated: object) -> int:
    """Return the days that conflicts are kept: a retention in whole days; 0: for ever."""
    if stated == 0 and not isinstance(stated, bool):
        return 0
    days, rest = divmod(_retention(stated), timedelta(days=1))
    if rest:
        raise ValueError(
            f"is {shown(stated)}; write it in whole days, as `14 days`, or 0: conflicts are never removed"
        )
    return days


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first duplicate column name, case ignored as Delta does: `masse` is not `maße`."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            return name
        seen.add(name.lower())
    return None


def _resolver(name: str) -> str:
    if instead := instead_of("merge", "name", name.lower()):
        raise ValueError(f"is {shown(name)}, a resolver of a later version. {instead.rstrip('.')}")
    chosen = ALIASES.get(name.lower(), name)
    if chosen not in RESOLVERS:
        raise ValueError(f"is {shown(name)}; {known(name, RESOLVERS, 'the resolvers are')}")
    return chosen


def _compensate(stated: bool | str) -> bool:
    """Whether the subscriber undoes changes that the publisher's table refuses."""
    if stated is True or stated == "both":
        instead = instead_of("merge", "compensate_for_errors", "both") or ""
        raise ValueError(f"is {shown(stated)}, a value of a later version. {instead.rstrip('.')}")
    if stated is False or stated == "upload":
        return stated == "upload"
    raise ValueError(f"is {shown(stated)}, and it must be false or `upload`")


Name = Annotated[str, AfterValidator(_name)]
Columns = Annotated[list[str], AfterValidator(_columns)]
Table = Annotated[str, AfterValidator(_table)]


class Keys(BaseModel):
    """Values must have the right type as written: `yes` is not a name, "75" not a number."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ResolverKeys(Keys):
    """How conflicts of an article are decided."""

    name: Annotated[str, AfterValidator(_resolver)] = PRIORITY
    resolution: Literal["row", "columns"] = "row"
    column: str | None = Field(default=None, min_length=1)
    columns: Columns | None = None
    delimiter: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    update_delete: (
        Literal["priority", "publisher_wins", "subscriber_wins", "update_wins", "delete_wins"] | None
    ) = None
    resolver_info: str | None = Field(default=None, min_length=1)
    function: str | None = Field(default=None, min_length=1)


class ArticleKeys(Keys):
    """One item of `articles`."""

    name: Name
    table: Table | None = None
    key: Columns | None = None
    rowguid: str | None = Field(default=None, min_length=1)
    tracking: Literal["row", "column"] = "row"
    columns: Columns | None = None
    resolver: ResolverKeys = ResolverKeys()
    filter: str | None = Field(default=None, min_length=1)
    partition_options: Literal[0, 1, 2, 3] = 0
    compensate_for_errors: Annotated[bool, BeforeValidator(_compensate)] = False


class JoinKeys(Keys):
    """One item of `joins`."""

    article: str
    parent: str
    on: str = Field(min_length=1)
    unique: bool = False


class SubscriptionKeys(Keys):
    """One item of `subscriptions`."""

    subscriber: str
    type: Literal["server", "client"] = "server"
    priority: float | None = Field(default=None, ge=0, le=99.99, allow_inf_nan=False)
    sync_type: Literal["automatic", "none"] = "automatic"
    host_name: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    suser_sname: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)


class PublicationKeys(Keys):
    """The whole file."""

    publication: Name
    type: Literal["merge"] = "merge"
    publisher: str
    articles: list[ArticleKeys] = Field(min_length=1)
    subscriptions: list[SubscriptionKeys] = []
    retention: Annotated[timedelta, BeforeValidator(_retention)] = DEFAULT_RETENTION
    conflict_retention: Annotated[int, BeforeValidator(_conflict_retention)] = DEFAULT_CONFLICT_RETENTION
    conflict_logging: Literal["publisher", "subscriber", "both"] = "publisher"
    engine: Literal["spark", "auto"] = "auto"
    joins: list[JoinKeys] = []
    allow_partition_realignment: bool = True
