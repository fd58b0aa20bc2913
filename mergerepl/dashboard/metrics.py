"""The metrics of a place in the form of Prometheus: a view of a snapshot, and totals that outlive the history.

Names and units are stable; labels hold names of publications, subscribers and articles, no paths and no values.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mergerepl.dashboard.states import used_of
from mergerepl.errors import ConfigurationError
from mergerepl.model.cdc import DatabaseStatus
from mergerepl.model.relation import Relation
from mergerepl.model.replica_status import ReplicaStatus, SessionRecord, SubscriptionStatus
from mergerepl.model.snapshot import Snapshot
from mergerepl.model.tasks import CRITICAL, UNKNOWN, WARNING, Run
from mergerepl.store.location import Location
from mergerepl.store.storage import storage

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from mergerepl.project import Project

BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_OF = ("publication", "subscriber")
_THROUGH = "mergerepl_counted_through_timestamp_seconds"

GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mergerepl_written_timestamp_seconds": ("When these metrics were read.", ()),
    "mergerepl_last_success_timestamp_seconds": ("End of the last session that went well; 0: never.", _OF),
    "mergerepl_reachable": ("Whether the subscriber can be read.", _OF),
    "mergerepl_pending_changes": ("Rows or commands that wait; absent if unknown.", (*_OF, "direction")),
    "mergerepl_pending_commits": ("Commits of a table that no capture has read.", ("publication", "article")),
    "mergerepl_retention_used_ratio": (
        "Part of the retention that the oldest waiting change has waited.",
        _OF,
    ),
    "mergerepl_capture_lag_ratio": (
        "Part of the retention of files and log that the oldest uncaptured commit has waited.",
        ("publication", "article"),
    ),
    "mergerepl_metadata_rows": ("Rows of metadata at a publisher.", ("replica",)),
    "mergerepl_metadata_held_by_rows": ("Changes whose metadata a subscriber holds back.", _OF),
    "mergerepl_conflicts_logged": ("Conflicts in the log, until they are purged.", ("replica", "type")),
    "mergerepl_diverged": ("Articles that a validation found different.", _OF),
    "mergerepl_problems": ("Problems that `mergerepl status --check` reports.", ("level",)),
    "mergerepl_engine_up": ("Whether the engine of this agent runs.", ()),
    _THROUGH: ("Up to when runs are counted in the totals.", ()),
}
COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mergerepl_rows": ("Rows that sessions changed.", (*_OF, "direction", "op")),
    "mergerepl_conflicts": ("Conflicts that were logged.", ("replica", "type")),
    "mergerepl_failures": ("Runs that failed.", (*_OF, "class")),
}
DURATION = "mergerepl_session_duration_seconds"

Key = tuple[str, tuple[str, ...]]
"""The name of a total, and the values of its labels."""


class Metrics:
    """The last snapshot, and totals since the first one. A collector of prometheus_client."""

    def __init__(self) -> None:
        _require_client()
        self.totals: defaultdict[Key, float] = defaultdict(float)
        self.durations: dict[tuple[str, ...], list[float]] = {}
        """Publication and subscriber -> the runs in each bucket, their number and their seconds."""
        self.through: datetime | None = None
        self._logged: dict[tuple[str, ...], int] | None = None
        self._succeeded: dict[tuple[str, ...], float] = {}
        self._gauges: list[tuple[str, tuple[str, ...], float]] = []

    def measure(
        self, project: Project, file: str | None = None, *, is_engine_up: bool | None = None
    ) -> Snapshot:
        """Take the state of a project, write the metrics to a file if one is named, and return the state.

        Raises: as `Project.status`; ConfigurationError if the file cannot be written.
        """
        found = project.snapshot()
        self.take(found, {each.root: each.name for each in project.replicas()}, is_engine_up=is_engine_up)
        if file is not None:
            write_metrics(self, file)
        return found

    def take(self, found: Snapshot, names: Mapping[str, str], *, is_engine_up: bool | None = None) -> None:
        """Take a new snapshot: count the runs that ended since the last one. `names`: folder to name."""
        labels = labels_of(found, names)
        ended = [(run, run.time + timedelta(seconds=run.duration_s)) for run in found.runs if run.time]
        if self.through is not None:
            for run in (run for run, end in ended if end > self.through):
                self._count(run, labels.get((run.publication, run.subscriber)))
        self.through = max((end for _, end in ended), default=self.through or found.time)
        self._count_conflicts(found, names)
        self._gauges = [*self._read(found, names, labels)]
        if is_engine_up is not None:
            self._gauges.append(("mergerepl_engine_up", (), float(is_engine_up)))

    def _count(self, run: Run, of: tuple[str, str] | None) -> None:
        if of is None or run.kind not in ("session", "batch"):
            return
        if run.status == "failed":
            kind = getattr(run.details, "error_class", None) or "unknown"
            self.totals["mergerepl_failures", (*of, kind)] += 1
        record = run.details
        directions = (
            {"upload": record.upload, "download": record.download}
            if isinstance(record, SessionRecord)
            else {}
        )
        for direction, counts in directions.items():
            for op in ("inserts", "updates", "deletes"):
                self.totals["mergerepl_rows", (*of, direction, op[:-1])] += getattr(counts, op)
        seen = self.durations.setdefault(of, [0.0] * (len(BUCKETS) + 2))
        for number, limit in enumerate(BUCKETS):
            seen[number] += run.duration_s <= limit
        seen[-2] += 1
        seen[-1] += run.duration_s

    def _count_conflicts(self, found: Snapshot, names: Mapping[str, str]) -> None:
        """Count the conflicts that are logged since the last snapshot; a purge lowers no total."""
        now: defaultdict[tuple[str, ...], int] = defaultdict(int)
        for one in found.conflicts:
            for each in one.counts:
                now[_name(one.replica, names), str(each.conflict_type)] += each.conflicts
        for of, count in now.items():
            before = count if self._logged is None else self._logged.get(of, 0)
            self.totals["mergerepl_conflicts", of] += max(0, count - before)
        self._logged = now

    def _read(
        self, found: Snapshot, names: Mapping[str, str], labels: Mapping[tuple[str, str], tuple[str, str]]
    ) -> Iterator[tuple[str, tuple[str, ...], float]]:
        yield "mergerepl_written_timestamp_seconds", (), found.time.timestamp()
        if self.through is not None:
            yield _THROUGH, (), self.through.timestamp()
        for key, count in (self._logged or {}).items():
            yield "mergerepl_conflicts_logged", key, count
        for level in (CRITICAL, UNKNOWN, WARNING):
            yield "mergerepl_problems", (level,), sum(each.level == level for each in found.problems)
        for _, each in found.relations:
            of = labels[each.publication, each.subscriber]
            yield "mergerepl_last_success_timestamp_seconds", of, self._success(each, of, found.runs)
            yield "mergerepl_reachable", of, each.is_reachable
            for direction in ("upload", "download"):
                if (waiting := getattr(each, direction)) is not None:
                    yield "mergerepl_pending_changes", (*of, direction), waiting
            yield "mergerepl_retention_used_ratio", of, each.retention_used or 0.0
            if isinstance(each, SubscriptionStatus):
                yield "mergerepl_diverged", of, len(each.diverged)
        for held in found.held:
            holder = labels.get((held.publication, held.subscriber))
            if holder is not None:
                yield "mergerepl_metadata_held_by_rows", holder, held.changes
        for status in found.statuses:
            match status.details:
                case ReplicaStatus() as replica:
                    if replica.metadata_rows is not None:
                        yield (
                            "mergerepl_metadata_rows",
                            (_name(status.replica, names),),
                            replica.metadata_rows,
                        )
                    for article in replica.articles:
                        at = article.publication, article.article
                        yield "mergerepl_pending_commits", at, article.uncaptured_commits
                        yield "mergerepl_capture_lag_ratio", at, article.retention_used or 0.0
                case DatabaseStatus() as database:
                    for source in database.sources:
                        at = f"cdc {_name(status.replica, names)}", source.source
                        yield "mergerepl_pending_commits", at, source.unread_commits
                        yield "mergerepl_capture_lag_ratio", at, used_of(source, found.time) or 0.0

    def _success(self, each: Relation, of: tuple[str, str], runs: Iterable[Run]) -> float:
        """Return when the last session went well; it never goes back."""
        times = [
            run.time
            for run in runs
            if (run.publication or each.publication, run.subscriber) == (each.publication, each.subscriber)
            and run.status in ("succeeded", "idle")
            and run.time is not None
        ]
        if each.last_sync_status == "succeeded" and each.last_sync_date is not None:
            times.append(each.last_sync_date)
        latest = max((_seconds(each) for each in times), default=0.0)
        self._succeeded[of] = max(latest, self._succeeded.get(of, 0.0))
        return self._succeeded[of]

    def collect(self) -> Iterator[Metric]:
        """Yield the families of metrics, as prometheus_client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for name, (text, labels) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for _, values, number in (each for each in self._gauges if each[0] == name):
                gauge.add_metric(values, float(number))
            if gauge.samples:
                yield gauge
        for name, (text, labels) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=labels)
            for (_, values), number in (each for each in self.totals.items() if each[0][0] == name):
                counter.add_metric(values, number)
            yield counter
        histogram = HistogramMetricFamily(DURATION, "Seconds of sessions and batches.", labels=_OF)
        for of, seen in self.durations.items():
            buckets = [(str(limit), seen[number]) for number, limit in enumerate(BUCKETS)]
            histogram.add_metric(of, [*buckets, ("+Inf", seen[-2])], seen[-1])
        yield histogram

    def text(self) -> str:
        """Return the metrics as text."""
        from prometheus_client import CollectorRegistry, generate_latest

        collectors = CollectorRegistry()
        collectors.register(self)
        return generate_latest(collectors).decode()

    def read_totals(self, text: str) -> None:
        """Take over the totals of a file that was written before.

        Raises: ConfigurationError if it holds other text.
        """
        from prometheus_client.parser import text_string_to_metric_families

        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    self._restore(family.name, sample.name, sample.labels, sample.value)
        except (ValueError, KeyError) as error:
            raise ConfigurationError(f"It holds no metrics of mergerepl: {error}.") from error

    def _restore(self, family: str, name: str, labels: Mapping[str, str], value: float) -> None:
        if family in COUNTERS and name.endswith("_total"):
            self.totals[family, tuple(labels[each] for each in COUNTERS[family][1])] = value
        elif name == _THROUGH:
            self.through = datetime.fromtimestamp(value, UTC)
            self._logged = self._logged or {}
        elif name == "mergerepl_conflicts_logged":
            self._logged = {**(self._logged or {}), (labels["replica"], labels["type"]): int(value)}
        elif name == "mergerepl_last_success_timestamp_seconds":
            self._succeeded[labels["publication"], labels["subscriber"]] = value
        elif family == DURATION:
            of = labels["publication"], labels["subscriber"]
            seen = self.durations.setdefault(of, [0.0] * (len(BUCKETS) + 2))
            if name.endswith("_bucket") and labels["le"] != "+Inf":
                seen[BUCKETS.index(float(labels["le"]))] = value
            elif name.endswith("_count"):
                seen[-2] = value
            elif name.endswith("_sum"):
                seen[-1] = value


