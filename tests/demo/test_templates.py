"""Renders have the families' markers, and a turn shares with the one before what its kind says."""

from __future__ import annotations

from os.path import commonprefix

import pytest

from delta_core.tools.demo.session import Message, ToolCall, generate
from delta_core.tools.demo.templates import FAMILIES, family_by_markers, family_of, render, render_turn

CHAT = [
    Message("system", "be brief"),
    Message("user", "list it"),
    Message("assistant", "Looking.", tool_calls=(ToolCall("1", "ls", '{"path": "."}'),), reasoning_content="hmm"),
    Message("tool", "a\nb", tool_call_id="1", name="ls"),
]


def test_qwen3() -> None:
    assert render("qwen3", CHAT) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nlist it<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhmm\n</think>\n\nLooking.\n"
        '<tool_call>\n{"name": "ls", "arguments": {"path": "."}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na\nb\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_reasoning_before_the_last_user_message_is_dropped() -> None:
    answered = [*CHAT, Message("assistant", "a and b", reasoning_content="easy"), Message("user", "thanks")]
    for family in FAMILIES:
        assert "hmm" not in render(family, answered)
        assert "easy" not in render(family, answered)
    assert all("hmm" in render(family, CHAT) for family in FAMILIES if family not in ("llama3", "plain"))


@pytest.mark.parametrize(
    ("family", "parts"),
    [
        (
            "llama3",
            [
                "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nbe brief<|eot_id|>",
                '{"name": "ls", "parameters": {"path": "."}}<|eot_id|>',
                "<|start_header_id|>ipython<|end_header_id|>\n\na\nb<|eot_id|>",
            ],
        ),
        (
            "gpt_oss",
            [
                "<|start|>developer<|message|># Instructions\n\nbe brief<|end|>",
                "<|start|>assistant<|channel|>analysis<|message|>hmm<|end|>",
                '<|start|>assistant to=functions.ls<|channel|>commentary json<|message|>{"path": "."}<|call|>',
                '<|start|>functions.ls to=assistant<|channel|>commentary<|message|>"a\\nb"<|end|>',
            ],
        ),
        (
            "deepseek",
            [
                "<｜begin▁of▁sentence｜>be brief<｜User｜>list it<｜Assistant｜>",
                '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ls\n```json\n{"path": "."}\n```',
                "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>a\nb<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
            ],
        ),
        (
            "kimi",
            [
                '[BOS]<|open|>message role="system"<|sep|>be brief<|close|>message<|sep|><|end_of_msg|>',
                "<|open|>think<|sep|>hmm<|close|>think<|sep|><|open|>response<|sep|>Looking.<|close|>response<|sep|>",
                '<|open|>argument key="path" type="string"<|sep|>.<|close|>argument<|sep|><|close|>call<|sep|>',
            ],
        ),
        ("plain", ["### system\n\nbe brief\n", 'call ls {"path": "."}\n', "### tool\n\na\nb\n"]),
    ],
)
def test_markers(family: str, parts: list[str]) -> None:
    text = render(family, CHAT)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("family", FAMILIES)
def test_turns_share_what_their_kind_says(family: str) -> None:
    old = ""
    seen = set()
    for turn in generate(target_chars=30_000):
        new = render_turn(family, turn)
        common = len(commonprefix([old, new]))  # noqa: RUF071 -- strings are what it is for here
        if turn.kind == "append":
            assert common == len(old)
        elif turn.kind == "think":
            # The old render ends in an open think block, and the new one parts from it inside that tail.
            assert len(old) - 60 < common < len(old)
        elif turn.kind == "edit":
            assert common < len(old) - 300
        elif turn.kind == "trim":
            assert 9_000 < common < len(old) - 600
        seen.add(turn.kind)
        old = new
    assert len(seen) == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_content_and_odd_arguments_render(family: str) -> None:
    odd = [Message("user"), Message("assistant", tool_calls=(ToolCall("", "f", "not json"),)), Message("tool")]
    assert "not json" in render(family, odd)
    if family != "deepseek":  # whose answer to tool outputs needs no marker
        assert render(family, odd, add_generation_prompt=False) != render(family, odd)


def test_families_of_configs() -> None:
    names = ("qwen3", "qwen2_5", "llama3", "llama3_1", "gpt_oss", "gpt4o", "deepseek_v4", "kimi_k3", "gpt2", None)
    assert [family_of(n) for n in names] == (
        ["qwen3"] * 2 + ["llama3"] * 2 + ["gpt_oss"] * 2 + ["deepseek", "kimi", "plain", "plain"]
    )
    assert family_by_markers({"<|im_start|>", "<think>"}.__contains__) == "qwen3"
    assert family_by_markers(lambda _: False) == "plain"
