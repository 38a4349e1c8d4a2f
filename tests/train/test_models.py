from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from llama_engine import require_llama

pytest.importorskip("gguf", reason="reading model files needs gguf: pip install gguf")
pytest.importorskip("jinja2", reason="rendering chat templates needs jinja2: pip install 'nearfar[llama]'")
require_llama()

import jinja2
from llama_cpp import Llama

from nearfar.device.llama.extra_buffers import prepare_library
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from train.enlarge import enlarge

MODELS = Path(__file__).parents[2] / "device" / "models"
QUESTION = "What is the employer of Mira Falk's sister?"


def opened(path: Path) -> Llama:
    prepare_library()
    return Llama(str(path), n_ctx=256, n_threads=1, verbose=False)


def continuation(model: Llama, question: str) -> list[int]:
    prompt = model.tokenize(f"<|bos|><|user|>{question}<|end|><|assistant|>".encode(), special=True)
    return [token for token, _ in zip(model.generate(prompt, temp=0.0), range(40), strict=False)]


def rendered(template: str, messages: list[dict[str, Any]]) -> str:
    # As Hugging Face and llama-cpp-python do, because Jinja's own filter escapes for HTML and sorts.
    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True, tools=[{"x": 1}])


def test_an_enlarged_model_writes_the_same_tokens(tmp_path: Path) -> None:
    bigger = tmp_path / "bigger.gguf"
    enlarge(MODELS / "near.gguf", bigger, parameters=12_000_000)
    small, big = opened(MODELS / "near.gguf"), opened(bigger)
    assert bigger.stat().st_size > 3 * (MODELS / "near.gguf").stat().st_size
    for task in SearchWorld().tasks(8, seed=1):
        assert continuation(small, task.prompt) == continuation(big, task.prompt)


def test_a_budget_below_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few"):
        enlarge(MODELS / "near.gguf", tmp_path / "none.gguf", parameters=1000)


@pytest.mark.parametrize("name", ["near", "far"])
@pytest.mark.parametrize("plain", [False, True], ids=["own tojson", "jinja's tojson"])
def test_the_template_writes_a_conversation_as_it_was_trained(name: str, plain: bool) -> None:
    template = opened(MODELS / f"{name}.gguf").metadata["tokenizer.chat_template"]
    arguments = {"title": "Mira Falk", "section": "sister"}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "open", "arguments": arguments}}],
        },
        {"role": "tool", "content": "Elin Berg"},
    ]
    text = jinja2.Template(template).render(messages=messages, add_generation_prompt=True) if plain else rendered(template, messages)
    call = json.dumps({"name": "open", "arguments": arguments})
    assert text == (
        f"<|bos|><|system|>Be brief.<|end|><|user|>{QUESTION}<|end|><|assistant|><tool_call>{call}</tool_call><|end|>"
        "<|tool|>Elin Berg<|end|><|assistant|>"
    )


@pytest.mark.parametrize("name", ["near", "far"])
def test_the_file_says_what_it_is_and_keeps_calls_visible(name: str) -> None:
    model = opened(MODELS / f"{name}.gguf")
    assert model.metadata["nearfar.world"] == "search, apps"
    assert model.metadata["general.name"] == f"nearfar-{name}"
    ids = model.tokenize(b"<tool_call>x</tool_call><|end|>", add_bos=True, special=True)
    assert ids[-1] == model.token_eos()
    assert model.detokenize(ids) == b"<tool_call>x</tool_call>"


@pytest.mark.parametrize("name", ["near", "far"])
def test_a_chat_completion_is_a_valid_call(name: str) -> None:
    model = opened(MODELS / f"{name}.gguf")
    reply = model.create_chat_completion([{"role": "user", "content": QUESTION}], temperature=0.0)
    assert isinstance(reply, dict)
    text = reply["choices"][0]["message"]["content"] or ""
    call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert call == {"name": "open", "arguments": {"title": "Mira Falk", "section": "sister"}}
