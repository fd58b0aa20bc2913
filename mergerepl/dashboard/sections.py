"""The sections of the dashboard about the whole, the replicas and the subscriptions with their sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from mergerepl.dashboard import charts
from mergerepl.dashboard.html import (
    FAINT,
    View,
    badge,
    command,
    lag,
    number,
    scrolled,
    section,
    sentence,
    table,
    when,
)
from mergerepl.dashboard.states import OK, State, state_of, state_of_problems, worst
from mergerepl.dashboard.topology import Edge, Node, drawn
from mergerepl.model.alerts import EXPIRATION
from mergerepl.model.delivery import DeliveryState
from mergerepl.model.relation import Relation, added
from mergerepl.model.replica_status import ReplicaStatus, SubscriptionStatus, conflicts_of
from mergerepl.model.tasks import CRITICAL, UNKNOWN, WARNING, Run, Status, StatusWarning
from mergerepl.model.words import counted


def tiles(view: View) -> str:
    """Return the numbers that say most."""
    relations = [each for _, each in view.found.relations]
    failed = sum(run.status == "failed" for run in view.found.runs)
    used = [each.retention_used for each in relations if each.retention_used is not None]
    conflicts = sum(each.conflicts for one in view.found.conflicts for each in one.counts)
    reached = sum(each.is_reachable for each in relations)
    shown: list[tuple[str, str, str]] = []
    if relations:
        away = len(relations) - reached
        shown.append(("subscribers in reach", f"{reached} of {len(relations)}", UNKNOWN if away else OK))
        waiting = [added(getattr(each, way) for each in relations) for way in ("download", "upload")]
        shown += [
            ("changes to download", "unknown" if waiting[0] is None else f"{waiting[0]:,}", OK),
            ("changes to upload", "unknown" if waiting[1] is None else f"{waiting[1]:,}", OK),
        ]
        most = max(used, default=0.0)
        level = CRITICAL if most >= 1 else WARNING if most >= EXPIRATION else OK
        shown.append(("of the retention used, at most", f"{most:.0%}", level))
    shown += [
        ("runs in seven days", f"{len(view.found.runs):,}", OK),
        ("of them failed", f"{failed:,}", WARNING if failed else OK),
    ]
    if view.found.conflicts:
        shown.append(("conflicts logged", f"{conflicts:,}", OK))
    return f'<ul class="tiles">{"".join(_tile(*each) for each in shown)}</ul>'


def _tile(words: str, value: str, level: str) -> str:
    return f'<li class="{level}"><b>{escape(value)}</b><span>{escape(words)}</span></li>'


def problems(view: View) -> str:
    """Return the problems, the worst first, each with the command that mends it."""
    found = view.found.problems
    if not found:
        return section("problems", "Problems", '<p class="well">All is well.</p>')
    items = "".join(
        f'<li class="{each.level}"><div>{badge(State(each.level, each.level))} <strong title="{escape(each.source)}">'
        f"{escape(view.name(each.source))}</strong></div><p>{sentence(each.text, without=each.command)}</p>"
        f"{command(each.command)}</li>"
        for each in found
    )
    return section("problems", "Problems", f'<ol class="problems">{items}</ol>', note="The worst first.")


def topology(view: View) -> str:
    """Return the graph of replicas and subscriptions, and that of the join filters of each publication."""
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []
    for status in view.found.statuses:
        own = worst(state_of_problems(_own(status)), State(OK, ""))
        known = nodes.get(status.replica)
        kinds = status.type if known is None else f"{known.note.partition(' · ')[0]}, {status.type}"
        state = own if known is None else worst(known.state, own)
        note = f"{kinds} · {state.words}" if state.level != OK else kinds
        nodes[status.replica] = Node(
            status.replica, view.name(status.replica), note, state, f"{status.role} {status.replica}"
        )
    for status, each in view.found.relations:
        if each.subscriber == status.replica:
            continue
        state = state_of(each)
        title = f"{each.publication}: {state.words}"
        edges.append(
            Edge(
                status.replica, each.subscriber, state, title, both_ways=isinstance(each, SubscriptionStatus)
            )
        )
        if each.subscriber not in nodes:
            nodes[each.subscriber] = Node(
                each.subscriber, view.name(each.subscriber), state.words, state, each.subscriber
            )
    graph = drawn(nodes.values(), edges, label="Replicas and their subscriptions") if nodes else ""
    legend = "".join(
        badge(State(level, words))
        for level, words in (
            (OK, "in step, or changes wait"),
            (WARNING, "warning"),
            (CRITICAL, "critical"),
            (UNKNOWN, "out of reach"),
        )
    )
    parts = [
        scrolled(graph, "Replicas and their subscriptions", kind="scroll graphs") if graph else "",
        f'<p class="legend">{legend}<span class="faint">A dot at both ends: changes go both ways.</span></p>',
        *_join_graphs(view),
    ]
    return section("topology", "Topology", *(parts if nodes else ()))


def _own(status: Status) -> tuple[StatusWarning, ...]:
    """Return the problems of a replica that are not those of one subscription."""
    others = {each.subscriber for each in getattr(status.details, "subscriptions", ())}
    return tuple(each for each in status.warnings if each.source not in others)


def _join_graphs(view: View) -> Iterable[str]:
    for status in view.found.statuses:
        articles = status.details.articles if isinstance(status.details, ReplicaStatus) else ()
        for publication in dict.fromkeys(each.publication for each in articles):
            own = [each for each in articles if each.publication == publication]
            pairs = [(parent, each.article) for each in own for parent in each.follows]
            if not pairs:
                continue
            named = {name for pair in pairs for name in pair}
            nodes = [
                Node(
                    each.article,
                    each.article,
                    "" if each.rows is None else counted(each.rows, "row"),
                    State(OK, ""),
                )
                for each in own
                if each.article in named
            ]
            known = {each.key for each in nodes}
            edges = [
                Edge(parent, child, State(OK, "brings its rows"), f"{child} follows {parent}")
                for parent, child in pairs
                if parent in known and child in known
            ]
            label = f"Join filters of {publication}"
            yield f"<h3>{escape(label)}</h3>{scrolled(drawn(nodes, edges, label=label), label, kind='scroll graphs')}"


def _worst_first(view: View) -> list[Relation]:
    order = (CRITICAL, UNKNOWN, WARNING, OK)
    return sorted(
        (each for _, each in view.found.relations),
        key=lambda each: (order.index(state_of(each).level), -(each.retention_used or 0)),
    )


def subscriptions(view: View) -> str:
    """Return the progress of each subscription."""
    rows = []
    for each in _worst_first(view):
        state = state_of(each)
        used = f"{each.subscriber}: part of the retention that the oldest change has waited"
        rows.append(
            (
                f'<strong title="{escape(each.subscriber)}">{escape(view.name(each.subscriber))}</strong>',
                escape(each.publication),
                badge(state),
                number(each.download),
                number(each.upload),
                lag(each.retention_used, used),
                when(each.last_sync_date),
                _facts(each) or FAINT,
            )
        )
    headings = (
        "subscriber",
        "publication",
        "state",
        ">to download",
        ">to upload",
        "retention used",
        "last run",
        "more",
    )
    return section(
        "subscriptions",
        "Subscriptions",
        table("Subscriptions, the worst first", headings, rows, is_only=True) if rows else "",
        note="What cannot be read is a dash, not 0.",
    )


def _facts(each: Relation) -> str:
    facts = []
    if isinstance(each, SubscriptionStatus):
        facts.append(f"priority {each.priority:g}")
        if each.partition_id is not None:
            facts.append(f"partition {each.partition_id}")
        if each.diverged:
            facts.append(f"differs in {', '.join(each.diverged)}")
        if each.schema_pending:
            facts.append(f"schema waits: {', '.join(each.schema_pending)}")
    if isinstance(each, DeliveryState) and not each.is_known_to_be_equal:
        facts.append("not known to be equal")
    if each.validated is not None:
        return " · ".join([*map(escape, facts), f"validated {when(each.validated)}"])
    return " · ".join(map(escape, facts))


def sessions(view: View) -> str:
    """Return small charts of the sessions of seven days, a row for each subscription, in the order of the subscriptions."""
    groups: dict[tuple[str, str], list[Run]] = {
        (each.subscriber, each.publication): [] for each in _worst_first(view)
    }
    for run in view.found.runs:
        if run.kind in ("session", "batch", "scan"):
            groups.setdefault((run.subscriber or run.replica, run.publication or run.type), []).append(run)
    rows = [_session_charts(view, *of, runs) for of, runs in groups.items() if runs]
    headings = ("subscription", "duration", "changes", "conflicts")
    return section(
        "sessions",
        "Sessions of seven days",
        table("Sessions of seven days", headings, rows, is_only=True) if rows else "",
        note="Each bar is three hours; a red mark is a run that failed.",
    )


def _session_charts(view: View, root: str, publication: str, runs: Sequence[Run]) -> tuple[str, ...]:
    found, name = view.found, view.name(root)

    def chart(kind: str, measure: Callable[[Run], float], said: str, failed: Sequence[float] = ()) -> str:
        values = charts.binned(runs, found.since, found.time, measure)
        return charts.bars(values, kind=kind, label=f"{name}: {said} in seven days", failed=failed)

    failed = charts.binned(runs, found.since, found.time, lambda run: run.status == "failed")
    facts = [publication, counted(len(runs), "run")]
    facts += [f"{int(sum(failed)):,} failed"] if any(failed) else []
    longest = charts.duration_text(max(run.duration_s for run in runs))
    changes, clashes = sum(run.changes for run in runs), sum(conflicts_of(run.details) for run in runs)
    return (
        f'<strong title="{escape(root)}">{escape(name)}</strong><br><span class="faint">'
        f"{escape(' · '.join(facts))}</span>",
        f"{chart('time', lambda run: run.duration_s, 'seconds of runs', failed)}<small>longest {longest}</small>",
        f"{chart('rows', lambda run: run.changes, 'changes')}<small>{changes:,} in all</small>",
        f"{chart('conflicts', lambda run: conflicts_of(run.details), 'conflicts')}<small>{clashes:,} in all</small>",
    )
