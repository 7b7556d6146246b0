"""What the end-to-end test runs inside SGLang's processes: a server with a fault in it, and the offline engine.

    sglang_child.py fault NAME FILE ARGUMENTS...     `python -m sglang.launch_server ARGUMENTS`, with a fault
    sglang_child.py stage FILE                       times of the tokenize stage alone, in a real tokenizer manager
                                                     without schedulers; what to do as JSON on standard input
    sglang_child.py offline MODEL BACKEND FILE       prompt IDs of texts (JSON on standard input) to FILE

Run with `python -P`: beside this file lies one that is called like the engine.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def missing_hook(_file: str) -> None:
    """A function that is hooked has another name in this version."""
    from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses

    OpenAIServingResponses._make_request_renamed = OpenAIServingResponses._make_request
    del OpenAIServingResponses._make_request


def other_signature(_file: str) -> None:
    """A function that is hooked takes something else in this version."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    stock = TokenizerManager._tokenize_texts

    async def changed(self: Any, prompts: Any, cross: bool = False) -> Any:
        return await stock(self, prompts, cross)

    TokenizerManager._tokenize_texts = changed


def broken_core(_file: str) -> None:
    """Every look-up raises."""
    from delta_core import DeltaTokenizer

    def raises(*_: Any) -> Any:
        raise KeyError("planted")

    DeltaTokenizer._look_up = raises


def broken_adapter(_file: str) -> None:
    """The adapter itself raises, in every place where it can: keys, and both ways to encode."""
    from delta_core import DeltaTokenizer
    from delta_sglang import adapter

    def raises(*_: Any, **__: Any) -> Any:
        raise KeyError("planted")

    adapter.key_of = raises
    for name in ("encode", "encode_async", "encode_array", "encode_array_async"):
        setattr(DeltaTokenizer, name, raises)


def changed_tokenizer(file: str) -> None:
    """When FILE appears, the live tokenizer gets another token; then FILE is removed."""

    def watch() -> None:
        while not os.path.exists(file):
            time.sleep(0.05)
        from sglang.srt.entrypoints import http_server

        http_server.get_global_state().tokenizer_manager.tokenizer.add_tokens(["planted token"])
        os.remove(file)

    threading.Thread(target=watch, daemon=True).start()


FAULTS = {f.__name__: f for f in (missing_hook, other_signature, broken_core, broken_adapter, changed_tokenizer)}


def stage(out: str) -> None:
    """Time what happens to prompts before they leave for the scheduler; see bench/sglang.py for what comes in.

    For each session of texts, /generate requests and chat requests one after the other; then all documents at once,
    with a timer that says how late the loop came back to it; and that timer once more while the loop is idle and every
    core busy. Times in ms; IDs as digests, to compare variants.
    """
    import asyncio
    import hashlib

    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.entrypoints.engine import init_tokenizer_manager
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import PortArgs, ServerArgs
    from sglang.srt.utils import freeze_gc

    logging.getLogger("delta_sglang").setLevel(logging.INFO)  # the startup line: the bench reads which encoder serves
    task = json.load(sys.stdin)
    args = ServerArgs(**task["engine"])
    args.resolve_once()
    publish(args, role="tokenizer")
    manager, templates = init_tokenizer_manager(args, PortArgs.init_new(args))
    chats = OpenAIServingChat(manager, templates)
    result: dict[str, Any] = {"generate": {}, "chat": {}}
    freeze_gc("the stage")  # as a server does once it is warm

    async def tokenize(request: Any) -> Any:
        """What `generate_request` does before it sends: the time of it, and the IDs."""
        request.normalize_batch_and_arguments()
        manager._init_req_state(request)
        began = time.perf_counter()
        try:
            tokenized = await manager._tokenize_one_request(request)
        finally:
            del manager.rid_to_state[request.rid]
        return (time.perf_counter() - began) * 1e3, tokenized.input_ids

    def digests(timed: list[Any]) -> list[Any]:
        """The IDs as digests: not made on the running loop, which would wait for them."""
        return [(ms, hashlib.sha256(ids).hexdigest()) for ms, ids in timed]

    async def run() -> None:
        for name, texts in task["sessions"].items():
            timed = [await tokenize(GenerateReqInput(text=text, sampling_params={}, session_id=name)) for text in texts]
            result["generate"][name] = digests(timed)
            rows = []
            messages = [{"role": "user", "content": texts[0]}]
            for n in range(len(texts)):
                if n:
                    messages = [*messages, {"role": "assistant", "content": texts[n][len(texts[n - 1]) :]}]
                    messages += [{"role": "user", "content": "Go on."}]
                request = ChatCompletionRequest(model="tiny", messages=messages, session_id=name)
                began = time.perf_counter()
                try:
                    prompt = chats._process_messages(request, False)
                except AttributeError:  # SGLang 0.5.23 with its backend "fastokens", from 32,768 characters on
                    rows = []
                    break
                rendered = (time.perf_counter() - began) * 1e3
                spent, ids = await tokenize(GenerateReqInput(input_ids=prompt.prompt_ids, sampling_params={}))
                rows.append((rendered + spent, ids))
            result["chat"][name] = digests(rows)
        late: list[float] = []
        over = False

        async def beat() -> None:
            while not over:
                began = time.perf_counter()
                await asyncio.sleep(0.001)
                late.append((time.perf_counter() - began) * 1e3 - 1)

        beating = asyncio.ensure_future(beat())
        await asyncio.sleep(0.1)
        late.clear()
        began = time.perf_counter()
        documents = [GenerateReqInput(text=text, sampling_params={}) for text in task["documents"]]
        timed = await asyncio.gather(*(tokenize(request) for request in documents))
        together = (time.perf_counter() - began) * 1e3
        over = True
        await beating
        result["documents"] = {"all": together, "each": digests(timed)}
        result["late"] = sorted(late)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
        await asyncio.sleep(0.3)
        late, over = [], False
        beating = asyncio.ensure_future(beat())
        await asyncio.sleep(1)
        over = True
        await beating
        for process in busy:
            process.kill()
        result["busy"] = sorted(late)

    asyncio.run(run())
    Path(out).write_text(json.dumps(result))
    os._exit(0)  # sockets of a manager without schedulers


def offline(model: str, backend: str, out: str) -> None:
    """Prompt IDs of the offline engine, taken where they leave for the scheduler: it does not return them."""
    import sglang
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    seen = []
    dispatch = TokenizerManager._send_one_request

    async def watched(self: Any, tokenized: Any) -> Any:
        seen.append(list(tokenized.input_ids))
        return await dispatch(self, tokenized)

    TokenizerManager._send_one_request = watched
    engine = sglang.Engine(**json.loads(os.environ["DELTA_E2E_ENGINE"]), model_path=model, tokenizer_backend=backend)
    for text in json.load(sys.stdin):
        engine.generate(text, {"max_new_tokens": 1, "temperature": 0})
    Path(out).write_text(json.dumps(seen))
    engine.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "fault":
        FAULTS[sys.argv[2]](sys.argv[3])
        sys.argv = ["launch_server", *sys.argv[4:]]
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
    elif sys.argv[1] == "stage":
        stage(sys.argv[2])
    else:
        offline(*sys.argv[2:5])
