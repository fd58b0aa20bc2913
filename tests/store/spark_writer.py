"""A process that appends numbers to a table on a store with a Spark of its own, and prints each that was acknowledged."""

import sys

from mergerepl.spark import session as engine
from mergerepl.store.location import Location
from mergerepl.store.storage import storage


def main(place: str, first: int, count: int) -> None:
    """Append `count` numbers from `first` on, each by a commit of its own."""
    table = Location.of(place)
    storage(table).is_folder(table)
    spark = engine.session()
    for number in range(first, first + count):
        rows = spark.range(number, number + 1).coalesce(1)
        rows.write.format("delta").mode("append").save(table.spark_uri)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
