"""Merge replication for Delta Lake tables.

`__init__.pyi` names the public names. They are loaded on first use, so that `import mergerepl` and the CLI's `--help` load
neither Spark nor Delta.
"""

from mergerepl.spark.callers import public_names

__all__, __getattr__, __dir__ = public_names(__name__)
