"""Kept IDs: the piece table against the plain list of its parts, as lists and as arrays, and shared integers."""

from __future__ import annotations

import inspect
import sys
import threading
from array import array
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_core import ids as ids_room
from delta_core.ids import IdList, Kind, Part, from_numbers, shared_ids

KINDS = pytest.mark.parametrize("kind", [list, array], ids=["list", "array"])


def made(kind: Kind, numbers: list[int]) -> list[int] | array[int]:
    return numbers if kind is list else array("q", numbers)


@st.composite
def parts_of_few_lists(draw: st.DrawFn) -> list[Part]:
    """Slices of two or three lists, as the turns of a session share them: in order, out of order, overlapping."""
    lists = [list(range(100 * n, 100 * n + draw(st.integers(0, 40)))) for n in range(draw(st.integers(1, 3)))]
    spans = draw(st.lists(st.tuples(st.sampled_from(lists), st.integers(0, 40), st.integers(0, 40)), max_size=40))
    if draw(st.booleans()):
        spans.sort(key=lambda span: min(span[1], span[2]))
    return [(ids, min(a, b, len(ids)), min(max(a, b), len(ids))) for ids, a, b in spans]


PARTS = parts_of_few_lists()


def flat(parts: list[Part]) -> list[int]:
    return [i for ids, start, stop in parts for i in ids[start:stop]]


@given(PARTS, st.integers(0, 400), st.integers(0, 400))
@settings(max_examples=400)
def test_an_id_list_is_the_list_its_parts_make(parts: list[Part], a: int, b: int) -> None:
    before = flat(parts)
    for ids in (IdList(parts), IdList.of(parts)):
        assert ids.copy() == before
        assert ids.length == len(before)
        assert flat(ids.slice(a, b)) == before[a : max(a, b)]
    assert flat(parts) == before, "shared lists are never changed"


def test_a_copy_is_fresh_each_time() -> None:
    ids = IdList.of([([1, 2, 3], 0, 3)])
    first = ids.copy()
    first.clear()
    assert ids.copy() == [1, 2, 3]
    one, two = [1, 2], [3]
    ids = IdList.of([(one, 0, 2), (two, 0, 1)])
    ids.copy().append(4)
    assert ids.copy() == [1, 2, 3]
    assert one == [1, 2]
    assert two == [3]


def test_ids_of_a_long_session_stay_few_parts_and_waste_little() -> None:
    """A thousand turns, each of which keeps all but the end of the one before."""
    want: list[int] = []
    ids = IdList.of([])
    for turn in range(1000):
        keep = max(len(want) - 3, 0)
        new = list(range(turn, turn + 7))
        want = want[:keep] + new
        ids = IdList.of([*ids.slice(0, keep), (new, 0, len(new))])
        assert ids.copy() == want
        assert len(ids._parts) <= ids_room._MAX_PARTS + 1
        assert ids.bytes() <= 9 * 1.3 * len(want) + 130 * len(ids._parts) + 600


@given(PARTS, st.integers(0, 400))
@settings(max_examples=400)
@KINDS
def test_settling_changes_where_ids_are_kept_and_nothing_else(kind: Kind, parts: list[Part], tokens: int) -> None:
    parts = [(made(kind, ids[:]), start, stop) for ids, start, stop in parts]
    want = flat(parts)
    other = IdList(parts, kind)  # a reader of the same lists
    ids = IdList(parts, kind)
    ids.settle(min(tokens, len(want)))
    assert ids.copy() == other.copy() == made(kind, want)
    assert ids.length == len(want)
    assert type(ids.copy()) is kind


@KINDS
def test_a_long_session_grows_one_list(kind: Kind) -> None:
    """A thousand turns, each of which keeps all but the unsettled end of the one before."""
    want: list[int] = []
    ids = IdList([], kind)
    lists = set()
    for turn in range(1000):
        keep = max(len(want) - 3, 0)
        new = list(range(turn, turn + 9))
        want = want[:keep] + new
        ids = IdList.of([*ids.slice(0, keep), (made(kind, new), 0, len(new))], kind)
        if turn:
            ids.settle(len(want) - 3)
        else:
            ids = ids.own(len(want) - 3)
        assert ids.copy() == made(kind, want)
        lists.add(id(ids._parts[0][0]))
    assert len(ids._parts) <= 2
    assert len(lists) < 30
    assert ids.bytes() <= 9 * len(want) + 500


@KINDS
def test_an_edit_in_mid_history_does_not_move_what_stands_behind_it(kind: Kind) -> None:
    base, edit, tail = made(kind, list(range(1000))), made(kind, [-1, -2]), made(kind, [-3, -4, -5])
    ids = IdList.of([(base, 0, 400), (edit, 0, 2), (base, 410, 1000), (tail, 0, 3)], kind)
    ids.settle(994)
    assert len(edit) == 2
    assert len(base) == 1002
    assert base[-2:] == made(kind, [-3, -4])
    assert list(ids.copy()) == [*range(400), -1, -2, *range(410, 1000), -3, -4, -5]


