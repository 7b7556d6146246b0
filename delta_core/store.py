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
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

from .context import salt_name
from .forks import renewed_after_fork
from .ids import IdList
from .scale import scale
from .splice import Transcript

DEFAULT_BUDGET = 1 << 30

# Texts up to this length have their own few places per key, so that they never push a conversation out.
_SHORT = 2048
_SHORT_BRANCHES = 2
_LONG_BRANCHES = 8
# How much of an old text may be lost (characters) for the new one to count as its continuation. With more, the old one
# may go on, too: both are kept.
_CONTINUES = 2048

_BRANCH_BYTES = 1000  # measured: branch object, entries in the LRU and in its key's list
_PROPOSALS = 16  # how many proposals of the content index are looked at
_PER_FINGERPRINT = 32  # of which so many are kept for each fingerprint, newest last


class Branch:
    """One stored line of a conversation. Changed under the store's lock only.

    Its transcript is immutable and replaced as a whole, so that other threads may read it without the lock.
    """

    __slots__ = ("bytes", "fingerprints", "key", "namespace", "short", "transcript")

    def __init__(
        self, namespace: bytes, key: bytes | None, transcript: Transcript, fingerprints: tuple[bytes, ...]
    ) -> None:
        self.namespace = namespace
        self.key = key
        self.put(transcript, fingerprints)

    def put(self, transcript: Transcript, fingerprints: tuple[bytes, ...]) -> None:
        """Take the next transcript."""
        self.transcript = transcript
        self.fingerprints = fingerprints
        self.short = _short(transcript)
        self.bytes = transcript.bytes() + _BRANCH_BYTES + len(fingerprints) * ContentIndex.ENTRY_BYTES


def _short(transcript: Transcript) -> bool:
    return len(transcript.text) <= _SHORT


