"""No file imports itself through others, and neither does any folder, at whatever depth one looks.

Imports count wherever they stand: inside a function and under ``TYPE_CHECKING`` too, because a reader
has to follow them all the same.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
ROOTS = {
    "fuseboard": PROJECT / "agents/fuseboard",
    "controlplane": PROJECT / "controlplane",
    "dashboard": PROJECT / "dashboard",
}

Modules = dict[str, Path]
Graph = dict[str, set[str]]


def modules_of(package: str, folder: Path) -> Modules:
    """Dotted name -> file. A folder's ``__init__`` has the name of the folder."""
    found = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        if "migrations" not in parts:
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def imports_of(source: str, modules: Modules) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # ``from package import module`` imports the module; ``from module import name`` the other.
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [member if member in modules else node.module for member in members]
        else:
            continue
        yield from (name for name in names if name in modules)


def imports(modules: Modules) -> Graph:
    return {name: set(imports_of(path.read_text(), modules)) for name, path in modules.items()}


def folded(graph: Graph, depth: int) -> Graph:
    """The same graph with everything below ``depth`` names taken together."""

    def fold(name: str) -> str:
        return ".".join(name.split(".")[:depth])

    found: Graph = {}
    for name, targets in graph.items():
        found.setdefault(fold(name), set()).update(map(fold, targets))
    for name, targets in found.items():
        targets.discard(name)
    return found


def cycle_in(graph: Graph) -> list[str]:
    """One cycle, each name imported by the one before it; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]
    return []


def depths(modules: Modules) -> range:
    """From the folders right below the root to the single files."""
    return range(2, max(name.count(".") + 1 for name in modules) + 1)


@pytest.mark.parametrize("root", ROOTS)
def test_no_file_and_no_folder_imports_itself_through_others(root):
    modules = modules_of(root, ROOTS[root])
    graph = imports(modules)
    assert [cycle_in(folded(graph, depth)) for depth in depths(modules)] == [[]] * len(depths(modules))


class TestTheSearch:
    """It finds what it is for."""

    MODULES = dict.fromkeys(["app", "app.a", "app.a.one", "app.a.two", "app.b", "app.b.three"], PROJECT)

    @pytest.mark.parametrize(
        "source",
        [
            "import app.b.three",
            "from app.b import three",
            "from app.b.three import name",
            "def late():\n    from app.b.three import name",
            "if TYPE_CHECKING:\n    from app.b.three import Name",
        ],
    )
    def test_an_import_is_found_wherever_it_stands(self, source):
        assert list(imports_of(source, self.MODULES)) == ["app.b.three"]

    def test_other_packages_do_not_count(self):
        assert list(imports_of("import json\nfrom os import path", self.MODULES)) == []

    def test_a_cycle_of_files(self):
        graph = {"app.a.one": {"app.a.two"}, "app.a.two": {"app.a.one"}}
        assert set(cycle_in(folded(graph, 3))) == {"app.a.one", "app.a.two"}
        assert cycle_in(folded(graph, 2)) == []

    def test_a_cycle_of_folders_whose_files_form_none(self):
        graph = {"app.a.one": {"app.b.three"}, "app.b.three": {"app.a.two"}, "app.a.two": set()}
        assert cycle_in(folded(graph, 3)) == []
        assert set(cycle_in(folded(graph, 2))) == {"app.a", "app.b"}
