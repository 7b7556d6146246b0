"""End-to-end test of the SGLang adapter, on the real, unmodified server: `python e2e/sglang.py [--quick]`.

It makes what it needs (an environment from a lock file, tiny random models with real tokenizers), starts servers one
after the other, and sends every server the same requests. What the stock backend answers is what `delta` must answer:
prompt IDs, token counts, cached tokens, errors. Then it looks at what only `delta` has: metrics, log lines, faults.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import httpx
from harness import Reply, Report, Server

HERE = Path(__file__).resolve().parent
VERSIONS = ("0.5.23", "0.5.19")
CONTEXT = 32_768  # tokens
# What every server and engine is started with: one that a CPU can run.
ENGINE = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "dtype": "bfloat16",
    "mem_fraction_static": 0.1,
    "max_total_tokens": 131_072,
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
    "sleep_on_idle": True,  # an idle scheduler would take one of two cores
    "grammar_backend": "none",
}
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONSAFEPATH": "1",  # beside this file, nothing imports it for the engine
    "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300",  # s; on a busy machine, importing SGLang takes its time
}

# What a CPU without the CPU build of SGLang's kernels needs to serve plain text: a stand-in for the names that are
# imported when SGLANG_USE_CPU_ENGINE is set, none of which is called.
KERNELS = '''
"""Stands in for the CPU build of sgl-kernel; nothing of it is called."""

__version__ = "0.4.10+stub"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(name)

    return missing
'''
# On PYTHONPATH as sitecustomize: declares the operators of a CPU build of the kernels that SGLang's image processors
# name when they are imported. None is called.
DECLARED = """
import pathlib, re, sys
import torch

library = torch.library.Library("sgl_kernel", "FRAGMENT")
root = next(pathlib.Path(path) / "sglang" / "srt" for path in sys.path if path.endswith("site-packages"))
sources = [file.read_text(errors="ignore") for part in ("models", "layers") for file in (root / part).rglob("*.py")]
operator = re.compile(r"torch\\.ops\\.sgl_kernel\\.([a-z0-9_]+_cpu)\\b")
for name in sorted({name for text in sources for name in operator.findall(text)}):
    if not hasattr(torch.ops.sgl_kernel, name):
        library.define(name + "(Tensor x) -> Tensor")
"""


def environment(work: Path, version: str, python: Path | None = None) -> Path:
    """The environment of one SGLang version with this checkout, as it is now, in it; returns its Python.

    python: of an environment that has SGLang; none is made then.
    """
    if python is None:
        python = harness.ensure_venv(
            work / f"sglang-{version}",
            HERE / f"sglang-{version}.txt",
            python=_python311(),
            after=_stand_ins,
            recipe=KERNELS + harness.OPERATORS,
        )
    python = python.absolute()
    harness.install_checkout(python)
    return python


def _python311() -> str:
    """SGLang's wheels are for this Python."""
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    found = shutil.which("python3.11")
    if found is None:
        raise SystemExit("SGLang's wheels need Python 3.11")
    return found


def _stand_ins(packages: Path) -> None:
    (packages / "sgl_kernel").mkdir()
    (packages / "sgl_kernel" / "__init__.py").write_text(KERNELS)
    harness.declare_operators(packages)


@dataclass(frozen=True)
class Servers:
    """Where servers come from: an environment, a folder of models, a folder for logs."""

    python: Path
    models: Path
    logs: Path

    def model(self, tokenizer: str) -> Path:
        """The folder of a tiny model with this tokenizer."""
        return harness.make_model(self.models / tokenizer, tokenizer)

    def refused_model(self) -> Path:
        """The same with a token of a kind that is not covered."""
        return harness.with_stripping_token(self.model("qwen3"), self.models / "qwen3-and-a-token")

    @contextlib.contextmanager
    def server(
        self,
        name: str,
        *arguments: str,
        tokenizer: str = "qwen3",
        model: Path | None = None,
        backend: str = "delta",
        child: tuple[str, ...] = (),
        serve: bool = False,
        context: int = CONTEXT,
        env: dict[str, str] | None = None,
    ) -> Iterator[Server]:
        """A running server.

        model: in place of the tokenizer's own. child: a command of sglang_child.py that starts it. serve: started as
        `sglang serve`, not as a module.
        """
        port = harness.free_port()
        start = [str(self.python), "-P", "-m", "sglang.launch_server"]
        if child:
            start = [str(self.python), "-P", str(HERE / "sglang_child.py"), *child]
        elif serve:
            start = [str(self.python.parent / "sglang"), "serve"]
        options = [f"--{key.replace('_', '-')}={value}" for key, value in ENGINE.items() if value is not True]
        options += [f"--{key.replace('_', '-')}" for key, value in ENGINE.items() if value is True]
        command = [*start, f"--model-path={model or self.model(tokenizer)}", *options, f"--context-length={context}"]
        command += ["--host=127.0.0.1", f"--port={port}", "--served-model-name=tiny", "--skip-server-warmup"]
        command += ["--enable-cache-report", f"--tokenizer-backend={backend}", *arguments]
        log = self.logs / f"{name}.log"
        with Server(command, port=port, log=log, env={**ENVIRONMENT, **(env or {})}, start_s=600) as server:
            yield server


