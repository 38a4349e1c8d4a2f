"""Plugins: what other distributions offer by entry points, found by name, and loaded when it is named."""

import difflib
import inspect
import re
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Literal, cast

from pydantic import Field, JsonValue

from ...protocols import Agent, AgentCard, ConfigError, NearfarError, Side
from ...protocols.steps import Value

PluginKind = Literal["agents", "tools", "strategies", "detectors"]
KINDS: Final[tuple[PluginKind, ...]] = ("agents", "tools", "strategies", "detectors")
_PROVIDERS: Final = ("openai", "anthropic", "gemini", "llama", "gateway", "a2a", "ollama", "lmstudio", "llama-server", "vllm")
TAKEN: Final = {"agents": (*_PROVIDERS, "near", "far", "hf", "http", "https", "unix")}
"""Names that mean something else where a plugin is named, by kind."""
PLUGIN_TAG: Final = "a plugin"
"""Tag of the sections of agents that plugins make, under which pydantic reports their mistakes."""
PLUGIN_NAME: Final = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"
"""Pattern of a plugin's name."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point of the group `nearfar.KIND`, whose distribution need not have been loaded."""

    kind: PluginKind
    name: str
    distribution: str
    """Name and version of the distribution that offers it."""
    entry: EntryPoint

    @property
    def described(self) -> str:
        """Return the words for it in errors."""
        return f"plugin {self.name!r} (nearfar.{self.kind}, {self.distribution})"

    def load(self) -> object:
        """Import the plugin and return its object. Raises `ConfigError` that names it where that fails."""
        with self.blamed("cannot be loaded"):
            return self.entry.load()

    @contextmanager
    def blamed(self, what: str) -> Iterator[None]:
        """Raise `ConfigError` that names the plugin and says `what` it has not done, where its own code fails within the block."""
        try:
            yield
        except NearfarError:
            raise
        except (Exception, SystemExit) as error:  # a task boundary: a plugin is third-party code
            hint = f"update {self.distribution.split()[0]}, or uninstall it"
            raise ConfigError(f"{self.described} {what}: {type(error).__name__}: {error}".removesuffix(": "), hint=hint) from error

    def misfit(self, wanted: str, found: object) -> ConfigError:
        """Return the error for a plugin that is not `wanted`."""
        return ConfigError(f"{self.described} must be {wanted}, not {type(found).__name__}", hint="docs/agents.md has templates")


def find_plugins(kind: PluginKind) -> list[Plugin]:
    """Return the installed plugins of a kind, by name. None of them is imported."""
    found = [Plugin(kind, entry.name, _distribution(entry), entry) for entry in entry_points(group=f"nearfar.{kind}")]
    return sorted(found, key=lambda plugin: (plugin.name, plugin.distribution))


def has_plugin(kind: PluginKind, name: str) -> bool:
    """Return whether a plugin of this name is installed."""
    may_be_one = re.match(PLUGIN_NAME, name) is not None and name not in TAKEN.get(kind, ())
    return may_be_one and any(plugin.name == name for plugin in find_plugins(kind))


def find_plugin(kind: PluginKind, name: str) -> Plugin:
    """Return a plugin by name. Raises `ConfigError` where there is none, or where two distributions offer one."""
    every = find_plugins(kind)
    found = [plugin for plugin in every if plugin.name == name]
    if len(found) > 1:
        both = " and ".join(plugin.distribution for plugin in found)
        raise ConfigError(f"two plugins of nearfar.{kind} are called {str(name)!r}: those of {both}", hint="uninstall one of them")
    if found:
        return found[0]
    known = [plugin.name for plugin in every]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"installed: {', '.join(known) or 'none'}; `nearfar doctor` lists all plugins"
    raise ConfigError(f"there is no plugin {str(name)!r} of nearfar.{kind}", hint=hint)


def _distribution(entry: EntryPoint) -> str:
    known = entry.dist
    return "an unknown distribution" if known is None else f"{known.name} {known.version}"


class PluginConfig(Value):
    """A section of an agent that a plugin makes."""

    provider: str = Field(pattern=PLUGIN_NAME, json_schema_extra={"not": {"enum": list(_PROVIDERS)}})
    """Name of a plugin of `nearfar.agents`."""
    model: str = ""
    """Model that the plugin is asked for; empty: its own default."""
    options: Mapping[str, JsonValue] = {}
    """Further arguments for the plugin, as its own documentation lists them."""
    instructions: str = ""
    """Instructions in front of each step that this agent takes for a task, before those of the file and of the task."""


class NearPluginConfig(PluginConfig):
    """A `[near]` section of an agent that a plugin makes: it runs on this device, in this process."""


class FarPluginConfig(PluginConfig):
    """A `[far]` section of an agent that a plugin makes, in the gateway process."""


def names_plugin(given: object) -> bool:
    """Return whether the section of an agent names an installed plugin."""
    provider = given.get("provider") if isinstance(given, Mapping) else None
    return isinstance(given, PluginConfig) or (isinstance(provider, str) and has_plugin("agents", provider))


def provider_tag(given: object) -> str | None:
    """Return the kind of a `[far]` section: that of plugins, of providers by their API, or its provider. None: it names none."""
    if names_plugin(given):
        return PLUGIN_TAG
    provider = given.get("provider") if isinstance(given, Mapping) else getattr(given, "provider", None)
    if not isinstance(provider, str):
        return None
    return "openai" if provider in ("anthropic", "gemini") else provider


async def open_plugin_agent(config: PluginConfig, *, name: str, side: Side) -> Agent:
    """Make an agent by a plugin. Raises `ConfigError` where the plugin fails, or makes no agent of this side."""
    plugin = find_plugin("agents", config.provider)
    make = plugin.load()
    if not callable(make):
        raise plugin.misfit("a function that returns an Agent", make)
    with plugin.blamed("has made no agent"):
        made = make(config.model, name=name, side=side, **config.options)
        agent = await cast(Awaitable[object], made) if inspect.isawaitable(made) else made
    if not isinstance(agent, Agent) or not isinstance(agent.card, AgentCard):
        raise plugin.misfit("a function that returns an Agent", agent)
    if agent.card.side is not side:
        await agent.aclose()
        raise ConfigError(f"{plugin.described} has made an agent of the {agent.card.side} side", hint=f"its section is for the {side} side")
    return agent
