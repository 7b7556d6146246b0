"""What the end-to-end tests of the engines share: environments, tiny models, servers, sessions, HTTP, a report.

Nothing here knows an engine. An engine's own file brings the lock file, the server's command line and the requests.
Wants the package's `e2e` extra: httpx, and the official openai client, by which users ask.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import inspect
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
from tokenizers import Tokenizer

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))  # this checkout, whether or not one is installed

from delta_core.admission.sections import sections_of  # noqa: E402
from delta_core.admission.tables import cached_path  # noqa: E402
from delta_core.reference import Reference  # noqa: E402
from delta_core.tools.demo import templates  # noqa: E402
from delta_core.tools.demo.messages import Message, Turn  # noqa: E402
from delta_core.tools.demo.session import generate  # noqa: E402
from delta_core.tools.fetch import cached, fetch  # noqa: E402

# ---------------------------------------------------------------------------------------------------------------------
# Environments
# ---------------------------------------------------------------------------------------------------------------------


def ensure_venv(
    folder: Path,
    lock: Path,
    *,
    python: str = sys.executable,
    after: Callable[[Path], None] | None = None,
    recipe: str = "",
) -> Path:
    """A virtual environment with exactly the packages of a lock file; returns its Python.

    lock: a requirement file that names every package (`pip freeze`); installed without resolving dependencies.
    after: called with the environment's site-packages folder once the packages are there.
    recipe: any text that stands for what `after` does; a change rebuilds the environment, as one of the lock does.
    An environment that was built from the same three is reused. Takes minutes and gigabytes otherwise.
    """
    digest = hashlib.sha256(lock.read_bytes() + recipe.encode() + python.encode()).hexdigest()
    stamp, executable = folder / ".delta-e2e", folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == digest and executable.exists():
        return executable
    shutil.rmtree(folder, ignore_errors=True)
    _run([python, "-m", "venv", str(folder)])
    _run([str(executable), "-m", "pip", "install", "-q", "--no-deps", "-r", str(lock)])
    if after is not None:
        after(site_packages(executable))
    stamp.write_text(digest)  # last: a half-built environment is built again
    return executable


# Two operators that torchvision's GPU build wants to find when it is imported beside a CPU torch.
OPERATORS = """
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            Finder.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                Finder.library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, Finder())
"""


def declare_operators(packages: Path) -> None:
    """Have them declared in an environment, whose site-packages folder this is."""
    (packages / "_torchvision_operators.py").write_text(OPERATORS)
    (packages / "torchvision_operators.pth").write_text("import _torchvision_operators\n")


def install_checkout(python: Path) -> None:
    """Install this checkout, as it is now, into an environment; its dependencies are the lock file's business."""
    _run([str(python), "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", str(REPOSITORY)])


