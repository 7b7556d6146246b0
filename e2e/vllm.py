"""The vLLM adapter on the real, unmodified vLLM: `python e2e/vllm.py [--quick] [--folder FOLDER]`.

One command: makes an environment from `vllm.lock`, tiny random models with real tokenizers, installs this checkout, and
sends the same requests to two servers, one without the adapter and one with it. Every answer must be the same: IDs,
texts, errors, prefix-cache hits. Counters then show that the adapter, not vLLM's own tokenizer, gave them.

Most endpoints are asked of `vllm launch render`, which has no engine; whole streamed sessions of `vllm serve`. What
takes a hand inside the process (a renamed hook, an exception in the adapter, offline `LLM()`) runs in one more process.

--quick: what CI runs, about ten minutes on two cores and 6 GB of disk, of which three for the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from tokenizers import Tokenizer

# Not this folder: a file named vllm.py lies in it.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from e2e.harness import (  # noqa: E402
    OPERATORS,
    REPOSITORY,
    UNKNOWN_PATTERN,
    Derivation,
    Reply,
    Report,
    Server,
    await_condition,
    chat_messages,
    declare_operators,
    ensure_venv,
    free_port,
    image,
    install_checkout,
    make_model,
    make_vision_model,
    pattern_of,
    session_texts,
    session_turns,
    vision_messages,
    with_another_pattern,
    with_another_vocabulary,
    with_stripping_token,
)

VERSION = "0.32.0"
MODEL = "tiny"
MAX_LEN = 32_768  # tokens
# The tokenizers, and how the render server is to look texts up with each: both ways are tried.
POLICIES = {"qwen3": "content", "llama3_1": "keyed", "deepseek_v3": "content"}
# Greedy, so that it repeats, and never the same token twice: a random model visits its whole vocabulary.
VARIED: dict[str, Any] = {
    "temperature": 0.0,
    "presence_penalty": 2.0,
    "frequency_penalty": 2.0,
    "repetition_penalty": 2.0,
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


# ---------------------------------------------------------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------------------------------------------------------


def complete_environment(packages: Path) -> None:
    """`vllm serve` asks for the version of a distribution named vllm; the CPU build is named vllm-cpu.

    And image processors import torchvision, whose operators a CPU torch does not have.
    """
    info = packages / f"vllm-{VERSION}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    (info / "RECORD").write_text("")
    declare_operators(packages)


@dataclass(frozen=True)
class Engine:
    """An installed vLLM. python: of its environment. tree: another version's Python files, put over it, or None."""

    python: Path
    tree: Path | None = None

    def server(self, command: str, model: Path, log: Path, *options: str, **variables: str) -> Server:
        """`vllm COMMAND MODEL` with the options all servers share; variables: of the environment."""
        port = free_port()
        line = [str(self.python.parent / "vllm"), *command.split(), str(model)]
        line += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
        line += ["--dtype", "float32", "--max-model-len", str(MAX_LEN), *options]
        over = {"PYTHONPATH": str(self.tree), "VLLM_TARGET_DEVICE": "cpu"} if self.tree else {}
        return Server(line, port=port, log=log, env={**ENVIRONMENT, **over, **variables}, start_s=600)


