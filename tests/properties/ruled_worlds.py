"""What the models of operations and of schema changes share: rules that can be switched off, and drawn histories."""

from __future__ import annotations


class Broken(AssertionError):
    """A property does not hold."""


class Refused(Exception):
    """The session was refused or stopped; nothing of the refused step was changed."""


class Ruled:
    """A world with rules, of which those in `off` do not hold."""

    rules = frozenset()
    off = frozenset()
    guids = 0

    def on(self, rule):
        assert rule in self.rules
        return rule not in self.off

    def guid(self):
        self.guids += 1
        return f"g{self.guids}"


def bring_to_rest(world, steps, do, finish):
    """Do the steps of a history in a world, then bring it to rest."""
    for step in steps:
        do(world, step)
    finish(world)


def play_drawn(world, drawn_steps, do, finish, said):
    """Draw a step, do it, and so on, then bring the world to rest; return what it did.

    Raises: Broken with the steps, and `said` about the world.
    """
    steps = []
    try:
        for step in drawn_steps:
            steps.append(step)
            do(world, step)
        finish(world)
    except Broken as broken:
        lines = "\n  ".join(map(str, steps))
        raise Broken(f"{broken}\n{said}\n  {lines}") from None
    return world.stats