def site_packages(python: Path) -> Path:
    """The folder into which an environment's packages are installed."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")


# ---------------------------------------------------------------------------------------------------------------------
# Tiny models
# ---------------------------------------------------------------------------------------------------------------------

# What transformers must know besides tokenizer.json. The class decides how it loads the file, so it is the one by which
# transformers 5 loads the model itself: for DeepSeek it does not follow the name in the model's own repository.
_TOKENIZER_CONFIG: dict[str, dict[str, Any]] = {
    "qwen3": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "llama3_1": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
    },
    "gpt_oss": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
    },
    "deepseek_v3": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<｜begin▁of▁sentence｜>",
        "eos_token": "<｜end▁of▁sentence｜>",
        "pad_token": "<｜end▁of▁sentence｜>",
    },
}

# Chat templates of our own, in the layout of the families' ones. `enable_thinking` opens a think block in the
# generation prompt, which the next turn replaces.
_CHATML = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
_LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}"
    "<|end_header_id|>\n\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %}<|eot_id|>'
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
_HARMONY = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|start|>functions.tool to=assistant<|channel|>commentary"
    "<|message|>{{ m.content | tojson }}<|end|>{% else %}<|start|>"
    "{{ 'developer' if m.role == 'system' else m.role }}<|message|>{{ m.content or '' }}<|end|>"
    "{% for c in m.tool_calls or [] %}<|start|>assistant to=functions.{{ c.function.name }}"
    "<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>{% endfor %}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% if enable_thinking %}<|channel|>analysis<|message|>{% endif %}"
    "{% endif %}"
)
_DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "<｜User｜>{{ m.content }}{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
    "{% else %}<｜Assistant｜>{{ m.content or '' }}{% for c in m.tool_calls or [] %}<｜tool▁call▁begin｜>function"
    "<｜tool▁sep｜>{{ c.function.name }}\n```json\n{{ c.function.arguments | tojson }}\n```<｜tool▁call▁end｜>"
    "{% endfor %}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
_CHAT_TEMPLATES = {"qwen3": _CHATML, "llama3_1": _LLAMA, "gpt_oss": _HARMONY, "deepseek_v3": _DEEPSEEK}


def make_model(folder: Path, tokenizer: str, *, layers: int = 1, heads: int = 4, positions: int = 262_144) -> Path:
    """A folder with a tiny random Qwen3-architecture model and a real tokenizer, as engines load it; reused if there.

    tokenizer: a name that `delta fetch` knows and that has a template here. positions: the model's longest context,
    in tokens. heads: of its attention, which is most of what a long prompt costs. Random weights of a fixed seed, about
    30 MB; no framework is needed to write them.
    """
    recipe = json.dumps([layers, heads, positions, _TOKENIZER_CONFIG[tokenizer], _CHAT_TEMPLATES[tokenizer]])
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    stamp = folder / ".delta-e2e"
    if stamp.is_file() and stamp.read_text() == digest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = cached(tokenizer) or fetch(tokenizer, log=print)
    shutil.copy(source, folder / "tokenizer.json")
    config = {
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATES[tokenizer],
        **_TOKENIZER_CONFIG[tokenizer],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False))
    parsed = json.loads((folder / "tokenizer.json").read_bytes())
    ids = [*parsed["model"]["vocab"].values(), *(token["id"] for token in parsed["added_tokens"])]
    eos = next(t["id"] for t in parsed["added_tokens"] if t["content"] == config["eos_token"])
    vocab = (max(ids) // 256 + 1) * 256
    _write_qwen3(folder, vocab=vocab, layers=layers, heads=heads, positions=positions, eos=eos)
    stamp.write_text(digest)
    return folder


def with_stripping_token(model: Path, folder: Path) -> Path:
    """A copy of a model folder whose tokenizer has one more added token, <|planted|>, that takes the spaces before it.

    Such a token is not covered: the tokenizer is refused.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder)
    file = folder / "tokenizer.json"
    parsed = json.loads(file.read_bytes())
    last = parsed["added_tokens"][-1]
    parsed["added_tokens"].append({**last, "id": last["id"] + 1, "content": "<|planted|>", "lstrip": True})
    file.write_text(json.dumps(parsed, ensure_ascii=False))
    return folder


def with_another_vocabulary(model: Path, *tokens: str) -> None:
    """Exchange two tokens of a model folder's vocabulary, in place: another tokenizer under the same name."""
    file = model / "tokenizer.json"
    parsed = json.loads(file.read_bytes())
    vocabulary = parsed["model"]["vocab"]
    one, two = tokens
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    file.write_text(json.dumps(parsed, ensure_ascii=False))


