"""Graphs as inline SVG: replicas with their subscriptions, articles with their join filters.

networkx builds and lays them out. It is loaded when a graph is drawn, by no other code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from mergerepl.dashboard.states import State, worst

if TYPE_CHECKING:
    import networkx as nx

_WIDTH, _HEIGHT, _ROW, _COLUMN, _MARGIN = 204, 46, 58, 340, 14
_ONE_SIDE = 6
"""Up to this number the leaves of a node stand on one side of it, more on both."""
_LONGEST, _LONGEST_NOTE = 20, 30


@dataclass(frozen=True)
class Node:
    """A box: its name, a second line, and its state."""

    key: str
    name: str
    note: str
    state: State
    title: str = ""


@dataclass(frozen=True)
class Edge:
    """An arrow between two boxes. Its title is a longer text."""

    start: str
    end: str
    state: State
    title: str = ""
    both_ways: bool = False


def drawn(nodes: Iterable[Node], edges: Sequence[Edge], *, label: str) -> str:
    """Return the SVG of a graph; `label` says to a screen reader what it shows."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    for node in nodes:
        graph.add_node(node.key, node=node)
    for edge in edges:
        before = graph.edges.get((edge.start, edge.end), {}).get("edge")
        joined = edge if before is None else _joined(before, edge)
        graph.add_edge(edge.start, edge.end, edge=joined)
    places = _places(graph)
    width = max(x for x, _ in places.values()) + _WIDTH + _MARGIN
    height = max(y for _, y in places.values()) + _HEIGHT + _MARGIN
    parts = [_arrow(places[start], places[end], data["edge"]) for start, end, data in graph.edges(data=True)]
    parts += [_box(places[key], data["node"]) for key, data in graph.nodes(data=True)]
    said = "; ".join(
        f"{graph.nodes[start]['node'].name} to {graph.nodes[end]['node'].name}: {data['edge'].state.words}"
        for start, end, data in graph.edges(data=True)
    )
    return (
        f'<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}"><title>{escape(label)}</title><desc>{escape(said)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _joined(one: Edge, two: Edge) -> Edge:
    """Return one arrow for two subscriptions between the same replicas."""
    title = f"{one.title}\n{two.title}"
    return Edge(one.start, one.end, worst(one.state, two.state), title, one.both_ways or two.both_ways)


def _places(graph: nx.DiGraph[str]) -> dict[str, tuple[int, int]]:
    """Return the upper left corner of each box: one component below the other."""
    import networkx as nx

    found: dict[str, tuple[int, int]] = {}
    top = _MARGIN
    components = sorted(nx.weakly_connected_components(graph), key=lambda each: (-len(each), min(each)))
    for members in components:
        layers = _layers(graph.subgraph(members))
        height = max(len(each) for each in layers.values())
        leftmost = min(layers)
        for layer, nodes in layers.items():
            for rank, node in enumerate(nodes):
                y = top + rank * _ROW + (height - len(nodes)) * _ROW // 2
                found[node] = (_MARGIN + (layer - leftmost) * _COLUMN, y)
        top += height * _ROW + _MARGIN
    return found


def _layers(graph: nx.DiGraph[str]) -> dict[int, list[str]]:
    """Return the nodes by column, in the order of their names; many leaves of one source stand on both sides of it."""
    import networkx as nx

    sources = [node for node in graph if graph.in_degree(node) == 0] or [
        max(graph, key=lambda node: (graph.out_degree(node), node))
    ]
    layers = dict(enumerate(map(sorted, nx.bfs_layers(graph, sources))))
    # Replicas that publish to each other are below no source.
    layers[0] = sorted({*layers[0], *set(graph).difference(*layers.values())})
    if len(layers) == 2 and len(sources) == 1 and len(layers[1]) > _ONE_SIDE:
        half = (len(layers[1]) + 1) // 2
        layers = {-1: layers[1][half:], 0: layers[0], 1: layers[1][:half]}
    return layers


def _arrow(start: tuple[int, int], end: tuple[int, int], edge: Edge) -> str:
    is_leftwards = end[0] < start[0]
    x1, x2 = (start[0], end[0] + _WIDTH) if is_leftwards else (start[0] + _WIDTH, end[0])
    y1, y2 = start[1] + _HEIGHT // 2, end[1] + _HEIGHT // 2
    bend = (x1 + x2) // 2
    title = f"<title>{escape(edge.title)}</title>" if edge.title else ""
    path = f'<path d="M{x1} {y1}C{bend} {y1} {bend} {y2} {x2} {y2}"/>'
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="3.5"/>'
        for x, y in ((x2, y2), *(((x1, y1),) if edge.both_ways else ()))
    )
    return f'<g class="edge {edge.state.level}">{title}{path}{dots}</g>'


def _box(at: tuple[int, int], node: Node) -> str:
    x, y = at
    mark = f'<circle class="dot" cx="{x + 15}" cy="{y + 15}" r="4.5"/>'
    return (
        f'<g class="node {node.state.level}"><title>{escape(node.title or node.name)}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="9"/>{mark}'
        # Letters may be wide: this cuts a text where the box ends.
        f'<svg x="{x}" y="{y}" width="{_WIDTH - 4}" height="{_HEIGHT}">'
        f'<text class="name" x="27" y="19">{escape(_short(node.name))}</text>'
        f'<text class="note" x="27" y="36">{escape(_short(node.note, _LONGEST_NOTE))}</text></svg></g>'
    )


def _short(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
