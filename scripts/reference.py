"""Write docs/api.md from the public names and their docstrings, and docs/cli.md and the shells' completions from the commands.

python scripts/reference.py
"""

import ast
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, get_args, get_type_hints, is_typeddict

import typer
from typer.main import get_command, get_group
from typer.models import ArgumentInfo, CommandInfo, OptionInfo

import nearfar
from nearfar.orchestrator.cli import COMMANDS, app, load
from nearfar.orchestrator.cli import COMPLETIONS as COMPLETIONS
from nearfar.orchestrator.cli import GROUPS as GROUPS_OF_COMMANDS

DOCS: Final = Path(__file__).parents[1] / "docs"
API: Final = DOCS / "api.md"
CLI: Final = DOCS / "cli.md"
GROUPS: Final = {
    "Serving tasks": ("orchestrator.hybrid", "orchestrator.task", "orchestrator.task.modes"),
    "LangChain": ("orchestrator.langchain",),
    "Results": ("orchestrator.task.results", "orchestrator.task.decisions", "orchestrator.task.labels"),
    "Turns and events of a stream": ("orchestrator.task.events",),
    "Tools and approvals": (
        "orchestrator.task.tools",
        "orchestrator.task.foreign",
        "orchestrator.task.context",
        "orchestrator.runs.ledger",
        "orchestrator.mcp",
    ),
    "Messages and steps": ("protocols.steps", "protocols.attachments"),
    "Agents and the device": (
        "protocols.agent",
        "device.llama",
        "device.onnx",
        "protocols.client",
        "protocols.fakes",
        "protocols.validation",
    ),
    "Serving agents": ("protocols.server", "protocols.step_log", "protocols.tls", "protocols.access")
    + ("protocols.security", "protocols.token_file", "protocols.hub", "protocols.attach", "protocols.limits"),
    "Configuration": (
        "orchestrator.compose",
        "cloud.config",
        "cloud.near_server",
        "orchestrator.task.policy",
        "orchestrator.task.routing_policy",
    )
    + ("orchestrator.task.rules", "orchestrator.task.roles", "orchestrator.task.stores"),
    "Plugins": ("orchestrator.util.plugins", "orchestrator.safety.detection", "orchestrator.strategies.graphs")
    + ("orchestrator.strategies.state", "orchestrator.strategies.turn"),
    "Decisions": ("orchestrator.strategies",),
    "Memory": ("orchestrator.memory", "protocols.items"),
    "Stores": ("orchestrator.runs", "orchestrator.budgets", "orchestrator.cache", "orchestrator.tracing", "orchestrator.safety"),
    "Sweeps": ("orchestrator.lab",),
    "Errors": ("protocols.errors",),
}
"""Headings of the page, and the modules whose names stand below them; the first module that fits a name decides."""
_API_HEAD: Final = """# API reference

<!-- Written by scripts/reference.py. -->

Every name that `nearfar` exports, with its arguments and fields. Import each from the package: `from nearfar import Hybrid`. All
other modules are internal, except `nearfar.protocols.testing` ([Write your own agent](agents.md#check-it)).
"""
_CLI_HEAD: Final = """# Command line

<!-- Written by scripts/reference.py. -->

Every command of `nearfar`, with its arguments and options. The exit code is 0, 1 for an `AgentError` and 2 for a `UserError`
([Errors](errors.md)). With `--json`, errors are JSON too.
"""
_LINE: Final = 100
_BOUNDS: Final = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "length >=", "max_length": "length <=", "pattern": "pattern"}
_KINDS: Final = {int: "number", float: "number", Path: "path"}
_LISTS: Final = ("Args:", "Arguments of several functions:", "Attributes:", "Raises:")
_VALIDATORS: Final = ("validator", "serializer")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def api() -> str:
    """Return docs/api.md."""
    grouped: dict[str, list[str]] = {heading: [] for heading in GROUPS}
    for name in nearfar.__all__:
        if name != "__version__":
            grouped[_group_of(nearfar._HOMES[name])].append(name)
    parts = [_API_HEAD]
    for heading, names in grouped.items():
        parts += [f"## {heading}\n", *(_entry(name) for name in names)]
    parts.append("## Version\n\n`nearfar.__version__` is the installed version, a string.\n")
    return "\n".join(parts)


