"""Names that `history` and `conflicts` are asked for, and what they say of those that they do not know. No Spark."""

from pathlib import Path

import pytest

from mergerepl import api
from mergerepl.errors import ConfigurationError
from mergerepl.store.replica import Replica
from tests.unit.test_quiet import make_replica, subscription


@pytest.fixture
def hq(tmp_path: Path) -> Replica:
    """A publisher with one subscriber."""
    make_replica(tmp_path / "north", "subscriber", 2, subscription(tmp_path / "hq", "replica-1", 1))
    return make_replica(tmp_path / "hq", "publisher", 1, subscription(tmp_path / "north", "replica-2", 2))


@pytest.mark.parametrize("asked", ["hq", "north"])
@pytest.mark.parametrize("name", ["west", "hq"])
def test_a_publisher_is_no_subscriber(hq: Replica, asked: str, name: str) -> None:
    folder = hq.root.parent
    with pytest.raises(
        ConfigurationError, match=rf"no subscriber '{folder}/{name}'\. Known: {folder}/north\. "
    ):
        api.history(folder / asked, subscriber=folder / name)
    assert api.history(folder / asked, subscriber=folder / "north") == ()
