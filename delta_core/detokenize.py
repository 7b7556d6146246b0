"""The shortest tail of a prompt that primes an incremental detokenizer exactly as the whole prompt does.

An engine that streams text gives the prompt's IDs to `tokenizers.decoders.DecodeStream`, whose first step decodes all
of them: about 0.4 us a token, on the event loop, for every request. The last token or two give the same stream.

**What the stream does.** It holds IDs, a `prefix` of text, and how many of the IDs that prefix stands for. A step whose
prefix is empty first decodes the IDs it holds, and takes the result as prefix unless it ends with U+FFFD. The step then
adds the new ID, decodes everything, and, if the text is longer than the prefix and does not end with U+FFFD, returns
what follows the prefix (an error if the text does not begin with it); the IDs that the old prefix stood for are dropped
then, and `prefix` becomes the decoded rest. Otherwise it returns nothing and keeps all.

**Claim.** Let the prompt be h + t, and D the decoding under the stream's `skip_special_tokens`. If

1. D(h + t) and D(t) are not empty and do not end with U+FFFD, and
2. D(h + t + c) = D(h + t) + D(c) and D(t + c) = D(t) + D(c) for every continuation c,

then the stream primed with t returns, at every step, what the stream primed with h + t returns.

*Proof.* By 1 both streams take their prefix at the first step: D(h + t) and D(t). As long as they have returned nothing
they hold h + t + c and t + c, and by 2 the text of each is its prefix followed by D(c). So it is longer than the prefix
if D(c) is not empty; then it ends with U+FFFD if D(c) does; it always begins with the prefix; and what follows is D(c).
All that is the same for both. The first step that returns text drops h + t from one and t from the other, and from
there on their states are equal. ∎

**Where 1 and 2 hold.** A `ByteLevel` decoder on its own maps every token to bytes (a token with a character outside the
byte alphabet, as in DeepSeek's role markers, to its UTF-8), joins them and decodes the whole as UTF-8, with U+FFFD for
what is malformed. Neither the bytes of a token nor whether it is skipped depends on its neighbours, and nothing is put
between tokens, so spaces around special tokens do not arise. Let D(t) end with a character other than U+FFFD. The last
bytes of t are that character, whole. Its first byte continues no character, so a UTF-8 decoder starts anew there,
whatever came before, complete or malformed: the same character ends D(h + t), which is 1. After a whole character
the decoder starts anew once more, which is 2. No condition on where t begins: it may do so within a character.

**What is left to the whole prompt.** Prompts whose text ends with U+FFFD: the stream takes no prefix then, and later
returns the *whole prompt* as new text, which is the engine's own behaviour and not ours to change. Prompts with no text
among their last tokens. All decoders but `ByteLevel` alone: with `ByteFallback`, for one, a byte token before t can
spoil the characters of t.

Stop strings, log-probabilities and the handling of spaces between special tokens work on what the stream returns or on
the new IDs, and so see no difference. All this is about a tokenizer that does not change while a stream runs.

Guarded by tests/test_detokenizer.py: random streams on real tokenizers against the stream primed with the whole prompt;
tails that end within a character, and a `ByteFallback` decoder, are controls that must differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import Tokenizer

# Tokens looked at from the end. Generation prompts end with a marker and a line break; a longer run of skipped tokens,
# or of pieces of characters, is left to the whole prompt.
REACH = 32

_REPLACEMENT = "\ufffd"


def unproven(tokenizer: Tokenizer) -> str | None:
    """Why no tail is exact for this tokenizer, or None when tails are. About 5 us."""
    decoder = tokenizer.decoder
    if decoder is None:
        return "no decoder"
    kind = str(json.loads(decoder.__getstate__()).get("type"))
    return None if kind == "ByteLevel" else f"decoder {kind}"


def exact_tail(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool) -> list[int] | None:
    """The shortest tail that ends with a whole character, or None: prime with the whole prompt.

    tokenizer: the one that decodes; `unproven` must have no objection to it.
    skip_special_tokens: as the stream will have it.
    Cost: about 5 us for each length tried, usually one or two; never more than REACH of them.
    """
    for length in range(1, min(len(ids), REACH) + 1):
        tail = list(ids[-length:])
        text = tokenizer.decode(tail, skip_special_tokens=skip_special_tokens)
        if text and not text.endswith(_REPLACEMENT):
            return tail
    return None