def _group_of(home: str) -> str:
    found = [(len(prefix), heading) for heading, prefixes in GROUPS.items() for prefix in prefixes if f"{home}.".startswith(f"{prefix}.")]
    if not found:
        raise LookupError(f"no heading of GROUPS takes in {home}")
    return max(found)[1]


def _entry(name: str) -> str:
    """Return the section of a public name."""
    home = f"nearfar.{nearfar._HOMES[name]}"
    value = getattr(nearfar, name)
    node = _defined(home, name)
    if isinstance(node, ast.ClassDef):
        blocks = _class_blocks(value, node)
    elif isinstance(node, Function):
        blocks = _function_blocks(node, name)
    else:
        blocks = _alias_blocks(home, name, node)
    return "\n\n".join([f"### `{name}`", *(block for block in blocks if block)]) + "\n"


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def _defined(module: str, name: str) -> ast.stmt:
    """Return the statement of a module that defines a name; of a function with overloads, the last."""
    for node in reversed(_tree(module).body):
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return node
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return node
    raise LookupError(f"{module} does not define {name}")


def _alias_blocks(module: str, name: str, node: ast.stmt) -> list[str]:
    body = _tree(module).body
    return [_code(f"{name} = {ast.unparse(node.value)}"), _text_behind(body, node)]  # type: ignore[attr-defined]  # every assignment has a value


def _class_blocks(value: type, node: ast.ClassDef) -> list[str]:
    bases = [ast.unparse(base) for base in node.bases if ast.unparse(base) in nearfar.__all__]
    kind = f"Base: {', '.join(f'`{base}`' for base in bases)}." if bases else ""
    written = _written_classes(value)
    text = _docstring(node)
    if issubclass(value, Enum):
        return [kind, text, _table(("value", "meaning"), _members(node))]
    options = [_defined(value.__module__, ast.unparse(base)) for base in node.bases] if is_typeddict(value) else []  # not in its `__mro__`
    fields = [row for each in (*options, *reversed(written)) if isinstance(each, ast.ClassDef) for row in _fields(each)]
    fields = list({row[0]: row for row in fields}.values())
    functions = {name: found for each in reversed(written) for name, found in _own_functions(value, each).items()}
    constructor = functions.pop("__init__", None)
    blocks = [kind, text]
    if constructor:
        blocks += [_signature(constructor, node.name, bound=True), _docstring(constructor)]
    blocks.append(_table(("field", "type", "default", "meaning"), fields))
    for function in functions.values():
        if is_twin(value, function.name):
            blocks += _twin_blocks(node.name, function.name)
            continue
        blocks.append(f"#### `{node.name}.{function.name}`")
        blocks += _function_blocks(function, function.name, bound=not _has(function, "staticmethod"))
        if (twin := f"a{function.name}") not in functions and is_twin(value, twin):
            blocks += _twin_blocks(node.name, twin)
    return blocks


def _twin_blocks(owner: str, name: str) -> list[str]:
    told = f"`{name[1:]}` in a thread, with the same arguments, for a program that waits in an event loop."
    return [f"#### `{owner}.{name}`", told]


def _own_functions(value: type, node: ast.ClassDef) -> dict[str, Function]:
    """Return the functions of a base that have a place in the section of `value`: those that no section of a public base shows, and
    whose arguments a user can have."""
    base = next(each for each in value.__mro__ if each.__name__ == node.name)
    if base is not value and is_public(base):
        return {}
    return {function.name: function for function in _functions(node) if not is_internal(base, function.name)}


def is_public(value: type) -> bool:
    """Return whether `nearfar` exports a class."""
    return getattr(nearfar, value.__name__, None) is value