class ContentIndex:
    """Proposes branches whose text begins like a new one, by fingerprints. Not thread-safe: the store locks it.

    A fingerprint is the keyed digest of a short window at a fixed position, not of a whole prefix: it costs 1 us
    wherever it stands, hashing a prefix of 400K characters 430 us. It proposes as well as a prefix does, since every
    proposal is compared character by character anyway, and it still proposes when something before it changed without
    moving it. The key is drawn for each process, so that nobody outside can aim texts at one bucket; buckets are
    bounded all the same.
    """

    ENTRY_BYTES = 260  # measured: dictionary slot, fingerprint, bucket

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._buckets: dict[bytes, deque[Branch]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def _fingerprint(self, namespace: bytes, text: str, position: int) -> bytes:
        window = text[position - scale().window : position].encode("utf-8", "surrogatepass")
        return blake2b(
            window, digest_size=16, key=self._key, salt=namespace[:16], person=position.to_bytes(8, "little")
        ).digest()

    def fingerprints(
        self,
        namespace: bytes,
        text: str,
        known: tuple[bytes, ...] = (),
        same: Sequence[tuple[int, int]] = (),
    ) -> tuple[bytes, ...]:
        """The fingerprints of a text by position.

        known: those of a text that has the characters `same` (start, end; ascending) at the same place.
        """
        result: list[bytes] = []
        positions, window = scale().positions, scale().window
        held = bisect_right(positions, len(text))
        for start, end in same:
            first = bisect_left(positions, start + window)
            stop = min(bisect_right(positions, end), len(known), held)
            if first < stop:
                result += [self._fingerprint(namespace, text, p) for p in positions[len(result) : first]]
                result += known[first:stop]
        result += [self._fingerprint(namespace, text, p) for p in positions[len(result) : held]]
        return tuple(result)

    def add(self, branch: Branch, fingerprints: Iterable[bytes]) -> None:
        """Propose a branch from now on."""
        for fingerprint in fingerprints:
            bucket = self._buckets.get(fingerprint)
            if bucket is None:
                self._buckets[fingerprint] = deque((branch,), _PER_FINGERPRINT)
            else:
                bucket.append(branch)

    def remove(self, branch: Branch, fingerprints: Iterable[bytes]) -> None:
        """Propose it no more."""
        for fingerprint in fingerprints:
            bucket = self._buckets.get(fingerprint)
            if bucket is not None:
                with suppress(ValueError):  # pushed out of a full bucket by newer ones
                    bucket.remove(branch)
                if not bucket:
                    del self._buckets[fingerprint]

    def propose(self, namespace: bytes, text: str) -> Iterator[Branch]:
        """Branches that share a window with `text`, those with the furthest window first, newest first.

        Lazy: a fingerprint is made only when the proposals before it were not enough.
        """
        if not self._buckets:
            return
        positions = scale().positions
        for position in reversed(positions[: bisect_right(positions, len(text))]):
            bucket = self._buckets.get(self._fingerprint(namespace, text, position))
            if bucket:
                yield from reversed(bucket)

    def _check(self, branches: dict[Branch, tuple[bytes, ...]]) -> None:
        for fingerprint, bucket in self._buckets.items():
            assert bucket
            assert len(bucket) <= _PER_FINGERPRINT
            for branch in bucket:
                assert fingerprint in branches[branch]


class Origin(NamedTuple):
    """Where a new transcript was spliced from.

    branch, transcript: the branch, and its transcript at the time.
    same: characters (start, end) that stand at the same place in both texts, ascending; first their common prefix.
    lost: characters of the old text that the new one does not hold any more.
    """

    branch: Branch
    transcript: Transcript
    same: Sequence[tuple[int, int]]
    lost: int

    @property
    def prefix(self) -> int:
        """Characters both texts share at their beginning."""
        return self.same[0][1]


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
        self._index = ContentIndex()
        self._bytes = 0
        self.evictions = 0
        renewed_after_fork(self)

    @property
    def held(self) -> int:
        """Bytes held now; at most the budget."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._branches)

    def name(self, namespace: str | None, session: str | None, kind: type = list) -> tuple[bytes, bytes | None]:
        """The internal names of a namespace and of a session in it: fixed-size keyed digests.

        kind: what IDs are kept as. Lists and arrays share nothing, either: converting one costs more than keeping both.
        """
        person = kind.__name__.encode()
        # What is no string has a name of its own: 5 shares nothing with "5".
        space = person if namespace is None else self._digest(person, salt_name(namespace))
        return space, None if session is None else self._digest(b"session", session, space)

    def _digest(self, person: bytes, name: str, salt: bytes = b"") -> bytes:
        raw = str(name).encode("utf-8", "surrogatepass")
        return blake2b(raw, digest_size=16, key=self._secret, person=person, salt=salt).digest()

    def of_key(self, key: bytes | None) -> list[Branch]:
        """The branches of a key, most recently used first."""
        if key is None:
            return []
        with self._lock:
            return list(reversed(self._keys.get(key, ())))

    def by_content(self, namespace: bytes, text: str) -> Iterator[Branch]:
        """Branches of a namespace that may begin like `text`, best proposals first; a bounded number of them.

        Lazy: nothing is hashed before the first one is asked for.
        """
        with self._lock:
            proposals = list(islice(self._index.propose(namespace, text), _PROPOSALS))
        seen: set[int] = set()
        for branch in proposals:
            # The fingerprint holds the namespace, too; this line alone enforces it.
            if id(branch) not in seen and branch.namespace == namespace:
                seen.add(id(branch))
                yield branch

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
        origin: Origin | None = None,
    ) -> IdList:
        """Store a transcript; as the continuation of its origin when it is one, else as a branch of its own.

        Returns its IDs as they are stored. Without an origin the lists that it brings are the store's from now on.
        Cost: one fingerprint for each window of the text that its origin does not have at the same place.
        """
        if len(transcript.text) < scale().remembered_from:
            return transcript.ids
        known, same = (origin.branch.fingerprints, origin.same) if origin is not None else ((), ())
        fingerprints = self._index.fingerprints(namespace, transcript.text, known, same)
        if origin is not None:
            with self._lock:
                if self._continue(origin, key, transcript, fingerprints):
                    return transcript.ids
        # A new branch gets lists of its own: its origin's keep growing.
        ids = transcript.ids.own(transcript.settled, fresh=origin is None)
        branch = Branch(namespace, key, transcript._replace(ids=ids), fingerprints)
        if branch.bytes <= self.budget:
            with self._lock:
                self._insert(branch)
                self._trim()
        return ids

    def _trim(self) -> None:
        while self._bytes > self.budget:
            self._drop(next(iter(self._branches.values())))
            self.evictions += 1

    def _continue(
        self, origin: Origin, key: bytes | None, transcript: Transcript, fingerprints: tuple[bytes, ...]
    ) -> bool:
        """Put the new transcript into the branch it continues; False when it is a branch of its own."""
        branch = origin.branch
        if (
            origin.lost > _CONTINUES
            or branch.key != key
            or branch.short != _short(transcript)
            or branch.transcript is not origin.transcript  # another thread continued it first
            or id(branch) not in self._branches
        ):
            return False
        # Most fingerprints lie in the common prefix and stay in the index as they are.
        if branch.fingerprints != fingerprints:
            before, after = set(branch.fingerprints), set(fingerprints)
            self._index.remove(branch, before - after)
            self._index.add(branch, after - before)
        self._bytes -= branch.bytes
        transcript.ids.settle(transcript.settled)
        branch.put(transcript, fingerprints)
        self._bytes += branch.bytes
        if branch.bytes > self.budget:  # it alone, nothing else has to go
            self._drop(branch)
            self.evictions += 1
        else:
            self._touch(branch)
            self._trim()
        return True

    def _insert(self, branch: Branch) -> None:
        self._branches[id(branch)] = branch
        self._bytes += branch.bytes
        self._index.add(branch, branch.fingerprints)
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
        self._index.remove(branch, branch.fingerprints)
        if branch.key is not None:
            siblings = self._keys[branch.key]
            siblings.remove(branch)
            if not siblings:
                del self._keys[branch.key]

    def clear(self) -> None:
        """Forget all branches."""
        with self._lock:
            self._empty()

    def _empty(self) -> None:
        self._branches.clear()
        self._keys.clear()
        self._index = ContentIndex()
        self._bytes = 0

    def _after_fork(self) -> None:
        """In the child: what another thread was changing at the fork is half changed, and forgotten."""
        if self._lock.locked():
            self._empty()
        self._lock = threading.Lock()

    def _check(self) -> None:
        with self._lock:
            assert self._bytes == sum(b.bytes for b in self._branches.values()) <= self.budget
            keyed = [b for b in self._branches.values() if b.key is not None]
            assert sorted(map(id, keyed)) == sorted(id(b) for siblings in self._keys.values() for b in siblings)
            assert all(siblings for siblings in self._keys.values())
            for siblings in self._keys.values():
                assert sum(b.short for b in siblings) <= _SHORT_BRANCHES
                assert sum(not b.short for b in siblings) <= _LONG_BRANCHES
            self._index._check({b: b.fingerprints for b in self._branches.values()})
            for branch in self._branches.values():
                assert len(branch.transcript.text) >= scale().remembered_from
                branch.transcript._check()
            lists = [id(ids) for branch in self._branches.values() for ids in branch.transcript.ids.lists()]
            assert len(lists) == len(set(lists)), "every branch has lists of its own"
