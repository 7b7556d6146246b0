"""Sessions for the demo: a seeded generator of a tool-using coding session, and a loader for a user's own.

The generator writes its own text from templates and word lists: an encoder sees what an agent's context holds (code,
diffs, logs, JSON, stack traces, several scripts, line endings of both kinds), and the same seed gives the same session
on every machine. Nothing here knows a tokenizer or a chat template; `templates` renders messages to text.
"""

from __future__ import annotations

import gzip
import json
import lzma
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import DeltaError
from .content import (
    FOLLOW_UPS,
    NARRATION,
    REQUESTS,
    THOUGHTS,
    Writer,
    answer,
    material,
    repository_notes,
    system_prompt,
    tool_use,
)
from .messages import Kind, Message, ToolCall, Turn

__all__ = ["Kind", "Message", "SessionError", "ToolCall", "Turn", "generate", "load", "spread", "turns_of"]


class SessionError(DeltaError):
    """A transcript that cannot be read; the text names the file and, where there is one, the line."""


# ----------------------------------------------------------------------------------------------------------------
# A user's transcripts
# ----------------------------------------------------------------------------------------------------------------

_ROLES = {"developer": "system", "function": "tool", "human": "user", "ai": "assistant"}


def load(path: str | Path) -> list[list[Message]]:
    """Read sessions from a file: one `{"messages": [...]}` a line, one message a line, or one JSON document.

    A JSON document is a list of messages, a list of sessions, or one session object. Names ending in .gz or .xz are
    decompressed. Raises SessionError (file and line) for anything else. Reads the whole file.
    """
    path = Path(path)
    text = _read(path)
    if not text.strip():
        raise SessionError(f"{path}: the file is empty")
    try:
        return _sessions(json.loads(text), str(path))
    except json.JSONDecodeError:
        pass  # more than one document, or a broken one: reading by lines tells which, and where
    sessions: list[list[Message]] = []
    loose: list[Message] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise SessionError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
        if isinstance(record, dict) and "role" in record:
            loose.append(_message(record, where))
        else:
            sessions.extend(_sessions(record, where))
    if loose and sessions:
        raise SessionError(f"{path}: some lines are messages and some are sessions; one kind a file")
    return [loose] if loose else sessions


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if path.suffix == ".xz":
            raw = lzma.decompress(raw)
        elif path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise SessionError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SessionError(f"{path}: not UTF-8 (byte {error.start})") from None


def _sessions(record: object, where: str) -> list[list[Message]]:
    if isinstance(record, dict) and "role" in record:
        return [[_message(record, where)]]
    if isinstance(record, dict):
        if not isinstance(record.get("messages"), list):
            raise SessionError(f'{where}: expected an object with a list "messages" or a message with a "role"')
        name = f"{where} session {record['id']!r}" if "id" in record else where
        messages = [_message(m, f"{name} message {i}") for i, m in enumerate(record["messages"], 1)]
        if not messages:
            raise SessionError(f"{name}: the session has no messages")
        return [messages]
    if isinstance(record, list) and record:
        if all(isinstance(m, dict) and "role" in m for m in record):
            return [[_message(m, f"{where} message {i}") for i, m in enumerate(record, 1)]]
        return [s for i, r in enumerate(record, 1) for s in _sessions(r, f"{where} item {i}")]
    found = "an empty list" if record == [] else type(record).__name__
    raise SessionError(f"{where}: expected messages, found {found}")


def _message(record: object, where: str) -> Message:
    if not isinstance(record, dict):
        raise SessionError(f"{where}: a message must be an object, found {type(record).__name__}")
    role = record.get("role")
    if not isinstance(role, str) or not role:
        raise SessionError(f'{where}: a message needs a "role"')
    calls = record.get("tool_calls") or []
    if not isinstance(calls, list):
        raise SessionError(f'{where}: "tool_calls" must be a list, found {type(calls).__name__}')
    reasoning = record.get("reasoning_content")
    return Message(
        role=_ROLES.get(role, role),
        content=_content(record.get("content"), where),
        tool_calls=tuple(_tool_call(c, f"{where} tool call {i}") for i, c in enumerate(calls, 1)),
        tool_call_id=_text_or_none(record.get("tool_call_id")),
        name=_text_or_none(record.get("name")),
        reasoning_content=_content(reasoning, where),
    )


