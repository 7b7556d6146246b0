"""What callers call: one text encoded in four ways, and what callers of `tokenizers` reach for beside that."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from .admission.admit import Admission
from .encoders import version_of
from .ids import Kind
from .metrics import Counters, Stats
from .reference import backend_of
from .store import SessionStore

D = TypeVar("D", bound="Library")


class Library:
    """What callers of a DeltaTokenizer call. What is not here is on `live`, the tokenizer that it was made over."""

    live: Any
    admission: Admission
    _options: Mapping[str, Any]
    _counters: Counters
    _store: SessionStore

    @classmethod
    def from_file(cls: type[D], path: str | os.PathLike[str], **options: Any) -> D:
        """A DeltaTokenizer over the tokenizer in a tokenizer.json. Raises what `Tokenizer.from_file` raises.

        >>> DeltaTokenizer.from_file(folder / "tokenizer.json", encoder="reference").admission.encoder
        'reference'
        """
        return cls(Tokenizer.from_file(os.fspath(path)), **options)

    @classmethod
    def from_pretrained(cls: type[D], folder: str | os.PathLike[str], **options: Any) -> D:
        """A DeltaTokenizer over the tokenizer of a model: the tokenizer.json in its folder, or of its name on the Hub.

        A name goes to `Tokenizer.from_pretrained`, which downloads. For the object that an engine has, with what
        tokenizer_config.json adds, give that object itself: `DeltaTokenizer(AutoTokenizer.from_pretrained(...))`.

        >>> DeltaTokenizer.from_pretrained(folder).encode("Hello") == live.encode("Hello").ids
        True
        """
        if Path(folder).is_dir():
            return cls.from_file(Path(folder, "tokenizer.json"), **options)
        return cls(Tokenizer.from_pretrained(os.fspath(folder)), **options)

    def __init__(self, live: Any, **options: Any) -> None:
        raise NotImplementedError

    def _encode(self, text: Any, kind: Kind, session: str | None, namespace: str | None, special: bool) -> Any:
        raise NotImplementedError

    async def _encode_async(
        self, text: Any, kind: Kind, session: str | None, namespace: str | None, special: bool
    ) -> Any:
        raise NotImplementedError

    def encode(
        self,
        text: str,
        *,
        session: str | None = None,
        namespace: str | None = None,
        add_special_tokens: bool = True,
    ) -> list[int]:
        """The live tokenizer's IDs of a text, as a fresh list.

        session: whose conversation this is, if known; only a hint where to look, never part of the result. Without
            it the session of `session_key` counts, and without that one the text is looked up by content.
        namespace: nothing is shared between namespaces (cache salts).
        Cost: comparing the text with the stored one, encoding what is new, copying the IDs.
        Raises what the live tokenizer raises for the same input. Thread-safe.

        >>> tok.encode("Hello there", session="s") == live.encode("Hello there").ids
        True
        """
        ids: list[int] = self._encode(text, list, session, namespace, add_special_tokens)
        return ids

    def encode_array(
        self,
        text: str,
        *,
        session: str | None = None,
        namespace: str | None = None,
        add_special_tokens: bool = True,
    ) -> array[int]:
        """As `encode`, the IDs as a fresh `array("q")`.

        For callers that would make one of the list, at 26 us per 1,000 IDs: the copy costs a fifth of a list's, and
        nothing is converted. A text that is asked for as both is remembered twice.

        >>> list(tok.encode_array("Hello there")) == tok.encode("Hello there")
        True
        """
        ids: array[int] = self._encode(text, array, session, namespace, add_special_tokens)
        return ids

    async def encode_async(
        self,
        text: str,
        *,
        session: str | None = None,
        namespace: str | None = None,
        add_special_tokens: bool = True,
    ) -> list[int]:
        """As `encode`, for an event loop: what takes longer than about 2 ms is done in a thread.

        >>> asyncio.run(tok.encode_async("Hello there")) == tok.encode("Hello there")
        True
        """
        ids: list[int] = await self._encode_async(text, list, session, namespace, add_special_tokens)
        return ids

    async def encode_array_async(
        self,
        text: str,
        *,
        session: str | None = None,
        namespace: str | None = None,
        add_special_tokens: bool = True,
    ) -> array[int]:
        """As `encode_array`, for an event loop."""
        ids: array[int] = await self._encode_async(text, array, session, namespace, add_special_tokens)
        return ids

    def encode_batch(
        self,
        texts: Iterable[str],
        *,
        sessions: Sequence[str | None] | None = None,
        namespace: str | None = None,
        add_special_tokens: bool = True,
    ) -> list[list[int]]:
        """The IDs of each text, as `encode` gives them one after the other, and at the same cost.

        sessions: one for each text, if known.

        >>> tok.encode_batch(["Hello", "Hello there"]) == [tok.encode("Hello"), tok.encode("Hello there")]
        True
        """
        texts = list(texts)
        keys: Sequence[str | None] = [None] * len(texts) if sessions is None else sessions
        return [
            self.encode(text, session=key, namespace=namespace, add_special_tokens=add_special_tokens)
            for text, key in zip(texts, keys, strict=True)
        ]

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        """What the live object's `decode` gives, with its options and defaults.

        >>> tok.decode(tok.encode("Hello", add_special_tokens=False))
        'Hello'
        """
        text: str = self.live.decode(ids, **options)
        return text

    def decode_batch(self, sequences: Sequence[Sequence[int]], **options: Any) -> list[str]:
        """As `decode`, for several sequences of IDs.

        >>> tok.decode_batch([tok.encode("Hello", add_special_tokens=False)])
        ['Hello']
        """
        return [self.decode(ids, **options) for ids in sequences]

    def token_to_id(self, token: str) -> int | None:
        """The ID of a token as the vocabulary spells it, or None.

        >>> tok.id_to_token(tok.token_to_id("a"))
        'a'
        """
        backend = self._backend()
        found: int | None = backend.token_to_id(token)
        return found

    def id_to_token(self, identifier: int) -> str | None:
        """The token of an ID as the vocabulary spells it, or None."""
        token: str | None = self._backend().id_to_token(identifier)
        return token

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        """The vocabulary of the live tokenizer, with its added tokens unless they are unwanted."""
        vocabulary: dict[str, int] = self._backend().get_vocab(with_added_tokens=with_added_tokens)
        return vocabulary

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """How many tokens the live tokenizer has, with its added tokens unless they are unwanted."""
        size: int = self._backend().get_vocab_size(with_added_tokens=with_added_tokens)
        return size

    def describe(self) -> str:
        """What was decided at the start, in one line for a log.

        >>> print(tok.describe())
        config ..., encoder reference ..., policy content, budget 1024 MiB
        """
        admission = self.admission
        if not admission.admitted:
            return f"not admitted, stock path: {admission.why_not}"
        line = (
            f"config {admission.config}, encoder {admission.encoder} {version_of(admission.encoder)}, "
            f"policy {self._options['policy']}, budget {self._store.budget >> 20} MiB"
        )
        said = "; ".join(filter(None, (admission.drift, admission.note)))
        return f"{line} ({said})" if said else line

    def __repr__(self) -> str:
        return f"<DeltaTokenizer: {self.describe()}; {len(self._store)} branches, {self._store.held >> 20} MiB>"

    def stats(self) -> Stats:
        """A snapshot of the counters.

        >>> tok.stats().fallbacks
        {}
        """
        return self._counters.snapshot(
            held=self._store.held, branches=len(self._store), evictions=self._store.evictions
        )

    def clear(self) -> None:
        """Forget all texts. The counters stay.

        >>> tok.clear()
        >>> tok.stats().bytes
        0
        """
        self._store.clear()

    def __len__(self) -> int:
        return self.get_vocab_size()

    def _backend(self) -> Any:
        return backend_of(self.live)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as the live object and the options: admitted anew (2 to 4 s), with nothing remembered."""
        return _rebuilt, (type(self), self.live, dict(self._options))


def _rebuilt(kind: type[D], live: Any, options: Mapping[str, Any]) -> D:
    return kind(live, **options)