def with_another_pattern(model: Path, folder: Path, pre_tokenizer: Any) -> Path:
    """A copy of a model folder whose tokenizer splits texts in another way. pre_tokenizer: as in a tokenizer.json."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder)
    file = folder / "tokenizer.json"
    parsed = json.loads(file.read_bytes())
    parsed["pre_tokenizer"] = pre_tokenizer
    file.write_text(json.dumps(parsed, ensure_ascii=False))
    config = folder / "tokenizer_config.json"
    # The class of a family would put its own pattern there.
    parsed = json.loads(config.read_bytes()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(parsed, indent=1, ensure_ascii=False))
    return folder


def pattern_of(table: str) -> dict[str, Any]:
    """The pre-tokenizer that a table of this package is for, as a tokenizer.json has it."""
    parsed = json.loads((REPOSITORY / "configs" / "tables" / f"{table}.json").read_bytes())
    return {
        "type": "Sequence",
        "pretokenizers": [
            {**step, "trim_offsets": False} if step["type"] == "ByteLevel" else step for step in parsed["pre_tokenizer"]
        ],
    }


# Of a covered form, and no model's: its table is derived in a second.
UNKNOWN_PATTERN = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\s+|[^\s\d]+|\d"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    ],
}


class Derivation:
    """The table of a model folder's tokenizer, in a cache of a test's own. As a context manager: it waits so long."""

    def __init__(self, model: Path, cache: Path) -> None:
        live = Tokenizer.from_file(str(model / "tokenizer.json"))
        name = cached_path(sections_of(Reference(live).parsed()).pre_tokenizer).name
        self.table = cache / "tables" / name
        self._lock: Any = None

    def __enter__(self) -> Derivation:
        self.table.parent.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.table.with_suffix(".lock"), "w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def written(self) -> int | None:
        """When the table was written, None when it is not there."""
        return self.table.stat().st_mtime_ns if self.table.is_file() else None


# A Qwen2.5-VL of 39M parameters, with the tokenizer of a model folder. Its text alone is a plain Qwen2's.
_VISION = """
import os, sys, torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

text = dict(
    vocab_size=151936, hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=65536, rope_theta=1e6, tie_word_embeddings=False,
    rope_scaling={"type": "mrope", "rope_type": "default", "mrope_section": [4, 6, 6]},
    bos_token_id=151643, eos_token_id=151645,
)
vision = dict(
    depth=1, hidden_size=64, intermediate_size=128, num_heads=4, in_chans=3, out_hidden_size=128, patch_size=14,
    spatial_merge_size=2, temporal_patch_size=2, window_size=112, fullatt_block_indexes=[0],
)
ids = dict(image_token_id=151655, video_token_id=151656, vision_start_token_id=151652, vision_end_token_id=151653)
torch.manual_seed(0)
model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids))
model.to(torch.bfloat16).save_pretrained(sys.argv[1])
"""
_VISION_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' or 'image' in c or 'image_url' in c %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in c %}{{ c.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_IMAGES = {
    "min_pixels": 3136, "max_pixels": 50176, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
}  # fmt: skip


def make_vision_model(python: Path, folder: Path, text_model: Path) -> Path:
    """A tiny multimodal model of random weights, made by an engine's own transformers.

    python: of the engine's environment. text_model: a folder of `make_model`'s, of qwen3, whose tokenizer it gets.
    """
    stamp = folder / ".delta-e2e"
    digest = hashlib.sha256(repr((_VISION, _VISION_TEMPLATE, _IMAGES)).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _run([str(python), "-P", "-c", _VISION, str(folder)])
    shutil.copy(text_model / "tokenizer.json", folder)
    config = json.loads((text_model / "tokenizer_config.json").read_bytes()) | {"chat_template": _VISION_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False))
    (folder / "preprocessor_config.json").write_text(json.dumps(_IMAGES, indent=1))
    stamp.write_text(digest)
    return folder


def image(seed: int) -> dict[str, Any]:
    """The content part of an image of 28 to 140 pixels a side, as a data URL."""
    rng = np.random.default_rng(seed)
    height, width = (28 * int(n) for n in rng.integers(1, 6, 2))
    rows = rng.integers(0, 256, (height, width * 3), np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(raw)),
        (b"IEND", b""),
    ]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png).decode()}"}}


def vision_messages(*, seed: int, turns: int, images: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
    """The messages of each turn of a chat, some of whose turns bring an image. images: which."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You look at pictures. " * 60}]
    rng = np.random.default_rng(seed)
    words = ["said", "the", "na\u00efve", "\u65e5\u672c", "1234", "print(x)", "\U0001f642", "e\u0301", "and", "\n"]
    for turn in range(turns):
        text = " ".join(words[int(n)] for n in rng.integers(0, len(words), 300))
        content: Any = [{"type": "text", "text": text}, image(seed + turn)] if turn in images else text
        messages = [*messages, {"role": "user", "content": content}]
        yield messages
        messages = [*messages, {"role": "assistant", "content": f"Number {turn}: " + text[:200]}]


