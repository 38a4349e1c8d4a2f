"""Choose the next token from logits: freely, or within a grammar (JSON of a schema, or a call of a tool).

llguidance enforces the grammars.

Only the worker process imports this module.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from ...protocols import InvalidOutput, JsonSchema, ModelError, StepRequest, ToolSpec, Unsupported
from .engine import Logits, Mask, Vocabulary

Weights: TypeAlias = NDArray[np.float64]


class NearTie(Exception):
    """Two tokens are so close that the rounding of a pass may decide between them; nothing was chosen."""


class Sampler:
    """Greedy at temperature 0, else a draw from the softmax of logits / temperature. The same seed gives the same choices.

    The order is llama.cpp's: penalties for tokens that the output holds, `top_k`, `top_p`, `min_p`, temperature. All of them see only the
    tokens that are allowed.
    """

    def __init__(self, request: StepRequest) -> None:
        self._temperature = request.temperature or 0.0
        self._random = np.random.default_rng(request.seed)
        self._top_k, self._top_p, self._min_p = request.top_k, request.top_p, request.min_p
        self._presence, self._frequency = request.presence_penalty or 0.0, request.frequency_penalty or 0.0
        self._counts: Counter[int] = Counter()
        self.tolerance = 0.0
        """Possible error of logits. A greedy choice that an error of this size could change is refused with `NearTie`."""
        self.truncates = self._temperature > 0 and any(limit is not None for limit in (self._top_k, self._top_p, self._min_p))
        """True if only some tokens are drawn from; which ones depends on those that are allowed."""

    def note(self, tokens: Sequence[int]) -> None:
        """Count tokens of the output, for the penalties."""
        if self._presence or self._frequency:
            self._counts.update(tokens)

    def pick(self, logits: Logits, allowed: Mask | None = None) -> int:
        """Choose a token; one of `allowed`, if given, of which there must be at least one."""
        logits = self._penalized(logits)
        if allowed is not None:
            logits = np.where(allowed, logits, np.float32(-np.inf))
        if self._temperature == 0:
            token = int(logits.argmax())
            if self.tolerance and np.count_nonzero(logits > logits[token] - self.tolerance) > 1:
                raise NearTie
            return token
        if self.truncates:
            logits = self._truncated(logits)
        weights = np.exp((logits - logits.max()).astype(np.float64) / self._temperature)
        cumulative = weights.cumsum()
        index = int(np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right"))
        return min(index, len(logits) - 1)

    def _penalized(self, logits: Logits) -> Logits:
        if not self._counts:
            return logits
        tokens, counts = list(self._counts), np.array(list(self._counts.values()), dtype=np.float32)
        penalized = logits.copy()
        penalized[tokens] -= np.float32(self._presence) + np.float32(self._frequency) * counts
        return penalized

    def _truncated(self, logits: Logits) -> Logits:
        """Return the logits with minus infinity for all tokens that `top_k`, `top_p` and `min_p` leave out. The likeliest one stays."""
        weights = np.exp((logits - logits.max()).astype(np.float64))
        if self._top_k is not None and self._top_k < len(weights):
            weights[np.argpartition(-logits, self._top_k)[self._top_k :]] = 0
        if self._top_p is not None:
            weights = _nucleus(weights, self._top_p)
        if self._min_p is not None:
            weights[weights < self._min_p] = 0  # the largest weight is 1
        return np.where(weights > 0, logits, np.float32(-np.inf))


def _nucleus(weights: Weights, share: float) -> Weights:
    """Return the weights with 0 for all but the largest ones that reach a share of their sum together."""
    total = weights.sum()
    # All tokens below the average of the rest do not reach the rest together, so that only few have to be sorted.
    order = np.flatnonzero(weights >= (1 - share) * total / len(weights))
    order = order[np.argsort(-weights[order], kind="stable")]
    ordered = weights[order]
    order = order[ordered.cumsum() - ordered < share * total]
    nucleus = np.zeros_like(weights)
    nucleus[order] = weights[order]
    return nucleus


def log_probability(logits: Logits, token: int) -> float:
    """Return the natural logarithm of the model's own probability of `token`, before temperature and masks.

    Raises `ModelError` if the logits are no numbers, as those of a damaged model.
    """
    highest, log_of_sum = _normalizer(logits)
    return float(logits[token] - highest) - log_of_sum


def likeliest(logits: Logits, count: int) -> list[tuple[int, float]]:
    """Return the likeliest tokens in order, with their `log_probability`."""
    highest, log_of_sum = _normalizer(logits)
    tokens = np.argpartition(-logits, min(count, len(logits) - 1))[:count]
    tokens = tokens[np.argsort(-logits[tokens], kind="stable")]
    return [(int(token), float(logits[token] - highest) - log_of_sum) for token in tokens]


def _normalizer(logits: Logits) -> tuple[np.float32, float]:
    """Return the highest logit, and the logarithm of the sum of all exponentials relative to it."""
    highest = logits.max()
    if not math.isfinite(highest):
        raise ModelError("the model computes logits that are not numbers", hint="it is damaged: download it again")
    return highest, math.log(float(np.exp(logits - highest).sum()))


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
        # ones at once, unless a sampler keeps only the likeliest; and the free draw is mostly right, which saves computing the mask.
        token = None if sampler.truncates else sampler.pick(logits)
        if token is None or not self.accept(token):
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
