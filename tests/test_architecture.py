"""Who imports whom: the runtime stands alone, tools and adapters stand on it, nothing goes in circles.

The graph is read from the source, so imports in functions and under TYPE_CHECKING count, and so does a string that is a
module's full name: the `delta` command imports its commands by name.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A module's room is the longest of these that its name begins with; and what each room may import.
ROOMS = {
    "delta_core": {"delta_core"},
    "delta_core.tools": {"delta_core", "delta_core.tools"},
    "delta_sglang": {"delta_core", "delta_sglang"},
    "delta_vllm": {"delta_core", "delta_vllm"},
}
ENGINES = {"sglang", "vllm"}

# The runtime names this tool and does not import it: it starts a process of its own, beside a server.
STARTED = {("delta_core.background", "delta_core.tools.background")}

# What comes with extras. No engine should pay for it unless it asks for it.
EXTRAS = {"fastokens", "gigatoken", "matplotlib", "prometheus_client", "rich", "transformers"}

Graph = dict[str, set[str]]


def graph_of(root: Path) -> Graph:
    """Every module of the three packages, and those of them that it imports."""
    files = chain.from_iterable((root / name).rglob("*.py") for name in ROOMS if "." not in name)
    modules = {name_of(path, root): path for path in files}
    return {name: set(imports_of(path, name, modules)) - {name} for name, path in modules.items()}


def name_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, name: str, modules: dict[str, Path]) -> Iterator[str]:
    """What a file imports of these modules. The package above a module does not count: it comes with every import."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                found = f"{source}.{alias.name}" if f"{source}.{alias.name}" in modules else source
                if found in modules:
                    yield found
        elif isinstance(node, ast.Constant) and is_named(name, node.value, modules):
            yield node.value


def is_named(name: str, text: object, modules: dict[str, Path]) -> bool:
    """Whether a module's text is another one's full name; without a dot it is a logger's."""
    return text in modules and "." in str(text) and (name, text) not in STARTED


def room_of(module: str) -> str:
    return max((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), key=len)


def trespasses(graph: Graph) -> list[str]:
    """Imports that a room must not make."""
    return sorted(
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if room_of(other) not in ROOMS[room_of(module)]
    )


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that all reach each other."""
    reached = {module: reachable(graph, module) for module in graph}
    groups = {tuple(sorted(other for other in found if module in reached[other])) for module, found in reached.items()}
    return sorted(list(group) for group in groups if group)


def reachable(graph: Graph, module: str) -> set[str]:
    found: set[str] = set()
    todo = [module]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of(ROOT)


def test_the_graph_is_that_of_the_packages(graph: Graph) -> None:
    assert "delta_core.store" in graph["delta_core.tokenizer"]
    assert "delta_core" in graph["delta_vllm.tokenization"]
    assert "delta_core.tools.verify.command" in graph["delta_core.tools.cli"]
    assert {room_of(module) for module in graph} == set(ROOMS)


def test_rooms_import_inward_only(graph: Graph) -> None:
    assert trespasses(graph) == []


def test_no_module_imports_itself_over_others(graph: Graph) -> None:
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("file", "planted", "trespass", "circle"),
    [
        ("delta_core/ids.py", "from .tools import fetch", "delta_core.ids imports delta_core.tools.fetch", None),
        ("delta_core/ids.py", "import delta_vllm.keys", "delta_core.ids imports delta_vllm.keys", None),
        (
            "delta_core/admission/admit.py",
            "def f():\n    from ..tools.verify import cases",
            "delta_core.admission.admit imports delta_core.tools.verify.cases",
            None,
        ),
        (
            "delta_sglang/keys.py",
            "from delta_core.tools.demo.messages import Message",
            "delta_sglang.keys imports delta_core.tools.demo.messages",
            None,
        ),
        ("delta_vllm/keys.py", "from delta_sglang import keys", "delta_vllm.keys imports delta_sglang.keys", None),
        (
            "delta_core/ids.py",
            "if TYPE_CHECKING:\n    from .store import SessionStore",
            None,
            {"delta_core.ids", "delta_core.store"},
        ),
        ("delta_core/tools/fetch.py", "NAME = 'delta_core.tools.cli'", None, {"delta_core.tools.cli"}),
    ],
)
def test_a_planted_import_is_found(
    file: str, planted: str, trespass: str | None, circle: set[str] | None, tmp_path: Path
) -> None:
    for name in ROOMS:
        if "." not in name:
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{planted}\n")
    graph = graph_of(tmp_path)
    assert trespasses(graph) == ([trespass] if trespass else [])
    assert any(circle <= set(found) for found in circles(graph)) if circle else True


def loaded_by(modules: Sequence[str]) -> set[str]:
    """The modules that a fresh interpreter has after importing these, as far as that takes no engine."""
    program = f"""
import sys
for module in {list(modules)}:
    try:
        __import__(module)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] not in {ENGINES}:
            raise
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_the_runtime_and_the_adapters_load_no_tool_and_no_extra(graph: Graph) -> None:
    loaded = loaded_by([module for module in graph if "tools" not in room_of(module)])
    assert {"delta_core.tokenizer", "delta_sglang.hooks", "delta_vllm.tokenization"} <= loaded
    assert not [module for module in loaded if module.startswith("delta_core.tools")]
    assert not EXTRAS & {module.split(".")[0] for module in loaded}


def test_the_runtime_loads_no_command_line() -> None:
    assert not {"argparse", "delta_sglang", "delta_vllm"} & loaded_by(["delta_core"])
