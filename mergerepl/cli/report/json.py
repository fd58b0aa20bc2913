"""The `--json` form: one object for each command, described in docs/cli-json.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from mergerepl.cli.report.output import Output
from mergerepl.errors import MergeReplError
from mergerepl.model.conflict_names import conflict_name
from mergerepl.model.results import (
    ApplyResult,
    ArticleValidation,
    CaptureResult,
    ConflictRecord,
    PendingSubscription,
    ReplicaStatus,
    RowInfo,
    SessionRecord,
    SessionResult,
    SyncResult,
)
from mergerepl.model.value_text import text_of

if TYPE_CHECKING:
    from mergerepl.cli.report.table import Table
    from mergerepl.monitoring.doctor import Check


class JsonOutput(Output):
    """Writes JSON; a round of `sync --interval` on one line, everything else indented."""

    is_for_programs = True

    def applied(self, result: ApplyResult) -> None:
        """Write publication, dry_run, steps, duration_s."""
        self._write(result)

    def synced(self, result: SyncResult) -> None:
        """Write publication, ok, sessions."""
        self._write(sync_object(result))

    def synced_round(self, result: SyncResult, *, time: str) -> None:
        """Write the object of `synced` with its time, on one line."""
        self._write({"time": time, **sync_object(result)}, indent=None)

    def round_failed(self, error: MergeReplError, *, time: str) -> None:
        """Write the error with its time, on one line."""
        self._write({"time": time, "error": error.details()}, indent=None)

    def captured(self, result: CaptureResult) -> None:
        """Write replica, articles."""
        self._write(result)

    def status(self, status: ReplicaStatus) -> None:
        """Write the replica with its articles and subscriptions."""
        self._write(status)

    def pending(self, replica: str, subscriptions: Sequence[PendingSubscription]) -> None:
        """Write replica, subscriptions."""
        self._write({"replica": replica, "subscriptions": subscriptions})

    def history(
        self, replica: str, sessions: Sequence[SessionRecord], *, subscriber: str | None = None
    ) -> None:
        """Write replica, sessions."""
        self._write({"replica": replica, "sessions": sessions})

    def conflict_list(self, replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> None:
        """Write replica, total, conflicts."""
        self._write({"replica": replica, "total": total, "conflicts": list(map(_conflict, conflicts))})

    def conflict_rows(self, replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> None:
        """Write replica, total, conflicts with their rows."""
        self.conflict_list(replica, conflicts, total=total)

    def row(self, row: RowInfo) -> None:
        """Write the row with its replicas, and whether one of them knows it."""
        self._write({**asdict(row), "is_known": row.is_known})

    def validated(self, validations: Mapping[str, Sequence[ArticleValidation]]) -> None:
        """Write ok, subscribers."""
        subscribers = [
            {"subscriber": subscriber, **_validation(articles)}
            for subscriber, articles in validations.items()
        ]
        self._write({"ok": all(each["ok"] for each in subscribers), "subscribers": subscribers})

    def checked(self, checks: Sequence[Check]) -> None:
        """Write checks."""
        self._write({"checks": checks})

    def reported(self, value: object, parts: Sequence[Table | str]) -> None:
        """Write the value."""
        self._write(value)

    def noted(self, value: object, text: str) -> None:
        """Write the value on one line."""
        self._write(value, indent=None)

    def said(self, item: Any) -> None:
        """Write one line of the story."""
        self._write({"text": str(item)}, indent=None)

    def _write(self, value: object, *, indent: int | None = 2) -> None:
        self.out.write(dumps(value, indent=indent) + "\n")
        self.out.flush()


def dumps(value: object, *, indent: int | None = 2) -> str:
    """Return a result as strict JSON in ASCII."""
    return json.dumps(jsonable(value), indent=indent, allow_nan=False)


def jsonable(value: object) -> object:
    """Return a value in JSON's types: times as ISO 8601, bytes as hexadecimal, NaN and anything unknown as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    match value:
        case Enum():
            return jsonable(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {text_of(name) or "": jsonable(part) for name, part in value.items()}
        case list() | tuple() | set() | frozenset():
            return [jsonable(part) for part in value]
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() if type(value) is not bytes:
            # An LSN, which is written in one way everywhere.
            return str(value)
    return text_of(value)


def sync_object(result: SyncResult) -> dict[str, Any]:
    """Return the object that `sync --json` promises."""
    return {
        "publication": result.publication,
        "ok": result.ok,
        "sessions": [_session(session) for session in result.sessions],
    }


def _session(session: SessionResult) -> dict[str, Any]:
    """Return one session; the keys of the contract stand first."""
    promised = ("subscriber", "status", "upload", "download", "duration_s")
    fields = asdict(session)
    return {
        **{name: fields.pop(name) for name in promised},
        **fields,
        "validation": None if session.validation is None else _validation(session.validation),
        "conflicts": [
            {**asdict(preview), "conflict_name": conflict_name(preview.conflict_type)}
            for preview in session.conflicts
        ],
    }


def _validation(articles: Sequence[ArticleValidation]) -> dict[str, Any]:
    """Return the comparison of one subscriber with the publisher."""
    return {
        "ok": all(article.ok for article in articles),
        "articles": [{**asdict(article), "ok": article.ok} for article in articles],
    }


def _conflict(conflict: ConflictRecord) -> dict[str, Any]:
    """Return one conflict with its type in words."""
    return {**asdict(conflict), "conflict_name": conflict_name(conflict.conflict_type)}
