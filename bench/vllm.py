"""What vLLM's front end costs a turn, with its own tokenizer, with fastokens, and with Delta Tokenizer.

    python -m bench.vllm --python VENV/bin/python [--tokens 8000 32000 100000] [--out FOLDER]

VENV is the environment that `e2e/vllm.py` makes; a tiny model with one attention head is made, so that the engine's
own step hides as little as possible. Delta Tokenizer is measured with vLLM's own detokenizer and with it primed by a
tail. The same conversation every time, grown by two short messages a turn, from one client.

- *parts*: in a process of vLLM's, the CPU time (all threads) of each step between the request's bytes and the engine,
  and of the detokenizer's first step.
- *TTFT*: on `vllm serve` with a tiny model, from sending a streamed request to its first token.
- *render*: a turn's round trip on `vllm launch render`.

Writes vllm.json and vllm.md. About 20 minutes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from e2e.harness import Server, chat_messages, free_port, install_checkout, make_model, session_turns
from e2e.vllm import ENVIRONMENT

ON = {"DELTA_TOKENIZER": "1"}
WAYS: dict[str, dict[str, str]] = {
    "stock": {},
    "fastokens": {"VLLM_USE_FASTOKENS": "1"},
    "delta": {**ON, "DELTA_DETOKENIZER": "0"},
    "delta, primed": ON,
}
PARTS = ("json", "validation", "template", "tokenization", "msgpack out", "msgpack in", "block hashes", "detokenizer")
CHARS_PER_TOKEN = 3.55  # of the generated sessions under Qwen3
MAX_LEN = 131_072
MODEL = "tiny"


def conversation(tokens: int, turns: int) -> list[list[dict[str, Any]]]:
    """The messages of each request: a session of about so many tokens, then two short messages more each time."""
    messages = chat_messages(session_turns(seed=9, target_chars=int(tokens * CHARS_PER_TOKEN))[-1])
    requests = [messages]
    for turn in range(turns):
        said = f"Step {turn}: the check of module_{turn * 7} passed, {turn * 31} tests in {turn + 2}.{turn} s. " * 3
        asked = f"Go on with file_{turn}.py and tell me what is left of the {turn + 5} findings."
        messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": asked}]
        requests.append(messages)
    return requests


# -- parts: inside a process of vLLM's --


def measure_parts(model: str, sizes: Sequence[int], turns: int) -> dict[str, Any]:
    """Milliseconds of CPU of each part, the median over the turns, by size. Runs with vLLM's Python."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import renderer_from_config
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import hash_block_tokens, init_none_hash
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from delta_vllm import keys

    config = EngineArgs(model=model, dtype="float32", max_model_len=MAX_LEN).create_engine_config()
    renderer = renderer_from_config(config)
    block = config.cache_config.block_size
    init_none_hash(sha256)
    encoder, decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreRequest)
    result: dict[str, Any] = {}
    for size in sizes:
        spent: dict[str, list[float]] = {part: [] for part in PARTS}
        ids: list[int] = []

        def timed(part: str, call: Callable[[], Any], spent: dict[str, list[float]] = spent) -> Any:
            start = time.process_time()
            value = call()
            spent[part].append((time.process_time() - start) * 1e3)
            return value

        for messages in conversation(size, turns):
            raw = json.dumps({"model": MODEL, "messages": messages, "session_id": "bench"}).encode()
            body = timed("json", lambda raw=raw: json.loads(raw))
            request = timed("validation", lambda body=body: ChatCompletionRequest.model_validate(body))
            chat = request.build_chat_params(None, "string").with_defaults({"tokenize": False})
            _, prompt = timed("template", lambda r=request, c=chat: renderer.render_messages(r.messages, c))
            params = request.build_tok_params(config.model_config)
            with keys.of_body(request), keys.of_render(None):
                tokens = timed("tokenization", lambda p=prompt, t=params: renderer._tokenize_prompt(p, t))
            ids = tokens["prompt_token_ids"]
            core = EngineCoreRequest(
                request_id="r", prompt_token_ids=ids, mm_features=None, sampling_params=SamplingParams(),
                pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
            )  # fmt: skip
            frames = timed("msgpack out", lambda core=core: encoder.encode(core))
            timed("msgpack in", lambda frames=frames: decoder.decode(frames))

            def hashes(ids: list[int] = ids) -> None:
                parent = None
                for at in range(0, len(ids) - block + 1, block):
                    parent = hash_block_tokens(sha256, parent, ids[at : at + block], None)

            timed("block hashes", hashes)

            def first_step(core: Any = core) -> None:
                FastIncrementalDetokenizer(renderer.tokenizer, core).update([1000], False)

            timed("detokenizer", first_step)
        # The first request is the cold one, and warms what there is to warm.
        medians = {part: round(statistics.median(values[1:]), 3) for part, values in spent.items()}
        result[str(size)] = {"tokens": len(ids), "cold tokenization": round(spent["tokenization"][0], 3), **medians}
    return result


