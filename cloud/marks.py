"""The table of error texts by which kinds of provider errors are recognised, in one place because a proxy may speak for any provider.

Each mark is a lower-case part of a code, a type or a message that a provider or proxy is known to write.
"""

from typing import Final

from ..protocols import (
    ContentFiltered,
    ContextOverflow,
    NearfarError,
    NoSuchModel,
    ProviderAuthError,
    QuotaExceeded,
    RateLimited,
    RequestRefused,
)

_PAID_OUT: Final = (
    "credit balance is too low",  # Anthropic
    "reached your specified api usage limits",
    "billing_error",
    "prepayment credits are depleted",  # Gemini
    "billing_hard_limit",  # OpenAI
    "insufficient credits",  # OpenRouter
    "requires more credits",
    "insufficient balance",  # DeepSeek
    "monthly spending limit",  # xAI
    "have any credits",
    "run out of credits",
    "billing_not_active",  # OpenAI
    "budget_exceeded",  # LiteLLM: the key's own budget
    "budget has been exceeded",
)
_PAID_OUT_OR_FAST: Final = ("insufficient_quota", "exceeded your current quota")
"""OpenAI's message for an empty account, and Gemini's for too many requests in a minute, which comes with RESOURCE_EXHAUSTED."""
_OVERFLOW: Final = (
    "context_length_exceeded",  # OpenAI
    "maximum context length",  # OpenAI, vLLM, OpenRouter
    "exceeds the context window",
    "prompt is too long",  # Anthropic
    "exceed context limit",
    "request_too_large",
    "exceeds the maximum number of tokens",  # Gemini
    "input token count",
    "input is too long for requested model",  # Bedrock
    "exceed_context_size",  # llama.cpp
    "exceeds the available context size",
    "exceed context window",  # llama-cpp-python
    "context window of",
    "maximum prompt length",  # xAI
    "reduce the length of the messages",  # Groq
    "longer than the maximum model length",  # vLLM
    "model's context length is only",
    "max_tokens must be at least 1, got -",
    "exceeded max context length",  # Ollama
    "model is loaded with context length of only",  # LM Studio
    "cannot truncate prompt with n_keep",
    "to keep from the initial prompt is greater than the context length",
    "`max_new_tokens` must be <=",  # Hugging Face's server, Together
    "request too large for",  # OpenAI, Groq: more than a minute's tokens in one request
    "contextwindowexceedederror",  # LiteLLM
)
_FILTERED: Final = (
    "content_filter",
    "content_policy",
    "contentpolicyviolation",  # LiteLLM
    "content management policy",  # Azure
    "responsibleaipolicyviolation",
    "content filtering policy",  # Anthropic
    "content exists risk",  # DeepSeek
    "requires moderation on",  # OpenRouter
    "violates usage guidelines",  # xAI
    "invalid_prompt",  # OpenAI's responses
    "bio_policy",
    "cyber_policy",
    "misalignment_policy",
)
_KEY: Final = (
    "invalid_api_key",
    "incorrect api key",
    "authentication_error",
    "api_key_invalid",
    "api key not valid",
    "api key expired",
    "litellm.authenticationerror",
    "no connected db",  # LiteLLM without a database: it looks there for keys that it does not know
)
_MODEL: Final = (
    "model_not_found",
    "model_not_available",
    "deploymentnotfound",  # Azure
    "is not a valid model id",  # OpenRouter
    "no endpoints found for",
    "invalid model name passed in",  # LiteLLM
    "litellm.notfounderror",
    "model_decommissioned",  # Groq
    "model not exist",  # DeepSeek
    "invalid_model",  # Mistral
    "model identifier is invalid",  # Bedrock
    "with on-demand throughput isn",
)
MARKS: Final[tuple[tuple[type[NearfarError], tuple[str, ...]], ...]] = (
    (QuotaExceeded, _PAID_OUT),
    (RateLimited, ("resource_exhausted",)),
    (QuotaExceeded, _PAID_OUT_OR_FAST),
    (ProviderAuthError, _KEY),
    (ContextOverflow, _OVERFLOW),
    (ContentFiltered, _FILTERED),
    (NoSuchModel, _MODEL),
    (RateLimited, ("litellm.ratelimiterror",)),
    (RequestRefused, ("litellm.badrequesterror", "litellm.unprocessableentityerror")),  # behind a status of 500, too
)
"""The first matching entry counts."""
UNREADABLE_STATES: Final = (
    "encrypted content",  # OpenAI's responses
    "encrypted_content",
    "of type 'reasoning'",
    "in `thinking` block",  # Anthropic
    ".thinking.signature",
    "bound to a different conversation",
    "thinking` blocks",
    "thinking blocks",
    "thought signature",  # Gemini
    "thought_signature",
    "thoughtsignature",
)
"""Marks of a refusal to take encrypted thoughts back, as after a change of the key."""
STATUSES: Final = {
    "invalid_request_error": 400,
    "invalid_argument": 400,
    "authentication_error": 401,
    "unauthenticated": 401,
    "billing_error": 402,
    "permission_error": 403,
    "permission_denied": 403,
    "not_found_error": 404,
    "not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "resource_exhausted": 429,
    "api_error": 500,
    "server_error": 500,
    "internal": 500,
    "unavailable": 503,
    "overloaded": 503,
    "timeout_error": 504,
    "deadline_exceeded": 504,
    "overloaded_error": 529,
}
"""HTTP status for the type of an error object in mid-stream."""
