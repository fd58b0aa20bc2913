"""The graph of articles in join filters: its order, and whether it has a cycle."""

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter


class CircleError(ValueError):
    """Articles are each other's parents; `circle` begins and ends with the same one, each before its child."""

    def __init__(self, circle: Sequence[str]) -> None:
        super().__init__(" → ".join(circle))
        self.circle = tuple(circle)


def parents_first(articles: Iterable[str], edges: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Sort the articles so that every parent is before its children; `edges` are (parent, child).

    Raises: CircleError.
    """
    graph = TopologicalSorter[str](dict.fromkeys(articles, ()))
    for parent, child in edges:
        graph.add(child, parent)
    try:
        return tuple(graph.static_order())
    except CycleError as error:
        raise CircleError(error.args[1]) from None
