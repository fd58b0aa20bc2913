"""A snapshot of an invented place with every state, and conflicts of every kind, for tests of pages and pictures."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mergerepl.model.cdc import DatabaseStatus, SourceStatus
from mergerepl.model.conflicts import ConflictCount, ConflictRecord, ConflictResolution
from mergerepl.model.delivery import ArticleState, DeliveryState, DistributorStatus
from mergerepl.model.listing import Listing
from mergerepl.model.replica_status import (
    ArticleStatus,
    MetadataStatus,
    ReplicaStatus,
    SessionRecord,
    SubscriptionStatus,
)
from mergerepl.model.results import PhaseCounts
from mergerepl.model.snapshot import HeldMetadata, ReplicaConflicts, Snapshot
from mergerepl.model.tasks import Run, Status, StatusWarning
from mergerepl.model.tracking import TrackedTable, TrackingStatus
from mergerepl.model.tracking_options import Foreign, TrackingKeyType, TrackingOptions
from tests.browser import HOSTILE

HQ = "/lake/hq"
CITIES = ("bergen", "cadiz", "lyon", "oslo", "porto", "turin", "york", "ghent")


def picture(now: datetime, *, name: str = "", seed: int = 7) -> Snapshot:
    """Return the snapshot. `name` is added to every name and text that a user chose."""
    drawn, since = random.Random(seed), now - timedelta(days=7)
    told = [f"{HQ[:-2]}{city}{name}" for city in CITIES]

    def subscriber(number: int) -> SubscriptionStatus:
        return SubscriptionStatus(
            publication=f"sales{name}",
            subscriber=told[number],
            subscriber_type="server",
            priority=75.0,
            status="active",
            sentgen=40,
            recgen=12,
            unsent_generations=0,
            upload=drawn.choice((0, 0, 3, 14)),
            download=drawn.choice((0, 0, 8)),
            uncaptured_commits=0,
            last_sync_date=now - timedelta(minutes=drawn.randrange(1, 50)),
            last_sync_status="succeeded",
            last_sync_summary="",
            partition_id=number + 1,
            validated=now - timedelta(hours=number + 2),
            through=900,
            knows=880,
        )

    waits = {"waiting_since": now - timedelta(days=12), "retention_used": 0.83, "download": 1874}
    special = {
        1: {**waits, "last_sync_date": now - timedelta(days=12)},
        3: {"is_reachable": False, "upload": None, "uncaptured_commits": None, "last_sync_date": now - timedelta(hours=5)},
        4: {"last_sync_status": "failed", "failures": 1},
        6: {"diverged": {f"orders{name}": "checksum 2026-11-27"}},
    }  # fmt: skip
    relations = tuple(replace(subscriber(number), **special.get(number, {})) for number in range(len(told)))
    articles = tuple(
        ArticleStatus(
            *(f"sales{name}", f"{article}{name}", "guid", number, "column", f"{article}{name}", 90, 90 - late, late),
            ("i", "u", "d"),
            cost,
            now - timedelta(days=2) if late else None,
            0.28 if late else None,
            rows,
            files,
            rows * 61,
            tuple(f"{parent}{name}" for parent in parents),
        )
        for number, (article, rows, files, late, parents, cost) in enumerate(
            (
                ("customers", 48_210, 2, 0, (), ""),
                ("orders", 1_284_903, 9, 4, ("customers",), ""),
                ("lines", 6_120_442, 31, 0, ("orders",), "files of up to 391 MiB: a changed row is written again with "
                 f"all rows of its file. `mergerepl tune lines{name} -f {HQ}` writes it again in smaller files."),
            )
        )
    )  # fmt: skip
    warnings = (
        StatusWarning(told[1], "warning", f"Changes wait for '{told[1]}' since 2026-11-16 06:10 UTC, 83% of the retention "
                      f"and a day: then its subscription expires. Run `mergerepl sync {CITIES[1]}`."),
        StatusWarning(told[6], "critical", f"Article 'orders{name}' of '{told[6]}' has other rows than the publisher "
                      f"(checksum 2026-11-27). `mergerepl repair {CITIES[6]} --table orders --dry-run` shows them."),
        StatusWarning(told[4], "warning", f"The last session of '{told[4]}' failed: table 'orders{name}' takes no rows. "
                      f"See `mergerepl history {CITIES[4]} --failed`."),
    )  # fmt: skip
    merge = Status(
        "merge",
        HQ,
        "publisher",
        warnings,
        ReplicaStatus(
            *("r1", 1, articles, relations, 412),
            metadata_rows=20_418,
            metadata=(MetadataStatus(f"sales{name}", 944, 880, 871, (told[1],)),),
        ),
    )
    feed = DistributorStatus(
        HQ,
        (ArticleState(f"feed{name}", f"stock{name}", "stock", ("id",), None, "CALL", "SCALL", "CALL", 1),),
        (
            DeliveryState(
                publication=f"feed{name}",
                subscriber=f"/lake/warehouse{name}",
                status="active",
                download=37,
                retention_used=0.01,
                last_sync_date=now - timedelta(seconds=40),
                last_sync_status="succeeded",
                xact_seqno="0x00",
                transactions_waiting=4,
                is_known_to_be_equal=True,
                stopped_since=None,
            ),
        ),
    )
    source = SourceStatus(
        *(f"orders{name}", 1, "active", 88, 90, 2, now - timedelta(hours=9)),
        *(now + timedelta(days=2), now + timedelta(days=20), "REPLICATION", None, None, ("dbo_orders",)),
    )
    captured = DatabaseStatus(HQ, "d1", 1, None, None, None, (source,), False)
    tracked = TrackingStatus(
        *("/lake/pos", "t1", 9, 8, 8),
        (
            TrackedTable(
                f"tills{name}", TrackingOptions.ALL, TrackingKeyType.PRIMARY_KEY, ("id",), ("bigint",), "x", 1,
                Foreign.ADOPT, since, 1,
            ),
        ),
        *((), (), (), {}),
    )  # fmt: skip
    statuses = (
        merge,
        Status("transactional", HQ, "publisher", (), feed),
        Status("cdc", HQ, "database", (), captured),
        Status("tracking", "/lake/pos", "database", (), tracked),
    )
    runs = [
        run
        for number, one in enumerate(told)
        for run in _sessions(drawn, f"sales{name}", one, since, now, is_bad=number == 4)
    ]
    counts = [
        ConflictCount(f"{article}{name}", 2, "priority", "2026-11-27", count, columns)
        for article, count, columns in (
            ("orders", 331, {f"qty{name}": 240, "status": 91}),
            ("lines", 81, {"price": 81}),
        )
    ]
    return Snapshot(
        now,
        since,
        Listing(statuses),
        Listing(sorted(runs, key=lambda run: run.time or now, reverse=True)),
        Listing([ReplicaConflicts(HQ, Listing(counts))]),
        Listing([HeldMetadata(f"sales{name}", told[1], 1874)]),
    )


def _sessions(
    drawn: random.Random, publication: str, to: str, since: datetime, now: datetime, *, is_bad: bool
) -> list[Run]:
    found, at = [], since
    while (at := at + timedelta(minutes=drawn.randrange(60, 400))) < now:
        # Few people write at night.
        rows = int(drawn.randrange(400) * (1.0 if 7 < at.hour < 20 else 0.1))
        clashes = drawn.randrange(1 + rows // 60)
        failed = is_bad and at > now - timedelta(hours=20)
        seconds = 0.3 + rows / 150 + drawn.random()
        record = SessionRecord(
            *("s1", publication, to, at, at, seconds, "failed" if failed else "succeeded"),
            PhaseCounts(updates=rows // 2, conflicts=clashes),
            PhaseCounts(updates=rows - rows // 2),
        )
        found.append(
            Run(
                "merge", "session", "s1", HQ, publication, to, at, seconds, record.runstatus, rows, "", record
            )
        )
    return found


NAMES = {HQ: "hq", "/lake/pos": "pos", "/lake/warehouse": "warehouse"}
_NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


def record(number: int, **more: Any) -> ConflictRecord:
    hostile = HOSTILE[number % len(HOSTILE)]
    known: dict[str, Any] = {
        "conflict_id": f"{number:016x}",
        "publication": "sales",
        "article": "orders",
        "rowguid": str(number),
        "key": {"id": hostile},
        "conflict_type": 1,
        "reason_code": 1,
        "reason_text": hostile,
        "origin_datasource": "/north",
        "winner": "/hq",
        "created": _NOON - timedelta(days=number),
        "losing_row": {"id": hostile, "n": "1", "note": "same"},
        "winning_row": {"id": hostile, "n": None, "note": "same"},
        "conflict_columns": ("n",),
        "resolver": "priority",
    }
    return ConflictRecord(**known | more)


RECORDS = [
    *map(record, range(4)),
    record(4, article=HOSTILE[0], conflict_type=2, conflict_columns=(HOSTILE[1],), winning_row={HOSTILE[1]: "x"}),
    record(5, conflict_type=9, winning_row=None, conflict_columns=(), resolver=None),
    record(6, losing_row=None, conflict_type=4),
    record(
        7,
        created=_NOON - timedelta(days=30),
        status="settled",
        resolution=ConflictResolution("loser", "ann@hq", _NOON, HOSTILE[0]),
        made_columns=("note",),
    ),
    record(8, conflict_type=10, winning_row=None, resolver=None, status="settled", created=_NOON - timedelta(days=30)),
]  # fmt: skip
"""Conflicts of all kinds, with names and values that try to become markup."""
