"""`mergerepl demo`: the whole story on real data, left behind to explore."""

from mergerepl.demo.story import run

__all__ = ["run"]
