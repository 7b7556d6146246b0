"""Transcript, checkpoints and the plan of a splice, each against a naive version of itself."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_core import splice
from delta_core.cuts import Cut
from delta_core.ids import IdList
from delta_core.scale import Scale, scaled
from delta_core.splice import (
    Block,
    Checkpoints,
    Transcript,
    common_blocks,
    common_prefix,
    common_suffix,
    reusable,
)

SMALL = st.text("ab", max_size=40)
LONG = st.builds(lambda s, n: s * n, st.text("ab\u4e2d\U0001f600", min_size=1, max_size=9), st.integers(0, 120))


def naive_prefix(a: str, b: str) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


# -- common prefix and suffix --


@given(st.one_of(SMALL, LONG), st.one_of(SMALL, LONG), st.one_of(SMALL, LONG))
def test_common_prefix_is_that_of_a_loop(shared: str, a: str, b: str) -> None:
    assert common_prefix(shared + a, shared + b) == naive_prefix(shared + a, shared + b)
    assert common_prefix("xy" + shared + a, "z" + shared + b, 2, 1) == naive_prefix(shared + a, shared + b)


@given(st.one_of(SMALL, LONG), st.one_of(SMALL, LONG), st.one_of(SMALL, LONG), st.integers(0, 300))
def test_common_suffix_is_that_of_a_loop(shared: str, a: str, b: str, limit: int) -> None:
    want = naive_prefix((a + shared)[::-1], (b + shared)[::-1])
    assert common_suffix(a + shared, b + shared, limit) == min(want, limit)
    assert common_suffix(a + shared + "xy", b + shared + "z", limit, len(a + shared), len(b + shared)) == min(
        want, limit
    )


@given(st.one_of(SMALL, LONG), st.one_of(SMALL, LONG), st.one_of(SMALL, LONG), st.integers(0, 300))
def test_guessing_where_texts_part_changes_nothing(shared: str, a: str, b: str, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splice, "_LOOK", 2)
        patch.setattr(splice, "_GUESS_FROM", 2)
        want = naive_prefix(shared + a, shared + b)
        assert common_prefix(shared + a, shared + b) == want
        assert common_prefix("xy" + shared + a, "z" + shared + b, 2, 1, limit) == min(want, limit)
        want = naive_prefix((a + shared)[::-1], (b + shared)[::-1])
        assert common_suffix(a + shared, b + shared, limit) == min(want, limit)
        whole = len(a + shared), len(b + shared)
        assert common_suffix(a + shared + "xy", b + shared + "z", limit, *whole) == min(want, limit)


@pytest.mark.parametrize("odd", ["", "\u4e2d", "\U0001f600"])
@pytest.mark.parametrize("at", [0, 47, 48, 300, 40_000, 96_000, 99_700, 99_743, 99_744, 99_999])
def test_one_changed_character_of_a_long_text_is_found(at: int, odd: str) -> None:
    text = odd + "".join(f"{n} and " for n in range(12_000))
    a, b = text[:100_000], text[:at] + "!" + text[at + 1 :]
    assert common_prefix(a, b) == common_prefix(b, a) == at
    assert common_prefix(a, b, limit=50_000) == min(at, 50_000)
    assert common_suffix(a, b[:100_000], 100_000) == 99_999 - at
    assert common_suffix(a, b[:100_000], 30_000) == min(99_999 - at, 30_000)
    assert common_prefix("x" + a, a, 1) == common_suffix("x" + a, a, 200_000) == 100_000


@pytest.mark.parametrize("at", [0, 1, 63, 64, 65, 319, 320, 321, 5000, 9999])
def test_one_changed_character_is_found_wherever_it_stands(at: int) -> None:
    a = "é" * 10_000
    b = a[:at] + "x" + a[at + 1 :]
    assert common_prefix(a, b) == at
    assert common_suffix(a, b, 10_000) == 9_999 - at


def test_a_prefix_of_itself_is_shared_whole() -> None:
    assert common_prefix("", "") == common_prefix("", "a") == 0
    assert common_prefix("abc" * 100, "abc" * 100) == 300
    assert common_prefix("abc" * 100, "abc" * 100 + "d") == 300


# -- common blocks --


def assert_blocks(old: str, new: str) -> list[Block]:
    blocks = common_blocks(old, new, common_prefix(old, new))
    for block in blocks:
        assert 0 <= block.start <= block.end <= len(old)
        assert old[block.start : block.end] == new[block.start + block.shift : block.end + block.shift]
        assert block.start + block.shift >= 0
        assert block.end + block.shift <= len(new)
    for a, b in pairwise(blocks):
        assert a.end <= b.start, "no character of the old text is used twice"
        assert a.end + a.shift <= b.start + b.shift, "nor one of the new text"
    return blocks


@given(SMALL, SMALL, SMALL, SMALL)
@example("", "", "", "")
@example("a", "", "a", "")
@example("aa", "", "a", "aa")
def test_blocks_hold_the_same_characters_in_order(head: str, old: str, new: str, tail: str) -> None:
    with scaled(Scale(realign_from=4, anchor=3, anchor_steps=(0, 2, 7))):
        assert_blocks(head + old + tail, head + new + tail)


def test_a_phrase_said_twice_is_no_block_of_its_own() -> None:
    """A head was trimmed, a turn appended; what stands where an anchor is taken from also stands elsewhere."""
    head, gone, kept, turn = ("".join(f"{what}{n:05d}, " for n in range(1500)) for what in ("sys", "old", "all", "new"))
    phrase = "the very same words in two places of the text, as in a template. "
    gone = gone[:4096] + phrase + gone[4096:]
    kept = kept[:3000] + phrase + kept[3000:]
    before, after = head + gone + kept, head + kept + turn
    assert before.find(phrase) == len(head) + 4096
    _, block, *_ = assert_blocks(before, after)
    assert (block.start, block.shift) == (len(head + gone), -len(gone))
    assert block.end > len(before) - 10


def test_several_edits_at_once_leave_several_blocks() -> None:
    parts = ["".join(f"{part}{i:04d} " for i in range(300)) for part in "abcd"]
    old = "".join(parts)
    new = parts[0] + "EDIT" + parts[1] + "EDIT2" + parts[2][900:] + "EDIT3" + parts[3]
    blocks = assert_blocks(old, new)
    assert sum(block.end - block.start for block in blocks) > len(old) * 0.8


def test_a_trimmed_head_leaves_the_rest() -> None:
    old = "".join(f"{i:05d} " for i in range(3000))
    blocks = assert_blocks(old, old[7000:] + "more")
    assert max(block.end - block.start for block in blocks) == len(old) - 7000


# -- Checkpoints --


@pytest.mark.parametrize(("left", "right"), [(0, 65_536), (65_536, 0), (70_000, 70_000), (1, 1 << 20)])
def test_a_cut_that_more_characters_decide_than_a_checkpoint_can_say_is_not_stored(left: int, right: int) -> None:
    c = Checkpoints()
    c.append(Cut(100_000, 65_535, 65_535), 10)
    c.append(Cut(2_000_000, left, right), 20)
    c.append(Cut(3_000_000, 1, 1), 30)
    assert c.positions.tolist() == [100_000, 3_000_000]
    assert c.tokens.tolist() == [10, 30]
    assert c.first_inside(100_000 - 65_535) == 0
    assert c.first_inside(100_000 - 65_534) == 1
    assert c.last_inside(100_000 + 65_535) == 0
    assert c.last_inside(100_000 + 65_534) == -1


CUTS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5), st.integers(0, 5)), max_size=12)


def checkpoints_of(cuts: list[tuple[int, int, int]]) -> Checkpoints:
    c = Checkpoints()
    for n, (position, left, right) in enumerate(sorted({cut[0]: cut for cut in cuts}.values())):
        c.append(Cut(position, min(left, position), right), n * 2)
    return c


@given(CUTS, st.integers(0, 70))
def test_a_checkpoint_counts_only_with_its_deciding_characters_inside(
    cuts: list[tuple[int, int, int]], at: int
) -> None:
    c = checkpoints_of(cuts)
    left = [e >> 16 for e in c.extents]
    right = [e & 0xFFFF for e in c.extents]
    inside = [i for i, p in enumerate(c.positions) if p - left[i] >= at]
    assert c.first_inside(at) == min(inside, default=len(c))
    inside = [i for i, p in enumerate(c.positions) if p + right[i] <= at]
    assert c.last_inside(at) == max(inside, default=-1)


@given(CUTS, st.integers(0, 12), st.integers(0, 12), st.integers(0, 9), st.integers(0, 9))
def test_checkpoints_move_with_their_text(
    cuts: list[tuple[int, int, int]], first: int, last: int, shift: int, tokens: int
) -> None:
    old, new = checkpoints_of(cuts), Checkpoints()
    new.extend_from(old, first, last, shift, tokens)
    assert list(new.positions) == [p + shift for p in old.positions[first : last + 1]]
    assert list(new.tokens) == [t + tokens for t in old.tokens[first : last + 1]]
    assert new.extents == old.extents[first : last + 1]


# -- the plan of a splice --


def transcript_of(text: str, cuts: list[tuple[int, int, int]]) -> Transcript:
    """A transcript in which every character is one token, its code point."""
    c = Checkpoints()
    for position, left, right in sorted({cut[0]: cut for cut in cuts}.values()):
        if 0 < position < len(text):
            c.append(Cut(position, min(left, position), min(right, len(text) - position)), position)
    transcript = Transcript(text, IdList.of([(list(map(ord, text)), 0, len(text))]), c)
    transcript._check()
    return transcript


@given(SMALL, SMALL, SMALL, SMALL, CUTS)
@settings(max_examples=300)
def test_a_plan_takes_over_the_tokens_of_the_same_characters(
    head: str, old: str, new: str, tail: str, cuts: list[tuple[int, int, int]]
) -> None:
    before, after = head + old + tail, head + new + tail
    transcript = transcript_of(before, cuts)
    blocks = common_blocks(before, after, common_prefix(before, after))
    at = 0
    for reuse in reusable(transcript, after, blocks):
        assert at <= reuse.start < reuse.end <= len(after)
        at = reuse.end
        taken = IdList(transcript.ids.slice(reuse.token_start, reuse.token_end)).copy()
        assert taken == list(map(ord, after[reuse.start : reuse.end]))
        # The edges are ends of both texts, or checkpoints whose deciding characters are shared.
        for position, index in ((reuse.start, reuse.first), (reuse.end, reuse.last)):
            if 0 <= index < len(transcript.checkpoints):
                extent = transcript.checkpoints.extents[index]
                there = transcript.checkpoints.positions[index]
                assert there + reuse.shift == position
                low, high = there - (extent >> 16), there + (extent & 0xFFFF)
                assert before[low:high] == after[low + reuse.shift : high + reuse.shift]
                assert any(b.start <= low and high <= b.end and b.shift == reuse.shift for b in blocks)
            else:
                assert position in (0, len(after))


def test_an_edge_whose_right_hand_character_changed_is_not_used() -> None:
    transcript = transcript_of("aaaa\nbbbb", [(5, 1, 1)])
    assert reusable(transcript, "aaaa\nXbbb", common_blocks("aaaa\nbbbb", "aaaa\nXbbb", 5)) == []
    (reuse,) = reusable(transcript, "aaaa\nbXbb", [Block(0, 6, 0)])
    assert (reuse.start, reuse.end) == (0, 5)


def test_an_edge_whose_left_hand_character_changed_is_not_used() -> None:
    transcript = transcript_of("aaaa\nbbbb", [(5, 1, 1)])
    assert reusable(transcript, "aaX\nbbbb"[1:], [Block(5, 9, -2)]) == []


def test_the_same_text_again_is_one_reuse_of_everything() -> None:
    transcript = transcript_of("aaaa\nbbbb", [(5, 1, 1)])
    (reuse,) = reusable(transcript, transcript.text, [Block(0, 9, 0)])
    assert (reuse.start, reuse.end, reuse.token_start, reuse.token_end) == (0, 9, 0, 9)


# -- _check --


@pytest.mark.parametrize(
    ("positions", "counts", "extents"),
    [
        ([3, 2], [1, 2], [0, 0]),  # not ascending
        ([2, 3], [2, 1], [0, 0]),  # tokens go back
        ([9], [1], [0]),  # behind the text
        ([1], [1], [2 << 16]),  # decided by characters before the text
        ([2], [1], [9]),  # decided by characters behind the text
        ([2], [99], [0]),  # more tokens than there are
        ([2], [], [0]),  # arrays of different length
    ],
)
def test_check_notices_a_broken_transcript(positions: list[int], counts: list[int], extents: list[int]) -> None:
    transcript = transcript_of("abcd", [])
    c = transcript.checkpoints
    c.positions, c.tokens, c.extents = array("I", positions), array("I", counts), array("I", extents)
    with pytest.raises(AssertionError):
        transcript._check()
