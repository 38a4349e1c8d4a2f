"""Files and functions stay small enough to be read at once."""

import ast
import re
from collections.abc import Iterator

import pytest
from source_tree import modules

MOST_FILES = 340
LONGEST_FILE = 500
LONGEST_FUNCTION = 60
DEEPEST_NESTING = 3
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)
"""What makes a reader keep a case in mind; `with` does not."""

VAGUE = re.compile(r"(What|Of|Whether|Where|Those|As|The same|That|Who)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_no_file_is_longer_than_it_may_be() -> None:
    lengths = {module.name: len(module.path.read_text(encoding="utf-8").splitlines()) for module in modules()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_there_are_not_more_files_than_a_newcomer_can_learn() -> None:
    assert len(modules()) <= MOST_FILES


def test_a_class_name_is_used_once() -> None:
    """Names that begin with `_` are a module's own."""
    homes: dict[str, list[str]] = {}
    for module in modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module.name)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_functions_are_short_and_flat() -> None:
    functions = [(module.name, node) for module in modules() for node in ast.walk(module.tree) if isinstance(node, Function)]
    long = [f"{name}: {function.name}" for name, function in functions if lines_of(function) > LONGEST_FUNCTION]
    deep = [f"{name}: {function.name}" for name, function in functions if depth_of(function.body) > DEEPEST_NESTING]
    assert (long, deep) == ([], [])


def test_every_module_says_its_purpose() -> None:
    purposes = {module.name: ast.get_docstring(module.tree) or "" for module in modules()}
    assert [name for name, purpose in purposes.items() if not purpose or "TODO" in purpose] == []


def test_docstrings_say_what_they_are_about_at_once() -> None:
    """A docstring begins with a verb or names the thing; "What ...", "Whether ..." and "Of ..." lean on the name above it."""
    texts = [(module.name, text) for module in modules() for text in docstrings(module.tree)]
    assert [f"{name}: {text:.60}" for name, text in texts if VAGUE.match(text.lstrip())] == []


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def lines_of(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def depth_of(body: list[ast.stmt]) -> int:
    """How many blocks deep the statements go; functions inside count for themselves."""
    inner = ((isinstance(node, BLOCKS), block) for node in body if not isinstance(node, Function) for block in bodies_of(node))
    return max((counts + depth_of(block) for counts, block in inner), default=0)


def bodies_of(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a statement; `elif` is an `if` next to the first one and not inside it."""
    if isinstance(node, ast.If):
        yield node.body
        is_elif = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        yield from bodies_of(node.orelse[0]) if is_elif else [node.orelse]
    elif isinstance(node, ast.Match):
        yield from (case.body for case in node.cases)
    else:
        for name in ("body", "orelse", "finalbody"):
            yield getattr(node, name, [])
        for handler in getattr(node, "handlers", []):
            yield handler.body


@pytest.mark.parametrize(
    ("code", "depth"),
    [
        ("pass", 0),
        ("if a:\n  pass", 1),
        ("if a:\n  pass\nelif b:\n  pass\nelif c:\n  pass", 1),
        ("for a in b:\n  with a:\n    if a:\n      pass", 2),
        ("try:\n  pass\nexcept E:\n  if a:\n    pass", 2),
        ("def f():\n  if a:\n    pass", 0),
    ],
)
def test_depth_is_measured_as_a_reader_sees_it(code: str, depth: int) -> None:
    assert depth_of(ast.parse(code).body) == depth