def _content(value: object, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise SessionError(f"{where}: content must be text, a list of parts or null, found {type(value).__name__}")
    parts: list[str] = []
    for part in value:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif isinstance(part, dict):
            # An image or a file has no text; its place keeps the rest of the transcript usable.
            parts.append(f"[{part.get('type', 'part')}]")
        else:
            raise SessionError(f"{where}: a content part must be text or an object, found {type(part).__name__}")
    return "".join(parts)


def _tool_call(record: object, where: str) -> ToolCall:
    if not isinstance(record, dict):
        raise SessionError(f"{where}: expected an object, found {type(record).__name__}")
    function = record.get("function", record)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise SessionError(f'{where}: expected {{"function": {{"name": …, "arguments": …}}}}')
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return ToolCall(_text_or_none(record.get("id")) or "", function["name"], arguments)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def turns_of(messages: Sequence[Message], *, limit: int | None = None) -> Iterator[Turn]:
    """The requests of a recorded session: `messages[:k]` for each k where the assistant is to speak next.

    With `limit`, at most that many, spread evenly from the first to the last.
    """
    last = len(messages)
    ends = [
        k
        for k in range(1, last + 1)
        if messages[k - 1].role != "assistant" and (k == last or messages[k].role == "assistant")
    ]
    if limit is not None and len(ends) > limit:
        ends = [ends[i] for i in spread(len(ends), limit)]
    for index, end in enumerate(ends):
        yield Turn(index, "append" if index else "start", tuple(messages[:end]))


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` indices out of `range(count)`, evenly spread, the first and the last among them."""
    if limit >= count:
        return list(range(count))
    if limit <= 1:
        return [count - 1] if limit == 1 else []
    return [round(i * (count - 1) / (limit - 1)) for i in range(limit)]


# ----------------------------------------------------------------------------------------------------------------
# The generated session
# ----------------------------------------------------------------------------------------------------------------

_START_SHARE = 0.15  # of the target, in the first request: an agent opens with its prompt and several file reads
_TRIM_SHARE, _TRIM_MOST = 0.06, 24_000  # what the sliding window drops: a share of the target, in characters at most
_WORK_CHARS = 750  # about the mean of one working step


def generate(*, seed: int = 0, target_chars: int = 400_000) -> Iterator[Turn]:
    """A coding agent's session, one request a turn, the last ones about `target_chars` characters long or longer.

    It opens with a system prompt and several file reads, explores with large reads until the history is long, then
    works in steps of 200 to 3,000 characters, among which are replaced think tails, edits and one trim. The number
    of turns follows the target (80-odd at 400,000). Deterministic for a seed; time and memory grow with the text.
    """
    rng = random.Random(f"session {seed}")
    writer = Writer(rng)
    explore = min(60, max(4, target_chars // 30_000))
    work = min(70, max(14, round(target_chars * 0.14 / _WORK_CHARS)))
    kinds = _schedule(work)
    drop = int(min(target_chars * _TRIM_SHARE, _TRIM_MOST))

    system, history = _opening(writer, int(target_chars * _START_SHARE))
    thinking = False
    yield Turn(0, "start", (system, *history), thinking)

    index = 1
    for left in range(explore, 0, -1):
        missing = target_chars - _size(history) - system.size
        step = max(400, int(missing / left * (rng.uniform(0.7, 1.3) if left > 1 else 1)))
        history = [*history, *_explore_step(writer, step, answers=left % 7 == 3)]
        yield Turn(index, "append", (system, *history), thinking)
        index += 1

    for position, kind in enumerate(kinds):
        # The prompt of this request opens a think block when the next turn is to replace it.
        was_thinking, thinking = thinking, position + 1 < work and kinds[position + 1] == "think"
        # Messages are dropped whole; in a short session that may be much of it, which the steps after then make good.
        least = (target_chars - system.size - _size(history)) // (work - position)
        if kind == "edit":
            # An edit is a retry: the harness changed the history and sends it again with the same tail.
            nth = kinds[:position].count("edit")
            system, history = _edit(writer, nth, system, history, target_chars // 50)
            if nth == 0:
                history = [*history, *_work_step(writer, least, answers=False)]
            else:
                thinking = was_thinking
        elif kind == "trim":
            history = [*history[_trim_point(history, drop) :], *_work_step(writer, least, answers=True)]
        elif kind == "think":
            history = [*history, *_work_step(writer, least, answers=position % 4 != 0, reasons=True)]
        else:
            history = [*history, *_work_step(writer, least, answers=rng.random() < 0.2)]
        yield Turn(index, kind, (system, *history), thinking)
        index += 1


def _size(messages: Sequence[Message]) -> int:
    return sum(m.size for m in messages)


def _schedule(count: int) -> list[Kind]:
    kinds: list[Kind] = ["append"] * count

    def place(kind: Kind, share: float) -> None:
        # A think turn needs the turn before it to end in an open think block, which a retry must not add.
        at = int(share * count) or 1
        while kinds[at] != "append" or (kind == "think" and kinds[at - 1] == "edit"):
            at += 1
        kinds[at] = kind

    place("trim", 0.72)
    for share in (0.15, 0.42, 0.58):
        place("edit", share)
    for share in (0.05, 0.22, 0.34, 0.5, 0.64, 0.85):
        place("think", share)
    return kinds


def _opening(w: Writer, size: int) -> tuple[Message, list[Message]]:
    system = Message("system", system_prompt(w))
    request = "\n\n".join([w.fill(w.pick(REQUESTS)), repository_notes(w)])
    history = [Message("user", request)]
    while (missing := size - system.size - _size(history)) > 1500:
        history += _tool_step(w, min(missing, 9_000), parallel=2)
    return system, history


def _explore_step(w: Writer, size: int, *, answers: bool) -> list[Message]:
    if answers:
        said = Message("assistant", answer(w, min(size // 3, 1800)))
        request = w.fill(w.pick(REQUESTS)) + "\n\n```\n" + material(w, size * 2 // 3)[1] + "\n```"
        return [said, Message("user", request)]
    return _tool_step(w, size, parallel=max(2, min(4, size // 5000)))


def _work_step(w: Writer, least: int, *, answers: bool, reasons: bool = False) -> list[Message]:
    size = max(least, int(min(2900, max(210, w.rng.lognormvariate(6.1, 0.66)))))
    if answers:
        reasoning = w.sentences(w.rng.randint(3, 7), THOUGHTS) if reasons else None
        request = w.fill(w.pick(FOLLOW_UPS))
        said = Message("assistant", answer(w, max(60, size - len(request))), reasoning_content=reasoning)
        return [said, Message("user", request)]
    return _tool_step(w, size, parallel=1)


def _tool_step(w: Writer, size: int, *, parallel: int) -> list[Message]:
    """An assistant message with calls, and their results, about `size` characters in all."""
    made: list[tuple[ToolCall, Message]] = []
    total = 0
    while not made or (parallel > 1 and total < size - 1000):
        call, result = tool_use(w, max(120, min(size // parallel, size - total) - 160))
        made.append((call, result))
        total += result.size + len(call.arguments)
    says = w.sentences(w.rng.randint(1, 2), NARRATION) if w.rng.random() < 0.7 else None
    calls = tuple(call for call, _ in made)
    return [Message("assistant", says, tool_calls=calls), *(result for _, result in made)]


def _edit(w: Writer, nth: int, system: Message, history: list[Message], most: int) -> tuple[Message, list[Message]]:
    """The nth edit: an old tool result of at most `most` characters cleared, a new time of day, a line redacted."""
    if nth == 1:
        text = re.sub(r"(?<=Current time: )\S+", w.stamp(), system.content or "", count=1)
        return replace(system, content=text), history
    results = [i for i, m in enumerate(history) if m.role == "tool"]
    some = [i for i in results if 200 < len(history[i].content or "") <= max(400, most)] or results
    at = some[len(some) // 3 if nth == 0 else len(some) // 2]
    old = history[at].content or ""
    if nth == 0:
        new = f"[result cleared to save context: {len(old):,} characters]"
    else:
        lines = old.split("\n")
        lines[len(lines) // 2] = "[line redacted by policy: possible credential]"
        new = "\n".join(lines)
    return system, [*history[:at], replace(history[at], content=new), *history[at + 1 :]]


def _trim_point(history: Sequence[Message], drop: int) -> int:
    dropped = 0
    for at, message in enumerate(history):
        # Never between a call and its results: servers refuse such a history.
        if dropped >= drop and message.role != "tool":
            return at
        dropped += message.size
    return 0
