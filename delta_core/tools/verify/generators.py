"""Texts that look for the places where tokenization depends on its surroundings, and the tokenizers to read them with.

Everything here is structure-aware: texts are made of a tokenizer's own added tokens (whole, split, nested in each
other), of the characters that its pre-tokenizer tells apart (the samples of its derived classes) and of fragments that
have caused faults elsewhere. Tokenizers are trained on such text, so that their merges cross every kind of boundary
that a wrong cut would tear.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ...admission.frozen import Frozen, bundled_folder, load_path
from ...reference import Reference
from ..freezing.derive import pre_tokenizer_from
from ..freezing.freeze import freeze

# One config of every pipeline that there is. A tokenizer of the same pipeline is trained for each of them.
PIPELINES = ("qwen3", "llama3_1", "gpt35_turbo", "gpt_oss", "gpt4o", "deepseek_v3", "gpt2", "kimi_k3")

# All frozen configs that the package must bring along.
CONFIGS = (*PIPELINES, "qwen2_5", "llama3", "deepseek_r1", "deepseek_v4")

# Fragments that have made tokenizers disagree with themselves or with each other.
FRAGMENTS = (
    "hello", " world", "The", " quick", "s", "S", "t", "'", "'s", "'S", "'ll", "'LL", "'re", "'ſ", "I'K", "don't",
    "12", "345", "7", "7777777", "٣٤", "Ⅷ", "½²", " ", "  ", "    ", "\t", "\n", "\r\n", "\r", "\n\n", " \n ", "\n    ",
    "\u00a0", "\u3000", "\u2028", "\x85", "\x0b", ".", ",", "!?", "/", "//\n", "://", "\n/", "_", "-----", "```", "===",
    "{\"a\":", "}],\n", "é", "e\u0301", "\u0301", "\u0323", "\u0335", "\u0338", "\u0958", "\u0f73", "\u0344",
    "q\u0307\u0323", "한", "하", "\u1100", "\u1112\u1161", "\u11ab", "\u1161", "中文",
    "介绍", "かな", "カ", "ー", "・", "。", "，",
    "\u3099", "か\u3099", "ﬁ", "ǅ", "ʰ", "ª", "ſ", "\u212a", "\u212b", "\u2126", "ß", "ẞ", "İ", "Việt", " Vi", "\u200b",
    "\u200d", "\ufeff", "\x00", "\x16", "\x7f", "😀", "👩\u200d👩", "🇨", "🇳", "❤\ufe0f", "🏽", "\U0001fae8", "\ua7d2",
    "\U0001f6d8", "\u0897\u0650", "\u0378", "\U0010ffff", "\ue000", "A", "Bc", "camelCase", "HTTPServer", "getX",
    "</", "<|", "|>", "<", ">", "|", "〈|", "|〉", "＜", "<|im_", "end|>", "क्षि", "ที่", "שָׁ", "الع", "ǰ", "\u0c15\u0c4d",
    "def f(x):\n    return x\n", "The quick brown fox jumps over the lazy dog. ", "x" * 30, '"k1": "v", ', "0x1F",
)  # fmt: skip


class TextMaker:
    """Random texts for one tokenizer, reproducible from a seed.

    added: contents of its added tokens. samples: characters of each class of its pre-tokenizer.
    """

    def __init__(self, seed: int, added: Sequence[str] = (), samples: Sequence[str] = ()) -> None:
        self.rng = random.Random(seed)
        self.added = list(added)
        self.alphabet = "".join(c for c in "".join(samples) if not "\ud800" <= c <= "\udfff")

    def piece(self) -> str:
        """A fragment: an added token or a part of one, characters of some classes, any character, one of FRAGMENTS."""
        r, rng = self.rng.random(), self.rng
        if self.added and r < 0.10:
            return rng.choice(self.added)
        if self.added and r < 0.16:
            token = rng.choice(self.added)
            at = rng.randrange(len(token) + 1)
            return rng.choice((token[:at], token[at:]))
        if self.alphabet and r < 0.36:
            return "".join(rng.choices(self.alphabet, k=rng.choice((1, 1, 2, 3)))) * rng.choice((1, 1, 1, 2, 4))
        if r < 0.40:
            low, high = rng.choice(
                ((0x20, 0x250), (0x300, 0x370), (0x370, 0x3000), (0xAC00, 0xD7A4), (0x10000, 0x1FC00))
            )
            return chr(rng.randrange(low, high))
        return rng.choice(FRAGMENTS)

    def text(self, pieces: int) -> str:
        """So many pieces in a row."""
        return "".join(self.piece() for _ in range(pieces))

    def edited(self, text: str) -> str:
        """What one turn may do to a text: append, replace the tail, edit, cut out, trim the head, put before it."""
        rng, n = self.rng, max(len(text), 1)
        r = rng.random()
        if r < 0.45:
            return text + self.text(rng.randrange(1, 40))
        if r < 0.58:
            return text[: -rng.randrange(1, min(n, 80) + 1)] + self.text(rng.randrange(9))
        if r < 0.76:
            at = rng.randrange(n)
            return text[:at] + self.text(rng.randrange(12)) + text[min(n, at + rng.randrange(60)) :]
        if r < 0.85:
            at = rng.randrange(n // 2 + 1)
            return text[:at] + text[min(n, at + rng.randrange(n // 2 + 1)) :]
        if r < 0.95:
            return text[rng.randrange(n // 2 + 1) :] + self.text(rng.randrange(3))
        return self.text(10) + text

    def session(self, turns: int, pieces: int = 120) -> list[str]:
        """A conversation: one text, and what a few edits at a time make of it."""
        texts = [self.text(pieces)]
        while len(texts) < turns:
            text = texts[-1]
            for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
                text = self.edited(text)
            texts.append(text)
        return texts


def prose(seed: int, characters: int) -> str:
    """Plain text that every pipeline has ordinary merges for: words, code, numbers, several scripts."""
    rng = random.Random(seed)
    onsets = ("b", "br", "c", "d", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "qu", "r", "s", "st", "t", "th", "v")
    nuclei = ("a", "e", "i", "o", "u", "ea", "ou")
    codas = ["", "", "n", "r", "s", "t", "ng", "st"]
    words = ["".join(rng.choice(part) for part in (onsets, nuclei, codas)) * rng.choice((1, 1, 2)) for _ in range(300)]
    other = [
        "介绍",
        "中文",
        "世界",
        "한국어",
        "кот",
        "שלום",
        "مرحبا",
        "ที่นี่",
        "क्षि",
        "naïve",
        "Việt",
        "かな",
        "カタ",
        "é",
        "ü",
    ]
    parts: list[str] = []
    size = 0
    while size < characters:
        r = rng.random()
        if r < 0.62:
            part = " " + rng.choice(words)
        elif r < 0.70:
            part = " " + rng.choice(words).capitalize()
        elif r < 0.76:
            part = rng.choice((".", ",", "!", ";", ":", "()", "://", "'s", "'ll")) + rng.choice(
                (" ", "\n", "\n\n", "  ")
            )
        elif r < 0.82:
            part = str(rng.randrange(10 ** rng.randrange(1, 7)))
        elif r < 0.90:
            part = rng.choice(("", " ")) + rng.choice(other) * rng.choice((1, 1, 2))
        elif r < 0.95:
            part = f"\n    {rng.choice(words)}({rng.choice(words)}_{rng.randrange(99)})\n"
        else:
            part = f'{{"{rng.choice(words)}": "{rng.choice(words)}", "n": [{rng.randrange(999)}]}}'
        parts.append(part)
        size += len(part)
    return "".join(parts)


# Sets of added tokens that nest in, overlap, border and prefix each other; written by users, and met in the wild.
NASTY_TOKENS = (
    "<|", "|>", "<|EOS|>", "〈|", "|〉", "〈|EOS|〉", "<a>", "<a><b>", "<b>", "aa", "aaa", "ab", "ba", "<|im_end|><|im_start|>",
    "\n\n\n", " .", "é", "12", "x y", ">\n",
)  # fmt: skip


# -- tokenizers --


def frozen_config(name: str) -> Frozen:
    """A bundled config; one that does not exist is a failure, never a skip."""
    return load_path(bundled_folder() / f"{name}.json")


def bundled() -> list[Frozen]:
    """All bundled configs."""
    return [load_path(path) for path in sorted(bundled_folder().glob("*.json"))]


class _Split:
    """The pre-tokenizer of a canonical section, as the library's own object."""

    @staticmethod
    def of(section: Any) -> Any:
        pre_tokenizer_from(section)  # raises for a section that the library does not take
        leaves = [{**leaf, "trim_offsets": True} if leaf["type"] == "ByteLevel" else leaf for leaf in section]
        spec = {"type": "Sequence", "pretokenizers": leaves}
        model = {"type": "BPE", "vocab": {}, "merges": []}
        whole = json.dumps({"version": "1.0", "pre_tokenizer": spec, "model": model, "added_tokens": []})
        return Tokenizer.from_str(whole).pre_tokenizer


