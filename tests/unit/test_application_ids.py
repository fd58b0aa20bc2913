"""The transactions of merge sessions: which applications write them, and in which order."""

from itertools import pairwise
from pathlib import Path

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.merge.apply.conflict_log import ConflictLog, _transaction
from mergerepl.replica.application_ids import application_ids, round_number, session_number_of
from mergerepl.store.changeset import Changeset, Manifest, SideWork
from mergerepl.store.location import Location


def manifest(round_: int, side: str = PUBLISHER) -> Manifest:
    work = SideWork(
        root="/hq", replid="r", peer="p", nickname=1, base_seq=1, seq=2, last_generation=3, clock=1
    )
    return Manifest(
        session="s",
        number=7,
        round=round_,
        publication="sales",
        pubid="p",
        subid="sub",
        upload=True,
        download=True,
        started="2026-11-27T00:00:00+00:00",
        conflict_logging="both",
        publisher=work if side == PUBLISHER or not round_ else None,
        subscriber=work if side == SUBSCRIBER or not round_ else None,
        replicastate="x",
    )


def test_a_number_names_its_session() -> None:
    assert [session_number_of(round_number(7, each)) for each in (0, 1, 999)] == [7, 7, 7]
    assert session_number_of(-1) < 0


def test_conflicts_of_all_rounds_have_applications_of_the_list() -> None:
    rounds = [(0, PUBLISHER), *((n, side) for n in (1, 2, 40) for side in (PUBLISHER, SUBSCRIBER))]
    written = [_transaction(Changeset(Location.of("/f"), manifest(*each)), "info") for each in rounds]
    assert {each.app_id for each in written} <= set(application_ids(["sub"]))
    # What is logged later has a higher number, or another application.
    for one, other in pairwise(written):
        assert one.app_id != other.app_id or one.version < other.version


def test_late_rounds_are_logged_in_their_order(tmp_path: Path) -> None:
    folder = Location.of(tmp_path) / "staging" / "s"
    session = Changeset(folder, manifest(0))
    for number in (1, 2, 10, 11):
        late = session.late_folder(PUBLISHER, number)
        Path(late).mkdir(parents=True)
        Changeset(late, manifest(number)).commit()
    log = ConflictLog(session, {}, EngineChoice(uses_arrow=True, spark_of=lambda: None))  # type: ignore[arg-type,return-value]
    assert [each.manifest.round for each in log.late_rounds] == [1, 2, 10, 11]
