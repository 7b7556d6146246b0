"""The records of a conversation: messages in the OpenAI chat shape, and the requests made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["start", "append", "think", "edit", "trim"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function call of an assistant message. `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message in the OpenAI chat shape. `name` and `tool_call_id` belong to tool results."""

    role: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None

    @property
    def size(self) -> int:
        """Characters of content and call arguments, without any markers."""
        return len(self.content or "") + sum(len(c.name) + len(c.arguments) for c in self.tool_calls)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: the whole conversation so far, and how it came from the turn before.

    `kind` is "start"; "append" (only new messages at the end); "think" (the turn before ended in an open think block,
    which the real answer now replaces); "edit" (something in mid-history or in the system prompt changed); or "trim"
    (the oldest messages after the system prompt were dropped while a new step was appended).
    `thinking` says that this request's generation prompt opens a think block.
    """

    index: int
    kind: Kind
    messages: tuple[Message, ...]
    thinking: bool = False
