"""Words reserved for a later version, each with today's alternative. They are not declared, shown or stored anywhere.

One table for the keys of files, the options of commands and the arguments of functions. A key with one value of a later
version is written `key: value`.
"""

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_RECORDS = (
    "State a `resolver` by side, such as `publisher_wins`, for parent and child: then both go the same way."
)
_REFUSE = (
    "Let a CHECK constraint of the table refuse such rows: they wait, or `compensate_for_errors` undoes them."
)
_BY_HAND = "Synchronize, then decide with `mergerepl conflicts resolve`."

_POLICY = (
    "Leave it out: the publisher wins; or use merge replication (`type: merge`), where resolvers decide."
)

_FILE = {
    "history_retention": "Leave it out: the history is kept.",
    "profile": "Leave it out: agents have one set of parameters.",
}
_REPEAT = "Leave it out: `--interval` of `mergerepl sync` and `mergerepl agent run` repeats the sync."

LATER: Final[dict[str, dict[str, str]]] = {
    "merge": {
        **_FILE,
        "interval": _REPEAT,
        "streams": "Leave it out: a session works through all articles.",
        "distributor": "Leave it out: a merge publication keeps its history at the publisher and at the subscribers.",
        "logical_record": _RECORDS,
        "handler": _REFUSE,
        "handlers": _REFUSE,
        "interactive": _BY_HAND,
        "unique": "Make the columns the `key`; or look for doubles with a query after each sync.",
        "replicate_ddl": "List the `columns` of each article: later columns are published with the next `mergerepl apply` "
        "that adds them there.",
        "allow_rewrite": "Switch on type widening in the subscriber's table, or replace it by CREATE OR REPLACE TABLE … AS "
        "SELECT with the wider type: the next `mergerepl sync` follows both.",
        "guard_deletes": "Look at `mergerepl sync --dry-run` before a sync that may delete much.",
        "name: three_way_text": "`merge_text` keeps both texts; `custom` calls a function of your own.",
        "compensate_for_errors: both": "With `upload` a change that the publisher's table refuses is undone at its "
        "subscriber; with false it waits there. Nothing is undone at the publisher: other subscribers may have it already.",
    },
    "transactional": {
        **_FILE,
        "interval": _REPEAT,
        "distributor": "Leave it out: the publisher's folder keeps the commands.",
        **dict.fromkeys(("conflict_policy: subscriber wins", "conflict_policy: reinit"), _POLICY),
        "subscription_type": "Leave it out: `mergerepl sync` pushes, also on the subscriber's machine.",
        "pre_creation": "Leave it out; move away a table that is in the way at the subscriber, then apply.",
        "pre_creation_cmd": "Leave it out; move away a table that is in the way at the subscriber, then apply.",
        "sync_type: lsn": "Use `none` where the subscriber's rows are those of the publisher, else `automatic`.",
        "skip_errors: 547": "Lift the CHECK constraint at the subscriber, or leave out the transaction with "
        "`mergerepl transactional skip`.",
        "skip_errors: 515": "Lift the NOT NULL at the subscriber, or leave out the transaction with "
        "`mergerepl transactional skip`.",
    },
    "commands": {
        "interactive": _BY_HAND,
        "interactive_timeout": _BY_HAND,
        "accept_deletes": "Leave it out: deletes are captured as they are.",
        "end_now": "Synchronize, then take the subscription out of the file and apply.",
        "identity": "Give each replica keys of its own, such as GUIDs, or a range of numbers each.",
        "profiles": "Leave it out: agents have one set of parameters.",
        "dismiss": "Use --winner: the conflict is settled, and nothing is written.",
    },
    "transactional commands": {
        "tracer": "`mergerepl history` has the latency of each batch, `pending` counts what waits."
    },
    "cdc": {
        **_FILE,
        "hold": "See `mergerepl status` for how long VACUUM keeps what is not read.",
        "large_columns": "Leave it out: all columns are captured whole.",
        "scd_type": "Leave it out: the target has the newest state of each row. For a history read `changes`.",
        "register_source": "Read windows with `changes`, or keep a table with `load`.",
        "generate_wrapper_function": "Call `changes` with two times.",
    },
    "tracking": {
        "force": "Let the registered consumers acknowledge first: `mergerepl status` shows them.",
        "rebuild_counters": "Restore counters.json from a copy taken with the tables.",
    },
}
"""Place -> word -> the alternative. Merge publications use `commands`, the other commands their group."""


GONE: Final[dict[str, dict[str, str]]] = {
    "transactional": {
        "distribution_retention": "`retention` (was `max`) and `min_retention` (was `min`)",
        "subscription_streams": "`streams`",
    }
}
"""`type` of a document -> a key of an older version -> the keys in its place."""


def instead_of(place: str, word: str, value: object = None) -> str | None:
    """Return the alternative to a later word, or to a later value of a known word; None if no later version plans it.

    An option may have its dashes.
    """
    words = LATER.get(place, {})
    name = word.lstrip("-").replace("-", "_")
    return words.get(name if value is None else f"{name}: {value}")


def answers_later(
    place: str, refused: Callable[[str, str], Exception]
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Make a function answer arguments of a later version; `refused` makes the error of an argument and its alternative."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def checked(*args: _P.args, **given: _P.kwargs) -> _T:
            for word, value in given.items():
                if (instead := instead_of(place, word)) is not None:
                    raise refused(f"{function.__name__}({word}={value!r})", instead)
            return function(*args, **given)

        return checked

    return decorate
