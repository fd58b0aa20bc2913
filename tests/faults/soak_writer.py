"""A user of one replica: `python -m tests.faults.soak_writer TABLE NAME SECONDS JOURNAL`.

Inserts, updates and deletes a few keys at a time with delta-rs, under `mergerepl.lock`. Every write has a token
of its own, and is in the journal once it is committed, with the token of the row that it found and replaced.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

import mergerepl
from tests.networks import write_changes

KEYS = [f"k{number:02d}" for number in range(60)]
"""Few enough that the users of all replicas meet in the same rows."""
LOCK_WAIT_S = 600.0


def write(table: str, name: str, number: int, drawn: random.Random) -> list[dict[str, str | int | None]]:
    """Commit changes of one to four keys; return what was done."""
    delta = DeltaTable(table)
    found = delta.to_pyarrow_table(columns=["id", "a"]).to_pydict()
    tokens = dict(zip(found["id"], found["a"], strict=True))
    done = []
    for place, key in enumerate(drawn.sample(KEYS, drawn.randint(1, 4))):
        over = tokens.get(key)
        kind = "insert" if over is None else "delete" if drawn.random() < 0.25 else "update"
        done.append({"key": key, "token": f"{name}-{number}-{place}", "kind": kind, "over": over})
    source = pa.table(
        {
            "id": pa.array([item["key"] for item in done], pa.string()),
            "a": pa.array([item["token"] for item in done], pa.string()),
            "b": pa.array([name for _ in done], pa.string()),
            "c": pa.array([None for _ in done], pa.string()),
            "gone": pa.array([item["kind"] == "delete" for item in done]),
        }
    )
    write_changes(Path(table), source)
    commit = {"replica": Path(table).parent.name, "version": DeltaTable(table).version()}
    return [{**item, **commit} for item in done]


def write_until(table: str, name: str, seconds: float, journal: Path) -> None:
    """Write, journal, sleep a little, until the time is over."""
    drawn = random.Random(name)
    end = time.monotonic() + seconds
    number = 0
    with journal.open("a", encoding="utf-8") as file:
        while time.monotonic() < end:
            with mergerepl.lock(table, wait_s=LOCK_WAIT_S):
                for item in write(table, name, number, drawn):
                    file.write(json.dumps(item) + "\n")
                file.flush()
                os.fsync(file.fileno())
            number += 1
            time.sleep(drawn.uniform(0.1, 0.5))


if __name__ == "__main__":
    table, name, seconds, journal = sys.argv[1:]
    write_until(table, name, float(seconds), Path(journal))