def is_internal(owner: type, name: str) -> bool:
    """Return whether a function of a class takes an argument of a class that is not public: users cannot call it."""
    function = getattr(vars(owner)[name], "__func__", vars(owner)[name])
    return inspect.isfunction(function) and any(not is_public(kind) for kind in types_taken(function))


def is_twin(owner: type, name: str) -> bool:
    """Return whether a function is the async form of another one, without a docstring of its own: `aput` of `put`."""
    function, other = getattr(owner, name, None), getattr(owner, name[1:], None)
    if not name.startswith("a") or other is None or not inspect.iscoroutinefunction(function):
        return False
    return not function.__doc__ or inspect.unwrap(function) is other


def types_taken(function: Callable[..., Any]) -> Iterator[type]:
    """Yield the classes of nearfar that the annotations of a function's arguments name."""
    taken = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    names = {**function.__globals__, **_names_for_type_checkers(function.__module__)}
    for hint in get_type_hints(SimpleNamespace(__annotations__=taken), globalns=names).values():
        yield from _types_in(hint)


def _types_in(hint: Any) -> Iterator[type]:  # noqa: ANN401 - an annotation
    if isinstance(hint, type) and not get_args(hint):
        yield from [hint] if hint.__module__.startswith("nearfar.") else []
    for argument in hint if isinstance(hint, list) else get_args(hint):
        yield from _types_in(argument)


@cache
def _names_for_type_checkers(module: str) -> dict[str, object]:
    """Return the names that a module imports for type checkers alone."""
    blocks = (node for node in _tree(module).body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    found: dict[str, object] = {}
    for node in (node for block in blocks for node in block.body):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: importlib.import_module(alias.name) for alias in node.names}
        if not isinstance(node, ast.ImportFrom):
            continue
        source = importlib.import_module("." * node.level + (node.module or ""), importlib.import_module(module).__package__)
        found |= {alias.asname or alias.name: getattr(source, alias.name) for alias in node.names if hasattr(source, alias.name)}
    return found


def _written_classes(value: type) -> list[ast.ClassDef]:
    """Return the class and the bases that this project wrote, without `Value`, in the order in which attributes are looked up."""
    found = []
    for each in value.__mro__:
        if each.__module__.startswith("nearfar.") and each.__name__ != "Value":
            node = _defined(each.__module__, each.__name__)
            found += [node] if isinstance(node, ast.ClassDef) else []
    return found


def _members(node: ast.ClassDef) -> Iterator[Sequence[str]]:
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            yield f"`{ast.unparse(statement.value)}`", _text_behind(node.body, statement)


def _fields(node: ast.ClassDef) -> Iterator[Sequence[str]]:
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, kind = statement.target.id, _annotation(statement.annotation)
        if not name.startswith("_") and not kind.startswith(("ClassVar", "Final")):
            default, bounds = _default(statement.value)
            meaning = _text_behind(node.body, statement) or ("names the kind" if name == "type" and kind.startswith("Literal") else "")
            yield f"`{name}`", f"`{kind}`{bounds}", default, meaning


def _default(value: ast.expr | None) -> tuple[str, str]:
    """Return a field's default, and the bounds that it declares."""
    if value is None:
        return "required", ""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) not in ("Field", "field"):
        return f"`{ast.unparse(value)}`", ""
    given = {str(keyword.arg): ast.unparse(keyword.value) for keyword in value.keywords}
    bounds = ", ".join(f"`{sign} {given[name]}`" for name, sign in _BOUNDS.items() if name in given)
    default = ast.unparse(value.args[0]) if value.args else given.get("default", "...")
    if factory := given.get("default_factory"):
        default = factory.removeprefix("lambda: ") if factory.startswith("lambda: ") else f"{factory}()"
    return ("required" if default == "..." else f"`{default}`"), (f", {bounds}" if bounds else "")


def _functions(node: ast.ClassDef) -> Iterator[Function]:
    """Yield the public functions of a class, and its constructor."""
    for statement in node.body:
        if not isinstance(statement, Function) or any(
            word in ast.unparse(each) for each in statement.decorator_list for word in _VALIDATORS
        ):
            continue
        if not statement.name.startswith("_") or statement.name in ("__init__", "__call__"):
            yield statement


