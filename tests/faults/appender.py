"""A process that appends rows to a Delta table, one commit each, and holds the lock.

`python -m tests.faults.appender TABLE NAME COUNT PAUSE GATE` says `ready`, waits for the file GATE, and
ends after COUNT commits, PAUSE seconds apart, or when GATE is gone. Its last line is the number of commits
that returned without an error.
"""

import sys
import time
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

import mergerepl


def append_all(table: str, name: str, count: int, pause_s: float, gate: Path) -> int:
    """Append `NAME-0`, `NAME-1`, …; return how many commits were reported as done."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not gate.exists():
        time.sleep(0.001)
    done = 0
    while done < count and gate.exists():
        with mergerepl.lock(table, wait_s=300.0):
            write_deltalake(table, pa.table({"token": [f"{name}-{done}"]}), mode="append")
        done += 1
        time.sleep(pause_s)
    return done


if __name__ == "__main__":
    table, name, count, pause, gate = sys.argv[1:]
    done = append_all(table, name, int(count), float(pause), Path(gate))
    sys.stdout.write(f"{done}\n")
