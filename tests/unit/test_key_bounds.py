"""The lower bound that prunes files of a MERGE, for texts that some engines pad and others do not."""

from hypothesis import given
from hypothesis import strategies as st

from mergerepl.store.key_bounds import below_unpadded

# Few letters, so that texts are alike: below a space, a space, the next one, after the surrogates.
TEXTS = st.text("\x00\t !ab~\ue000", max_size=4)
WIDTH = 5


@given(lowest=TEXTS, key=TEXTS)
def test_a_key_from_the_lowest_on_is_within_the_bound_padded_or_not(lowest: str, key: str) -> None:
    if lowest.ljust(WIDTH) > key.ljust(WIDTH):
        return
    # Spark pads a bound of a char(n), too.
    bound = below_unpadded(lowest.ljust(WIDTH))
    assert not bound or bound.ljust(WIDTH) <= key.rstrip(" ")


@given(lowest=TEXTS, key=TEXTS)
def test_a_key_from_the_lowest_on_is_within_the_bound_of_a_plain_string(lowest: str, key: str) -> None:
    assert lowest > key or below_unpadded(lowest) <= key
    below_unpadded(lowest).encode()