@cache
def _trained(pre_tokenizer: str, nfc: bool, vocabulary: int) -> dict[str, Any]:
    """A tokenizer.json trained under one pipeline. About a second, once per process."""
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _Split.of(json.loads(pre_tokenizer))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    maker = TextMaker(1)
    tokenizer.train_from_iterator([prose(2, 60_000), *(maker.text(400) for _ in range(30))], trainer)
    parsed: dict[str, Any] = json.loads(tokenizer.to_str())
    return parsed


def token(content: str, identifier: int, *, special: bool = True, **flags: bool) -> dict[str, Any]:
    """One row of an added_tokens section."""
    row = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special, **flags}
    return {"id": identifier, "content": content, **row}


def template(prefix: Sequence[tuple[str, int]], suffix: Sequence[tuple[str, int]] = ()) -> dict[str, Any]:
    """A TemplateProcessing section that puts tokens (content, id) around the text."""

    def item(content: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": content, "type_id": 0}}

    single = [*(item(c) for c, _ in prefix), {"Sequence": {"id": "A", "type_id": 0}}, *(item(c) for c, _ in suffix)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {c: {"id": c, "ids": [i], "tokens": [c]} for c, i in (*prefix, *suffix)},
    }


def spec(name: str, added: Iterable[dict[str, Any] | str] = (), *, vocabulary: int = 3000) -> dict[str, Any]:
    """The tokenizer.json of a small tokenizer with the pipeline and the added tokens of a frozen config.

    added: further added tokens: rows, or contents for plain special tokens.
    """
    config = frozen_config(name)
    sections = config.sections
    result = copy.deepcopy(_trained(json.dumps(sections.pre_tokenizer), bool(sections.normalizer), vocabulary))
    result["model"]["ignore_merges"] = sections.model["ignore_merges"]
    free = max(result["model"]["vocab"].values()) + 1
    rows: list[dict[str, Any]] = []
    of_content: dict[str, int] = {}
    contents = [t.to_json() for t in sections.added_tokens if "reserved" not in t.content][:64]
    for row in [*contents, *added]:
        row = token(row, 0) if isinstance(row, str) else dict(row)
        if row["content"] not in of_content:
            # A token that the vocabulary has already keeps its ID there, as the library would have it.
            row["id"] = of_content[row["content"]] = result["model"]["vocab"].get(
                row["content"], free + len(of_content)
            )
            rows.append(row)
    result["added_tokens"] = sorted(rows, key=lambda row: row["id"])
    templates = [leaf for leaf in sections.post_processor if leaf["type"] == "TemplateProcessing"]
    if templates:
        names = [item["SpecialToken"]["id"] for item in templates[0]["single"] if "SpecialToken" in item]
        result["post_processor"] = template([(n, of_content[n]) for n in names])
    return result


def live_from(specification: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a tokenizer.json."""
    return Tokenizer.from_str(json.dumps(specification))


def frozen_from(live: Tokenizer, name: str = "synthetic") -> Frozen:
    """Freeze a live tokenizer in memory; its table comes from the bundled config with the same pre-tokenizer."""

    def refuse(line: str) -> None:
        raise AssertionError(f"no bundled config has this pre-tokenizer: {line}")

    return freeze(Reference(live), name, known=bundled(), log=refuse)


def maker_for(live: Tokenizer, frozen: Frozen, seed: int) -> TextMaker:
    """A maker of texts with the tokenizer's added tokens and classes."""
    return TextMaker(seed, [t.content for t in frozen.sections.added_tokens][:80], frozen.transitions.samples)