def _docstring(node: ast.ClassDef | Function) -> str:
    """Return a docstring in Markdown, with its list of arguments as a list."""
    lines: list[str] = []
    is_list = False
    for line in (ast.get_docstring(node) or "").splitlines():
        if line and not line.startswith(" "):
            is_list = line in _LISTS
        item = re.match(r"    (\S[^:]*): (.*)", line) if is_list else None
        names = ", ".join(f"`{name}`" for name in item[1].split(", ")) if item else ""
        lines.append(f"* {names}: {item[2]}" if item else f"  {line.strip()}" if is_list and line.startswith(" ") else line)
        if line in _LISTS:
            lines.append("")
    return "\n".join(lines)


def _has(function: Function, decorator: str) -> bool:
    return any(ast.unparse(each) == decorator for each in function.decorator_list)


def _function_blocks(node: Function, name: str, *, bound: bool = False) -> list[str]:
    text = _docstring(node)
    if _has(node, "property") or _has(node, "cached_property"):
        returns = f": {_annotation(node.returns)}" if node.returns else ""
        return [_code(f"{name}{returns}"), text]
    return [_signature(node, name, bound=bound), text]


def _signature(node: Function, name: str, *, bound: bool) -> str:
    """Return a function's signature as a code block, one argument to a line where it is long."""
    arguments = _arguments(node.args, skip=1 if bound else 0)
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {_annotation(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{prefix}{name}({', '.join(arguments)}){returns}"
    if len(line) > _LINE:
        line = f"{prefix}{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){returns}"
    return _code(line)


def _arguments(node: ast.arguments, *, skip: int) -> list[str]:
    positional = [*node.posonlyargs, *node.args]
    defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(node.defaults)), *node.defaults]
    written = [_argument(each, default) for each, default in zip(positional, defaults, strict=True)]
    if node.posonlyargs:
        written.insert(len(node.posonlyargs), "/")
    written = written[skip:]
    if node.vararg:
        written.append(f"*{_argument(node.vararg, None)}")
    elif node.kwonlyargs:
        written.append("*")
    written += [_argument(each, default) for each, default in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    if node.kwarg:
        written.append(f"**{_argument(node.kwarg, None)}")
    return written


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    kind = f": {_annotation(node.annotation)}" if node.annotation else ""
    value = f"{' = ' if kind else '='}{ast.unparse(default)}" if default is not None else ""
    return f"{node.arg}{kind}{value}"


def _annotation(node: ast.expr | None) -> str:
    """Return an annotation, without the quotes of one that is written as a string."""
    return "" if node is None else str(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def _text_behind(body: Sequence[ast.stmt], node: ast.stmt) -> str:
    """Return the string that stands behind a field, as its docstring."""
    index = body.index(node) + 1
    following = body[index] if index < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant) and isinstance(following.value.value, str):
        return inspect.cleandoc(following.value.value)
    return ""


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) if lines else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def cli() -> str:
    """Return docs/cli.md."""
    return "\n".join([_CLI_HEAD, *_group("nearfar", app, app.info.help)])


def _group(path: str, group: typer.Typer, text: Any) -> Iterator[str]:  # noqa: ANN401 - a default of typer's where no help was written
    """Yield the sections of a group of commands and of all below it, sorted by name."""
    commands = {_name_of(each): each for each in group.registered_commands if not each.hidden}
    groups = {str(each.name): each for each in group.registered_groups if not each.hidden}
    names = sorted([*commands, *groups])
    links = ", ".join(f"[`{name}`](#{f'{path} {name}'.replace(' ', '-')})" for name in names)
    options = _parameters(group.registered_callback.callback) if group.registered_callback else []
    yield _section(path, text, f"Commands: {links}.", _table(("option", "default", "meaning"), options))
    for name in names:
        if name in groups:
            inner = groups[name].typer_instance
            if inner is not None:
                yield from _loaded(f"{path} {name}", name, inner)
        else:
            yield _command(f"{path} {name}", commands[name])


