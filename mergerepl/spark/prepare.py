"""`python -m mergerepl.spark.prepare`: prepare the engine before its first use, for scripts/setup."""

from __future__ import annotations

import sys

from mergerepl.errors import EngineError
from mergerepl.spark.jars import delta_jars
from mergerepl.spark.java import find_java


def main() -> int:
    """Find a Java and resolve the Delta JARs."""
    try:
        java = find_java()
        delta_jars(java)
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