def test_an_old_reader_keeps_its_ids_when_the_list_grows() -> None:
    base = list(range(100))
    old = IdList([(base, 0, 100)])
    new = IdList.of([*old.slice(0, 100), ([7, 8, 9], 0, 3)])
    new.settle(102)
    assert len(base) == 102
    assert old.copy() == list(range(100))
    assert new.copy() == [*range(100), 7, 8, 9]


@KINDS
def test_own_shares_nothing(kind: Kind) -> None:
    base = made(kind, [1, 2, 3])
    for tokens in range(4):
        owned = IdList([(base, 0, 3)], kind).own(tokens)
        assert owned.copy() == base == made(kind, [1, 2, 3])
        assert all(ids is not base for ids in owned.lists())
        assert len(owned.lists()[0]) == tokens or tokens == 0


# -- shared integers --


def test_equal_ids_are_one_object_in_the_whole_process() -> None:
    a, b = shared_ids([5, 100_000, 7]), shared_ids([int("100000"), 5])
    assert a == [5, 100_000, 7]
    assert a[1] is b[0]
    assert a[0] is b[1]
    assert shared_ids([]) == []


def test_threads_that_meet_new_numbers_at_once_get_the_right_ones() -> None:
    barrier = threading.Barrier(8)
    wrong: list[int] = []

    def work(n: int) -> None:
        barrier.wait()
        for step in range(40):
            ids = [step * 500 + n + 10**6, step + 10**6, step * 300 + 10**6]
            if shared_ids(ids) != ids:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("numbers", [[], [0], [5, 3, 5], [70_000, 1, 0], [2**32 - 1, 1], list(range(500, 0, -7))])
def test_an_encoders_numbers_become_shared_integers_or_an_array(numbers: list[int]) -> None:
    given_ = np.array(numbers, np.uint32)
    ids = from_numbers(given_, list)
    assert ids == numbers
    assert all(type(i) is int for i in ids)
    assert all(a is b for a, b in zip(ids, shared_ids(numbers), strict=True))
    assert from_numbers(given_, array) == array("q", numbers)
    ids.append(1)  # a list of its own
    assert from_numbers(given_, list) == numbers


def test_numbers_of_which_some_are_met_for_the_first_time_are_shared_too() -> None:
    shared_ids([999_999])  # the table reaches so far
    numbers = [900_001, 5, 900_002, 900_001, 999_999]
    ids = from_numbers(np.array(numbers, np.uint32), list)
    assert ids == numbers
    assert ids[0] is ids[3]
    assert all(a is b for a, b in zip(ids, shared_ids(numbers), strict=True))


@pytest.mark.parametrize("numbers", [[7, 3, 20_000, 7, 40_000], [7, 3, 50_000, 20_000, 7, 40_000]])
def test_an_exception_anywhere_while_numbers_are_made_leaves_true_tables(
    numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, no memory, a fork: whoever comes next gets every ID, and one object for each."""
    lines, first = inspect.getsourcelines(ids_room._make)
    # The way out of a `with` is a visit to its line that the interpreter interrupts for nobody.
    way_out = first + next(n for n, line in enumerate(lines) if "with _making" in line)
    steps = 0
    for stop in range(60):
        monkeypatch.setattr(ids_room, "_table", [])
        monkeypatch.setattr(ids_room, "_arrays", (np.empty(0, object), np.empty(0, bool)))
        shared_ids([3, 40_000])  # the tables reach as far as 49,151
        seen = 0

        def trace(frame: FrameType, event: str, argument: object, stop: int = stop) -> Any:
            nonlocal seen
            if frame.f_code is not ids_room._make.__code__:
                return None if event == "call" else trace
            seen += event == "line" and frame.f_lineno != way_out
            if seen > stop:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            assert shared_ids(numbers) == numbers
        except KeyboardInterrupt:
            steps += 1
        else:
            break
        finally:
            sys.settrace(before)
        ids = from_numbers(np.array(numbers, np.uint32), list)
        assert ids == numbers
        assert all(a is b for a, b in zip(ids, shared_ids(numbers), strict=True))
        assert not ids_room._making.locked()
    assert steps > 10, "every line was the last one once"


def test_a_base_that_another_thread_grows_while_it_is_copied_gives_the_ids_of_its_own() -> None:
    class Grown(list[int]):
        def __add__(self, other: list[int]) -> list[int]:  # type: ignore[override]
            self.append(99)
            return [*self, *other]

    base = Grown([1, 2, 3])
    assert IdList([(base, 0, 3), ([4, 5], 0, 2)]).copy() == [1, 2, 3, 4, 5]
    assert base == [1, 2, 3, 99], "the sum was made, and seen to be too long"
