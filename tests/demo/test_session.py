"""The generated session has the shape it promises, and a user's transcript is read or refused with a reason."""

from __future__ import annotations

import gzip
import hashlib
import json
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest

from delta_core.tools.demo.session import Message, SessionError, Turn, generate, load, spread, turns_of

TARGET = 400_000


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    return list(generate(target_chars=TARGET))


def size(turn: Turn) -> int:
    return sum(m.size for m in turn.messages)


def text(turn: Turn) -> str:
    return "\n".join(t for m in turn.messages for t in (m.content, *(c.arguments for c in m.tool_calls)) if t)


def digest(seed: int) -> str:
    return hashlib.sha256(repr(list(generate(seed=seed, target_chars=40_000))).encode()).hexdigest()


def test_a_seed_gives_one_session_and_another_seed_another() -> None:
    assert digest(3) == digest(3)
    assert digest(3) != digest(4)


def test_the_default_session_is_long_and_mostly_small_appends(turns: list[Turn]) -> None:
    kinds = [t.kind for t in turns]
    assert kinds[0] == "start"
    assert "start" not in kinds[1:]
    assert kinds.count("think") >= 3
    assert kinds.count("edit") >= 2
    assert kinds.count("trim") == 1
    assert 60 <= len(turns) <= 120
    assert all(size(t) >= TARGET for t in turns[-10:])
    grown = [size(b) - size(a) for a, b in pairwise(turns) if b.kind == "append" and size(a) > 0.9 * TARGET]
    late = sorted(g for g in grown if g < 5000)
    assert len(late) >= 40
    assert late[0] >= 50
    assert 400 <= late[len(late) // 2] <= 1300


@pytest.mark.parametrize("target", [20_000, 60_000, 1_000_000])
def test_other_lengths_have_all_kinds_too(target: int) -> None:
    made = list(generate(target_chars=target, seed=1))
    assert {t.kind for t in made} == {"start", "append", "think", "edit", "trim"}
    assert size(made[-1]) >= 0.97 * target
    assert [t.index for t in made] == list(range(len(made)))


def test_each_kind_relates_to_the_turn_before_as_it_says(turns: list[Turn]) -> None:
    for old, new in pairwise(turns):
        a, b = old.messages, new.messages
        if new.kind in ("append", "think"):
            assert b[: len(a)] == a
            assert len(b) > len(a)
            assert old.thinking == (new.kind == "think")
        elif new.kind == "edit":
            changed = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
            assert len(changed) == 1
            assert len(b) >= len(a)
        elif new.kind == "trim":
            kept = [i for i, m in enumerate(a) if m is b[1]]
            assert b[0] is a[0]
            assert kept
            assert kept[0] > 1
            rest = a[kept[0] :]
            assert b[1 : 1 + len(rest)] == rest
            assert len(b) > 1 + len(rest)
            assert b[1].role != "tool"


def test_every_tool_result_answers_a_call(turns: list[Turn]) -> None:
    calls = {c.id for m in turns[-1].messages for c in m.tool_calls}
    results = {m.tool_call_id for m in turns[-1].messages if m.role == "tool"}
    assert results == calls
    assert all(isinstance(json.loads(c.arguments), dict) for m in turns[-1].messages for c in m.tool_calls)
    assert turns[-1].messages[0].role == "system"
    assert '"type": "function"' in (turns[-1].messages[0].content or "")


@pytest.mark.parametrize(
    "script", ["CJK UNIFIED", "HIRAGANA", "HANGUL", "CYRILLIC", "ARABIC", "DEVANAGARI", "WITH ACUTE", "COMBINING"]
)
def test_scripts_are_there(turns: list[Turn], script: str) -> None:
    assert any(script in unicodedata.name(c, "") for c in set(text(turns[-1])))


def test_awkward_text_is_there(turns: list[Turn]) -> None:
    whole = text(turns[-1])
    assert "\r\n" in whole
    assert "\t" in whole
    assert any(unicodedata.category(c) == "So" and ord(c) > 0xFFFF for c in set(whole)), "emoji"
    assert unicodedata.normalize("NFC", whole) != whole, "some text is decomposed"
    assert max(map(len, whole.split("\n"))) > 1000, "long lines"
    assert "«" not in whole.replace("« ", ""), "a slot was left unfilled"


def test_text_is_varied(turns: list[Turn]) -> None:
    lines = [line for line in text(turns[-1]).split("\n") if len(line) > 50]
    assert len(set(lines)) > 0.75 * len(lines)


# --- transcripts ----------------------------------------------------------------------------------------------------

HELLO = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def write(folder: Path, content: str, name: str = "s.jsonl") -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"id": "a", "messages": HELLO}) + "\n",
        "\n".join(map(json.dumps, HELLO)),
        json.dumps(HELLO, indent=2),
        json.dumps({"messages": HELLO}, indent=2),
        json.dumps([{"messages": HELLO}]),
        json.dumps([HELLO]),
    ],
)
def test_shapes_of_a_file(tmp_path: Path, content: str) -> None:
    assert load(write(tmp_path, content)) == [[Message("user", "hi"), Message("assistant", "hello")]]


