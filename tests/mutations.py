"""Switches off each obligation of ARCHITECTURE.md's table in turn: a test must fail every time.

    python tests/mutations.py            all of them, about ten minutes
    python tests/mutations.py 6 11       those of these obligations
    python tests/mutations.py --list

A mutation replaces a function or two by their dotted names, in a pytest of its own of which this file is a plugin;
nothing is written. First the tests must pass as they are. Exit code 1 when a mutation survives, or when a name is not
there any more.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_CHOSEN = "DELTA_MUTATION"  # the index of the mutation that the pytest of its own is to make
_PATIENCE = 600  # seconds for the tests of a mutation; one that makes them hang is found, too


@dataclass(frozen=True)
class Mutation:
    """obligation: its number in the table. off: replacements by dotted name, each made from the original."""

    obligation: int
    what: str
    off: Mapping[str, Callable[[Any], Any]]
    tests: tuple[str, ...]


def _to(value: Any) -> Callable[[Any], Any]:
    """A function that always returns this, whatever it is asked."""
    return lambda original: lambda *_, **__: value


def _isolated_normalized(original: Any) -> Any:
    return lambda tokens, contents: [*original(tokens, contents), *(t.content for t in tokens if t.normalized)]


def _first_inside(original: Any) -> Any:
    return lambda self, start: bisect_left(self.positions, start)


def _last_inside(original: Any) -> Any:
    return lambda self, end: bisect_right(self.positions, end) - 1


def _settle_behind_anyones_end(original: Any) -> Any:
    def settle(self: Any, tokens: int) -> None:
        parts: list[Any] = []
        at = 0
        for ids, start, stop in self._parts:
            settled = min(stop, start + tokens - at)
            at += stop - start
            if parts and start < settled:
                into, low, _ = parts[-1]
                into += ids[start:settled]
                parts[-1] = (into, low, len(into))
                ids, start, stop = ids[settled:stop], 0, stop - settled
            if start < stop:
                parts.append((ids, start, stop))
        self._parts = parts

    return settle


def _continue_another(original: Any) -> Any:
    def continue_(self: Any, origin: Any, *rest: Any) -> Any:
        return original(self, origin._replace(transcript=origin.branch.transcript), *rest)

    return continue_


def _one_space(original: Any) -> Any:
    return lambda self, namespace, *rest: original(self, None, *rest)


def _any_branch(original: Any) -> Any:
    def by_content(self: Any, namespace: bytes, text: str) -> Any:
        found = {id(branch): branch for branch in self._index.propose(namespace, text)}
        return iter(list(found.values()))

    return by_content


def _forgotten_namespace(original: Any) -> Any:
    return lambda self, namespace, *rest: original(self, b"", *rest)


def _unchanged_table(original: Any) -> Any:
    return lambda self: self.__dict__.setdefault("_mutated", {})


def _key_without_salt(original: Any) -> Any:
    from delta_core.context import Key

    return lambda: original() or Key(None, None)


def _last_token(original: Any) -> Any:
    return lambda tokenizer, ids, **_: list(ids[-1:]) or None


def _nothing_renewed(original: Any) -> Any:
    class Nothing(list[Any]):
        def add(self, thing: object) -> None:
            pass

    return Nothing()


def _no_affixes(original: Any) -> Any:
    from delta_core.reference import Affixes

    return lambda self: Affixes((), ())


def _known_class(original: Any) -> Any:
    return lambda self, character: min(original(self, character), len(self._class_of) - 1)


def _one_test_fewer(original: Any) -> Any:
    def atoms_of(patterns: list[str]) -> Any:
        atoms = original(patterns)
        return replace(atoms, tests=atoms.tests[:-1])

    return atoms_of


def _record_of(*parts: str) -> Callable[[Any], Any]:
    """The record of an encoder whichever versions or method it has, but for these parts."""

    def made(original: Any) -> Any:
        from delta_core.admission.frozen import METHOD

        def certification(self: Any, encoder: str, version: str, reference: str) -> Any:
            wanted = {"encoder": encoder, "encoder_version": version, "reference_version": reference, "method": METHOD}
            return next((c for c in self.certified if all(getattr(c, p) == wanted[p] for p in parts)), None)

        return certification

    return made


def _any_place(original: Any) -> Any:
    return lambda owner, name, *parameters, coroutine=False: getattr(owner, name, lambda *_, **__: None)


_CORE = "delta_core"
_CUTS = f"{_CORE}.cuts"
_RULES = f"{_CUTS}.CutRules"
_DERIVE = f"{_CORE}.tools.freezing.derive"
_SEARCH = f"{_CORE}.tools.certify.search.Search"
_RULE_TESTS = ("test_cuts.py", "test_controls.py")

MUTATIONS = (
    Mutation(
        1,
        "R1 at every added token that is not normalized",
        {f"{_CUTS}._isolated": lambda _: lambda tokens, contents: [t.content for t in tokens if not t.normalized]},
        _RULE_TESTS,
    ),
    Mutation(1, "R1 at tokens that run into each other", {f"{_CUTS}._runs_into": _to(False)}, _RULE_TESTS),
    Mutation(1, "R1 at tokens matched after normalization", {f"{_CUTS}._isolated": _isolated_normalized}, _RULE_TESTS),
    Mutation(2, "R2 at every transition", {f"{_RULES}.transition": _to(True)}, _RULE_TESTS),
    Mutation(
        2,
        "a derivation that no string refutes",
        {f"{_DERIVE}._Layers.refuted": lambda original: lambda self, n: original(self, n) & False},
        ("test_transitions.py",),
    ),
    Mutation(
        2, "a derivation that no run refutes", {f"{_DERIVE}._runs_refute": _to((set(), 0))}, ("test_transitions.py",)
    ),
    Mutation(
        2,
        "a derivation that no counted run refutes",
        {f"{_DERIVE}._counted_runs_refute": _to((set(), 0))},
        ("test_transitions.py",),
    ),
    Mutation(3, "R2 inside of added tokens", {f"{_RULES}.spanned": _to(False)}, _RULE_TESTS),
    Mutation(
        3, "R2 inside of what becomes an added token by normalization", {f"{_RULES}._origins": _to(())}, _RULE_TESTS
    ),
    Mutation(4, "R2 where the normalizer joins", {f"{_RULES}.stable": _to(True)}, _RULE_TESTS),
    Mutation(
        4,
        "R2 behind characters that the normalizer changes",
        {f"{_CORE}.characters.NfcStability.left": _to(True)},
        ("test_characters.py", *_RULE_TESTS),
    ),
    Mutation(
        4,
        "R2 whatever a character composes to",
        {f"{_CORE}.characters.NfcStability.outcomes": lambda _: lambda self, character: (character,)},
        ("test_characters.py", *_RULE_TESTS),
    ),
    Mutation(
        5,
        "an unknown class is taken for a known one",
        {f"{_CORE}.characters.CharacterClasses.of": _known_class},
        ("test_characters.py", "test_cuts.py"),
    ),
    Mutation(
        5,
        "a test of the pattern is not collected",
        {f"{_CORE}.tools.freezing.pattern.atoms_of": _one_test_fewer, f"{_DERIVE}.atoms_of": _one_test_fewer},
        ("test_pattern.py", "test_transitions.py"),
    ),
    Mutation(
        5,
        "a fold that joins characters is let through",
        {f"{_DERIVE}._check_folding": _to(None)},
        ("test_pattern.py", "test_transitions.py"),
    ),
    Mutation(
        6,
        "the first checkpoint, whatever decides it before the block",
        {f"{_CORE}.splice.Checkpoints.first_inside": _first_inside},
        ("test_splice.py", "test_controls.py"),
    ),
    Mutation(
        6,
        "the last checkpoint, whatever decides it behind the block",
        {f"{_CORE}.splice.Checkpoints.last_inside": _last_inside},
        ("test_splice.py", "test_controls.py"),
    ),
    Mutation(
        7,
        "a changed tokenizer goes unnoticed",
        {f"{_CORE}.reference.Reference.changed": _to(None)},
        ("test_reference.py",),
    ),
    Mutation(
        7,
        "added tokens are not watched",
        {f"{_CORE}.reference.Reference._added_tokens": _unchanged_table},
        ("test_reference.py",),
    ),
    Mutation(
        7,
        "whatever the sections are, they are covered",
        {f"{_CORE}.admission.sections.not_covered": _to([]), f"{_CORE}.admission.admit.not_covered": _to([])},
        ("test_sections.py", "verify/test_verify.py"),
    ),
    Mutation(
        7,
        "sections never differ from the frozen ones",
        {f"{_CORE}.admission.sections.differences": _to([]), f"{_CORE}.admission.admit.differences": _to([])},
        ("test_sections.py", "test_reference.py"),
    ),
    Mutation(
        8,
        "the post-processor puts nothing around a text",
        {f"{_CORE}.reference.Reference.affixes": _no_affixes},
        ("test_reference.py", "test_library.py"),
    ),
    Mutation(
        9,
        "a record of other versions counts",
        {f"{_CORE}.admission.frozen.Frozen.certification": _record_of("encoder", "method")},
        ("test_encoders.py", "test_certify.py"),
    ),
    Mutation(
        9,
        "a record made in another way counts",
        {
            f"{_CORE}.admission.frozen.Frozen.certification": _record_of(
                "encoder", "encoder_version", "reference_version"
            )
        },
        ("test_certify.py::test_a_record_made_in_another_way_does_not_count",),
    ),
    Mutation(9, "guards hold nothing back", {f"{_CORE}.encoders.Guarded._held": _to([])}, ("test_encoders.py",)),
    Mutation(9, "certification compares no batch", {f"{_SEARCH}._differing": _to([])}, ("test_certify.py",)),
    Mutation(9, "certification compares no code point", {f"{_SEARCH}.code_points": _to(())}, ("test_certify.py",)),
    Mutation(
        10,
        "one namespace for all",
        {f"{_CORE}.store.SessionStore.name": _one_space},
        ("test_store.py", "test_controls.py"),
    ),
    Mutation(
        10,
        "content is proposed across namespaces",
        {
            f"{_CORE}.store.SessionStore.by_content": _any_branch,
            f"{_CORE}.store.ContentIndex._fingerprint": _forgotten_namespace,
        },
        ("test_store.py", "test_content_index.py", "test_controls.py"),
    ),
    Mutation(
        11,
        "two branches share a list that grows",
        {f"{_CORE}.ids.IdList.own": lambda _: lambda self, tokens, **__: self},
        ("test_ids.py", "test_store.py", "test_stateful.py"),
    ),
    Mutation(
        11,
        "a list grows behind anyone's end",
        {f"{_CORE}.ids.IdList.settle": _settle_behind_anyones_end},
        ("test_ids.py", "test_store.py", "test_stateful.py"),
    ),
    Mutation(
        11,
        "a branch is continued from a transcript that it holds no more",
        {f"{_CORE}.store.SessionStore._continue": _continue_another},
        ("test_store.py", "test_stateful.py", "test_ids.py"),
    ),
    Mutation(
        12,
        "reused checkpoints keep the IDs' old places",
        {
            f"{_CORE}.splice.Checkpoints.extend_from": lambda original: (
                lambda self, other, first, last, shift, tokens: original(self, other, first, last, shift, 0)
            )
        },
        ("test_stateful.py",),
    ),
    Mutation(
        13, "a prompt without a known salt is served", {"delta_vllm.keys.current": _key_without_salt}, ("test_vllm.py",)
    ),
    Mutation(
        14,
        "vLLM's call is never compared with the backend",
        {"delta_vllm.tokenization.PromptTokenizer._compare": _to(None)},
        ("test_vllm.py",),
    ),
    Mutation(
        14,
        "nothing is left to vLLM's own call",
        {"delta_vllm.tokenization.PromptTokenizer._refusal": _to(None)},
        ("test_vllm.py",),
    ),
    Mutation(
        15,
        "the last token primes, whole character or not",
        {f"{_CORE}.detokenize.exact_tail": _last_token},
        ("test_detokenizer.py",),
    ),
    Mutation(
        15,
        "every decoder is taken for byte-level",
        {f"{_CORE}.detokenize.unproven": _to(None)},
        ("test_detokenizer.py",),
    ),
    Mutation(
        16,
        "vLLM's places are replaced whatever they are",
        {"delta_vllm.install._hook": _any_place},
        ("test_install.py", "test_vllm.py"),
    ),
    Mutation(
        16,
        "SGLang's places are replaced whatever they are",
        {"delta_sglang.install.Target.fault": _to(None)},
        ("test_install.py", "test_sglang.py"),
    ),
    Mutation(17, "a copy is never compared", {f"{_CORE}.identity.difference": _to(None)}, ("test_identity.py",)),
    Mutation(
        17,
        "a fast encoder is never compared with the live tokenizer",
        {
            f"{_CORE}.encoders.answers_differ": _to(None),
            f"{_CORE}.encoders.FastokensEncoder.differs_from": _to(None),
            f"{_CORE}.encoders.GigatokenEncoder.differs_from": _to(None),
        },
        ("test_identity.py",),
    ),
    Mutation(
        18, "locks stay as the fork left them", {f"{_CORE}.forks._renewables": _nothing_renewed}, ("test_fork.py",)
    ),
    Mutation(
        18, "a child keeps the fast encoder", {f"{_CORE}.serving.Serving._after_fork": _to(None)}, ("test_fork.py",)
    ),
)


def _switch_off(mutation: Mutation) -> None:
    for path, made in mutation.off.items():
        owner_path, name = path.rsplit(".", 1)
        owner = pkgutil.resolve_name(owner_path)
        setattr(owner, name, made(getattr(owner, name)))


def _pytest(tests: Mapping[str, None], index: int | None) -> tuple[int, str]:
    """Its exit code and what it said last; 1 also when it took too long."""
    path = os.pathsep.join([str(_HERE), str(_HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, _CHOSEN: "" if index is None else str(index)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "mutations",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not shared",
    ]
    files = [str(_HERE / test) for test in tests]
    try:
        done = subprocess.run(
            [*command, *files],
            cwd=_HERE.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=None if index is None else _PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return 1, f"FAILED to end within {_PATIENCE} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, (failed or lines or [""])[-1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Switch off each obligation in turn; a test must fail every time.")
    parser.add_argument("obligations", nargs="*", type=int, help="their numbers; default: all")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("--no-baseline", action="store_true", help="do not first run the tests as they are")
    given = parser.parse_args(arguments)
    chosen = [(i, m) for i, m in enumerate(MUTATIONS) if not given.obligations or m.obligation in given.obligations]
    if given.list:
        for _, mutation in chosen:
            print(f"{mutation.obligation:2} {mutation.what}: {', '.join(mutation.tests)}")
        return 0
    if not given.no_baseline:
        code, said = _pytest(dict.fromkeys(test for _, m in chosen for test in m.tests), None)
        if code != 0:
            print(f"the tests fail as they are: {said}")
            return 1
    survived = 0
    for index, mutation in chosen:
        began = time.monotonic()
        code, said = _pytest(dict.fromkeys(mutation.tests), index)
        # 1: a test failed. Anything else: the mutation could not be made, or nothing noticed it.
        verdict = {0: "SURVIVED", 1: "found"}.get(code, "NOT MADE")
        survived += verdict != "found"
        seconds = time.monotonic() - began
        print(f"{verdict:8} {mutation.obligation:2} {mutation.what} ({seconds:.0f} s): {said}", flush=True)
    print(f"{len(chosen)} mutations, {survived} not found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
elif os.environ.get(_CHOSEN):
    _switch_off(MUTATIONS[int(os.environ[_CHOSEN])])
