"""Options of articles, drawn all together: which go together, and rows of them that cover every pair (greedy, seeded)."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from mergerepl.model.resolvers import CUSTOM, RESOLVERS

Choice = Mapping[str, object]
"""Option -> value."""
Pair = tuple[tuple[str, object], tuple[str, object]]

OPTIONS: Mapping[str, Sequence[object]] = {
    "resolver": tuple(RESOLVERS),
    "key": ("int", "string", "composite", "date", "timestamp_ntz", "decimal", "rowguid"),
    "tracking": ("row", "column"),
    "resolution": ("row", "columns"),
    "filter": ("none", "static", "HOST_NAME", "SUSER_SNAME"),
    "depth": (0, 1, 2),
    "partition_options": (0, 1, 2, 3),
    "compensate_for_errors": (False, True),
    "columns": ("all", "some"),
}
"""`depth`: how many joins lead from a filtered article to this one; `filter` is then that article's."""

FEW: Mapping[str, Sequence[object]] = {
    **OPTIONS,
    "resolver": ("priority", "delta", "maximum"),
    "key": ("int", "composite", "rowguid"),
    "filter": ("static", "HOST_NAME"),
    "depth": (0, 1),
    "partition_options": (0, 1),
}
"""One value for each way in which the code treats them: what the default tests draw from."""


def is_possible(choice: Choice) -> bool:
    """Return whether options go together; an option that is left out may have any value."""
    resolver = RESOLVERS.get(str(choice.get("resolver")))
    filtered = choice.get("filter")
    is_by_row, options = choice.get("tracking") == "row", choice.get("partition_options", 0)
    assert isinstance(options, int)
    return not (
        (is_by_row and choice.get("resolution") == "columns")
        or (is_by_row and resolver is not None and not resolver.by_row)
        or (filtered == "none" and (choice.get("depth") or options))
        or (filtered == "static" and options >= 2)
        or (resolver is not None and resolver.rejects is not None and _needs_both(choice))
        or (resolver is not None and resolver.name == CUSTOM and filtered not in (None, "none"))
    )


def _needs_both(choice: Choice) -> bool:
    return (
        choice.get("filter") not in (None, "none")
        or choice.get("resolution") == "columns"
        or bool(choice.get("compensate_for_errors"))
    )


def is_drawn(choice: Choice, options: Mapping[str, Sequence[object]]) -> bool:
    """Return whether some values of the other options go with these."""
    others = [name for name in ("tracking", "resolution", "filter", "depth") if name not in choice]
    found = itertools.product(*(options[name] for name in others))
    return any(is_possible({**choice, **dict(zip(others, each, strict=True))}) for each in found)


def pairs(options: Mapping[str, Sequence[object]]) -> Iterator[Pair]:
    """Yield all pairs of values of two options that go together."""
    for one, other in itertools.combinations(options, 2):
        for pair in itertools.product(options[one], options[other]):
            if is_drawn({one: pair[0], other: pair[1]}, options):
                yield (one, pair[0]), (other, pair[1])


def pairs_of(choice: Choice) -> set[Pair]:
    return set(itertools.combinations(choice.items(), 2))


def covering(options: Mapping[str, Sequence[object]], seed: int, *, tries: int = 40) -> list[Choice]:
    """Return choices of all options that together have every pair: each the best of some drawn around an open pair."""
    rng = random.Random(seed)
    left = dict.fromkeys(pairs(options))
    found: list[Choice] = []
    while left:
        wanted = dict(next(iter(left)))
        drawn = []
        while len(drawn) < tries:
            choice = {name: wanted.get(name, rng.choice(values)) for name, values in options.items()}
            if is_possible(choice):
                drawn.append(choice)
        best = max(drawn, key=lambda choice: len(pairs_of(choice) & left.keys()))
        found.append(best)
        for pair in pairs_of(best):
            left.pop(pair, None)
    return found
