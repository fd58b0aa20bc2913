"""Logs for programs: one JSON object on a line of standard error, with what is logged and the steps of a command."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

TEXT, JSON = FORMATS = ("text", "json")

_FACTS = ("session", "publication", "subscriber", "article", "phase", "seconds", "rows")
"""Fields that a record may have besides time, level, logger and event."""


class JsonFormatter(logging.Formatter):
    """Writes a record as one line; passwords and signatures are masked as in messages."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        facts = {name: getattr(record, name) for name in _FACTS if hasattr(record, name)}
        if record.exc_info and record.exc_info[0] is not None:
            facts |= {"error": record.exc_info[0].__name__, "trace": self.formatException(record.exc_info)}
        return line(record.levelname, record.getMessage(), logger=record.name, at=record.created, **facts)


def line(level: str, event: str, *, at: float | None = None, **facts: Any) -> str:
    """Return one event as JSON; facts that are None are left out."""
    from mergerepl.roots import masked

    moment = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    known = {
        name: masked(value) if isinstance(value, str) else value
        for name, value in facts.items()
        if value is not None
    }
    told = {
        "time": moment.isoformat(timespec="milliseconds"),
        "level": level,
        "event": masked(event),
        **known,
    }
    return json.dumps(told, default=str)
