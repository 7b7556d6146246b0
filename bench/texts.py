"""Conversations to measure with: seeded, up to millions of characters without plain repetition, in several scripts.

Each is a chat transcript with the tokenizer's own role markers around messages of one kind of text.
"""

from __future__ import annotations

import lzma
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from delta_core.tools.demo.content import NARRATION, THOUGHTS, Writer, answer, material, system_prompt, tool_use
from delta_core.tools.demo.messages import Message
from delta_core.tools.demo.session import generate
from delta_core.tools.demo.templates import render, render_turn

_CHINESE = {
    "who": "我们 他们 这位工程师 项目经理 客户 仓库管理员 值班人员 "
    "新来的同事 系统 供应商 老师 邻居 司机 审计部门 研究小组",
    "when": "昨天 上周三 今年春天 开会之前 凌晨两点 发布以后 不久前 每到月底 下雨的时候 两年以来 临近中午 首次上线时",
    "did": "检查 重新安排 推迟 取消 记录 翻译 比较 归档 解释 整理 估算 迁移 复核 压缩 暂停 恢复 删除 合并 拆分 通知",
    "what": "订单 缓存 合同 会议纪要 数据库 航班 运输路线 测试用例 配置文件 发票 "
    "日志 报告 队列 接口 权限 图书 库存 预算 邮件 索引",
    "how": "相当 非常 有点 比预期更 出乎意料地 一如既往地 多少 越来越 并不",
    "quality": "缓慢 复杂 稳定 清楚 昂贵 可靠 陈旧 混乱 安静 完整 脆弱 重要 详细 随意",
    "link": "因此 但是 与此同时 换句话说 结果 其实 另外 尽管如此 据说 总的来看 按照惯例",
}
_WORDS = {slot: words.split() for slot, words in _CHINESE.items()}
_FORMS = (
    "{when}，{who}{did}了{n}份{what}，{link}{what2}变得{how}{quality}。",
    "{who}认为{what}的{what2}{how}{quality}，{link}应该先{did}再{did2}。",
    "如果{what}无法{did}，就由{who}在{n}小时内{did2}{what2}。",
    "“{what}{how}{quality}！”{who}说，“{when}已经{did}过{n}次。”",
    "{link}，{who}把{what}交给{who2}{did}；{who2}只{did2}了其中的百分之{n}。",
    "关于{what2}：{when}{did}，{when2}{did2}，费用约{n}元，{how}{quality}。",
)


def _chinese(w: Writer, size: int) -> str:
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        words = {slot + again: w.rng.choice(words) for slot, words in _WORDS.items() for again in ("", "2")}
        parts.append(w.rng.choice(_FORMS).format(n=w.rng.randrange(2, 9000), **words) + w.rng.choice(("", "", "\n\n")))
    return "".join(parts)


def _english(w: Writer, size: int) -> str:
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        parts.append(w.fill("«para» «para»") + " " + w.sentences(2, w.rng.choice((THOUGHTS, NARRATION))))
    return "\n\n".join(parts)


def _code(w: Writer, size: int) -> str:
    while True:
        call, result = tool_use(w, size)
        if call.name in ("read_file", "edit_file", "search") and result.content:
            return result.content


def _mixed(w: Writer, size: int) -> str:
    make = w.rng.choice((_code, _english, _chinese, answer, lambda w, size: material(w, size)[1]))
    return make(w, size) + w.fill("\n\n«foreign»")


_WRITERS: dict[str, Callable[[Writer, int], str]] = {
    "english": _english,
    "code": _code,
    "chinese": _chinese,
    "mixed": _mixed,
}
KINDS = tuple(_WRITERS)


class TooShort(Exception):
    """A file given for a kind holds less text than a scene needs."""


_given: dict[str, str] = {}


def give(kind: str, path: Path) -> None:
    """Messages of this kind are taken from a file (.xz is decompressed) from now on; it may be a new kind."""
    raw = path.read_bytes()
    _given[kind] = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8")


@lru_cache(maxsize=24)
def transcript(kind: str, family: str, chars: int, seed: int = 0) -> str:
    """A conversation of exactly so many characters, without a generation prompt. About 0.5 s per million characters.

    The beginning is the same for every length.
    """
    rng = random.Random(f"{kind} {seed}")
    w = Writer(rng)
    messages = [Message("system", system_prompt(w))]
    size, at = 0, 60_000 * seed
    while size < chars:
        # Many short messages and a few long ones, as tool output has it.
        wanted = int(min(8_000, max(80, rng.lognormvariate(6.5, 1.0))))
        if kind in _given:
            content = _given[kind][at : at + wanted]
            at += wanted
            if len(content) < wanted:
                raise TooShort(f"the file given for {kind} has fewer than {at:,} characters")
        else:
            content = _WRITERS[kind](w, wanted)[: wanted + 200]
        messages.append(Message("assistant" if len(messages) % 2 == 0 else "user", content))
        size += len(content)
    return render(family, messages, add_generation_prompt=False)[:chars]


def session(family: str, chars: int, seed: int = 0) -> str:
    """The last turn of a generated tool-using session of at least about so many characters."""
    *_, last = generate(seed=seed, target_chars=chars)
    return render_turn(family, last)


def turns(kind: str, family: str, chars: int, count: int) -> list[str]:
    """Different new texts of exactly so many characters, as they stand in the middle of a conversation."""
    return [transcript(kind, family, 20_000 + chars, seed)[20_000:] for seed in range(1, count + 1)]