# ---------------------------------------------------------------------------------------------------------------------
# Requests, and what is compared of their answers
# ---------------------------------------------------------------------------------------------------------------------

ONE = {"max_new_tokens": 1, "temperature": 0}
Outcomes = dict[str, Any]


def _usage(body: Any) -> Any:
    usage = body["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return [usage.get("prompt_tokens", usage.get("input_tokens")), details.get("cached_tokens")]


def generate(server: Server, text: Any, **fields: Any) -> Any:
    """/generate: prompt IDs, token count and cached tokens of every result, or the error."""
    reply = server.post("/generate", {"text": text, "sampling_params": ONE, "return_prompt_token_ids": True, **fields})
    if reply.status != 200:
        return _error(reply)
    results = reply.body if isinstance(reply.body, list) else [reply.body]
    return [[r["prompt_token_ids"], r["meta_info"]["prompt_tokens"], r["meta_info"]["cached_tokens"]] for r in results]


def chat(server: Server, messages: list[dict[str, Any]], **fields: Any) -> Any:
    """/v1/chat/completions, likewise."""
    body = {"model": "tiny", "messages": messages, "max_tokens": 1, "temperature": 0, "return_prompt_token_ids": True}
    reply = server.ask("/v1/chat/completions", {**body, **fields})
    if reply.status != 200:
        return _error(reply)
    return [[choice.get("prompt_token_ids") for choice in reply.body["choices"]], _usage(reply.body)]


def completion(server: Server, prompt: Any, **fields: Any) -> Any:
    """/v1/completions, likewise."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    reply = server.ask("/v1/completions", {**body, **fields})
    if reply.status != 200:
        return _error(reply)
    return [[choice["prompt_token_ids"] for choice in reply.body["choices"]], _usage(reply.body)]


def other(server: Server, path: str, body: dict[str, Any]) -> Any:
    """Any other endpoint: what it says about the prompt."""
    ask = server.ask if path == "/v1/responses" else server.post
    reply = ask(path, {"model": "tiny", **body})
    if reply.status != 200:
        return _error(reply)
    kept = {key: reply.body[key] for key in ("tokens", "count", "input_tokens") if key in reply.body}
    if "prompt_eval_count" in reply.body:
        kept["prompt_eval_count"] = reply.body["prompt_eval_count"]
    return [kept, _usage(reply.body) if "usage" in reply.body else None]


def _error(reply: Reply) -> Any:
    """An error as it is compared: without what differs from request to request."""
    text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body, sort_keys=True)
    return [reply.status, re.sub(r"\b[0-9a-f]{32}\b|\b0x[0-9a-f]+\b", "ID", text)[:2000]]


# Salts that are no string of one prompt's: refused, each in its place, or served.
ODD_SALTS: dict[str, Any] = {
    "list": ["a", "b"],
    "list of one": ["a"],
    "empty list": [],
    "number": 5,
    "object": {"a": 1},
}
THINK = {"chat_template_kwargs": {"enable_thinking": True}}


def agent_sessions(server: Server, tokenizer: str, *, chars: int, seeds: Sequence[int]) -> Outcomes:
    """Whole agent sessions, turn by turn, on the three text endpoints, each with another kind of key."""
    found: Outcomes = {}
    turns = harness.session_turns(seed=seeds[0], target_chars=chars)
    for n, turn in enumerate(turns):
        extra = THINK if turn.thinking else {}
        found[f"chat session, turn {n} ({turn.kind})"] = chat(
            server, harness.chat_messages(turn), session_id=f"agent-{seeds[0]}", **extra
        )
    for n, text in enumerate(harness.session_texts(tokenizer, seed=seeds[1], target_chars=chars)):
        found[f"generate session, turn {n}"] = generate(server, text, cache_salt="tenant")
    for n, text in enumerate(harness.session_texts(tokenizer, seed=seeds[2], target_chars=chars // 2)):
        found[f"completions session, turn {n}"] = completion(server, text)
    return found


def forks(server: Server, tokenizer: str) -> Outcomes:
    """Conversations under one salt that part, an edited history, and the same text under two salts."""
    found: Outcomes = {}
    texts = harness.session_texts(tokenizer, seed=11, target_chars=16_000)
    base = texts[-1]
    for name, text in {
        "left": base + "left " * 30,
        "right": base + "right " * 30,
        "left goes on": base + "left " * 30 + "and on. " * 20,
        "right goes on": base + "right " * 30 + "and on. " * 20,
        "edited": base[:4000] + "[removed]" + base[4400:] + "right " * 30,
        "head trimmed": base[:500] + base[3000:],
    }.items():
        found[f"fork {name}"] = generate(server, text, extra_key="team")
    for salt in ("one", "two", "one"):
        found[f"salt {salt}, {len(found)}"] = generate(server, texts[3], cache_salt=salt)
    found["salt and extra key"] = generate(server, texts[3], cache_salt="one", extra_key="team")
    return found


def endpoints(server: Server) -> Outcomes:
    """Every endpoint that takes text, and the ways to ask it."""
    user = [{"role": "user", "content": "Wie heißt die Hauptstadt von 法国? \u0958/ e\u0301\u0323 <think>\n"}]
    long = [{"role": "user", "content": "A sentence that is said many times.\n" * 400}]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    two = {"sampling_params": {**ONE, "n": 2}}
    found: Outcomes = {
        "generate, batch": generate(server, ["The capital", "of France", "is"], cache_salt=["a", "b", "a"]),
        "generate, batch of one": generate(server, ["The capital"], session_id="b1"),
        "generate, n=2": generate(server, "The capital " * 300, extra_key="k", **two),
        "generate, batch, n=2": generate(server, ["The capital " * 300, "of"], **two),
        "generate, rid": generate(server, "The capital " * 300, rid="conversation-7/1"),
        "generate, stop": generate(server, "The capital", sampling_params={**ONE, "stop": ["\n\n", "</end>"]}),
        "generate, logprobs": generate(server, "The capital " * 300, return_logprob=True, logprob_start_len=0),
        "generate, special tokens": generate(server, "<|im_start|>a<|im_end|><|endoftext|></s>[INST]<s>"),
        "completions, batch": completion(server, ["one", "two " * 500]),
        "completions, n=2": completion(server, "three " * 500, n=2),
        "completions, echo": completion(server, "four " * 50, echo=True, logprobs=1),
        "chat": chat(server, user),
        "chat, long": chat(server, long, session_id="c1"),
        "chat, long, again": chat(server, long, session_id="c1"),
        "chat, n=2": chat(server, long, n=2, session_id="c1"),
        "chat, tools": chat(server, long, tools=[tool], session_id="c1"),
        "chat, continued": chat(
            server, [*long, {"role": "assistant", "content": "I think"}], continue_final_message=True, session_id="c1"
        ),
        "chat, logprobs": chat(server, long, logprobs=True, top_logprobs=2),
        "chat, session_params": chat(server, long, session_params={"id": "none"}),
        "responses": other(server, "/v1/responses", {"input": long[0]["content"], "max_output_tokens": 2}),
        "responses, key": other(
            server, "/v1/responses", {"input": long[0]["content"] * 2, "max_output_tokens": 2, "session_id": "r1"}
        ),
        "messages": other(server, "/v1/messages", {"messages": long, "max_tokens": 1}),
        "messages, count": other(server, "/v1/messages/count_tokens", {"messages": long}),
        "tokenize": other(server, "/tokenize", {"prompt": "Hello there " * 500}),
        "tokenize, batch": other(server, "/tokenize", {"prompt": ["Hello", "there " * 500]}),
        "tokenize, bare": other(server, "/tokenize", {"prompt": "Hello there", "add_special_tokens": False}),
        "tokenize, chat": other(server, "/tokenize", {"messages": long}),
        "ollama, chat": other(server, "/api/chat", {"messages": long, "stream": False, "options": {"num_predict": 1}}),
        "ollama, generate": other(
            server, "/api/generate", {"prompt": "Hello " * 500, "stream": False, "options": {"num_predict": 1}}
        ),
    }
    for name, salt in ODD_SALTS.items():
        for field in ("cache_salt", "extra_key"):
            found[f"generate, {field}: {name}"] = generate(server, "The capital " * 100, **{field: salt})
            found[f"chat, {field}: {name}"] = chat(server, user, **{field: salt})
            found[f"chat, n=2, {field}: {name}"] = chat(server, user, n=2, **{field: salt})
    found["generate, batch, salts of other types"] = generate(server, ["one", "two"], cache_salt=["a", 5])
    found["completions, batch, too few salts"] = completion(server, ["one", "two"], cache_salt=["a"])
    found["responses, a list as salt"] = other(server, "/v1/responses", {"input": "one", "cache_salt": ["a"]})
    return found


def edges(server: Server) -> Outcomes:
    """Texts that are refused, and texts that are nearly."""
    found: Outcomes = {
        # An empty text in /generate ends the scheduler of SGLang 0.5.23; where a token is prepended it is served.
        "empty completion": completion(server, ""),
        "empty, tokenize": other(server, "/tokenize", {"prompt": ""}),
        "lone surrogate": generate(server, "a \ud800 b", session_id="s"),
        "long lone surrogate": generate(server, "a b c " * 2000 + "\udfff", session_id="s"),
        "lone surrogate, completion": completion(server, "a \ud800 b"),
        "lone surrogate, chat": chat(server, [{"role": "user", "content": "\ud800"}], session_id="s"),
        "null": generate(server, "a\x00b\ufeff\u200b\ufffd"),
        "too long": generate(server, "word " * (CONTEXT + 500), session_id="s"),
        "too long, chat": chat(server, [{"role": "user", "content": "word " * (CONTEXT + 500)}], session_id="s"),
        "too long, completion": completion(server, "word " * (CONTEXT + 500)),
        "almost too long": completion(server, "word " * 3000, max_tokens=CONTEXT),
        "both": server.post("/generate", {"text": "a", "input_ids": [1]}).status,
        "no text": server.post("/generate", {"sampling_params": ONE}).status,
    }
    return found


def pictures(server: Server) -> Outcomes:
    """Chats with and without images, texts with an image, and images that are none, of a model that takes them."""
    found: Outcomes = {}
    for name, seed, images in (("text alone", 1, ()), ("one image", 2, (1,)), ("mixed", 3, (0, 2, 3))):
        for key in ({"session_id": f"s{seed}"}, {"cache_salt": f"c{seed}"}, {}):
            for n, messages in enumerate(harness.vision_messages(seed=seed, turns=5, images=images)):
                found[f"chat, {name}, turn {n}, {[*key]}"] = chat(server, messages, **key)
    url = harness.image(7)["image_url"]["url"]
    text, place = "A picture is said to be here. " * 200, "<|vision_start|><|image_pad|><|vision_end|>"
    for n in range(3):
        found[f"generate, text alone, {n}"] = generate(server, text * (n + 1), session_id="g")
        found[f"generate, an image, {n}"] = generate(server, text * (n + 1) + place, image_data=url, session_id="i")
        found[f"generate, two images, {n}"] = generate(server, place + text + place, image_data=[url, url])
    found["generate, batch"] = generate(server, [text, text + place], image_data=[None, url])
    found["completion"] = completion(server, text)
    found["no place for the image"] = generate(server, text, image_data=url)
    found["no image for the place"] = generate(server, text + place)
    found["not an image"] = generate(server, text + place, image_data="data:image/png;base64,AAAA")
    found["an image alone"] = chat(server, [{"role": "user", "content": [harness.image(9)]}])
    found["count tokens"] = other(
        server, "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": text}]}
    )

    def client(n: int) -> Outcomes:
        turns = harness.vision_messages(seed=40 + n, turns=4, images=(n,))
        return {f"client {n}, turn {i}": chat(server, turn, session_id=f"t{n}")[0] for i, turn in enumerate(turns)}

    with ThreadPoolExecutor(4) as pool:
        return {**found, **{name: ids for part in pool.map(client, range(4)) for name, ids in part.items()}}


def concurrent_clients(server: Server, tokenizer: str) -> Outcomes:
    """Six agents at once, two of them with the same session; IDs only, as cached tokens depend on the order."""

    def run(client: int) -> Outcomes:
        found: Outcomes = {}
        seed = 20 + client // 2
        if client % 3 == 0:
            for n, turn in enumerate(harness.session_turns(seed=seed, target_chars=16_000)[::2]):
                answer = chat(server, harness.chat_messages(turn), session_id=f"together-{client // 2}")
                found[f"client {client}, chat turn {n}"] = answer[0]
        else:
            for n, text in enumerate(harness.session_texts(tokenizer, seed=seed, target_chars=16_000)[::2]):
                answer = generate(server, text, cache_salt=f"together-{client // 2}")
                found[f"client {client}, turn {n}"] = answer[0][:2] if isinstance(answer[0], list) else answer
        return found

    with ThreadPoolExecutor(6) as pool:
        parts = list(pool.map(run, range(6)))
    return {name: value for part in parts for name, value in part.items()}


def aborts(server: Server) -> Outcomes:
    """Clients that leave and requests that are aborted while they run; what comes after is as if they never were."""
    text = "A long story that goes on. " * 500
    ids = [f"aborted-{n}" for n in range(4)]
    body = {"text": text, "session_id": "left", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}

    def leave(rid: str) -> None:
        with contextlib.suppress(httpx.TimeoutException):  # no answer in time: that is the point
            server.post("/generate", {**body, "rid": rid}, timeout_s=0.4)

    threads = [threading.Thread(target=leave, args=(rid,)) for rid in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rid in ids:
        server.post("/abort_request", {"rid": rid})
    return {"after aborts": [answer[:2] for answer in generate(server, text + "The end.", session_id="left")]}


def everything(server: Server, tokenizer: str, chars: int) -> Outcomes:
    """All of it, in one order."""
    return {
        **agent_sessions(server, tokenizer, chars=chars, seeds=(1, 2, 3)),
        **forks(server, tokenizer),
        **endpoints(server),
        **edges(server),
        **concurrent_clients(server, tokenizer),
        **aborts(server),
    }


def plain(server: Server, tokenizer: str, chars: int) -> Outcomes:
    """What a further tokenizer or mode is asked."""
    empty = {"empty": generate(server, "", session_id="empty")} if tokenizer == "llama3_1" else {}
    sessions = agent_sessions(server, tokenizer, chars=chars, seeds=(1, 2, 3))
    return {**sessions, **concurrent_clients(server, tokenizer), **empty}


# ---------------------------------------------------------------------------------------------------------------------
# Parts
# ---------------------------------------------------------------------------------------------------------------------


def compare(report: Report, got: Outcomes, expected: Outcomes, *, only: str = "", cached: bool = True) -> None:
    """Every outcome of one server against the stock one's. cached: cached tokens must be the same, too."""
    names = [name for name in got if only in name]
    report.check("there is something to compare", bool(names))
    for name in names:
        report.equal(name, _without_cache(got[name], cached), _without_cache(expected[name], cached))


def _without_cache(outcome: Any, cached: bool) -> Any:
    if cached or not isinstance(outcome, list):
        return outcome
    if len(outcome) == 2 and isinstance(outcome[1], list) and len(outcome[1]) == 2:  # an OpenAI answer
        return [outcome[0], outcome[1][0]]
    return [one[:2] if isinstance(one, list) and len(one) == 3 else one for one in outcome]


def metrics(server: Server) -> dict[str, float]:
    """Delta Tokenizer's metrics, by name and labels."""
    text = str(server.get("/metrics").body)
    found = {m[1]: float(m[2]) for m in re.finditer(r"^delta_tokenizer_(\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}
    # What stood in follows from the reason.
    return {re.sub(r'part="\w+",', "", name): value for name, value in found.items()}


def started(report: Report, server: Server, config: str) -> None:
    """The startup line names what was admitted."""
    report.check("startup line", f"Delta Tokenizer: config {config}, encoder" in server.log_text())
    report.check("no fault is logged", "stock path" not in server.log_text(), server.log_tail())


def reuse(report: Report, server: Server, tokenizer: str) -> None:
    """What /metrics says: histories are reused, by key and by content, and nothing across salts."""

    def change(*requests: Any) -> dict[str, float]:
        before = metrics(server)
        for ask in requests:
            ask()
        after = metrics(server)
        return {name: value - before.get(name, 0) for name, value in after.items()}

    text = harness.session_texts(tokenizer, seed=31, target_chars=30_000)[-1]
    user = [{"role": "user", "content": text}]
    append = text + "One more line.\n"
    cold = change(lambda: generate(server, text, cache_salt="salt 1"))
    report.equal("a new text is cold", cold.get('requests_total{path="cold"}'), 1.0)
    apart = change(lambda: generate(server, append, cache_salt="salt 2"))
    report.equal("another salt is cold", apart.get('requests_total{path="cold"}'), 1.0)
    report.equal("and reuses nothing", apart.get("reused_tokens_total"), 0.0)
    unsalted = change(lambda: generate(server, append))
    # Other unsalted sessions begin alike; no more than that may be reused.
    report.check("no salt takes nothing from a salt", unsalted["encoded_characters_total"] > 15_000, unsalted)
    keyed = change(lambda: generate(server, append, cache_salt="salt 1"))
    report.check("the same salt reuses", keyed.get("encoded_characters_total", 1e9) < 300, keyed)
    content = change(lambda: generate(server, append + "And one.\n"))
    report.check("no key, the same text: reused by content", content["encoded_characters_total"] < 400, content)
    change(lambda: chat(server, user, session_id="chat"))
    again = change(lambda: chat(server, [{"role": "user", "content": append}], session_id="chat"))
    report.check("a chat session reuses", again.get("encoded_characters_total", 1e9) < 500, again)
    keyed_answer = {"session_id": "r", "cache_salt": "salt 3", "max_output_tokens": 2}
    change(lambda: other(server, "/v1/responses", {"input": text, **keyed_answer}))
    answered = change(lambda: other(server, "/v1/responses", {"input": append, **keyed_answer}))
    report.check("a salted /v1/responses session reuses", answered["encoded_characters_total"] < 500, answered)
    elsewhere = {"cache_salt": "salt 4", "max_output_tokens": 2}
    other_salt = change(lambda: other(server, "/v1/responses", {"input": append, **elsewhere}))
    report.equal("and nothing across its salts", other_salt["reused_tokens_total"], 0.0)
    # SGLang encodes a chat before it looks at the salt: nobody else may meet it, be it refused then or served.
    unseen = [{"role": "user", "content": " ".join(reversed(text.split(" ")))}]

    def encoded(**fields: Any) -> float:
        return change(lambda: chat(server, unseen, **fields)).get("encoded_characters_total", 0)

    report.check("a refused chat with two salts is cold", encoded(cache_salt=["salt 5", "salt 6"]) > 15_000)
    report.check("it leaves nothing to others", encoded(cache_salt=["salt 5"], n=2) > 15_000)
    report.check("a list of one is that salt", encoded(cache_salt="salt 5") < 500)
    report.check("lists leave nothing to those without", encoded() > 15_000)
    small = change(lambda: generate(server, append + "Stop here.\n", sampling_params={**ONE, "stop": ["\n\n\n"]}))
    report.check("stop strings push nothing out", small["encoded_characters_total"] < 500, small)


class Tests:
    """The parts, and what the stock servers answered."""

    def __init__(self, servers: Servers, report: Report, quick: bool) -> None:
        self.servers, self.report, self.quick = servers, report, quick
        self.chars = 12_000 if quick else 40_000
        self._stock: dict[str, Outcomes] = {}

    def stock(self, tokenizer: str = "qwen3") -> Outcomes:
        """What the stock backend answers; asked once."""
        if tokenizer not in self._stock:
            ask = everything if tokenizer == "qwen3" else plain
            with self.servers.server(f"stock-{tokenizer}", tokenizer=tokenizer, backend="huggingface") as server:
                self._stock[tokenizer] = ask(server, tokenizer, self.chars)
        outcomes = self._stock[tokenizer]
        answered = [v for k, v in outcomes.items() if "session" in k and isinstance(v, list)]
        assert len(answered) > 20
        assert all("ERROR" not in str(v)[:20] for v in answered)
        return outcomes

    def default(self) -> None:
        """Every endpoint and edge, with metrics."""
        expected = self.stock()
        with self.servers.server("delta", "--enable-metrics", env={"DELTA_RID_SEPARATOR": "/"}) as server:
            started(self.report, server, "qwen3")
            compare(self.report, everything(server, "qwen3", self.chars), expected)
            reuse(self.report, server, "qwen3")
            counts = metrics(server)
            faults = {name for name, n in counts.items() if name.startswith("fallbacks_total") and n}
            # Lone surrogates come this far only where the server's JSON parser lets them through.
            self.report.check("no other fallbacks", faults <= {'fallbacks_total{reason="bad_text"}'}, faults)
            self.report.equal(
                "admitted", [v for k, v in counts.items() if k.startswith('admitted{config="qwen3"')], [1.0]
            )

    def tokenizers(self) -> None:
        """Other models' tokenizers, one of which prepends a token."""
        for tokenizer in ("llama3_1",) if self.quick else ("llama3_1", "gpt_oss", "deepseek_v3"):
            expected = self.stock(tokenizer)
            with self.servers.server(f"delta-{tokenizer}", tokenizer=tokenizer) as server:
                started(self.report, server, tokenizer)
                compare(self.report, plain(server, tokenizer, self.chars), expected)

    def workers(self) -> None:
        """Two tokenizer processes, with the dynamic batch tokenizer."""
        expected = self.stock()
        flags = ("--tokenizer-worker-num=2", "--enable-dynamic-batch-tokenizer", "--enable-metrics")
        with self.servers.server("delta-workers", *flags) as server:
            lines = server.log_text().count("Delta Tokenizer: config qwen3")
            self.report.equal("both workers say what they admitted", lines, 2)
            compare(self.report, plain(server, "qwen3", self.chars), expected, cached=False)
            requests = sum(v for k, v in metrics(server).items() if k.startswith("requests_total"))
            self.report.check("their requests are counted together", requests > 50, requests)
            self.report.check("reused", metrics(server)["reused_tokens_total"] > 10_000, metrics(server))

    def batches(self) -> None:
        """Batches that are tokenized in one call, and prompts that are cut to the context."""
        expected, context = self.stock(), 2048
        flags = ("--enable-tokenizer-batch-encode", "--allow-auto-truncate", "--enable-metrics")
        texts = harness.session_texts("qwen3", seed=2, target_chars=self.chars)
        with self.servers.server("delta-batches", *flags, context=context) as server:
            for n in range(0, len(texts), 4):
                got = generate(server, texts[n : n + 4], cache_salt=[f"b{k}" for k in range(len(texts[n : n + 4]))])
                whole = [expected[f"generate session, turn {k}"][0][0] for k in range(n, min(n + 4, len(texts)))]
                self.report.equal(f"batch of turns {n}", [one[0] for one in got], [ids[:context] for ids in whole])
            self.report.check("some were cut", any(len(ids) > context for ids in whole))
            self.report.check("reused", metrics(server)["reused_tokens_total"] > 1000, metrics(server))
            chats = agent_sessions(server, "qwen3", chars=self.chars, seeds=(1, 2, 3))
            for name in (name for name in chats if name.startswith("chat")):
                cut = [ids[:context] for ids in expected[name][0]]
                self.report.equal(f"{name}, cut", chats[name][0], cut)

    def faults(self) -> None:
        """What is wrong with us, or changes under us, costs time and nothing else; and it is said."""
        expected, trigger = self.stock(), self.servers.logs / "trigger"
        for fault, line in {
            "missing_hook": "stock path: hook_missing: sglang.srt.entrypoints.openai.serving_responses.OpenAI",
            "other_signature": "stock path: hook_missing: sglang.srt.managers.tokenizer_manager.TokenizerManager._tok",
            "broken_core": "stock path: internal (KeyError at sglang_child.py:",
            "broken_adapter": "stock path: adapter_failed (KeyError at sglang_child.py:",
        }.items():
            if self.quick and fault in ("other_signature", "broken_core"):
                continue
            with self.servers.server(f"delta-{fault}", child=("fault", fault, str(trigger))) as server:
                compare(self.report, agent_sessions(server, "qwen3", chars=self.chars, seeds=(1, 2, 3)), expected)
                found = server.log_text().count(line)
                self.report.equal(f"{fault} is said once", found, 1)
                if fault == "broken_adapter":
                    said = "nothing is shared: key_failed (KeyError at sglang_child.py:"
                    self.report.equal("a failed key is said once", server.log_text().count(said), 1)
        with self.servers.server("delta-changed", child=("fault", "changed_tokenizer", str(trigger))) as server:
            first = agent_sessions(server, "qwen3", chars=self.chars, seeds=(1, 2, 3))
            compare(self.report, first, expected)
            trigger.touch()
            changed = harness.await_condition(lambda: not trigger.exists(), 30)
            self.report.check("the tokenizer was changed", changed)
            text = harness.session_texts("qwen3", seed=2, target_chars=self.chars)[-1] + "planted token." * 3
            ids = other(server, "/tokenize", {"prompt": text})[0]["tokens"]
            self.report.equal("the changed tokenizer serves", generate(server, text, cache_salt="tenant")[0][0], ids)
            self.report.check("with its new token", len(ids) < len(expected["generate session, turn 0"][0][0]) * 99)
            self.report.equal("that is said once", server.log_text().count("stock path: live_changed"), 1)

    def ways_to_start(self) -> None:
        """`sglang serve`, the offline engine, embeddings, and refusals."""
        expected = self.stock()
        with self.servers.server("delta-serve", serve=True) as server:
            started(self.report, server, "qwen3")
            got = agent_sessions(server, "qwen3", chars=self.chars, seeds=(1, 2, 3))
            compare(self.report, got, expected)
        texts = harness.session_texts("qwen3", seed=2, target_chars=self.chars)
        ids = self._offline("delta", texts)
        self.report.equal("offline", ids, [expected[f"generate session, turn {n}"][0][0] for n in range(len(texts))])
        answers, vectors, floats = [], [], {"model": "tiny", "encoding_format": "float"}
        for backend in ("huggingface", "delta"):
            with self.servers.server(f"embedding-{backend}", "--is-embedding", backend=backend) as server:
                inputs = [*texts[:4], texts[:3]]
                replies = [server.ask("/v1/embeddings", {**floats, "input": text}) for text in inputs]
                answers.append([[r.status, r.body["usage"]] for r in replies])
                vectors.append([one["embedding"] for r in replies for one in r.body["data"]])
                if backend == "delta":
                    started(self.report, server, "qwen3")
        self.report.equal("embeddings, tokens", answers[1], answers[0])
        # Another ID anywhere moves a vector by far more than another order of additions in a batch.
        near = [max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in zip(*vectors, strict=True)]
        self.report.check("embeddings", len(near) == 7 and max(near) < 0.02, near)

    def _offline(self, backend: str, texts: list[str]) -> Any:
        out = self.servers.logs / f"offline-{backend}.json"
        env = {**os.environ, **ENVIRONMENT}
        env["DELTA_E2E_ENGINE"] = json.dumps({**ENGINE, "context_length": CONTEXT, "log_level": "info"})
        command = [str(self.servers.python), "-P", str(HERE / "sglang_child.py"), "offline"]
        done = subprocess.run(
            [*command, str(self.servers.model("qwen3")), backend, str(out)],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            env=env,
            timeout=600,
            check=False,
        )
        self.report.check("the offline engine runs", done.returncode == 0, done.stderr[-3000:])
        self.report.check("it admits", "Delta Tokenizer: config qwen3" in done.stderr + done.stdout)
        return json.loads(out.read_text())

    def stock_only(self) -> None:
        """A structure that is not covered, and no tokenizer: stock, and said. An option that is none: its default."""
        with self.servers.server("delta-refused", "--enable-metrics", model=self.servers.refused_model()) as server:
            text = "Some text <|planted|> with a token of its own. " * 300
            ids = other(server, "/tokenize", {"prompt": text})[0]["tokens"]
            self.report.equal("the other tokenizer serves", generate(server, text, session_id="s")[0][0], ids)
            user = [{"role": "user", "content": text}]
            messages = {"messages": user, "max_tokens": 1}
            served = [
                generate(server, [text, "and one"]),
                completion(server, text, session_id="s"),
                chat(server, user, session_id="s"),
                other(server, "/v1/responses", {"input": text, "max_output_tokens": 2}),
                other(server, "/v1/messages", messages),
            ]
            self.report.check("everywhere", all(isinstance(answer[0], list | dict) for answer in served), served)
            said = generate(server, None, input_ids=ids)  # nothing to tokenize, nothing to count
            self.report.equal("IDs are served, too", said[0][0], ids)
            counted = ("requests_total", "fallbacks_total")
            counts = {name: n for name, n in metrics(server).items() if n and name.split("{")[0] in counted}
            expected = {'requests_total{path="stock"}': 7.0, 'fallbacks_total{reason="unsupported_added_token"}': 7.0}
            self.report.equal("what stock serves is counted, with its reason", counts, expected)
            said = "Delta Tokenizer: not admitted, stock path: added_tokens"
            self.report.equal("the section is named in the log", server.log_text().count(said), 1)
            named = [(k, v) for k, v in metrics(server).items() if k.startswith("admitted")]
            self.report.check("and in /metrics", [v for k, v in named if 'section="added_tokens"' in k] == [0.0], named)
        with self.servers.server("delta-odd", env={"DELTA_POLICY": "off"}) as server:
            self.report.equal("no policy is said once", server.log_text().count("DELTA_POLICY: 'off' is none of"), 1)
            self.report.equal("no policy serves", generate(server, "The capital")[0][1], 2)
        with self.servers.server("delta-skip", "--skip-tokenizer-init") as server:
            self.report.equal("skip is said once", server.log_text().count("stock path: not_text_model"), 1)
            reply = server.post("/generate", {"input_ids": [1, 2, 3], "sampling_params": ONE})
            self.report.equal("skip serves", reply.status, 200)

    def structure(self) -> None:
        """Models that no config knows: served at once, while they serve, at the next start; and changed meanwhile."""
        cache = self.servers.logs / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        options: dict[str, Any] = {"env": {"DELTA_CACHE": str(cache), "DELTA_ENCODER": "reference"}}
        base, models = self.servers.model("qwen3"), self.servers.models
        like = harness.with_another_pattern(base, models / "like-qwen3_5", harness.pattern_of("qwen3_5"))
        with self.servers.server("delta-structure", "--enable-metrics", model=like, **options) as server:
            started(self.report, server, "structure of qwen3_5")
            self._sessions(server, "like Qwen3.5")
            self.report.check("reused", metrics(server)["reused_tokens_total"] > 10_000, metrics(server))
            self._no_fallbacks(server)
        unknown = harness.with_another_pattern(base, models / "unknown-pattern", harness.UNKNOWN_PATTERN)
        derivation = harness.Derivation(unknown, cache)
        with (
            derivation,
            self.servers.server("delta-unknown", "--enable-metrics", model=unknown, **options) as server,
        ):
            first = self._sessions(server, "before")
            counts = metrics(server)
            stock = counts.get('requests_total{path="stock"}', 0)
            self.report.check("stock until its table is there", stock == len(first) and stock > 20, counts)
            waits = "no table of safe transitions is known for it yet"
            self.report.equal("that is said", server.log_text().count(waits), 1)
            derivation.__exit__()
            said = "Delta Tokenizer: config structure of "
            serves = harness.await_condition(lambda: said in server.log_text(), 120)
            self.report.check("it switches over by itself", serves, server.log_tail())
            self.report.equal("every answer stays", self._sessions(server, "after"), first)
            counts = metrics(server)
            fallbacks = {name: n for name, n in counts.items() if name.startswith("fallbacks") and n}
            name = 'fallbacks_total{reason="unknown_pre_tokenizer"}'
            self.report.equal("nothing else was stock", fallbacks, {name: stock})
            self.report.check("chats and texts are reused", counts["reused_tokens_total"] > 20_000, counts)
            admitted = [(k, v) for k, v in counts.items() if k.startswith("admitted")]
            self.report.check("the metrics say so", sorted(v for _, v in admitted) == [0.0, 1.0], admitted)
            self.report.equal("it is said once", server.log_text().count(said), 1)
        written = derivation.written()
        with self.servers.server("delta-again", "--enable-metrics", model=unknown, **options) as server:
            started(self.report, server, f"structure of {derivation.table.stem}")
            self.report.equal("again", self._sessions(server, "again"), first)
            self._no_fallbacks(server)
            self.report.equal("nothing is derived twice", derivation.written(), written)
        harness.with_another_vocabulary(unknown, "the", "and")
        with self.servers.server("delta-other", "--enable-metrics", model=unknown, **options) as server:
            changed = "not as at an earlier start: vocab: digest "
            self.report.equal("another vocabulary is said", server.log_text().count(changed), 1)
            other_ids = self._sessions(server, "another vocabulary")
            self.report.check("and gives other IDs", all(other_ids[name] != first[name] for name in first))
            self._no_fallbacks(server)

    def _sessions(self, server: Server, what: str) -> Outcomes:
        """Prompt IDs of a session of texts, which must be those of the server's own tokenizer, and of chats."""
        found: Outcomes = {}
        for n, text in enumerate(harness.session_texts("qwen3", seed=2, target_chars=self.chars)):
            found[f"text {n}"] = generate(server, text, session_id=f"{what}, texts")[0][0]
            # SGLang's own tokenizer answers here, whoever serves.
            own = other(server, "/tokenize", {"prompt": text})[0]["tokens"]
            self.report.equal(f"{what}, text {n}", found[f"text {n}"], own)
        for n, turn in enumerate(harness.session_turns(seed=1, target_chars=self.chars)):
            extra = THINK if turn.thinking else {}
            found[f"chat {n}"] = chat(server, harness.chat_messages(turn), session_id=f"{what}, chats", **extra)[0]
        return found

    def _no_fallbacks(self, server: Server) -> None:
        fallbacks = {name: n for name, n in metrics(server).items() if name.startswith("fallbacks") and n}
        self.report.equal("no fallbacks", fallbacks, {})

    def pictures(self) -> None:
        """A multimodal model: text alone, with images, and mixed."""
        model = harness.make_vision_model(
            self.servers.python, self.servers.models / "vision", self.servers.model("qwen3")
        )
        declared = self.servers.logs / "declared"
        declared.mkdir(parents=True, exist_ok=True)
        (declared / "sitecustomize.py").write_text(DECLARED)
        env, answers = {"PYTHONPATH": str(declared)}, []
        for backend in ("huggingface", "delta"):
            name = f"pictures-{backend}"
            with self.servers.server(name, "--enable-metrics", model=model, backend=backend, env=env) as server:
                answers.append(pictures(server))
                if backend == "delta":
                    started(self.report, server, "qwen3")
                    counts = {name: n for name, n in metrics(server).items() if n}
                    fallbacks = {name: n for name, n in counts.items() if name.startswith("fallbacks")}
                    self.report.equal("no fallbacks", fallbacks, {})
                    self.report.check("reused", counts.get("reused_tokens_total", 0) > 50_000, counts)
        compare(self.report, answers[1], answers[0])


QUICK = ("default", "tokenizers", "workers", "batches", "faults")
PARTS = (*QUICK, "ways_to_start", "stock_only", "pictures", "structure")


def main() -> int:
    """Run the parts; the exit code is 0 when everything held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", choices=VERSIONS, default=VERSIONS[0], help="the SGLang version")
    parser.add_argument("--quick", action="store_true", help="shorter sessions, fewer servers: what CI runs")
    parser.add_argument("--part", action="append", choices=PARTS, help="only these parts")
    parser.add_argument("--work", type=Path, default=harness.REPOSITORY / "build" / "e2e", help="scratch folder")
    parser.add_argument("--python", type=Path, help="an environment that is ready, instead of making one")
    args = parser.parse_args()
    work = args.work.resolve()
    python = environment(work, args.version, args.python)
    servers = Servers(python, work / "models", work / "logs" / f"sglang-{args.version}")
    report = Report()
    tests = Tests(servers, report, args.quick)
    for part in args.part or (QUICK if args.quick else PARTS):
        with report.part(part):
            getattr(tests, part)()
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