def _write_qwen3(folder: Path, *, vocab: int, layers: int, heads: int, positions: int, eos: int) -> None:
    hidden, inner, kv_heads, head = 64, 128, max(1, heads // 2), 32
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": positions,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "bos_token_id": eos,
        "eos_token_id": eos,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for n in range(layers):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (heads * head, hidden),
            "self_attn.k_proj": (kv_heads * head, hidden),
            "self_attn.v_proj": (kv_heads * head, hidden),
            "self_attn.o_proj": (hidden, heads * head),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{n}.{name}.weight": shape for name, shape in layer.items()}
    rng = np.random.default_rng(0)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, shape in shapes.items():
        values = np.ones(shape, np.float32) if "norm" in name else rng.normal(0, 0.05, shape).astype(np.float32)
        blob = (values.view(np.uint32) >> 16).astype("<u2").tobytes()  # bfloat16 is the upper half of a float32
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    head_bytes = json.dumps(header).encode()
    head_bytes += b" " * (-len(head_bytes) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(head_bytes).to_bytes(8, "little") + head_bytes)
        file.writelines(blobs)


# ---------------------------------------------------------------------------------------------------------------------
# Servers and HTTP
# ---------------------------------------------------------------------------------------------------------------------


class ServerFailed(RuntimeError):
    """A server that did not come up; the text ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer: the status, and the body parsed as JSON where it is JSON, else as text."""

    status: int
    body: Any


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server process group as a context manager: started, awaited, stopped with all its children.

    command: the command line; it must listen on `port` of the loopback interface.
    log: where its output goes, both streams.
    ready: the path that answers 200 once requests are served. start_s: how long that may take, in seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        port: int,
        log: Path,
        env: Mapping[str, str] | None = None,
        ready: str = "/health",
        start_s: float = 300,
    ) -> None:
        self.command, self.port, self.log = list(command), port, log
        self._env = {**os.environ, **(env or {})}
        self._ready, self._start_s = ready, start_s
        self._process: subprocess.Popen[bytes] | None = None
        # A connection a request: that is how they reach all processes of a server that has several.
        each = {"connection": "close"}
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=each, trust_env=False)
        self._openai = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", default_headers=each, max_retries=0, timeout=300,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )  # fmt: skip

    def __enter__(self) -> Server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a test that is ended stops its servers, too
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as out:
            self._process = subprocess.Popen(
                self.command, stdout=out, stderr=subprocess.STDOUT, env=self._env, start_new_session=True
            )
        try:
            self._await()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._openai.close()
        self.stop()

    def _await(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._start_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerFailed(f"exit code {self._process.returncode}\n{self.log_tail()}")
            try:
                if self.get(self._ready, timeout_s=30).status == 200:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(0.25)
        raise ServerFailed(f"not ready after {self._start_s:.0f} s\n{self.log_tail()}")

    def stop(self) -> None:
        """End the whole process group, and wait until it is gone."""
        if self._process is None:
            return
        for sign, patience_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0)):
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline:
                try:
                    os.killpg(self._process.pid, sign)
                except ProcessLookupError:
                    self._process.wait()
                    return
                self._process.poll()  # collects the leader; its children are init's
                time.sleep(0.2)

    def log_text(self) -> str:
        """All it has written so far."""
        return self.log.read_text(errors="replace")

    def log_tail(self, lines: int = 60) -> str:
        """The last lines of it."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def get(self, path: str, *, timeout_s: float = 60) -> Reply:
        """GET a path. Raises httpx.TransportError when there is no answer."""
        answer = self._http.get(path, timeout=timeout_s)
        return _reply(answer.status_code, answer.content)

    def post(self, path: str, body: Any, *, headers: Mapping[str, str] | None = None, timeout_s: float = 300) -> Reply:
        """POST a JSON body. Bytes are sent as they are."""
        # Not httpx's `json=`, which can't write the lone surrogates that a client may escape.
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **(headers or {})}
        answer = self._http.post(path, content=content, headers=headers, timeout=timeout_s)
        return _reply(answer.status_code, answer.content)

    def ask(self, path: str, body: Mapping[str, Any]) -> Reply:
        """POST to one of OpenAI's endpoints through the official client, as users do.

        What OpenAI's API does not have goes into `extra_body`. Lone surrogates, which this client can't send, are
        posted.
        """
        try:
            return Reply(200, self._create(path, body).to_dict(warnings=False))
        except openai.APIStatusError as error:
            return _reply(error.status_code, error.response.content)
        except UnicodeEncodeError:
            return self.post(path, body)

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer. Raises openai.APIStatusError."""
        with self._create(path, {**body, "stream": True}) as events:
            for event in events:
                yield event.to_dict(warnings=False)

    def _create(self, path: str, body: Mapping[str, Any]) -> Any:
        creates: dict[str, Any] = {
            "/v1/chat/completions": self._openai.chat.completions.create,
            "/v1/completions": self._openai.completions.create,
            "/v1/embeddings": self._openai.embeddings.create,
            "/v1/responses": self._openai.responses.create,
        }
        create = creates[path]
        known = body.keys() & inspect.signature(create).parameters.keys()
        extra = {name: value for name, value in body.items() if name not in known}
        return create(**{name: body[name] for name in known}, extra_body=extra)