def test_sessions_a_line_and_compressed(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps({"id": i, "messages": HELLO}) for i in range(3)).encode()))
    assert len(load(path)) == 3


def test_tolerant_of_what_clients_send(tmp_path: Path) -> None:
    records = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {}}, "look"]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_call_id": "1", "content": None},
    ]
    [session] = load(write(tmp_path, "\n".join(map(json.dumps, records))))
    assert [m.role for m in session] == ["system", "user", "assistant", "tool"]
    assert [m.content for m in session] == ["be brief", "[image_url]look", None, None]
    assert session[2].tool_calls[0].arguments == '{"a": 1}'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file is empty"),
        ("[]", "found an empty list"),
        ('{"messages": []}', "no messages"),
        ('{"role": "user", "content": "x"}\n{"role": \n', "s.jsonl:2: not JSON"),
        ('{"messages": [{"content": "x"}]}\n', 'message 1: a message needs a "role"'),
        ('{"role": "user", "content": "x"}\n{"role": "user", "content": 7}\n', "s.jsonl:2: content must be"),
        ('{"role": "user"}\n{"messages": [{"role": "user"}]}\n', "one kind a file"),
        ('{"a": 1}\n{"b": 1}\n', "s.jsonl:1: expected an object"),
        ('{"role": "assistant", "tool_calls": [{"function": {}}]}', "tool call 1: expected"),
        ("12", "expected messages, found int"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(SessionError, match=r"s\.jsonl") as caught:
        load(write(tmp_path, content))
    assert says in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="No such file"):
        load(tmp_path / "none.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(SessionError, match="not UTF-8"):
        load(tmp_path / "bytes.jsonl")
    (tmp_path / "broken.jsonl.xz").write_bytes(b"no archive")
    with pytest.raises(SessionError, match=r"broken\.jsonl\.xz"):
        load(tmp_path / "broken.jsonl.xz")


def test_turns_of_a_recorded_session() -> None:
    messages = [Message(r) for r in ("system", "user", "assistant", "tool", "assistant", "assistant", "user")]
    made = list(turns_of(messages))
    assert [len(t.messages) for t in made] == [2, 4, 7]
    assert [t.kind for t in made] == ["start", "append", "append"]
    assert list(turns_of([Message("assistant")])) == []


def test_a_limit_spreads_the_turns() -> None:
    messages = [Message("user" if i % 2 == 0 else "assistant") for i in range(41)]
    made = list(turns_of(messages, limit=5))
    assert [len(t.messages) for t in made] == [1, 11, 21, 31, 41]
    assert spread(10, 0) == []
    assert spread(10, 1) == [9]
    assert spread(2, 9) == [0, 1]
    assert list(made[1].messages) == messages[:11]