def _loaded(path: str, name: str, stub: typer.Typer) -> Iterator[str]:
    """Yield the sections of a command that the command line loads when it is used, or of a group below one."""
    if name in COMMANDS:
        (command,) = load(name).registered_commands
        yield _command(path, command)
    else:
        is_lazy = name in GROUPS_OF_COMMANDS and not stub.registered_commands
        yield from _group(path, load(name) if is_lazy else stub, stub.info.help)


def _command(path: str, command: CommandInfo) -> str:
    table = _table(("argument or option", "default", "meaning"), _parameters(command.callback))
    return _section(path, command.help or inspect.getdoc(command.callback), table)


def _section(path: str, text: Any, *blocks: str) -> str:  # noqa: ANN401 - a default of typer's where no help was written
    written = inspect.cleandoc(text).partition("\f")[0] if isinstance(text, str) else ""
    return "\n\n".join(block for block in (f"## `{path}`", written, *blocks) if block) + "\n"


def _name_of(command: CommandInfo) -> str:
    return command.name or command.callback.__name__.replace("_", "-")  # type: ignore[union-attr]  # every command has a function


def _parameters(function: Callable[..., Any] | None) -> list[Sequence[str]]:
    if function is None:
        return []
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    return [_parameter(each, hints[name]) for name, each in parameters.items() if hasattr(hints[name], "__metadata__")]


def _parameter(parameter: inspect.Parameter, hint: Any) -> Sequence[str]:  # noqa: ANN401 - an annotation
    kind, info = hint.__origin__, hint.__metadata__[0]
    required = parameter.default in (inspect.Parameter.empty, ...)
    default = "required" if required else _shown(parameter.default)
    if isinstance(info, ArgumentInfo):
        return f"`{info.metavar or parameter.name.upper()}`", default, info.help or ""
    given = (info.default, *(info.param_decls or ()))  # in an annotation, typer takes the first name for a default
    names = [name for name in given if isinstance(name, str) and name.startswith("-")] or [f"--{parameter.name.replace('_', '-')}"]
    options = ", ".join(f"`{name}`" for name in "/".join(names).split("/"))
    return f"{options}{_kind(kind, info)}", default, info.help or ""


def _kind(kind: Any, info: OptionInfo) -> str:  # noqa: ANN401 - an annotation
    """Return the kind of value that an option takes; nothing for a switch."""
    (kind,) = [each for each in get_args(kind) if each is not type(None)] or [kind]
    if kind is bool:
        return ""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " " + " ".join(f"`{each.value}`" for each in kind)
    bounds = "".join(f" {sign} {bound:g}" for sign, bound in ((">=", info.min), ("<=", info.max)) if bound is not None)
    return f" {_KINDS.get(kind, 'text')}{bounds}"


def _shown(default: Any) -> str:  # noqa: ANN401 - a default may be anything
    return "" if default in (None, False, "", (), []) else f"`{getattr(default, 'value', default)}`"


def completions() -> str:
    """Return the options and commands of each command as JSON, for shells that complete them."""
    found = {
        name: _completion(get_command(load(name)) if name in COMMANDS else get_group(load(name)))
        for name in (*COMMANDS, *GROUPS_OF_COMMANDS)
    }
    lines = (f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in sorted(found.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _completion(command: Any) -> dict[str, Any]:  # noqa: ANN401 - typer's types are private
    options = [
        {"names": each.opts, "flag": each.is_flag, "help": each.help or ""} for each in command.params if each.param_type_name == "option"
    ]
    entry = {"help": (command.help or "").partition("\n")[0], "options": options}
    inner = getattr(command, "commands", None)
    return entry if inner is None else {**entry, "commands": {name: _completion(each) for name, each in inner.items()}}


if __name__ == "__main__":
    API.write_text(api(), encoding="utf-8")
    CLI.write_text(cli(), encoding="utf-8")
    COMPLETIONS.write_text(completions(), encoding="utf-8")