def metrics(running: Server) -> dict[str, float]:
    """The server's Prometheus samples by name and labels, as written there."""
    text = running.get("/metrics").body
    found = re.findall(r"^([a-zA-Z_:]+(?:\{[^}]*\})?) ([0-9.e+-]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def counted(running: Server, metric: str) -> float:
    """The sum of the adapter's counter over its labels."""
    samples = metrics(running).items()
    return sum(value for name, value in samples if name.split("{")[0] == f"delta_tokenizer_{metric}_total")


def by_label(running: Server, metric: str) -> dict[str, float]:
    """The adapter's counter by its path or reason."""
    label = rf'delta_tokenizer_{metric}_total\{{.*\b(?:path|reason)="(\w+)".*\}}'
    return {m[1]: value for name, value in metrics(running).items() if (m := re.fullmatch(label, name))}


# ---------------------------------------------------------------------------------------------------------------------
# Requests and what counts of their answers
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One request. body: JSON, or bytes that are sent as they are. what: its name, unique in a script."""

    what: str
    path: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


def essence(reply: Reply) -> Any:
    """What two servers must agree on: the status, and the IDs or the error, without random names and times."""
    body = reply.body
    if reply.status != 200:
        return reply.status, json.dumps(body, sort_keys=True) if isinstance(body, (dict, list)) else body
    parts = body if isinstance(body, list) else [body]
    return reply.status, [{k: p.get(k) for k in ("token_ids", "token_offsets", "tokens") if k in p} for p in parts]


def answers(running: Server, script: Iterator[Step]) -> dict[str, Any]:
    """The essence of every step's answer, asked one after the other."""
    return {s.what: essence(running.post(s.path, s.body, headers=s.headers)) for s in script}


def compare(report: Report, name: str, stock: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Every answer must be the stock server's; the first difference in a list of IDs is named."""
    report.equal(f"{name}: the same steps", list(ours), list(stock))
    for what, expected in stock.items():
        report.equal(f"{name}: {what}", ours.get(what), expected)


# ---------------------------------------------------------------------------------------------------------------------
# Without an engine: all endpoints, all modes
# ---------------------------------------------------------------------------------------------------------------------

CHAT, COMPLETIONS = "/v1/chat/completions/render", "/v1/completions/render"
RESPONSES, MESSAGES = "/v1/responses/render", "/v1/messages/render"


def render_script(tokenizer: str) -> Iterator[Step]:
    """Whole sessions over all endpoints, with every kind of key, then single requests of every awkward kind."""
    for i, turn in enumerate(session_turns(seed=1, target_chars=40_000)):
        chat = {
            "model": MODEL,
            "messages": chat_messages(turn),
            "session_id": "chat",
            "chat_template_kwargs": {"enable_thinking": turn.thinking},
        }
        yield Step(f"chat turn {i}, session_id", CHAT, chat)
        yield Step(f"chat turn {i}, salted", CHAT, {**chat, "session_id": None, "cache_salt": "tenant-1"})
        if i % 4 == 0:
            plain = [{"role": m["role"], "content": m["content"]} for m in chat["messages"] if m["role"] != "tool"]
            yield Step(f"tokenize chat turn {i}", "/tokenize", {"model": MODEL, "messages": plain})
            yield Step(f"responses turn {i}", RESPONSES, {"model": MODEL, "input": plain, "cache_salt": "tenant-2"})
            said = [m for m in plain if m["role"] != "system" and m["content"]]
            anthropic = {"model": MODEL, "max_tokens": 5, "system": plain[0]["content"], "messages": said}
            yield Step(f"messages turn {i}, header", MESSAGES, anthropic, {"X-Session-ID": "m"})
    texts = session_texts(tokenizer, seed=2, target_chars=30_000)
    for i, text in enumerate(texts):
        yield Step(f"completion turn {i}, no key", COMPLETIONS, _completion(text))
        yield Step(f"completion turn {i}, header", COMPLETIONS, _completion(text), {"X-Session-ID": "h"})
        yield Step(
            f"tokenize turn {i}", "/tokenize", {"model": MODEL, "prompt": text, "add_special_tokens": i % 2 == 0}
        )
    last, short = texts[-1], "one two three four five six"
    for value in (1, 3, 1000, MAX_LEN - 16, -1):
        for side in (None, "left", "right"):
            cut = {"truncate_prompt_tokens": value, "truncation_side": side}
            yield Step(f"truncated to {value} from {side}", COMPLETIONS, _completion(last, **cut))
            yield Step(f"short, truncated to {value} from {side}", COMPLETIONS, _completion(short, **cut))
    long = last * (150_000 // len(last) + 1)
    yield Step("too long", COMPLETIONS, _completion(long))
    yield Step("far too long", COMPLETIONS, _completion(long * 8))
    yield Step("too long, truncated", COMPLETIONS, _completion(long, truncate_prompt_tokens=100))
    yield Step("too long to tokenize", "/tokenize", {"model": MODEL, "prompt": long})
    yield Step("after all that", COMPLETIONS, _completion(last + " more"))
    yield Step("offsets", COMPLETIONS, _completion(last, return_token_offsets=True))
    yield Step("no special tokens", COMPLETIONS, _completion(last, add_special_tokens=False))
    yield Step("a list", COMPLETIONS, _completion([short, last, last + short, short, texts[0]]))
    yield Step("IDs", COMPLETIONS, _completion([1, 2, 3, 1000]))
    yield Step("empty", COMPLETIONS, _completion(""))
    yield Step("empty in a list", COMPLETIONS, _completion([short, ""]))
    yield Step("no messages", CHAT, {"model": MODEL, "messages": []})
    yield Step("empty message", CHAT, {"model": MODEL, "messages": [{"role": "user", "content": ""}]})
    yield Step("NUL and controls", COMPLETIONS, _completion("\x00\x01\x7f \u2028\ufeff" * 80))
    for name, text in (("high", '"\\ud800"'), ("low", '"x\\udc00y"'), ("pair", '"\\ud83d\\ude42"')):
        raw = f'{{"model": "{MODEL}", "max_tokens": 5, "prompt": {text}}}'.encode()
        yield Step(f"surrogate, {name}", COMPLETIONS, raw)
        yield Step(f"surrogate, {name}, to tokenize", "/tokenize", raw)
    for salt in ("", "a" * 4096, "a/b", "\u00e9 @"):
        yield Step(f"salt {salt[:4]!r}", COMPLETIONS, _completion(last, cache_salt=salt))
    for odd in (5, ["a"], [], True, {"a": 1}):
        yield Step(f"salt {odd!r}", COMPLETIONS, _completion(last, cache_salt=odd))
        chat = {"model": MODEL, "messages": [{"role": "user", "content": last}], "cache_salt": odd}
        yield Step(f"salt {odd!r}, chat", CHAT, chat)


def _completion(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 5, **more}


def concurrent_answers(running: Server, tokenizer: str) -> dict[str, Any]:
    """Eight clients at once, four on one session, each with its own conversation."""

    def client(n: int) -> dict[str, Any]:
        texts = session_texts(tokenizer, seed=10 + n, target_chars=15_000)
        session = "shared" if n < 4 else f"client-{n}"
        script = (
            Step(f"client {n} turn {i}", COMPLETIONS, _completion(t, session_id=session)) for i, t in enumerate(texts)
        )
        return answers(running, script)

    with ThreadPoolExecutor(8) as pool:
        return {what: answer for done in pool.map(client, range(8)) for what, answer in done.items()}


def check_render(report: Report, engine: Engine, model: Path, tokenizer: str, folder: Path, policy: str) -> None:
    """The render server, with and without the adapter."""
    name = f"render, {tokenizer}, {policy}"
    options = ("--middleware", "delta_vllm.SessionHeader", "--renderer-num-workers", "3")
    with engine.server("launch render", model, folder / f"render-{tokenizer}-stock.log", *options) as running:
        stock, clients = answers(running, render_script(tokenizer)), concurrent_answers(running, tokenizer)
        report.check(
            f"{name}: without DELTA_TOKENIZER nothing is there", "delta_tokenizer" not in running.get("/metrics").body
        )
    variables = {"DELTA_TOKENIZER": "1", "DELTA_POLICY": policy, "DELTA_RID_SEPARATOR": "::"}
    log = folder / f"render-{tokenizer}.log"
    with engine.server("launch render", model, log, *options, **variables) as running:
        report.check(f"{name}: startup line", running.log_text().count(f"config {tokenizer}, encoder") == 1)
        compare(report, name, stock, answers(running, render_script(tokenizer)))
        paths, fallbacks = by_label(running, "requests"), by_label(running, "fallbacks")
        report.check(f"{name}: reused", paths["append"] + paths["splice"] > 60, paths)
        report.check(
            f"{name}: no path of ours failed", set(fallbacks) <= {"offsets", "truncated", "bad_text"}, fallbacks
        )
        report.check(f"{name}: truncated is counted", fallbacks.get("truncated", 0) >= 3, fallbacks)
        report.check(f"{name}: said once", running.log_text().count("tokenizer serves: truncated") == 1)
        compare(report, name, clients, concurrent_answers(running, tokenizer))
        (check_keys if policy == "keyed" else check_salts)(report, running, tokenizer)


def check_salts(report: Report, running: Server, tokenizer: str) -> None:
    """Texts are found by content, but never under another salt."""
    # Backwards by words: its beginning is no other session's.
    text = " ".join(reversed(session_texts(tokenizer, seed=77, target_chars=12_000)[-1].split(" ")))

    def reused(**more: Any) -> float:
        before = counted(running, "reused_tokens")
        assert running.post(COMPLETIONS, _completion(text, **more)).status == 200
        return counted(running, "reused_tokens") - before

    report.equal("salts: first sight", reused(cache_salt="a"), 0)
    report.equal("salts: another salt", reused(cache_salt="b"), 0)
    report.equal("salts: no salt", reused(), 0)
    report.equal("salts: another salt, the same session", reused(cache_salt="c", session_id="s"), 0)
    report.equal("salts: another session has it by no salt of its own", reused(cache_salt="d", session_id="s"), 0)
    report.check("salts: the same salt", reused(cache_salt="a") > 1000)
    report.check("salts: no salt again", reused() > 1000)


def check_keys(report: Report, running: Server, tokenizer: str) -> None:
    """With DELTA_POLICY=keyed a text is found by its key alone, so that reuse shows which key arrived."""
    texts = iter(session_texts(tokenizer, seed=78, target_chars=20_000))

    def reused(first: Step, second: Step) -> float:
        assert running.post(first.path, first.body, headers=first.headers).status == 200
        before = counted(running, "reused_tokens")
        assert running.post(second.path, second.body, headers=second.headers).status == 200
        return counted(running, "reused_tokens") - before

    def pair(a: dict[str, Any], b: dict[str, Any], ha: str = "", hb: str = "") -> float:
        text = next(texts)
        headers = [{"X-Session-ID": h} if h else {} for h in (ha, hb)]
        steps = [Step("", COMPLETIONS, _completion(text, **body), h) for body, h in zip((a, b), headers, strict=True)]
        return reused(*steps)

    report.check("keys: session_id", pair({"session_id": "k1"}, {"session_id": "k1"}) > 300)
    report.equal("keys: another session_id", pair({"session_id": "k2"}, {"session_id": "k3"}), 0)
    report.check("keys: header", pair({}, {}, "k4", "k4") > 300)
    report.equal("keys: another header", pair({}, {}, "k5", "k6"), 0)
    report.check(
        "keys: the body comes before the header", pair({"session_id": "k7"}, {"session_id": "k7"}, "x", "y") > 300
    )
    xargs = {"vllm_xargs": {"session_id": "k8"}}
    report.check("keys: vllm_xargs", pair(xargs, xargs) > 300)
    report.check(
        "keys: the header comes before vllm_xargs", pair({}, {"vllm_xargs": {"session_id": "z"}}, "k9", "k9") > 300
    )
    report.check("keys: request_id", pair({"request_id": "k13::1"}, {"request_id": "k13::2"}) > 300)
    report.equal("keys: another request_id", pair({"request_id": "k14::1"}, {"request_id": "k15::1"}), 0)
    report.check("keys: a salt alone", pair({"cache_salt": "k10"}, {"cache_salt": "k10"}) > 300)
    report.equal("keys: one session under two salts", pair(
        {"cache_salt": "k11", "session_id": "k"}, {"cache_salt": "k12", "session_id": "k"}
    ), 0)  # fmt: skip
    report.equal("keys: none", pair({}, {}), 0)


def vision_script() -> Iterator[Step]:
    """Chats with and without images, and texts, of a model that takes images."""
    for name, seed, images in (("text alone", 1, ()), ("one image", 2, (1,)), ("mixed", 3, (0, 2, 3))):
        for key in ({"session_id": f"s{seed}"}, {"cache_salt": f"c{seed}"}, {}):
            for n, messages in enumerate(vision_messages(seed=seed, turns=5, images=images)):
                yield Step(f"{name}, turn {n}, {[*key]}", CHAT, {"model": MODEL, "messages": messages, **key})
    text, place = "A picture is said to be here. " * 200, "<|vision_start|><|image_pad|><|vision_end|>"
    for n in range(3):
        yield Step(f"completion {n}", COMPLETIONS, _completion(text * (n + 1), session_id="t"))
    yield Step("a place without an image", COMPLETIONS, _completion(text + place))
    alone = [{"role": "user", "content": [image(9)]}]
    yield Step("an image alone", CHAT, {"model": MODEL, "messages": alone})
    bad = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
    yield Step("not an image", CHAT, {"model": MODEL, "messages": bad})


def check_pictures(report: Report, engine: Engine, text_model: Path, folder: Path, logs: Path) -> None:
    """A multimodal model: text alone, with images, and mixed. All of it is ours, with vLLM's own IDs."""
    model = make_vision_model(engine.python, folder, text_model)
    with engine.server("launch render", model, logs / "pictures-stock.log") as running:
        stock = answers(running, vision_script())
    with engine.server("launch render", model, logs / "pictures.log", DELTA_TOKENIZER="1") as running:
        ours: dict[str, Any] = {}
        for step in vision_script():
            before = counted(running, "requests")
            ours |= answers(running, iter((step,)))
            if ours[step.what][0] == 200:
                report.equal(f"pictures: {step.what}: one prompt is ours", counted(running, "requests") - before, 1)
        compare(report, "pictures", stock, ours)
        report.check("pictures: images were expanded", any("151655, 151655" in str(v) for v in stock.values()))
        report.equal("pictures: no fallbacks", by_label(running, "fallbacks"), {})
        report.check("pictures: reused", counted(running, "reused_tokens") > 20_000, by_label(running, "requests"))


def check_structure(report: Report, engine: Engine, base: Path, models: Path, logs: Path) -> None:
    """Models that no config knows: served at once, while they serve, at the next start; and changed meanwhile."""
    cache = logs / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    variables = {"DELTA_TOKENIZER": "1", "DELTA_CACHE": str(cache), "DELTA_ENCODER": "reference"}

    def server(name: str, model: Path) -> Server:
        return engine.server("launch render", model, logs / f"structure-{name}.log", **variables)

    like = with_another_pattern(base, models / "like-qwen3_5", pattern_of("qwen3_5"))
    with server("like", like) as running:
        report.equal("structure: at once", running.log_text().count("config structure of qwen3_5, encoder"), 1)
        sessions(report, running, like, "like Qwen3.5")
        report.equal("structure: like Qwen3.5: no fallbacks", by_label(running, "fallbacks"), {})
        report.check("structure: like Qwen3.5: reused", counted(running, "reused_tokens") > 10_000)
    unknown = with_another_pattern(base, models / "unknown-pattern", UNKNOWN_PATTERN)
    derivation = Derivation(unknown, cache)
    with derivation, server("unknown", unknown) as running:
        first = sessions(report, running, unknown, "before")
        stock = by_label(running, "requests")
        report.equal("structure: stock until its table is there", stock, {"stock": float(len(first))})
        waits = "no table of safe transitions is known for it yet"
        report.equal("structure: that is said", running.log_text().count(waits), 1)
        derivation.__exit__()
        said = "Delta Tokenizer: config structure of "
        serves = await_condition(lambda: said in running.log_text(), 120)
        report.check("structure: it switches over by itself", serves, running.log_tail())
        compare(report, "structure: after", first, sessions(report, running, unknown, "after"))
        fallbacks = by_label(running, "fallbacks")
        report.equal("structure: nothing else was stock", fallbacks, {"unknown_pre_tokenizer": float(len(first))})
        report.check("structure: reused", counted(running, "reused_tokens") > 10_000, by_label(running, "requests"))
        report.equal("structure: it is said once", running.log_text().count(said), 1)
    written = derivation.written()
    with server("again", unknown) as running:
        name = f"config structure of {derivation.table.stem}, encoder"
        report.equal("structure: the next start knows it", running.log_text().count(name), 1)
        compare(report, "structure: again", first, sessions(report, running, unknown, "again"))
        report.equal("structure: again: no fallbacks", by_label(running, "fallbacks"), {})
        report.equal("structure: nothing is derived twice", derivation.written(), written)
    with_another_vocabulary(unknown, "the", "and")
    with server("other", unknown) as running:
        changed = "not as at an earlier start: vocab: digest "
        report.equal("structure: another vocabulary is said", running.log_text().count(changed), 1)
        other = sessions(report, running, unknown, "another vocabulary")
        report.check("structure: and gives other IDs", all(other[what] != first[what] for what in first))
        report.equal("structure: another vocabulary: no fallbacks", by_label(running, "fallbacks"), {})


def sessions(report: Report, running: Server, model: Path, name: str) -> dict[str, Any]:
    """Answers to a session of texts, which must have the model's own IDs, and to one of chats."""
    own = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = session_texts("qwen3", seed=2, target_chars=12_000)
    found: dict[str, Any] = {}
    for i, text in enumerate(texts):
        found |= answers(running, iter((Step(f"text {i}", COMPLETIONS, _completion(text, session_id=f"t-{name}")),)))
        expected = own.encode(text).ids
        got = [part["token_ids"] for part in found[f"text {i}"][1]]
        report.equal(f"structure: {name}: text {i}", got, [expected])
    for i, turn in enumerate(session_turns(seed=1, target_chars=12_000)):
        chat = {"model": MODEL, "messages": chat_messages(turn), "session_id": f"c-{name}"}
        found |= answers(running, iter((Step(f"chat {i}", CHAT, chat),)))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# With an engine: whole streamed sessions
# ---------------------------------------------------------------------------------------------------------------------


def streamed(running: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a streamed answer amounts to: prompt IDs, and per choice its IDs, text and reason to stop."""
    got: dict[str, Any] = {"prompt": [], "choices": {}}
    try:
        for event in running.stream(path, body):
            got["prompt"] += event.get("prompt_token_ids") or []
            for choice in event["choices"]:
                got["prompt"] += choice.get("prompt_token_ids") or []
                said = got["choices"].setdefault(choice["index"], {"ids": [], "text": "", "finish": None})
                said["ids"] += choice.get("token_ids") or []
                said["text"] += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                said["finish"] = choice.get("finish_reason") or said["finish"]
    except openai.APIStatusError as error:
        return {"status": error.status_code, "error": error.response.text}
    return got


def engine_answers(running: Server, tokenizer: str) -> dict[str, Any]:
    """Sessions turn by turn and what touches the detokenizer; one request at a time, so that they repeat."""
    got: dict[str, Any] = {}
    common: dict[str, Any] = {"model": MODEL, "temperature": 0, "return_token_ids": True}
    for i, turn in enumerate(session_turns(seed=3, target_chars=16_000)):
        body = {**common, "messages": chat_messages(turn), "max_tokens": 12, "session_id": "e", "ignore_eos": True}
        body["chat_template_kwargs"] = {"enable_thinking": turn.thinking}
        got[f"chat turn {i}"] = streamed(running, "/v1/chat/completions", body)
    text = session_texts(tokenizer, seed=4, target_chars=9_000)[-1]
    done = {**common, "prompt": text, "max_tokens": 48, "ignore_eos": True}
    path = "/v1/completions"
    got["special tokens shown"] = streamed(running, path, {**done, **VARIED, "skip_special_tokens": False})
    got["no spaces between special tokens"] = streamed(
        running, path, {**done, **VARIED, "skip_special_tokens": False, "spaces_between_special_tokens": False}
    )
    # Over the whole vocabulary, pieces of characters too.
    got["varied"] = streamed(running, path, {**done, **VARIED, "max_tokens": 300})
    drawn = got["varied"]["choices"][0]["text"]
    for i, stop in enumerate(([drawn[60:66] or "x"], [drawn[101:102] or "x", "\ufffd"])):
        got[f"stop strings {i}"] = streamed(running, path, {**done, **VARIED, "max_tokens": 300, "stop": stop})
    got["echo"] = _without_names(running.ask(path, {**done, "echo": True, "max_tokens": 4}).body)
    if tokenizer == "qwen3":  # vLLM itself fails to name IDs that no vocabulary has; the others' models choose such
        got["logprobs"] = _without_names(running.ask(path, {**done, "logprobs": 3, "max_tokens": 16}).body)
        named = running.ask(path, {**done, "prompt_logprobs": 1, "max_tokens": 2}).body
        got["prompt logprobs"] = named["choices"][0]["text"]
    ids = running.post("/tokenize", {"model": MODEL, "prompt": text + "\U00013000\U00013001"}).body["tokens"]
    for left in range(1, 8):
        prompt = ids[:-left]
        got[f"cut within a character, {left} off"] = streamed(
            running, path, {**done, "prompt": prompt, "max_tokens": 24}
        )
        forced = {**done, "prompt": prompt, "max_tokens": left, "allowed_token_ids": [ids[-left]]}
        got[f"cut within a character and continued, {left} off"] = streamed(running, path, forced)
    got["responses"] = [
        item.get("content")
        for item in running.ask(
            "/v1/responses", {"model": MODEL, "input": text, "max_output_tokens": 12, "temperature": 0}
        ).body["output"]
    ]
    got["messages"] = running.post(
        "/v1/messages",
        {"model": MODEL, "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": text}]},
    ).body["content"]
    got["too long"] = essence(running.ask(path, {**done, "prompt": text * 20}))
    return got


def _without_names(body: dict[str, Any]) -> Any:
    return [body["choices"], body["usage"]]


def engine_clients(running: Server, tokenizer: str) -> dict[str, Any]:
    """Four clients at once. Which requests share a batch is chance, so only the prompts are compared."""

    def client(n: int) -> dict[str, Any]:
        got = {}
        for i, text in enumerate(session_texts(tokenizer, seed=20 + n, target_chars=6_000)):
            body = {"model": MODEL, "prompt": text, "max_tokens": 1, "return_token_ids": True, "session_id": f"c{n}"}
            got[f"client {n} turn {i}"] = running.ask("/v1/completions", body).body["choices"][0]["prompt_token_ids"]
        return got

    with ThreadPoolExecutor(4) as pool:
        return {what: ids for done in pool.map(client, range(4)) for what, ids in done.items()}


def check_serve(report: Report, engine: Engine, model: Path, tokenizer: str, folder: Path, *options: str) -> None:
    """`vllm serve`, with and without the adapter and its detokenizer priming."""
    name = f"serve, {tokenizer}"
    options = ("--max-num-seqs", "8", "--enforce-eager", "--enable-prefix-caching", *options)
    with engine.server("serve", model, folder / f"serve-{tokenizer}-stock.log", *options) as running:
        stock = engine_answers(running, tokenizer)
        hits = metrics(running)
        clients = engine_clients(running, tokenizer)
    with engine.server("serve", model, folder / f"serve-{tokenizer}.log", *options, DELTA_TOKENIZER="1") as running:
        compare(report, name, stock, engine_answers(running, tokenizer))
        ours = metrics(running)
        for metric in ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"):
            pick = [[v for k, v in m.items() if k.split("{")[0] == metric] for m in (ours, hits)]
            report.check(f"{name}: {metric}", bool(pick[0]) and pick[0] == pick[1] and pick[0][0] > 1000, pick)
        compare(report, name, clients, engine_clients(running, tokenizer))
        paths, fallbacks = by_label(running, "requests"), by_label(running, "fallbacks")
        report.check(f"{name}: reused", paths["append"] + paths["splice"] > 10, paths)
        report.check(f"{name}: no path of ours failed", set(fallbacks) <= {"truncated"}, fallbacks)


def make_adapter(python: Path, folder: Path) -> Path:
    """A LoRA adapter of random weights for the tiny models: on the queries of their only layer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    code = """
import sys, torch
from safetensors.torch import save_file
name = "base_model.model.model.layers.0.self_attn.q_proj"
save_file({f"{name}.lora_A.weight": torch.randn(8, 64), f"{name}.lora_B.weight": torch.randn(128, 8)}, sys.argv[1])
"""
    subprocess.run([str(python), "-c", code, str(folder / "adapter_model.safetensors")], check=True)
    return folder


def check_two_api_servers(report: Report, engine: Engine, model: Path, tokenizer: str, folder: Path) -> None:
    """`--api-server-count 2` and a LoRA adapter: each process has its own memory, metrics are added up."""
    texts = session_texts(tokenizer, seed=5, target_chars=20_000)
    adapter = make_adapter(engine.python, folder / "adapter")
    options = ("--max-num-seqs", "8", "--enforce-eager", "--api-server-count", "2")
    options += ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tuned={adapter}")
    with engine.server("serve", model, folder / "serve-two.log", *options, DELTA_TOKENIZER="1") as running:
        started = running.log_text().count(f"config {tokenizer}, encoder")
        report.equal("two API servers: startup lines", started, 2)
        own = Tokenizer.from_file(str(model / "tokenizer.json"))
        for i, text in enumerate(texts * 2):
            stock = own.encode(text, add_special_tokens=False).ids
            body = {"model": MODEL, "prompt": text, "add_special_tokens": False}
            report.equal(f"two API servers: turn {i}", running.post("/tokenize", body).body["tokens"], stock)
            tuned = {**body, "model": "tuned", "max_tokens": 1, "return_token_ids": True, "session_id": "t"}
            answer = running.ask("/v1/completions", tuned).body
            report.equal(f"LoRA: turn {i}", answer["choices"][0]["prompt_token_ids"], stock)
        report.equal("two API servers: one sum of requests", counted(running, "requests"), 4.0 * len(texts))
        report.equal("two API servers: no fallbacks", by_label(running, "fallbacks"), {})
        report.check("two API servers: reused", counted(running, "reused_tokens") > 10_000)


# ---------------------------------------------------------------------------------------------------------------------
# Inside the process: what takes a hand in it
# ---------------------------------------------------------------------------------------------------------------------


def check_inside(report: Report, python: Path, models: Mapping[str, Path], log: Path) -> None:
    """Run `inside` with vLLM's Python; its report is this one's."""
    line = [str(python), str(Path(__file__).resolve()), "--inside", *map(str, models.values())]
    variables = {**os.environ, **ENVIRONMENT, "DELTA_TOKENIZER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        done = subprocess.run(line, env=variables, stdout=out, stderr=subprocess.STDOUT, check=False, cwd=REPOSITORY)
    text = log.read_text(errors="replace")
    counts = re.findall(r"^(\d+) checks, \d+ failed$", text, re.MULTILINE)
    failed = [line for line in text.splitlines() if line.startswith("  FAILED")]
    report.check("inside the process", done.returncode == 0 and bool(counts), "\n".join(failed) or text[-3000:])
    report.checks += int(counts[-1]) if counts else 0


def inside(model: str, deepseek: str) -> int:
    """Renamed hooks, exceptions, a changed tokenizer, an unpooled one, offline `LLM()`: in a process of vLLM's."""
    import asyncio
    import copy
    import logging

    import vllm.renderers.base as base
    from vllm.renderers.params import TokenizeParams
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    from delta_core.reference import backend_of
    from delta_vllm import detokenization, install, keys

    report = Report()
    lines: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("delta_vllm").addHandler(Heard())
    renderer_class: Any = base.BaseRenderer
    stock_tokenize = renderer_class._tokenize_prompt

    with report.part("a hook that is not as expected"):
        for owner, hook, change in (
            (renderer_class, "_tokenize_prompt", None),
            (renderer_class, "render_cmpl_async", lambda self, *args, **kwargs: None),
            (TokenizeParams, "get_encode_kwargs", None),
        ):
            kept = getattr(owner, hook)
            before = {n: v for n, v in vars(renderer_class).items() if n != hook}
            lines.clear()
            if change is None:
                delattr(owner, hook)
            else:
                setattr(owner, hook, change)
            install.install()
            report.check(
                f"{hook}: nothing is patched", before == {n: v for n, v in vars(renderer_class).items() if n != hook}
            )
            report.check(f"{hook}: one line names it", len(lines) == 1 and hook in lines[0], lines)
            setattr(owner, hook, kept)

    def texts_of(tokenizer: str, seed: int) -> list[str]:
        return session_texts(tokenizer, seed=seed, target_chars=12_000)

    def make(path: str, **options: Any) -> Any:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.renderers import renderer_from_config

        args = EngineArgs(model=path, dtype="float32", max_model_len=MAX_LEN, enforce_eager=True, **options)
        return renderer_from_config(args.create_engine_config())

    def ids(renderer: Any, text: str) -> list[int]:
        params = renderer.default_cmpl_tok_params
        return list(asyncio.run(renderer.render_cmpl_async([{"prompt": text}], params))[0]["prompt_token_ids"])

    def own(renderer: Any, text: str) -> list[int]:
        return list(stock_tokenize(renderer, {"prompt": text}, renderer.default_cmpl_tok_params)["prompt_token_ids"])

    lines.clear()
    renderer = make(model)
    served = renderer.__dict__["_delta_prompt_tokenizer"]
    texts = texts_of("qwen3", 6)

    def served_stock(what: str, reason: str) -> None:
        before = served.delta.stats().fallbacks.get(reason, 0)
        report.equal(what, ids(renderer, texts[-1]), own(renderer, texts[-1]))
        report.equal(f"{what}: counted", served.delta.stats().fallbacks.get(reason, 0), before + 1)

    with report.part("a renderer in this process"):
        report.check("registered by vLLM", hasattr(renderer_class._tokenize_prompt, "__wrapped__"))
        for i, text in enumerate(texts):
            report.equal(f"turn {i}", ids(renderer, text), own(renderer, text))
        report.check("reused", served.delta.stats().by_path["append"] >= 5, served.delta.stats())
        report.equal("no fallbacks", served.delta.stats().fallbacks, {})
        from delta_vllm import register

        patched = renderer_class._tokenize_prompt
        register()
        report.check("registering again changes nothing", renderer_class._tokenize_prompt is patched)

    with report.part("exceptions"):
        for owner, method, reason in (
            (type(served.delta), "_look_up", "internal"),
            (type(served), "_refusal", "adapter_failed"),
        ):
            kept = getattr(owner, method)
            setattr(owner, method, _raise)
            served_stock(f"exception in {method}", reason)
            setattr(owner, method, kept)
        kept = type(served.delta).encode
        type(served.delta).encode = _raise
        report.equal("exception in encode", ids(renderer, texts[-1]), own(renderer, texts[-1]))
        type(served.delta).encode = kept
        run = asyncio.run(_outside(renderer, texts[-1]))
        report.equal("tokenized past the hooks", run, own(renderer, texts[-1]))
        report.equal("tokenized past the hooks: counted", served.delta.stats().fallbacks.get("salt_unknown"), 1)
        report.check("no text in the log", not any(texts[-1][:40] in line for line in lines))
        with keys.of_render({"cache_salt": "s"}):
            report.equal("offline prompts bring their salt", served._ids(
                renderer, {"prompt": texts[-1], "cache_salt": "t"}, renderer.default_cmpl_tok_params
            ), own(renderer, texts[-1]))  # fmt: skip

    with report.part("salts of offline prompts"):
        unseen = " ".join(reversed(texts_of("qwen3", 9)[-1].split(" ")))
        params = renderer.default_cmpl_tok_params

        def reused(extras: Any = None, **more: Any) -> int:
            before = served.delta.stats().reused_tokens
            prompt = {"prompt": unseen, **more}
            got = asyncio.run(renderer.render_cmpl_async([prompt], params, prompt_extras=extras))
            report.equal(f"{more} {extras}", list(got[0]["prompt_token_ids"]), own(renderer, unseen))
            return int(served.delta.stats().reused_tokens - before)

        for salt in (5, ["a"], b"a", "5", "a"):
            report.equal(f"salt {salt!r}: first sight", reused(cache_salt=salt), 0)
            report.check(f"salt {salt!r}: again", reused(cache_salt=salt) > 1000)
        report.equal("an unreadable salt", [reused(cache_salt={"a": 1}), reused(cache_salt={"a": 1})], [0, 0])
        report.equal("the extras' salt comes first", reused({"cache_salt": "b"}, cache_salt="a"), 0)
        report.equal("extras that are no mapping", reused([("cache_salt", "c")]), 0)
        report.equal("no salt", reused(), 0)
        report.check("no salt, again", reused() > 1000)

    with report.part("a refused tokenizer"):
        refused_model = with_stripping_token(Path(model), Path(model).with_name("qwen3-and-a-token"))
        plain = make(str(refused_model))
        stats = plain.__dict__["_delta_prompt_tokenizer"].delta.stats
        for i, text in enumerate((texts[0], texts[0] + "<|planted|>")):
            report.equal(f"prompt {i}", ids(plain, text), own(plain, text))
        report.check("its own token", len(ids(plain, "<|planted|>")) == 1)
        report.equal("counted", (stats().by_path, stats().fallbacks), ({"stock": 3}, {"unsupported_added_token": 3}))

    with report.part("an unpooled tokenizer"):
        other = make(deepseek, tokenizer_mode="deepseek_v32")
        mine = other.__dict__["_delta_prompt_tokenizer"]
        report.check("it is not pooled", "Pool" not in type(other.tokenizer).__name__)
        turns = texts_of("deepseek_v3", 7)
        aside = copy.deepcopy(other.tokenizer)  # vLLM's own call leaves its truncation behind
        long = turns[-1] * 12
        for i, text in enumerate(turns):
            report.equal(f"turn {i}", ids(other, text), aside(text)["input_ids"])
        refused = [_error(lambda: ids(other, long)), _error(lambda: ids(other, long))]
        report.check("too long", "maximum" in refused[0] and refused[0] == refused[1], refused)
        report.equal("the long one was left to vLLM", mine.delta.stats().fallbacks, {"truncated": 2})
        report.equal("and left no trace", ids(other, turns[-1] + "x"), aside(turns[-1] + "x")["input_ids"])
        report.equal("no other fallbacks", mine.delta.stats().fallbacks, {"truncated": 2})

    with report.part("offline LLM()"):
        from vllm import LLM, SamplingParams

        llm = LLM(model, dtype="float32", max_model_len=MAX_LEN, enforce_eager=True, max_num_seqs=4, seed=0)
        engine_tok = llm.get_tokenizer()
        sampling = SamplingParams(max_tokens=64, ignore_eos=True, **VARIED)
        prompts = texts_of("qwen3", 8)[-4:]
        tails: list[list[int] | None] = []
        exact_tail = detokenization.exact_tail

        def noted(*args: Any, **kwargs: Any) -> list[int] | None:
            tails.append(exact_tail(*args, **kwargs))
            return tails[-1]

        detokenization.exact_tail = noted
        primed = llm.generate(prompts, sampling, use_tqdm=False)
        report.check("each was primed with a few tokens", [0 < len(t or ()) < 5 for t in tails] == [True] * 4, tails)
        for i, (prompt, done) in enumerate(zip(prompts, primed, strict=True)):
            report.equal(f"prompt {i}", done.prompt_token_ids, engine_tok(prompt)["input_ids"])
        offline = llm.llm_engine.renderer.__dict__["_delta_prompt_tokenizer"].delta.stats()
        report.equal("ours", (offline.requests, offline.fallbacks), (len(prompts), {}))
        ours = FastIncrementalDetokenizer.__init__
        FastIncrementalDetokenizer.__init__ = ours.__wrapped__
        whole = llm.generate(prompts, sampling, use_tqdm=False)
        FastIncrementalDetokenizer.__init__ = ours
        same_ids = [p.outputs[0].token_ids == w.outputs[0].token_ids for p, w in zip(primed, whole, strict=True)]
        report.check("the engine repeats itself", all(same_ids), same_ids)
        texts_out = [[d.outputs[0].text for d in run] for run in (primed, whole)]
        report.equal("texts with and without priming", *texts_out)
        report.check("texts are there", all(len(t) > 50 for t in texts_out[0]), texts_out[0])
        salted = [
            {"prompt": prompt, "cache_salt": salt} for prompt, salt in zip(prompts, (5, ["a"], b"a", "a"), strict=True)
        ]
        for i, done in enumerate(llm.generate(salted, SamplingParams(max_tokens=1), use_tqdm=False)):
            report.equal(f"prompt {i}, salted", done.prompt_token_ids, engine_tok(prompts[i])["input_ids"])
        chat = llm.chat([[{"role": "user", "content": prompts[0]}]], sampling, use_tqdm=False)
        report.equal(
            "chat", chat[0].prompt_token_ids, engine_tok(chat[0].prompt, add_special_tokens=False)["input_ids"]
        )

    with report.part("the tokenizer changes after the start"):  # last: vLLM shares it
        backend_of(renderer.tokenizer).add_tokens(["conversation"])
        served_stock("a token was added", "live_changed")
    return report.exit_code()


async def _outside(renderer: Any, text: str) -> list[int]:
    prompt = await renderer.tokenize_prompt_async({"prompt": text}, renderer.default_cmpl_tok_params)
    return list(prompt["prompt_token_ids"])


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("on purpose")


def _error(call: Callable[[], object]) -> str:
    try:
        return f"no error: {call()!r:.80}"
    except Exception as error:  # noqa: BLE001 - its text is what is compared
        return str(error)


# ---------------------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="what CI runs")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "delta-e2e" / "vllm")
    parser.add_argument("--tokenizer", choices=list(POLICIES), help="one model only")
    kinds = ["render", "serve", "two", "inside", "pictures", "structure"]
    parser.add_argument("--only", choices=kinds, action="append", help="these kinds of checks")
    parser.add_argument(
        "--tree", type=Path, help="Python files of another vLLM (a wheel, unpacked), put over the environment's"
    )
    parser.add_argument("--inside", nargs=2, metavar=("MODEL", "DEEPSEEK"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return inside(*args.inside)
    folder: Path = args.folder
    report = Report()
    python = ensure_venv(
        folder / "venv", Path(__file__).with_name("vllm.lock"), after=complete_environment, recipe=VERSION + OPERATORS
    )
    install_checkout(python)
    names = [args.tokenizer] if args.tokenizer else list(POLICIES)[: 2 if args.quick else 3]
    engine = Engine(python, args.tree)
    models = {name: make_model(folder / "models" / name, name) for name in POLICIES}
    logs = folder / "logs"

    def wanted(kind: str) -> bool:
        return args.only is None or kind in args.only

    if wanted("inside"):
        with report.part("inside"):
            check_inside(report, python, {n: models[n] for n in ("qwen3", "deepseek_v3")}, logs / "inside.log")
    if wanted("render"):
        for name in names:
            with report.part(f"render, {name}"):
                check_render(report, engine, models[name], name, logs, POLICIES[name])
    if wanted("pictures") and "qwen3" in names:
        with report.part("pictures"):
            check_pictures(report, engine, models["qwen3"], folder / "models" / "vision", logs)
    if wanted("structure") and "qwen3" in names:
        with report.part("structure"):
            check_structure(report, engine, models["qwen3"], folder / "models", logs)
    if wanted("serve"):
        for name in names[:1] if args.quick else names:
            with report.part(f"serve, {name}"):
                check_serve(report, engine, models[name], name, logs)
    if wanted("two") and not args.quick:
        with report.part("two API servers"):
            check_two_api_servers(report, engine, models["qwen3"], "qwen3", logs)
    return report.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