def write_metrics(metrics: Metrics, path: str | os.PathLike[str]) -> None:
    """Write the metrics to a file, for a collector of text files; a reader finds the old or the new one.

    Raises: ConfigurationError if it cannot be written.
    """
    at = Location.of(os.path.abspath(os.fspath(path)))
    try:
        storage(at).put(at, metrics.text().encode())
    except OSError as error:
        raise ConfigurationError(
            f"The metrics cannot be written to '{path}': {error.strerror}. Name another file.", path=str(path)
        ) from error


def read_metrics(path: str | os.PathLike[str]) -> Metrics:
    """Return metrics with the totals of a file; without one new ones.

    Raises: ConfigurationError if the file cannot be read, or holds other text.
    """
    metrics, at = Metrics(), Location.of(os.path.abspath(os.fspath(path)))
    try:
        found = storage(at).read(at)
        if found is not None:
            metrics.read_totals(found[0].decode())
    except (OSError, UnicodeDecodeError, ConfigurationError) as error:
        why = error.message if isinstance(error, ConfigurationError) else str(error)
        raise ConfigurationError(
            f"'{path}' cannot be continued: {why} Name another file.", path=str(path)
        ) from error
    return metrics


def serve(metrics: Metrics, host: str, port: int) -> Any:
    """Serve the metrics by HTTP in a thread; returns the server, which `shutdown` ends.

    Raises: ConfigurationError if the address cannot be used.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    collectors = CollectorRegistry()
    collectors.register(metrics)
    try:
        server, _ = start_http_server(port, host, collectors)
    except OSError as error:
        raise ConfigurationError(
            f"Metrics cannot be served at {host}:{port}: {error.strerror}. Name another address with `--metrics`."
        ) from error
    return server


def labels_of(found: Snapshot, names: Mapping[str, str]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return publication and subscriber's folder -> their labels.

    Of two subscribers of one name the later one has a part of its folder's hash: the label of the older one stays.
    """
    labels: dict[tuple[str, str], tuple[str, str]] = {}
    for _, each in found.relations:
        label = each.publication, _name(each.subscriber, names)
        if label in labels.values() and (each.publication, each.subscriber) not in labels:
            digest = hashlib.sha256(each.subscriber.encode()).hexdigest()[:6]
            label = each.publication, f"{label[1]}-{digest}"
        labels.setdefault((each.publication, each.subscriber), label)
    # A batch names its subscriber alone.
    for publication, subscriber in list(labels):
        labels.setdefault(("", subscriber), labels[publication, subscriber])
    return labels


def _name(root: str, names: Mapping[str, str]) -> str:
    return names.get(root) or Location.of(root).name


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _require_client() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "Metrics need the package prometheus_client: `pip install 'mergerepl[metrics]'`."
        ) from error
