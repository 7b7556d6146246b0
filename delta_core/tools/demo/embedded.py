"""A small tokenizer made on the spot, so that the demo runs without a network and without a shipped vocabulary."""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ...admission.frozen import Frozen, load_all
from ...reference import Reference
from ..freezing.freeze import freeze
from .session import generate

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MARKERS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_VOCABULARY = 6_000  # byte symbols and merges; enough for 3 to 4 characters a token on the demo's text
_TRAINING_SEED = 1_000_003  # not a seed of the demo's own sessions: they are to be text the tokenizer hasn't seen
_TRAINING_CHARS = 300_000


def embedded_tokenizer() -> Tokenizer:
    """A byte-level BPE with Qwen3's pipeline, trained on generated text: the same one every time, in about a second."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(), trainer)
    # After training, so that the markers follow the vocabulary, as in the models' own files.
    tokenizer.add_special_tokens([AddedToken(m, normalized=False, special=True) for m in _MARKERS])
    return tokenizer


def embedded_config(tokenizer: Tokenizer) -> Frozen:
    """The frozen config of the embedded tokenizer, made on the spot as well: its pre-tokenizer is Qwen3's."""
    return freeze(Reference(tokenizer), "embedded", known=load_all())


def _training_text() -> list[str]:
    *_, last = generate(seed=_TRAINING_SEED, target_chars=_TRAINING_CHARS)
    return [text for m in last.messages for text in (m.content, *(c.arguments for c in m.tool_calls)) if text]
