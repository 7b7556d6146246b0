"""SessionStore: budget, least recently used, branches per key, namespaces; short texts never displace conversations."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from delta_core import store as store_module
from delta_core.cuts import Cut
from delta_core.scale import SERVING
from delta_core.splice import Checkpoints, IdList, Transcript
from delta_core.store import Branch, Origin, SessionStore


def transcript(text: str) -> Transcript:
    """A transcript in which every character is one token, with a checkpoint now and then."""
    c = Checkpoints()
    for position in range(200, len(text), 200):
        c.append(Cut(position, 1, 1), position)
    return Transcript(text, IdList.of([(list(map(ord, text)), 0, len(text))]), c)


def remember(store: SessionStore, text: str, session: str | None = None, namespace: str | None = None) -> None:
    space, key = store.name(namespace, session)
    store.remember(space, key, transcript(text))
    store._check()


def texts_of(store: SessionStore, session: str, namespace: str | None = None) -> list[str]:
    return [branch.transcript.text for branch in store.of_key(store.name(namespace, session)[1])]


def by_content(store: SessionStore, text: str, namespace: str | None = None) -> list[str]:
    return [branch.transcript.text for branch in store.by_content(store.name(namespace, None)[0], text)]


def continue_(store: SessionStore, branch: Branch, text: str, prefix: int, lost: int, key: bytes | None) -> None:
    store.remember(branch.namespace, key, transcript(text), Origin(branch, branch.transcript, [(0, prefix)], lost))
    store._check()


LONG = "".join(f"{i} word\n" for i in range(600))  # about 5,000 characters
SHORT = LONG[:400]


def test_a_key_finds_its_own_texts_most_recent_first() -> None:
    store = SessionStore()
    remember(store, "a" + LONG, "s")
    remember(store, "b" + LONG, "s")
    remember(store, "c" + LONG, "t")
    assert texts_of(store, "s") == ["b" + LONG, "a" + LONG]
    store.touch(store.of_key(store.name(None, "s")[1])[1])
    assert texts_of(store, "s") == ["a" + LONG, "b" + LONG]
    assert texts_of(store, "unknown") == []
    assert store.of_key(None) == []


def test_a_text_is_found_by_its_content_with_and_without_a_key() -> None:
    store = SessionStore()
    remember(store, LONG, "s")
    remember(store, "x" + LONG)
    assert by_content(store, LONG + "more") == [LONG]
    assert by_content(store, "x" + LONG) == ["x" + LONG]


def test_nothing_is_found_across_namespaces() -> None:
    store = SessionStore()
    remember(store, LONG, "s", "tenant")
    for namespace in (None, "", "other"):
        assert texts_of(store, "s", namespace) == []
        assert by_content(store, LONG, namespace) == []
    assert texts_of(store, "s", "tenant") == [LONG] == by_content(store, LONG, "tenant")


def test_a_continuation_takes_the_place_of_what_it_continues() -> None:
    store = SessionStore()
    remember(store, LONG, "s")
    (branch,) = store.of_key(store.name(None, "s")[1])
    continue_(store, branch, LONG + "and more", len(LONG), 0, branch.key)
    assert texts_of(store, "s") == [LONG + "and more"]
    assert len(store) == 1
    assert by_content(store, LONG + "and more still") == [LONG + "and more"]


def test_a_fork_keeps_both_lines() -> None:
    store = SessionStore()
    remember(store, LONG, "s")
    (branch,) = store.of_key(store.name(None, "s")[1])
    continue_(store, branch, LONG[:1000] + "other", 1000, len(LONG) - 1000, branch.key)
    assert texts_of(store, "s") == [LONG[:1000] + "other", LONG]


def test_another_keys_text_is_not_taken_away_by_a_continuation() -> None:
    store = SessionStore()
    remember(store, LONG, "s")
    (branch,) = store.of_key(store.name(None, "s")[1])
    continue_(store, branch, LONG + "more", len(LONG), 0, store.name(None, "t")[1])
    assert texts_of(store, "s") == [LONG]
    assert texts_of(store, "t") == [LONG + "more"]


def test_two_that_continue_one_text_at_once_both_stay() -> None:
    store = SessionStore()
    remember(store, LONG, "s")
    (branch,) = store.of_key(store.name(None, "s")[1])
    old = branch.transcript
    for end in ("one", "two"):
        store.remember(branch.namespace, branch.key, transcript(LONG + end), Origin(branch, old, [(0, len(LONG))], 0))
        store._check()
    assert texts_of(store, "s") == [LONG + "two", LONG + "one"]


def test_short_texts_under_a_key_never_push_out_its_conversations() -> None:
    store = SessionStore()
    for n in range(8):
        remember(store, f"{n}" + LONG, "s")
    for n in range(500):
        remember(store, f"{n}" + SHORT, "s")
    assert [t for t in texts_of(store, "s") if len(t) > 2048] == [f"{n}" + LONG for n in range(7, -1, -1)]
    assert len(store) <= 16


def test_a_conversation_that_outgrows_the_short_places_moves_to_the_long_ones() -> None:
    store = SessionStore()
    remember(store, SHORT, "s")
    (branch,) = store.of_key(store.name(None, "s")[1])
    continue_(store, branch, SHORT + LONG, len(SHORT), 0, branch.key)
    assert texts_of(store, "s")[0] == SHORT + LONG


def test_very_short_texts_are_not_remembered() -> None:
    store = SessionStore()
    remember(store, "x" * (SERVING.remembered_from - 1), "s")
    assert len(store) == 0
    assert store.held == 0


def test_branches_per_key_are_bounded_and_the_least_recent_goes() -> None:
    store = SessionStore()
    for n in range(50):
        remember(store, f"{n:02d}" + LONG, "s")
    assert texts_of(store, "s") == [f"{n:02d}" + LONG for n in range(49, 41, -1)]
    assert store.evictions == 42


def test_the_budget_holds_and_the_least_recently_used_goes_first() -> None:
    one = SessionStore()
    remember(one, "0" + LONG, "0")
    store = SessionStore(budget=one.held * 3 + 500)
    for n in range(3):
        remember(store, f"{n}" + LONG, str(n))
    store.touch(store.of_key(store.name(None, "0")[1])[0])
    remember(store, "3" + LONG, "3")
    assert [n for n in "0123" if texts_of(store, n)] == ["0", "2", "3"]
    assert store.held <= store.budget
    assert store.evictions == 1


def test_a_text_larger_than_the_budget_is_not_remembered_and_pushes_nothing_out() -> None:
    one = SessionStore()
    remember(one, LONG, "s")
    store = SessionStore(budget=one.held + 500)
    remember(store, LONG, "s")
    remember(store, LONG * 20, "t")
    assert texts_of(store, "s") == [LONG]
    assert texts_of(store, "t") == []


def test_a_budget_of_nothing_remembers_nothing() -> None:
    store = SessionStore(budget=0)
    remember(store, LONG, "s")
    assert len(store) == 0
    assert store.held == 0


def test_huge_keys_cost_no_memory() -> None:
    store = SessionStore()
    remember(store, LONG, "k")
    small = store.held
    store.clear()
    remember(store, LONG, "k" * 1_000_000, "n" * 1_000_000)
    assert store.held == small
    assert texts_of(store, "k" * 1_000_000, "n" * 1_000_000) == [LONG]
    assert texts_of(store, "k" * 999_999, "n" * 1_000_000) == []


@pytest.mark.parametrize("odd", ["", "\x00", "\ud800", "ключ", "a" * 70])
def test_any_string_is_a_key_and_a_namespace(odd: str) -> None:
    store = SessionStore()
    remember(store, LONG, odd, odd)
    assert texts_of(store, odd, odd) == [LONG]
    assert texts_of(store, odd + "x", odd) == []
    assert texts_of(store, odd) == []


def test_clear_forgets_everything() -> None:
    store = SessionStore()
    remember(store, LONG, "s")
    store.clear()
    store._check()
    assert texts_of(store, "s") == []
    assert by_content(store, LONG) == []
    assert store.held == 0
    assert len(store) == 0


def test_threads_leave_the_store_consistent() -> None:
    store = SessionStore(budget=400_000)
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for i in range(60):
                space, key = store.name(None, str((n + i) % 3))
                branches = store.of_key(key) or list(store.by_content(space, LONG))
                text = LONG + str(i) * (n + 1)
                if branches:
                    old = branches[0].transcript
                    store.remember(space, key, transcript(text), Origin(branches[0], old, [(0, len(LONG))], i * 50))
                    store.touch(branches[0])
                else:
                    store.remember(space, key, transcript(text))
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store._check()


KEYS = st.sampled_from([None, "a", "b"])
SPACES = st.sampled_from([None, "n"])


class StoreMachine(RuleBasedStateMachine):
    """Remembers, continues, forks, touches and forgets in any order; every text found was put there under that name."""

    @initialize(budget=st.sampled_from([30_000, 200_000, 1 << 30]))
    def start(self, budget: int) -> None:
        self.store = SessionStore(budget)
        self.put: set[tuple[str | None, str | None, str]] = set()  # namespace, session, text

    def record(self, namespace: str | None, session: str | None, text: str) -> None:
        self.put.add((namespace, session, text))

    @rule(
        session=KEYS,
        namespace=SPACES,
        head=st.sampled_from("xyz"),
        length=st.sampled_from([100, 300, 2000, 2100, 5000]),
    )
    def remember(self, session: str | None, namespace: str | None, head: str, length: int) -> None:
        text = (head + LONG)[:length]
        space, key = self.store.name(namespace, session)
        self.store.remember(space, key, transcript(text))
        self.record(namespace, session, text)

    @rule(
        session=KEYS,
        namespace=SPACES,
        pick=st.integers(0, 9),
        keep=st.floats(0, 1),
        more=st.sampled_from([0, 10, 3000]),
    )
    def continue_one(self, session: str | None, namespace: str | None, pick: int, keep: float, more: int) -> None:
        space, key = self.store.name(namespace, session)
        branches = self.store.of_key(key) or list(self.store.by_content(space, "x" + LONG))
        if not branches:
            return
        branch = branches[pick % len(branches)]
        old = branch.transcript.text
        kept = int(len(old) * keep)
        text = old[:kept] + "+" * more
        origin = Origin(branch, branch.transcript, [(0, kept)], len(old) - kept)
        self.store.remember(space, key, transcript(text), origin)
        self.record(namespace, session, text)

    @rule(session=KEYS, namespace=SPACES)
    def touch(self, session: str | None, namespace: str | None) -> None:
        for branch in self.store.of_key(self.store.name(namespace, session)[1]):
            self.store.touch(branch)

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.put.clear()

    @rule(session=st.sampled_from(["a", "b"]), namespace=SPACES)
    def a_key_holds_only_its_own_texts(self, session: str, namespace: str | None) -> None:
        for text in texts_of(self.store, session, namespace):
            assert (namespace, session, text) in self.put

    @rule(head=st.sampled_from("xyz"), namespace=SPACES)
    def content_finds_only_texts_of_the_namespace(self, head: str, namespace: str | None) -> None:
        for text in by_content(self.store, head + LONG, namespace):
            assert any((namespace, session, text) in self.put for session in (None, "a", "b"))

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "store"):
            self.store._check()
            assert self.store.held <= self.store.budget


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=30, stateful_step_count=30)


def test_check_notices_lost_bytes() -> None:
    store = SessionStore()
    remember(store, LONG, "s")
    store._bytes -= 1
    with pytest.raises(AssertionError):
        store._check()


def test_the_bounds_named_here_are_those_of_the_store() -> None:
    """Texts of this file are long or short by the store's own measure."""
    assert len(SHORT) + 3 <= store_module._SHORT < len(LONG)
    assert len(SHORT) >= SERVING.remembered_from
