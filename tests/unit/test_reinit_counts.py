"""A reinitialisation counts the rows of the session that it runs first."""

from mergerepl.merge.reinit.outcome import with_counts
from mergerepl.model.results import ArticleCounts, PhaseCounts
from mergerepl.model.tasks import Reinit


def test_what_the_session_before_wrote_is_counted() -> None:
    done = Reinit("sales", "north", "orders", 1, 2, 3, 4, 5, unsent=6, kept=7, kept_at=None, examples=())
    before = (
        ArticleCounts("orders", PhaseCounts(10, 20, 30, 40), PhaseCounts(100, 200, 300, 400)),
        ArticleCounts("staff", PhaseCounts(9, 9, 9, 9), PhaseCounts(9, 9, 9, 9)),
    )
    found = with_counts(done, before)
    assert (found.inserts, found.updates, found.deletes) == (101, 202, 303)
    assert (found.uploaded, found.conflicts, found.unsent, found.kept) == (64, 445, 6, 7)
