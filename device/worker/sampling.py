"""Choose the next token from logits: freely, or within a grammar (JSON of a schema, or a call of a tool).

llguidance enforces the grammars.

Only the worker process imports this module.
"""

import json
import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from ...protocols import InvalidOutput, JsonSchema, ModelError, ToolSpec, Unsupported
from .engine import Logits, Mask, Vocabulary


class NearTie(Exception):
    """Two tokens are so close that the rounding of a pass may decide between them; nothing was chosen."""


class Sampler:
    """Greedy at temperature 0, else from the softmax of logits / temperature. The same seed gives the same choices."""

    def __init__(self, temperature: float, seed: int | None) -> None:
        self._temperature = temperature
        self._random = np.random.default_rng(seed)
        self.tolerance = 0.0
        """Possible error of logits. A greedy choice that an error of this size could change is refused with `NearTie`."""

    def pick(self, logits: Logits, allowed: Mask | None = None) -> int:
        """Choose a token; one of `allowed`, if given, of which there must be at least one."""
        if allowed is not None:
            logits = np.where(allowed, logits, np.float32(-np.inf))
        if self._temperature == 0:
            token = int(logits.argmax())
            if self.tolerance and np.count_nonzero(logits > logits[token] - self.tolerance) > 1:
                raise NearTie
            return token
        weights = np.exp((logits - logits.max()).astype(np.float64) / self._temperature)
        cumulative = weights.cumsum()
        index = int(np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right"))
        return min(index, len(logits) - 1)


def log_probability(logits: Logits, token: int) -> float:
    """Return the natural logarithm of the model's own probability of `token`, before temperature and masks.

    Raises `ModelError` if the logits are no numbers, as those of a damaged model.
    """
    highest = logits.max()
    if not math.isfinite(highest):
        raise ModelError("the model computes logits that are not numbers", hint="it is damaged: download it again")
    return float(logits[token] - highest) - math.log(float(np.exp(logits - highest).sum()))


# With free whitespace, a small model may write blanks without end.
_COMPACT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_OPEN_OBJECT: Final = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}
)
_CACHED: Final = 32


class Constraint:
    """A grammar and how far into it the output has come."""

    def __init__(self, matcher: LLMatcher, vocabulary_size: int) -> None:
        self._matcher = matcher
        self._vocabulary_size = vocabulary_size

    def choose(self, logits: Logits, sampler: Sampler) -> int:
        """Pick and accept a token that the grammar allows.

        Raises `InvalidOutput` if llguidance gives up, as it does on a grammar that grows past its limits.
        """
        # Drawing freely, and again among the allowed ones if that is refused, has the same distribution as drawing among the allowed
        # ones at once; and the free draw is mostly right, which saves computing the mask.
        token = sampler.pick(logits)
        if not self.accept(token):
            token = sampler.pick(logits, self.allowed())
            if not self.accept(token):
                raise InvalidOutput(f"the output cannot go on within its schema: {_first_line(self._matcher.get_error())}")
        return token

    def accept(self, token: int) -> bool:
        """Take the token if the grammar allows it."""
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def allowed(self) -> Mask:
        """Return a mask of the tokens that may come next. Raises `InvalidOutput` if there is none."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        mask = np.unpackbits(bits, bitorder="little", count=self._vocabulary_size).astype(np.bool_)
        if self._matcher.is_error() or not mask.any():
            raise InvalidOutput(f"the output cannot go on within its schema: {_first_line(self._matcher.get_error())}")
        return mask

    def copy(self) -> "Constraint":
        """Return the grammar at the same place, to go ahead in."""
        return Constraint(self._matcher.deep_copy(), self._vocabulary_size)

    def forced(self) -> str:
        """Return the text that has to come next, as far as the grammar leaves no choice."""
        return self._matcher.compute_ff_bytes().decode("utf-8", "ignore")

    def follow(self, tokens: list[int]) -> int:
        """Take tokens for as long as the grammar allows them; returns how many that were."""
        return int(self._matcher.try_consume_tokens(tokens))

    def take_back(self, count: int) -> None:
        """Undo the last `count` tokens."""
        self._matcher.rollback(count)

    @property
    def complete(self) -> bool:
        """True if the output so far is whole; it may still be allowed to go on."""
        return self._matcher.is_accepting()

    @property
    def closed(self) -> bool:
        """True if nothing more may come."""
        return self._matcher.is_stopped()


class Grammars:
    """Makes constraints, and remembers the compiled grammars of the last few schemas."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compile = lru_cache(maxsize=_CACHED)(self._compile_grammar)

    def answer(self, schema: JsonSchema) -> Constraint:
        """Return a constraint to JSON that is valid against `schema`.

        Raises `Unsupported` if the schema says something that cannot be enforced while decoding.
        """
        return self._constraint(f"start: %json {_dump_schema(schema)}", "output_schema")

    def call(self, tools: Sequence[ToolSpec]) -> Constraint:
        """Return a constraint to the inside of a tool call: blanks, then `{"name": ..., "arguments": ...}` of one of `tools`.

        Raises `Unsupported` if a tool's parameters say something that cannot be enforced while decoding.
        """
        names = " | ".join(f"call_{number}" for number in range(len(tools)))
        rules = [f"start: BLANK? call /\\n/?\nBLANK: /[ \\n]{{1,2}}/\ncall: {names}"]
        rules += [_call_rules(number, tool) for number, tool in enumerate(tools)]
        return self._constraint("\n".join(rules), "the parameters of the tools")

    def _constraint(self, grammar: str, what: str) -> Constraint:
        matcher = self._compile(grammar, what)
        return Constraint(matcher.deep_copy(), self._vocabulary.size)

    def _compile_grammar(self, grammar: str, what: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            hint = "leave that out of the schema, or give the step to an agent that validates instead"
            raise Unsupported(f"{what} cannot be enforced: {_first_line(matcher.get_error())}", hint=hint)
        return matcher

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        if not self._vocabulary.ends:
            raise Unsupported("this model has no end-of-text token, so its output cannot be constrained", hint="use another model")
        return self._vocabulary.guidance_tokenizer()


def opening_of_call(tool: str) -> str:
    """Return the beginning of a call of a tool, up to its name's last character."""
    return f'{{"name": "{tool}'


def _call_rules(number: int, tool: ToolSpec) -> str:
    parameters = tool.parameters
    if not _OPEN_OBJECT & parameters.keys():
        # A model that may invent further arguments does not stop inventing them.
        parameters = {**parameters, "additionalProperties": False}
    opening = json.dumps(f'{opening_of_call(tool.name)}", "arguments": ')
    return f'call_{number}: {opening} arguments_{number} "}}"\narguments_{number}: %json {_dump_schema(parameters)}'


def _dump_schema(schema: JsonSchema) -> str:
    return json.dumps({**schema, "x-guidance": _COMPACT}, ensure_ascii=False)


def _first_line(error: str) -> str:
    return " ".join(error.split())[:300] or "no token is left"
