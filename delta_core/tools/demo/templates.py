"""Messages to text, with the markers and the layout of the model families' chat templates.

Written for the demo and for measurements: own code, close to what the families' templates make of the same messages,
without a template engine. A served model should of course be given its own template.

Reasoning is rendered as these templates do it: kept for the tool loop in progress, dropped from all answers before the
last user message. With `thinking` the generation prompt opens a think block, so the next render replaces that tail
unless the model's reasoning is sent back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from .session import Message, Turn

_FAMILIES = {
    "qwen": "qwen3",
    "llama": "llama3",
    "gpt_oss": "gpt_oss",
    "gpt4o": "gpt_oss",
    "gpt35_turbo": "gpt_oss",
    "deepseek": "deepseek",
    "kimi": "kimi",
}
# A token that only this family has; also tells the family of a fine-tune under a name of its own.
_SIGNS = {
    "qwen3": "<|im_start|>",
    "llama3": "<|start_header_id|>",
    "gpt_oss": "<|channel|>",
    "deepseek": "<｜Assistant｜>",
    "kimi": "<|end_of_msg|>",
}


def family_of(config_name: str | None) -> str:
    """The family whose markers the named tokenizer knows; "plain" where none is known."""
    if config_name is None:
        return "plain"
    return next((family for prefix, family in _FAMILIES.items() if config_name.startswith(prefix)), "plain")


def family_by_markers(has_token: Callable[[str], bool]) -> str:
    """The family whose own marker `has_token` knows, else "plain"."""
    return next((family for family, sign in _SIGNS.items() if has_token(sign)), "plain")


def render(
    family: str, messages: Sequence[Message], *, add_generation_prompt: bool = True, thinking: bool = False
) -> str:
    """The prompt text of `messages`. Linear in the text; raises KeyError for an unknown family."""
    return "".join(_RENDERERS[family](messages, add_generation_prompt, thinking))


def render_turn(family: str, turn: Turn) -> str:
    """The prompt text of one request of a session."""
    return render(family, turn.messages, thinking=turn.thinking)


def _last_user(messages: Sequence[Message]) -> int:
    return max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)


def _qwen3(messages: Sequence[Message], generate: bool, thinking: bool) -> Iterator[str]:
    last_user = _last_user(messages)
    for i, m in enumerate(messages):
        content = m.content or ""
        if m.role == "tool":
            if i == 0 or messages[i - 1].role != "tool":
                yield "<|im_start|>user"
            yield f"\n<tool_response>\n{content}\n</tool_response>"
            if i + 1 == len(messages) or messages[i + 1].role != "tool":
                yield "<|im_end|>\n"
            continue
        yield f"<|im_start|>{m.role}\n"
        if m.role == "assistant":
            reasoning = (m.reasoning_content or "").strip("\n")
            if i > last_user and (reasoning or i + 1 == len(messages)):
                content = content.lstrip("\n")
                yield f"<think>\n{reasoning}\n</think>\n\n"
        yield content
        for n, call in enumerate(m.tool_calls):
            yield "\n" if content or n else ""
            yield f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        yield "<|im_end|>\n"
    if generate:
        yield "<|im_start|>assistant\n" + ("<think>\n" if thinking else "")


def _llama3(messages: Sequence[Message], generate: bool, thinking: bool) -> Iterator[str]:
    yield "<|begin_of_text|>"
    for m in messages:
        role = "ipython" if m.role == "tool" else m.role
        calls = [f'{{"name": "{c.name}", "parameters": {c.arguments}}}' for c in m.tool_calls]
        content = "\n".join(part for part in [(m.content or "").strip(), *calls] if part)
        yield f"<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>"
    if generate:
        # The family has no think block of its own; its reasoning fine-tunes open one like this.
        yield "<|start_header_id|>assistant<|end_header_id|>\n\n" + ("<think>\n" if thinking else "")


def _gpt_oss(messages: Sequence[Message], generate: bool, thinking: bool) -> Iterator[str]:
    yield (
        "<|start|>system<|message|>Reasoning: medium\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
    )
    last_user = _last_user(messages)
    for i, m in enumerate(messages):
        content = m.content or ""
        if m.role == "system":
            yield f"<|start|>developer<|message|># Instructions\n\n{content}<|end|>"
        elif m.role == "tool":
            name = f"functions.{m.name or 'tool'}"
            result = json.dumps(content, ensure_ascii=False)
            yield f"<|start|>{name} to=assistant<|channel|>commentary<|message|>{result}<|end|>"
        elif m.role == "assistant":
            if m.reasoning_content and i > last_user:
                yield f"<|start|>assistant<|channel|>analysis<|message|>{m.reasoning_content}<|end|>"
            if content:
                channel = "commentary" if m.tool_calls else "final"
                yield f"<|start|>assistant<|channel|>{channel}<|message|>{content}<|end|>"
            for call in m.tool_calls:
                head = f"<|start|>assistant to=functions.{call.name}<|channel|>commentary json"
                yield f"{head}<|message|>{call.arguments}<|call|>"
        else:
            yield f"<|start|>{m.role}<|message|>{content}<|end|>"
    if generate:
        yield "<|start|>assistant" + ("<|channel|>analysis<|message|>" if thinking else "")


def _deepseek(messages: Sequence[Message], generate: bool, thinking: bool) -> Iterator[str]:
    yield "<｜begin▁of▁sentence｜>"
    yield "\n\n".join(m.content or "" for m in messages if m.role == "system")
    last_user = _last_user(messages)
    previous = ""
    for i, m in enumerate(messages):
        content = m.content or ""
        if m.role == "system":
            continue
        if previous == "tool" and m.role != "tool":
            yield "<｜tool▁outputs▁end｜>"
        if m.role == "tool":
            yield "\n" if previous == "tool" else "<｜tool▁outputs▁begin｜>"
            yield f"<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>"
        elif m.role == "assistant":
            # The answer after tool outputs goes on in the same assistant turn, without a second marker.
            yield "" if previous == "tool" else "<｜Assistant｜>"
            if m.reasoning_content and i > last_user:
                yield f"<think>\n{m.reasoning_content}\n</think>\n\n"
            yield content
            for n, call in enumerate(m.tool_calls):
                yield "\n" if n else "<｜tool▁calls▁begin｜>"
                head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}"
                yield f"{head}\n```json\n{call.arguments}\n```<｜tool▁call▁end｜>"
            yield ("<｜tool▁calls▁end｜>" if m.tool_calls else "") + "<｜end▁of▁sentence｜>"
        else:
            yield f"<｜User｜>{content}"
        previous = m.role
    if previous == "tool":
        yield "<｜tool▁outputs▁end｜>"
    if generate:
        yield ("" if previous == "tool" else "<｜Assistant｜>") + ("<think>\n" if thinking else "")


def _kimi(messages: Sequence[Message], generate: bool, thinking: bool) -> Iterator[str]:
    def element(name: str, body: str) -> str:
        return f"<|open|>{name}<|sep|>{body}<|close|>{name.partition(' ')[0]}<|sep|>"

    last_user = _last_user(messages)
    yield "[BOS]"
    for i, m in enumerate(messages):
        body = m.content or ""
        head = f'message role="{m.role}"' + (f' name="{m.name}"' if m.name else "")
        if m.role == "assistant":
            body = element("response", body) if body else ""
            if m.reasoning_content and i > last_user:
                body = element("think", m.reasoning_content) + body
            if m.tool_calls:
                calls = (element(f'call name="{c.name}"', _arguments(c.arguments, element)) for c in m.tool_calls)
                body += element("tools", "".join(calls))
        yield element(head, body) + "<|end_of_msg|>"
    if generate:
        yield '<|open|>message role="assistant"<|sep|>' + ("<|open|>think<|sep|>" if thinking else "")


def _arguments(arguments: str, element: Callable[[str, str], str]) -> str:
    try:
        values = json.loads(arguments)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return element("json", arguments)  # a model's arguments need not be a JSON object
    return "".join(
        element(
            f'argument key="{key}" type="{"string" if isinstance(value, str) else "json"}"',
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        )
        for key, value in values.items()
    )


def _plain(messages: Sequence[Message], generate: bool, thinking: bool) -> Iterator[str]:
    for m in messages:
        yield f"### {m.role}\n\n{m.content or ''}\n"
        for call in m.tool_calls:
            yield f"call {call.name} {call.arguments}\n"
        yield "\n"
    if generate:
        yield "### assistant\n\n" + ("<think>\n" if thinking else "")


_RENDERERS: dict[str, Callable[[Sequence[Message], bool, bool], Iterator[str]]] = {
    "qwen3": _qwen3,
    "llama3": _llama3,
    "gpt_oss": _gpt_oss,
    "deepseek": _deepseek,
    "kimi": _kimi,
    "plain": _plain,
}
FAMILIES = tuple(_RENDERERS)
