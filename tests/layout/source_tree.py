"""The source tree as the layout tests see it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("protocols", "device", "cloud", "orchestrator")


@dataclass(frozen=True)
class Module:
    """A source file below one of the four folders."""

    path: Path

    @property
    def name(self) -> str:
        """Its path from the repository's root, as pytest shows it."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def folder(self) -> str:
        return self.path.relative_to(ROOT).parts[0]

    @property
    def package(self) -> tuple[str, ...]:
        """The folders that lead to it."""
        return self.path.relative_to(ROOT).parts[:-1]

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), self.name)

    def folders_it_names(self) -> set[str]:
        """The folders of nearfar, other than its own, that its import statements and its strings name."""
        found = {folder for node in ast.walk(self.tree) for folder in self._named_by(node)}
        return found & set(FOLDERS) - {self.folder}

    def _named_by(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.ImportFrom(level=0, module=str(module)):
                yield from _below_nearfar(module)
            case ast.ImportFrom(level=level) if level:
                path = [*self.package[: len(self.package) - level + 1], *(node.module or "").split(".")]
                yield from path[:1] if path[0] else (alias.name for alias in node.names)
            case ast.Import():
                for alias in node.names:
                    yield from _below_nearfar(alias.name)
            case ast.Constant(value=str(text)):
                yield from _below_nearfar(text)


def modules() -> list[Module]:
    """Every source file of the distribution that was written by hand."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [Module(path) for path in paths if "_pb2" not in path.name]


def _below_nearfar(name: str) -> Iterator[str]:
    root, _, rest = name.partition(".")
    if root == "nearfar" and rest:
        yield rest.partition(".")[0]