# -- servers --


def first_token_ms(port: int, messages: list[dict[str, Any]]) -> float:
    """From sending a streamed chat request to the first event that brings a token."""
    body = {"model": MODEL, "messages": messages, "max_tokens": 2, "temperature": 0, "stream": True, "ignore_eos": True}
    body |= {"session_id": "bench", "return_token_ids": True}
    data = json.dumps(body)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    start = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", data, {"content-type": "application/json"})
    first = 0.0
    for line in connection.getresponse():
        if (
            not first
            and line.startswith(b"data: {")
            and any(c.get("token_ids") for c in json.loads(line[6:])["choices"])
        ):
            first = (time.perf_counter() - start) * 1e3
    connection.close()
    return first


def measure_server(
    python: Path, model: Path, way: str, command: str, sizes: Sequence[int], turns: int, log: Path
) -> dict[str, Any]:
    """Milliseconds, median and minimum over the turns, by size."""
    port = free_port()
    line = [
        str(python.parent / "vllm"),
        *command.split(),
        str(model),
        "--served-model-name",
        MODEL,
        "--host",
        "127.0.0.1",
    ]
    line += ["--port", str(port), "--dtype", "float32", "--max-model-len", str(MAX_LEN)]
    if command == "serve":
        line += ["--max-num-seqs", "8", "--enforce-eager", "--enable-prefix-caching"]
    result: dict[str, Any] = {}
    with Server(line, port=port, log=log, env={**ENVIRONMENT, **WAYS[way]}, start_s=900) as running:
        for size in sizes:
            took = []
            for messages in conversation(size, turns):
                if command == "serve":
                    took.append(first_token_ms(port, messages))
                    continue
                start = time.perf_counter()
                body = {"model": MODEL, "messages": messages, "session_id": "bench"}
                reply = running.post("/v1/chat/completions/render", body)
                took.append((time.perf_counter() - start) * 1e3)
                assert reply.status == 200, reply
            warm = took[1:]
            result[str(size)] = {
                "cold": round(took[0], 1),
                "median": round(statistics.median(warm), 1),
                "least": round(min(warm), 1),
            }
    return result


# -- report --


def table(results: dict[str, Any], sizes: Sequence[int]) -> str:
    """The figures as Markdown, a table for each size. What was not measured stays empty."""
    rows = [("parts", part, part) for part in (*PARTS, "cold tokenization")]
    for kind, label in (("launch render", "render"), ("serve", "TTFT")):
        rows += [(kind, field, f"{label}, {field}") for field in ("median", "least", "cold")]
    lines = []
    for size in sizes:
        lines += [f"### {size:,} tokens", "", "| ms | " + " | ".join(WAYS) + " |", "|---" + "|--:" * len(WAYS) + "|"]
        for kind, field, label in rows:
            found = [results.get(kind, {}).get(way, {}).get(str(size), {}).get(field) for way in WAYS]
            if any(cell is not None for cell in found):
                lines.append(f"| {label} | " + " | ".join("" if cell is None else f"{cell:g}" for cell in found) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="of an environment with vLLM and this package")
    parser.add_argument("--model", type=Path, help="a model's folder, instead of making one")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8_000, 32_000, 100_000])
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--kinds", nargs="+", default=["parts", "launch render", "serve"])
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "delta-bench")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print("RESULT " + json.dumps(measure_parts(str(args.model), args.tokens, args.turns)))
        return 0
    if args.python is None:
        parser.error("--python is needed")
    install_checkout(args.python)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.model is None:
        args.model = make_model(args.out / "model", "qwen3", heads=1)
    results: dict[str, Any] = {kind: {} for kind in args.kinds}
    for kind in args.kinds:
        for way in WAYS:
            if kind == "launch render" and "primed" in way:
                continue  # it detokenizes nothing
            print(f"{kind}: {way} ...", file=sys.stderr, flush=True)
            if kind == "parts":
                results[kind][way] = _parts_of(args, way)
            else:
                log = args.out / f"{kind}-{way}.log".replace(" ", "-")
                results[kind][way] = measure_server(args.python, args.model, way, kind, args.tokens, args.turns, log)
            (args.out / "vllm.json").write_text(json.dumps(results, indent=1))
            (args.out / "vllm.md").write_text(table(results, args.tokens))
    print(table(results, args.tokens))
    return 0


def _parts_of(args: argparse.Namespace, way: str) -> dict[str, Any]:
    line = [str(args.python), "-m", "bench.vllm", "--inside", "--model", str(args.model), "--turns", str(args.turns)]
    line += ["--tokens", *map(str, args.tokens)]
    environ = {**os.environ, **ENVIRONMENT, **WAYS[way]}
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(line, env=environ, cwd=root, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-4000:])
    parsed: dict[str, Any] = json.loads(found[-1].removeprefix("RESULT "))
    return parsed


if __name__ == "__main__":
    raise SystemExit(main())
