"""Transactional replication: one-way publication of Delta tables, by commands, with the original's propagation methods.

`__init__.pyi` names the public names; no module of the package has one. They are loaded on first use: calls without Spark
start none.
"""

from mergerepl.spark.callers import public_names

__all__, __getattr__, __dir__ = public_names(__name__)
