"""`mergerepl init`: write a project file for folders of tables. It reads logs and scans keys without Java.

A table that cannot take part is a comment with its columns and the reason, so that the file passes `apply --dry-run`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mergerepl import roots
from mergerepl.config.schema import (
    MODELS,
    ArticleKeys,
    CaptureTableKeys,
    Keys,
    TrackingTableKeys,
    TransactionalArticleKeys,
)
from mergerepl.config.wording import known
from mergerepl.delta.contract.rules import GUID_PATTERN
from mergerepl.delta.sql_text import quoted
from mergerepl.delta.tables import TableState, is_delta_table, open_table, read_rows
from mergerepl.errors import ConfigurationError, MergeReplError
from mergerepl.model.publication import Article
from mergerepl.model.results import InitResult, InitTable
from mergerepl.model.tracking_options import Foreign, TrackingKeyType, TrackingOptions
from mergerepl.model.transactional import Article as TransactionalArticle
from mergerepl.store.location import Location
from mergerepl.store.storage import folders_in, storage

DEEPEST = 4
"""Levels of folders below a root in which tables are looked for."""

_PLAIN = re.compile(r"[^\W\d]\w*(-\w+)*|[./]*[\w][\w./-]*")


@dataclass(frozen=True)
class _Root:
    """A folder: what its tables state already (table to items of the file), the check of a new item, settings."""

    root: Location
    stated: dict[str, list[dict[str, Any]]]
    check: Callable[[dict[str, Any], TableState], None]
    settings: tuple[str, ...] = ()


def init_project(
    folders: Sequence[str], *, type_: str, output: str | os.PathLike[str], dry_run: bool = False
) -> InitResult:
    """Write a project file for the tables below some folders, and return its text and tables.

    The first folder publishes, the others subscribe; with `cdc` and `tracking` each folder is a document of its own.

    Raises: ConfigurationError if the file exists, a folder cannot be used, or no table can be published.
    """
    if type_ not in MODELS:
        raise ConfigurationError(f"There is no type {type_!r}: {known(type_, MODELS, 'it may be')}.")
    if not folders:
        raise ConfigurationError("No folder is named. Name the folder that holds the tables.")
    file = Path(output).absolute()
    if str(output) != "-" and file.exists():
        raise ConfigurationError(
            f"'{file}' exists, and is not overwritten. Change it; or name another file with `-o FILE`.",
            file=str(file),
        )
    stored = type_ in ("merge", "transactional")
    found = [
        roots.existing(folders[0], may_be_stored=stored),
        *(roots.parse(each, may_be_stored=stored) for each in folders[1:]),
    ]
    tables: list[InitTable] = []
    if type_ in ("cdc", "tracking"):
        parts = [_folder(Location.of(roots.existing(each)), type_, file.parent, tables) for each in found]
    else:
        parts = [_publication([Location.of(each) for each in found], type_, file.parent, tables)]
    head = (
        "# Written by `mergerepl init`. Look with `mergerepl apply --dry-run`, then run `mergerepl apply`.\n"
    )
    text = head + "---\n".join(parts)
    if not dry_run and str(output) != "-":
        try:
            storage(Location.of(file)).put_if_absent(Location.of(file), text.encode())
        except OSError as error:
            raise ConfigurationError(
                f"'{file}' cannot be written: {error.strerror}. Name another file with `-o FILE`.",
                file=str(file),
            ) from error
    return InitResult(str(file), text, tuple(tables), dry_run)


def _publication(found: Sequence[Location], type_: str, base: Path, tables: list[InitTable]) -> str:
    publisher, *subscribers = found
    root = (_merge if type_ == "merge" else _transactional)(publisher)
    items = list(_items(root, "name", ArticleKeys if type_ == "merge" else TransactionalArticleKeys, tables))
    published = [each.table for each in tables if each.reason is None]
    if not published:
        reasons = "; ".join(f"{each.table}: {each.reason}" for each in tables) or "it holds no Delta table"
        raise ConfigurationError(
            f"No table below '{publisher}' can be published ({reasons}).", root=str(publisher)
        )
    lines = [f"publication: {_text(_publication_name(publisher, type_))}"]
    if type_ != "merge":
        lines.append(f"type: {type_}")
    lines += [f"publisher: {_place(publisher, base)}", "articles:", *items]
    lines.append("subscriptions:" if subscribers else "subscriptions: []")
    for each in subscribers:
        has_tables = any(is_delta_table(each / table) for table in published)
        none = ", sync_type: none" if has_tables else ""
        lines.append(f"  - {{subscriber: {_place(each, base)}{none}}}")
    return "\n".join(lines) + "\n"


def _folder(folder: Location, type_: str, base: Path, tables: list[InitTable]) -> str:
    own: list[InitTable] = []
    root = (_captured if type_ == "cdc" else _tracked)(folder)
    model = CaptureTableKeys if type_ == "cdc" else TrackingTableKeys
    items = list(_items(root, "table", model, own))
    tables += own
    has_tables = any(each.reason is None for each in own)
    lines = [f"type: {type_}", f"root: {_place(folder, base)}", *root.settings]
    return "\n".join([*lines, "tables:" if has_tables else "tables: []", *items]) + "\n"


def _items(root: _Root, name: str, model: type[Keys], tables: list[InitTable]) -> Iterator[str]:
    """Yield a line for each table; `name` is the key of the file that names an item."""
    used: set[str] = set()
    # Tables in the root keep their own names; others of the same name get their folders before it.
    for table in sorted(_tables_below(root.root), key=lambda path: (path.count("/"), path)):
        items = root.stated.get(table)
        columns: Sequence[str] = ()
        try:
            if items is None:
                state = open_table(root.root / table)
                columns = [field["name"] for field in state.fields]
                item: dict[str, Any] = {name: table if name == "table" else _article_name(table, used)}
                if name == "name" and item["name"] != table:
                    item["table"] = table
                item |= _key(state, optional=model is CaptureTableKeys)
                root.check(item, state)
                items = [item]
            for item in items:
                model.model_validate(item)
        except (MergeReplError, ValidationError) as error:
            reason = _reason(error)
            tables.append(InitTable(str(root.root), table, None, reason))
            yield f"  # {table}: {reason}"
            if columns:
                yield f"  #   columns: {', '.join(columns)}"
            continue
        for item in items:
            used.add(str(item[name]).casefold())
            key = item.get("key") or ([item["rowguid"]] if "rowguid" in item else [])
            tables.append(InitTable(str(root.root), table, tuple(key)))
            yield f"  - {{{', '.join(f'{each}: {_value(value)}' for each, value in item.items())}}}"


def _tables_below(root: Location, under: str = "", depth: int = 1) -> Iterator[str]:
    for each in folders_in(root / under if under else root):
        if each.startswith(("_", ".")):
            continue
        path = f"{under}/{each}" if under else each
        if is_delta_table(root / path):
            yield path
        elif depth < DEEPEST:
            yield from _tables_below(root, path, depth + 1)


def _article_name(table: str, used: set[str]) -> str:
    name = table.rpartition("/")[2]
    return name if name.casefold() not in used else table.replace("/", "_")


# ---- the key of a table


def _key(state: TableState, *, optional: bool) -> dict[str, Any]:
    """Return `key` or `rowguid` of a table by its names and rows; nothing if the key is `optional` and none is found.

    Raises: ConfigurationError.
    """
    candidates = _candidates(state)
    for name in candidates:
        if _identifies_rows(state, name):
            return {"rowguid": name} if name.lower() == "rowguid" and not optional else {"key": [name]}
    if optional:
        return {}
    tried = (
        f"{', '.join(candidates)} has NULLs or duplicates" if candidates else "no column is named like one"
    )
    raise ConfigurationError(f"no key was found ({tried}); state `key: [COLUMN, ...]`")


def _candidates(state: TableState) -> list[str]:
    table = state.path.name.lower()
    one = re.sub(r"ies$", "y", table) if table.endswith("ies") else re.sub(r"(?<=[sxz])es$|s$", "", table)
    wanted = ["rowguid", "id", f"{table}_id", f"{one}_id"]
    by_lower = {field["name"].lower(): field for field in state.fields}
    found = [by_lower[name] for name in dict.fromkeys(wanted) if name in by_lower]
    return [each["name"] for each in found if each["name"].lower() != "rowguid" or each["type"] == "string"]


def _identifies_rows(state: TableState, name: str) -> bool:
    column = quoted(name)
    bad = f"{column} is null"
    if name.lower() == "rowguid":
        bad += f" or not regexp_like(lower({column}), '{GUID_PATTERN}')"
    if read_rows(state.path, [name], where=bad, order_limit="limit 1"):
        return False
    return not read_rows(state.path, [name], order_limit=f"group by {column} having count(*) > 1 limit 1")


# ---- what the types state and check


def _merge(root: Location) -> _Root:
    from mergerepl.publish.check_article import check_article
    from mergerepl.publish.stated import check_publisher
    from mergerepl.publish.stored import read_replica

    replica = read_replica(root)
    check_publisher(replica)
    owners = {row.pubid: row.name for row in replica.publications}
    taken = {row.source_table: row for row in replica.articles}

    def check(item: dict[str, Any], state: TableState) -> None:
        table = item.get("table", item["name"])
        if (row := taken.get(table)) is not None:
            raise ConfigurationError(
                f"it is article '{row.name}' of publication '{owners.get(row.pubid)}' already"
            )
        key = tuple(item.get("key", ()))
        check_article(Article(item["name"], table, key, rowguid=item.get("rowguid")), state)

    return _Root(root, {}, check)


def _transactional(root: Location) -> _Root:
    from mergerepl.transactional.stated_articles import checked_article

    def check(item: dict[str, Any], state: TableState) -> None:
        table = item.get("table", item["name"])
        item["key"] = item.get("key") or [item.pop("rowguid")]
        checked_article(root, TransactionalArticle(item["name"], table, tuple(item["key"])))

    return _Root(root, {}, check)


def _captured(root: Location) -> _Root:
    from mergerepl.cdc.instances import instances_of
    from mergerepl.cdc.new_instance import checked
    from mergerepl.cdc.tables import CdcTables
    from mergerepl.model.folders import TableCapture

    stated: dict[str, list[dict[str, Any]]] = {}
    if CdcTables(root).is_enabled:
        for each in instances_of(CdcTables(root)):
            in_root = each.source_schema == "dbo"
            table = each.source_table if in_root else f"{each.source_schema}/{each.source_table}"
            item: dict[str, Any] = {"table": table}
            if each.capture_instance != TableCapture(table).instance:
                item["name"] = each.capture_instance
            if each.index_column_list:
                item["key"] = list(each.index_column_list)
            stated.setdefault(table, []).append(item)

    def check(item: dict[str, Any], state: TableState) -> None:
        key = item.get("key")
        checked(CdcTables(root), TableCapture(item["table"], None if key is None else tuple(key)))

    return _Root(root, stated, check)


def _tracked(root: Location) -> _Root:
    from mergerepl.model.folders import TableTracking
    from mergerepl.tracking import counters
    from mergerepl.tracking.database import Database, tracked_tables
    from mergerepl.tracking.tracked_tables import check_table

    stated: dict[str, list[dict[str, Any]]] = {}
    settings: tuple[str, ...] = ()
    if counters.is_database(root):
        for name, each in tracked_tables(Database(root)).items():
            settings = () if each.foreign is Foreign.ADOPT else (f"foreign: {each.foreign.value}",)
            item: dict[str, Any] = {"table": name}
            item |= (
                {"rowguid": each.key[0]} if each.key_type is TrackingKeyType.GUID else {"key": list(each.key)}
            )
            if each.options is not TrackingOptions.ALL:
                item["track"] = [option.name.lower() for option in each.options if option.name]
            stated[name] = [item]

    def check(item: dict[str, Any], state: TableState) -> None:
        key = tuple(item.get("key") or [item["rowguid"]])
        check_table(Database(root), TableTracking(item["table"], key, "rowguid" in item))

    return _Root(root, stated, check, settings)


# ---- text


def _publication_name(root: Location, type_: str) -> str:
    name = re.sub(r"[^\w. -]", "_", root.name).strip("-. ") or "publication"
    names = {name, *(f"{name}_{number}" for number in range(2, 100))} - _publications_at(root, type_)
    return min(names, key=lambda each: (len(each), each))


def _publications_at(root: Location, type_: str) -> set[str]:
    if type_ == "merge":
        from mergerepl.publish.stored import read_replica

        return {row.name for row in read_replica(root).publications}
    from mergerepl.transactional.catalog import DistributionStore

    return {row.publication for row in DistributionStore(root).publications()}


def _place(root: Location, base: Path) -> str:
    """Return a folder as the file states it: relative if it lies near the file."""
    relative = os.path.relpath(str(root), os.path.realpath(base)) if root.is_local else ""
    if not root.is_local or relative.startswith("../../../"):
        text = str(root)
    else:
        text = relative if relative.startswith("..") or relative == "." else f"./{relative}"
    return _text(text.replace("${", "$${"))


def _text(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) is not None and yaml.safe_load(text) == text
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _value(value: str | list[str]) -> str:
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else _text(value)


def _reason(error: MergeReplError | ValidationError) -> str:
    text = error.message if isinstance(error, MergeReplError) else str(error.errors()[0]["msg"])
    return " ".join(text.split())