def _reply(status: int, content: bytes) -> Reply:
    text = content.decode(errors="replace")
    try:
        return Reply(status, json.loads(text))
    except ValueError:
        return Reply(status, text)


def await_condition(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Whether something comes true within a time limit."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Agent sessions
# ---------------------------------------------------------------------------------------------------------------------


def session_turns(*, seed: int, target_chars: int) -> list[Turn]:
    """The requests of one generated agent session: appends, replaced think tails, edits, one trim. Deterministic."""
    return list(generate(seed=seed, target_chars=target_chars))


def session_texts(tokenizer: str, *, seed: int, target_chars: int) -> list[str]:
    """The same as prompt texts, in the layout of the named tokenizer's family."""
    family = templates.family_of(tokenizer)
    return [templates.render_turn(family, turn) for turn in session_turns(seed=seed, target_chars=target_chars)]


def chat_messages(turn: Turn) -> list[dict[str, Any]]:
    """A turn's messages in the OpenAI chat shape."""
    return [_chat_message(message) for message in turn.messages]


def _chat_message(message: Message) -> dict[str, Any]:
    shape: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.tool_calls:
        shape["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        shape["tool_call_id"] = message.tool_call_id
    return shape


# ---------------------------------------------------------------------------------------------------------------------
# Report
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What was checked, what failed. `part` runs one group of checks; a failure in it does not stop the others."""

    failures: list[str] = field(default_factory=list)
    checks: int = 0

    def check(self, what: str, held: bool, detail: object = "") -> None:
        """Count one statement; print it when it does not hold."""
        self.checks += 1
        if not held:
            self.failures.append(what)
            print(f"  FAILED {what} {detail}"[:2000], flush=True)

    def equal(self, what: str, got: object, expected: object) -> None:
        """Check equality; says where lists begin to differ."""
        detail = f"got {got!r:.300}, expected {expected!r:.300}"
        if isinstance(got, list) and isinstance(expected, list):
            at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), None)
            detail = f"lengths {len(got)} and {len(expected)}, first difference at {at}"
        self.check(what, got == expected, detail)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a group; prints its name, number of checks, failures and time."""
        started, checks, failures = time.monotonic(), self.checks, len(self.failures)
        print(f"{name} ...", flush=True)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - reported; the other groups still run
            self.failures.append(name)
            print(f"  FAILED {name}: {type(error).__name__}: {error}"[:6000], flush=True)
        count, bad = self.checks - checks, len(self.failures) - failures
        print(f"  {name}: {count} checks, {bad} failed, {time.monotonic() - started:.0f} s", flush=True)

    def exit_code(self) -> int:
        """Print the sum; 0 when everything held and something was checked."""
        print(f"{self.checks} checks, {len(self.failures)} failed", flush=True)
        return 1 if self.failures or not self.checks else 0
