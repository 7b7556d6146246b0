"""What a forked child makes anew.

A fork copies the memory and one thread. A lock that another thread held at that moment stays locked in the child for
ever, and what that thread was changing stays half changed. So everything that owns a lock says here how it is renewed;
that runs in the child, in its only thread, before `os.fork` returns there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Owns something that a fork can leave unusable."""

    def _after_fork(self) -> None:
        """Called in the child. Takes no lock that was there before the fork, and raises nothing."""


_renewables: WeakSet[Renewable] = WeakSet()


def renewed_after_fork(thing: Renewable) -> None:
    """Have an object renewed in every forked child, as long as it lives: nothing is kept alive by this."""
    _renewables.add(thing)


def in_forked_child(renew: Callable[[], None]) -> None:
    """Have a function called in every forked child. For what lives as long as the process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)


def _renew() -> None:
    for thing in list(_renewables):
        with suppress(Exception):  # what can't be renewed must not keep the rest from it
            thing._after_fork()


in_forked_child(_renew)
