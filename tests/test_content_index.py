"""ContentIndex: it proposes, bounded and namespaced; it never decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_core import store as store_module
from delta_core.scale import scale
from delta_core.store import ContentIndex

SPACE, OTHER = bytes(16), bytes([1] * 16)


def text_of(length: int, salt: str = "") -> str:
    return (salt + "".join(f"{i} word\n" for i in range(length // 6 + 1)))[:length]


def filled(*texts: str, namespace: bytes = SPACE) -> ContentIndex:
    index = ContentIndex()
    for n, text in enumerate(texts):
        index.add(n, index.fingerprints(namespace, text))
    return index


def test_a_continuation_of_a_stored_text_finds_it() -> None:
    index = filled(text_of(5000), text_of(5000, "x"))
    assert next(index.propose(SPACE, text_of(5000) + " and more")) == 0
    assert next(index.propose(SPACE, text_of(5000, "x"))) == 1


def test_a_text_that_shares_only_its_head_is_proposed_for_it() -> None:
    assert list(filled(text_of(9000)).propose(SPACE, text_of(4000) + "z" * 3000))


def test_a_changed_head_of_the_same_length_still_finds_it() -> None:
    stored = text_of(9000)
    assert list(filled(stored).propose(SPACE, "#" * 20 + stored[20:]))


def test_the_text_that_shares_most_comes_first() -> None:
    texts = [text_of(n) + f"{n}" * 300 for n in (1500, 12_000, 3000)]
    assert next(filled(*texts).propose(SPACE, text_of(20_000))) == 1


def test_nothing_is_proposed_across_namespaces() -> None:
    index = filled(text_of(5000), namespace=OTHER)
    assert list(index.propose(SPACE, text_of(5000))) == []
    assert list(index.propose(OTHER, text_of(5000))) != []


def test_what_was_removed_is_not_proposed_and_leaves_nothing() -> None:
    index = ContentIndex()
    fingerprints = index.fingerprints(SPACE, text_of(5000))
    index.add("branch", fingerprints)
    index.remove("branch", fingerprints)
    assert list(index.propose(SPACE, text_of(5000))) == []
    assert len(index) == 0


def test_a_thousand_texts_with_one_head_are_proposals_of_bounded_number_newest_first() -> None:
    index = ContentIndex()
    stored = {}
    for n in range(1000):
        stored[n] = index.fingerprints(SPACE, text_of(1200) + str(n))
        index.add(n, stored[n])
    index._check(stored)
    proposals = list(index.propose(SPACE, text_of(1200)))
    assert proposals[0] == 999
    assert len(proposals) <= store_module._PER_FINGERPRINT * 2
    for n in range(1000):
        index.remove(n, stored[n])  # those pushed out of their bucket included
    assert len(index) == 0


@given(st.integers(0, 8000), st.integers(0, 8000), st.integers(0, 3000))
def test_fingerprints_taken_over_from_the_turn_before_are_those_computed_anew(
    same: int, old_extra: int, new_extra: int
) -> None:
    index = ContentIndex()
    shared = text_of(same)
    old, new = shared + "o" * old_extra, shared + "n" * new_extra
    assert index.fingerprints(SPACE, new, index.fingerprints(SPACE, old), [(0, same)]) == index.fingerprints(SPACE, new)


@given(st.lists(st.integers(0, 9000), max_size=6), st.integers(0, 9000), st.integers(0, 9000))
def test_fingerprints_taken_over_around_edits_are_those_computed_anew(
    edits: list[int], old_size: int, size: int
) -> None:
    index = ContentIndex()
    old, new = text_of(9000)[:old_size], list(text_of(9000)[:size])
    same, at = [], 0
    for edit in sorted({e for e in edits if e < min(old_size, size)}):
        new[edit] = "#"
        same.append((at, edit))
        at = edit + 1
    same.append((at, min(old_size, size)))
    text = "".join(new)
    made: list[int] = []
    fingerprint = index._fingerprint

    def counting(namespace: bytes, text: str, position: int) -> bytes:
        made.append(position)
        return fingerprint(namespace, text, position)

    known = index.fingerprints(SPACE, old)
    index._fingerprint = counting  # type: ignore[method-assign]
    taken = index.fingerprints(SPACE, text, known, same)
    untouched = [p for p in scale().positions if p <= min(old_size, size) and "#" not in text[p - scale().window : p]]
    assert not set(made) & set(untouched)
    assert taken == index.fingerprints(SPACE, text)


def test_fingerprints_are_keyed_per_process_so_that_nobody_can_aim_at_a_bucket() -> None:
    assert ContentIndex().fingerprints(SPACE, text_of(3000)) != ContentIndex().fingerprints(SPACE, text_of(3000))


def test_few_windows_are_hashed_of_a_long_text() -> None:
    fingerprints = ContentIndex().fingerprints(SPACE, text_of(400_000))
    assert len(fingerprints) <= 40


@pytest.mark.parametrize("text", ["\ud800" * 3000, "a\udfff" * 2000])
def test_lone_surrogates_are_looked_up_without_an_error(text: str) -> None:
    assert list(filled(text_of(3000)).propose(SPACE, text)) == []
