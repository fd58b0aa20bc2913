"""The consumers of a folder's log: the products that are set up there.

Products do not import each other. Each product is found by a table of its own, and loaded by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from mergerepl.delta.log import is_delta_table
from mergerepl.logreader.consumer import Consumer
from mergerepl.systables import cdc, transactional


@dataclass(frozen=True)
class Product:
    """A product that is served from the log. `module` has `consumer_at(root)`; `table` is there where it is set up."""

    name: str
    module: str
    table: str


PRODUCTS = (
    Product(
        "transactional",
        "mergerepl.transactional.consumer",
        f"{transactional.FOLDER}/{transactional.PUBLICATIONS.name}",
    ),
    Product("cdc", "mergerepl.cdc.consumer", f"{cdc.FOLDER}/{cdc.CHANGE_TABLES.name}"),
)
"""In the order in which their gates are committed."""


def consumers_at(root: Path, known: dict[str, Consumer]) -> Iterator[Consumer]:
    """Yield the consumers of a folder, in the order of their gates; `known` keeps them from one call to the next."""
    for product in PRODUCTS:
        if not is_delta_table(root / product.table):
            continue
        if product.name not in known:
            known[product.name] = import_module(product.module).consumer_at(root)
        yield known[product.name]
