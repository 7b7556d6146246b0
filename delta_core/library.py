"""What a caller of `tokenizers` reaches for beside encoding one text: made of `encode`, or the live object's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from .reference import backend_of

D = TypeVar("D", bound="Library")


class Library:
    """The part of DeltaTokenizer that is no path of a request. What is not here is on `live`."""

    live: Any
    _options: Mapping[str, Any]

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

    def encode(
        self, text: str, *, session: str | None = None, namespace: str | None = None, add_special_tokens: bool = True
    ) -> list[int]:
        """See DeltaTokenizer."""
        raise NotImplementedError

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

        >>> tok.id_to_token(tok.token_to_id("Hello"))
        'Hello'
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

    def __len__(self) -> int:
        return self.get_vocab_size()

    def _backend(self) -> Any:
        return backend_of(self.live)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as the live object and the options: admitted anew (2 to 4 s), with nothing remembered."""
        return _rebuilt, (type(self), self.live, dict(self._options))


def _rebuilt(kind: type[D], live: Any, options: Mapping[str, Any]) -> D:
    return kind(live, **options)
