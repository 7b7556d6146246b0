"""SessionStore: transcripts by session key and by content, inside namespaces, under one byte budget.

A *branch* is one line of conversation: its transcript is replaced as the conversation goes on. A key may have several
(a cache salt shared by many conversations, sub-agents that fork). Namespaces share nothing: reuse would tell one tenant
what another one sent.

Keys, namespaces and texts come from clients. Keys are kept as keyed digests of fixed size, everything is counted in
bytes, and the least recently used branch goes first.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice

from .lookup import PrefixIndex
from .splice import Transcript

DEFAULT_BUDGET = 1 << 30

# A text this short costs less to encode than to look up, and is mostly auxiliary: a stop string, a template probe.
MIN_REMEMBERED = 256
# Texts up to this length have their own few places per key, so that they never push a conversation out.
_SHORT = 2048
_SHORT_BRANCHES = 2
_LONG_BRANCHES = 8
# How much of an old text may be lost (characters) for the new one to count as its continuation. With more, the old one
# may be another line that goes on, too: both are kept.
_CONTINUES = 2048

_BRANCH_BYTES = 1000  # measured: branch object, entries in the LRU and in its key's list
_PROPOSALS = 16  # how many proposals of the content index are looked at


class Branch:
    """One line of conversation. Mutable, but only under the store's lock; its transcript is immutable."""

    __slots__ = ("bytes", "digests", "key", "namespace", "short", "transcript")

    def __init__(self, namespace: bytes, key: bytes | None, transcript: Transcript, digests: tuple[bytes, ...]) -> None:
        self.namespace = namespace
        self.key = key
        self.transcript = transcript
        self.digests = digests
        self.short = len(transcript.text) <= _SHORT
        self.bytes = transcript.bytes() + _BRANCH_BYTES + len(digests) * PrefixIndex.ENTRY_BYTES


class SessionStore:
    """Thread-safe. All operations are O(branches of one key) under one short lock; no text is compared inside it.

    budget: bytes for texts, IDs, checkpoints and index together. A text that alone exceeds it is not remembered.
    """

    def __init__(self, budget: int = DEFAULT_BUDGET) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._secret = os.urandom(32)
        self._branches: OrderedDict[int, Branch] = OrderedDict()  # by id(branch), least recently used first
        self._keys: dict[bytes, list[Branch]] = {}
        self._index = PrefixIndex()
        self._bytes = 0
        self.evictions = 0

    @property
    def held(self) -> int:
        """Bytes held now; at most the budget."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._branches)

    def name(self, namespace: str | None, session: str | None) -> tuple[bytes, bytes | None]:
        """The internal names of a namespace and of a session in it: fixed-size keyed digests."""
        space = self._digest(b"n", namespace)
        return space, None if session is None else blake2b(
            session.encode("utf-8", "surrogatepass"), digest_size=16, key=self._secret, person=b"s", salt=space
        ).digest()

    def _digest(self, person: bytes, value: str | None) -> bytes:
        if value is None:
            return bytes(16)
        raw = value.encode("utf-8", "surrogatepass")
        return blake2b(raw, digest_size=16, key=self._secret, person=person).digest()

    def of_key(self, key: bytes | None) -> list[Branch]:
        """The branches of a key, most recently used first."""
        if key is None:
            return []
        with self._lock:
            return list(reversed(self._keys.get(key, ())))

    def by_content(self, namespace: bytes, text: str) -> Iterator[Branch]:
        """Branches of a namespace that may begin like `text`, best proposals first; a bounded number of them."""
        with self._lock:
            seen: set[int] = set()
            found = []
            for branch in islice(self._index.propose(namespace, text), 4 * _PROPOSALS):
                assert isinstance(branch, Branch)
                if id(branch) not in seen and branch.namespace == namespace:
                    seen.add(id(branch))
                    found.append(branch)
                    if len(found) >= _PROPOSALS:
                        break
        return iter(found)

    def touch(self, branch: Branch) -> None:
        """Count a branch as used now."""
        with self._lock:
            self._touch(branch)

    def _touch(self, branch: Branch) -> None:
        if id(branch) in self._branches:
            self._branches.move_to_end(id(branch))
            if branch.key is not None:
                siblings = self._keys[branch.key]
                if siblings[-1] is not branch:
                    siblings.remove(branch)
                    siblings.append(branch)

    def remember(
        self,
        namespace: bytes,
        key: bytes | None,
        transcript: Transcript,
        source: Branch | None = None,
        prefix: int = 0,
        lost: int = 0,
    ) -> None:
        """Store a transcript; as the continuation of `source` when it is one, else as a branch of its own.

        source: the branch it was spliced from, if any. prefix: the characters both texts share at their beginning.
        lost: characters of the source's text that the new one does not hold any more.
        """
        if len(transcript.text) < MIN_REMEMBERED:
            return
        known = source.digests if source is not None else ()
        digests = self._index.digests(namespace, transcript.text, known, prefix)
        branch = Branch(namespace, key, transcript, digests)
        with self._lock:
            if branch.bytes > self.budget:
                return
            if source is not None and source.key == key and lost <= _CONTINUES:
                self._drop(source)
            self._insert(branch)
            while self._bytes > self.budget:
                self._drop(next(iter(self._branches.values())))
                self.evictions += 1

    def _insert(self, branch: Branch) -> None:
        self._branches[id(branch)] = branch
        self._bytes += branch.bytes
        self._index.add(branch, branch.digests)
        if branch.key is None:
            return
        siblings = self._keys.setdefault(branch.key, [])
        siblings.append(branch)
        limit = _SHORT_BRANCHES if branch.short else _LONG_BRANCHES
        alike = [sibling for sibling in siblings if sibling.short == branch.short]
        if len(alike) > limit:
            self._drop(alike[0])
            self.evictions += 1

    def _drop(self, branch: Branch) -> None:
        if self._branches.pop(id(branch), None) is None:
            return  # another thread continued it first
        self._bytes -= branch.bytes
        self._index.remove(branch, branch.digests)
        if branch.key is not None:
            siblings = self._keys[branch.key]
            siblings.remove(branch)
            if not siblings:
                del self._keys[branch.key]

    def clear(self) -> None:
        with self._lock:
            self._branches.clear()
            self._keys.clear()
            self._index = PrefixIndex()
            self._bytes = 0

    def _check(self) -> None:
        with self._lock:
            assert self._bytes == sum(b.bytes for b in self._branches.values()) <= self.budget
            keyed = [b for b in self._branches.values() if b.key is not None]
            assert sorted(map(id, keyed)) == sorted(id(b) for siblings in self._keys.values() for b in siblings)
            assert all(siblings for siblings in self._keys.values())
            for siblings in self._keys.values():
                assert sum(b.short for b in siblings) <= _SHORT_BRANCHES
                assert sum(not b.short for b in siblings) <= _LONG_BRANCHES
            self._index._check({b: b.digests for b in self._branches.values()})
            for branch in self._branches.values():
                assert len(branch.transcript.text) >= MIN_REMEMBERED
                branch.transcript._check()
