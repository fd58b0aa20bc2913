"""A transactional publication as a file states it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from mergerepl.model.alerts import DEFAULT, Alerts
from mergerepl.model.publication import DEFAULT_CONFLICT_RETENTION

DEFAULT_MIN_RETENTION = timedelta(0)
DEFAULT_MAX_RETENTION = timedelta(hours=72)
MOST_STREAMS = 64


@dataclass(frozen=True)
class Article:
    """A table that is published one way. `columns` None: all of them; command types are texts such as `XCALL audit`."""

    name: str
    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    ins_cmd: str = "CALL"
    upd_cmd: str = "SCALL"
    del_cmd: str = "CALL"
    text_columns: tuple[str, ...] = ()
    singleton_key_updates: bool = True


@dataclass(frozen=True)
class Subscription:
    """The receiver of the publication, and the folders of its articles there (by default the same)."""

    subscriber: str
    sync_type: str = "automatic"
    verify: bool = True
    skip_errors: tuple[int, ...] = ()
    streams: int = 1
    destination: Mapping[str, str] = field(default_factory=dict)
    procedures: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    updatable: str = "none"


@dataclass(frozen=True)
class Publication:
    """The whole file."""

    name: str
    publisher: str
    articles: tuple[Article, ...]
    subscriptions: tuple[Subscription, ...] = ()
    min_retention: timedelta = DEFAULT_MIN_RETENTION
    max_retention: timedelta = DEFAULT_MAX_RETENTION
    alerts: Alerts = DEFAULT
    conflict_retention: int = DEFAULT_CONFLICT_RETENTION

    @property
    def has_writers(self) -> bool:
        """Whether a subscriber writes, too."""
        return any(each.updatable == "queued" for each in self.subscriptions)
