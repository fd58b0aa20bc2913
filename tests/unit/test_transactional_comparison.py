"""What a validation of a transactional subscriber cannot know, by the commands of its article. Without Spark."""

from collections.abc import Collection
from typing import Any

import pytest

from mergerepl.delta.commits import Commit
from mergerepl.delta.marks import CommitMark
from mergerepl.publish.snapshot import DIFFERENT, EXTRA, MISSING
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.position import batch_step, batches_of
from mergerepl.transactional.validation import unknown_kinds
from tests.transactional.publications import shape


def article(**keys: Any) -> Shape:
    return shape(("id", "qty"), ("bigint", "int"), ("id",), **keys)


@pytest.mark.parametrize(
    ("keys", "by_procedure", "unknown"),
    [
        ({}, (), set()),
        ({"upd_cmd": "SQL", "del_cmd": "SQL", "ins_cmd": "SQL"}, (), set()),
        ({"del_cmd": "NONE"}, (), {EXTRA}),
        ({"ins_cmd": "NONE"}, (), {MISSING}),
        # An update of a key that was not sent leaves the old key and lacks the new one.
        ({"upd_cmd": "NONE"}, (), {DIFFERENT, MISSING, EXTRA}),
        ({"upd_cmd": "NONE", "singleton_key_updates": False}, (), {DIFFERENT}),
        # A procedure of the user's own is one that writes what the generated one would, until it has not.
        ({"upd_cmd": "XCALL audit"}, (), set()),
        ({"upd_cmd": "XCALL audit", "singleton_key_updates": False}, ("upd",), {DIFFERENT}),
        ({"del_cmd": "CALL keep"}, ("del",), {EXTRA}),
        ({"ins_cmd": "CALL keep"}, ("ins",), {MISSING}),
    ],
)
def test_what_no_command_says_is_not_compared(
    keys: dict[str, Any], by_procedure: Collection[str], unknown: set[str]
) -> None:
    assert set(unknown_kinds(article(**keys), by_procedure)) == unknown


def test_the_reason_names_the_key_of_the_file() -> None:
    assert unknown_kinds(article(del_cmd="NONE")) == {EXTRA: "del_cmd is NONE"}


def test_batches_are_known_by_their_marks() -> None:
    steps = [batch_step(3), batch_step(4, "1-upd-0"), "distribute:columns", "repair:9f"]
    own = tuple(
        Commit(i, "MERGE", CommitMark("guid", step), True, None, {}, {}, (), ())
        for i, step in enumerate(steps)
    )
    assert batches_of(own) == [3, 4]
