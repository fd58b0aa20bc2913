"""The story: publish, work apart, synchronize, show the outcome. Everything shown was read back."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from deltalake import DeltaTable, write_deltalake
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mergerepl import Project, Replica
from mergerepl.cli.demo.edits import HQ, NORTH, SITES, SOUTH, Cast, Row, Sites, choose_cast, edits
from mergerepl.cli.demo.flights_data import TABLES, read_sample
from mergerepl.errors import ConfigurationError, DemoError
from mergerepl.model.conflicts import ConflictRecord
from mergerepl.model.results import SyncResult
from mergerepl.rows.lineage_value import replica_nickname
from mergerepl.systables import conflicts_info
from mergerepl.systables.table import FOLDER

Emit = Callable[[Any], None]

DAYS: Final = ((2, 8), (2, 9), (2, 10))
"""The blizzard of February 2013."""
FILE: Final = "flights.yml"
_WIDEST = 72
"""A cell wider than this is folded, so that a page has no long lines."""


@dataclass
class Shown:
    """Rows under headings. A heading that begins with `>` has a column set flush right."""

    headings: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: Any) -> None:
        """Add a row; None is shown as SQL's NULL."""
        self.rows.append(tuple("NULL" if cell is None else str(cell) for cell in cells))

    def __rich__(self) -> Table:
        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in self.headings:
            drawn.add_column(
                Text(heading.lstrip(">")),
                justify="right" if heading.startswith(">") else "left",
                overflow="fold",
                max_width=_WIDEST,
            )
        for row in self.rows:
            drawn.add_row(*(Text(cell) for cell in row))
        return drawn

    def __str__(self) -> str:
        console = Console(width=200, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def run(directory: Path, emit: Emit) -> None:
    """Play the story in a new or empty folder and leave the replicas there.

    Raises: ConfigurationError if the folder holds anything, or the sample data is not installed.
    """
    folder = directory.expanduser().resolve()
    _require_empty(folder)
    tables = read_sample(DAYS)
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    sites = Sites(folder)
    project = _publish(sites, tables, emit)
    cast = choose_cast(tables)
    _edit(sites, cast, emit)
    before = {site: sites.row(site, "flights", cast.merged) for site in SITES}
    _heading(emit, 3, "Synchronize: each subscriber uploads what it did, then downloads what the others did")
    _sync(project, emit)
    _heading(emit, 4, "One flight, two sites, different columns: both changes survive")
    _show_merged(sites, cast, before, emit)
    _heading(emit, 5, "Conflicts: who won and why, the losing row next to the winning row")
    _show_conflicts(sites, emit)
    _heading(emit, 6, f"A flight added at {SOUTH} is at {HQ} already; the next sync takes it on to {NORTH}")
    _relay(sites, cast, project, emit)
    _heading(emit, 7, "Validate: every row of every table, compared by checksum")
    _validate(sites, emit)
    _heading(emit, 8, "Synchronize again: there is nothing to do")
    _sync(project, emit)
    _heading(emit, 9, "Where to look next")
    _look_next(directory, sites, emit)
    emit(f"The whole story took {time.monotonic() - started:.0f} s.")


def _require_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(
            f"'{folder}' is not an empty folder, and the demo changes nobody's files. Name another folder: "
            "`mergerepl demo DIR`; or remove this one first if an earlier demo left it.",
            folder=str(folder),
        )


def _heading(emit: Emit, number: int, text: str) -> None:
    emit(Text(f"\n{number}. {text}", style="bold"))


def _publish(sites: Sites, tables: Mapping[str, Any], emit: Emit) -> Project:
    _heading(emit, 1, "Publish: five tables at hq, two subscribers that get a copy each")
    for name, table in tables.items():
        write_deltalake(str(sites.root(HQ) / name), table)
    file = sites.folder / FILE
    publication = {
        "publication": "flights",
        "publisher": f"./{HQ}",
        "articles": [
            {"name": sample.name, "key": list(sample.key), "tracking": sample.tracking} for sample in TABLES
        ],
        "subscriptions": [
            {"subscriber": f"./{NORTH}", "type": "server", "priority": 75.0},
            {"subscriber": f"./{SOUTH}", "type": "client"},
        ],
    }
    file.write_text(yaml.safe_dump(publication, sort_keys=False), encoding="utf-8")
    project = Project.load(file)
    result = project.apply()
    shown = Shown(("article", "key", "tracking", *(f">rows at {site}" for site in SITES)))
    for article in TABLES:
        rows = (sites.table(site, article.name).to_pyarrow_dataset().count_rows() for site in SITES)
        shown.add(article.name, ", ".join(article.key), article.tracking, *rows)
    emit(shown)
    emit(f"mergerepl apply -f {FILE}: {len(result.steps)} steps in {result.duration_s:.1f} s.")
    return project


def _edit(sites: Sites, cast: Cast, emit: Emit) -> None:
    from mergerepl.spark import session as engine

    _heading(emit, 2, "Work apart: every site changes its own copy, with whatever writes Delta tables")
    session = engine.session()
    shown = Shown(("site", "with", "what", ">rows"))
    for edit in edits(sites, cast, session):
        shown.add(edit.site, edit.tool, edit.statement, edit.do(sites))
    emit(shown)


def _sync(project: Project, emit: Emit) -> SyncResult:
    started = time.monotonic()
    result = project.sync()
    took = time.monotonic() - started
    shown = Shown(("subscriber", "direction", ">inserts", ">updates", ">deletes", ">conflicts"))
    for session in result.sessions:
        for direction, counts in (("upload", session.upload), ("download", session.download)):
            if counts.total or counts.conflicts:
                shown.add(
                    Path(session.subscriber).name,
                    direction,
                    counts.inserts,
                    counts.updates,
                    counts.deletes,
                    counts.conflicts,
                )
    if shown.rows:
        emit(shown)
    outcome = ", ".join(
        f"{Path(session.subscriber).name} {session.status.replace('_', ' ')}" for session in result.sessions
    )
    emit(f"mergerepl sync -f {FILE}: {outcome}, in {took:.1f} s.")
    failed = next((session for session in result.sessions if session.is_failed), None)
    if failed is not None:
        raise DemoError(f"The story ends here: the session of '{failed.subscriber}' failed. {failed.reason}")
    return result


def _show_merged(sites: Sites, cast: Cast, before: Mapping[str, Row | None], emit: Emit) -> None:
    after = {site: sites.row(site, "flights", cast.merged) for site in SITES}
    rows = [row for row in before.values() if row is not None]
    changed = [name for name in rows[0] if any(row[name] != rows[0][name] for row in rows)]
    shown = Shown(
        ("flight", "site", *(f">{name} before" for name in changed), *(f">{name} after" for name in changed))
    )
    for site in SITES:
        cells = [(row or {}).get(name) for row in (before[site], after[site]) for name in changed]
        shown.add(_flight_name(cast.merged), site, *cells)
    emit(shown)


def _show_conflicts(sites: Sites, emit: Emit) -> None:
    hq = sites.root(HQ)
    info = DeltaTable(str(hq / FOLDER / conflicts_info.NAME)).to_pyarrow_table().to_pylist()
    logged = {row[conflicts_info.CONFLICT_ID]: row for row in info}
    names = {Replica(sites.root(site)).status()[0].details.nickname: site for site in SITES}
    listed = sorted(Replica(hq).conflicts.list(with_rows=True), key=lambda item: (item.created, item.article))
    for conflict in listed:
        won, lost = (_change(logged[conflict.conflict_id], kind, names) for kind in ("winning", "losing"))
        emit(_conflict_table(conflict))
        emit(f"{conflict.reason_text} The change {won} won over the one {lost}.")
    emit(f"\n{len(listed)} conflicts. No losing row is gone: they are in the conflict tables at {HQ}.")


def _change(logged: Row, kind: str, names: Mapping[int, str]) -> str:
    """Return the site of a change, from the last entry of its lineage, and its priority."""
    maker, _ = max(logged[f"{kind}_lineage"], key=lambda entry: int(entry[1]))
    return f"of {names[replica_nickname(maker)]} (priority {logged[f'{kind}_priority']:.2f})"


def _conflict_table(conflict: ConflictRecord) -> Shown:
    """Return the columns in which the two rows differ, or the remaining row if one side had deleted it."""
    losing, winning = conflict.losing_row, conflict.winning_row
    names = list(losing or winning or {})
    if losing is not None and winning is not None:
        names = [name for name in names if losing[name] != winning[name]]
    names = [name for name in names if name not in conflict.key]
    key = " ".join(str(value) for value in conflict.key.values())
    shown = Shown((conflict.article, "column", "losing row", "winning row"))
    for name in names:
        shown.add(
            key,
            name,
            "(deleted)" if losing is None else losing[name],
            "(deleted)" if winning is None else winning[name],
        )
    return shown


def _relay(sites: Sites, cast: Cast, project: Project, emit: Emit) -> None:
    def where_it_is() -> list[str]:
        return ["yes" if sites.row(site, "flights", cast.extra_key) else "no" for site in SITES]

    shown = Shown((f"flight {_flight_name(cast.extra)}", *(f"at {site}" for site in SITES)))
    shown.add("before", *where_it_is())
    _sync(project, emit)
    shown.add("after", *where_it_is())
    emit(shown)


def _flight_name(flight: Row) -> str:
    return f"{flight['carrier']} {flight['flight']} {flight['year']}-{flight['month']:02}-{flight['day']:02}"


def _validate(sites: Sites, emit: Emit) -> None:
    shown = Shown(("subscriber", "article", ">rows at hq", ">rows there", ">different", "checksum"))
    compared = Project.load(sites.root(HQ)).validate()
    for article in compared.articles:
        shown.add(
            Path(article.subscriber).name,
            article.article,
            article.publisher_rows,
            article.subscriber_rows,
            article.differing_rows,
            "ok" if article.ok else "DIFFERENT",
        )
    emit(shown)
    if not compared.ok:
        raise DemoError("The story ends here: the replicas differ, which they never should after a session.")


def _look_next(directory: Path, sites: Sites, emit: Emit) -> None:
    folder = shlex.quote(str(directory))
    newest = Replica(sites.root(HQ)).conflicts.list(limit=1)
    commands = {
        f"mergerepl status -f {folder}/{HQ}": "what hq holds, and how far each subscriber is",
        f"mergerepl history -f {folder}/{HQ}": "the sessions, newest first",
        f"mergerepl conflicts list -f {folder}/{HQ}": "every conflict",
        **{
            f"mergerepl conflicts show {item.conflict_id} -f {folder}/{HQ}": "one of them, column by column"
            for item in newest
        },
        **{
            f"mergerepl row {item.article} -f {folder}/{HQ} "
            + " ".join(
                f"--key {shlex.quote(f'{name}={value}')}" for name, value in item.key.items()
            ): "its row at every replica"
            for item in newest
        },
        f"mergerepl pending -f {folder}/{NORTH}": "after an edit of your own there",
        f"mergerepl sync -f {folder}/{FILE} --validate checksum": "take it everywhere",
    }
    shown = Shown(("command", "shows"))
    for command, what in commands.items():
        shown.add(command, what)
    emit(shown)
