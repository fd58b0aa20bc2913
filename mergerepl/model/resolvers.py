"""The names of the resolvers that there are: what a file may say and a replica stores. `conflict` has their rules."""

from typing import Final

PRIORITY: Final = "priority"
"""The default: the higher priority wins."""

RESOLVERS: Final = (PRIORITY,)
