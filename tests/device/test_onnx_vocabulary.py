"""Tokenizers of the families that ONNX folders come from: byte-level ones, and those that write blanks as SentencePiece does."""

import json
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="running models needs llguidance: pip install 'nearfar[onnx]'")
tokenizers = pytest.importorskip("tokenizers", reason="reading tokenizers needs tokenizers: pip install 'nearfar[onnx]'")
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from nearfar.device.onnx.folder import OnnxFolder
from nearfar.device.onnx.model import OnnxVocabulary, read_template
from nearfar.protocols import ModelError

SPECIALS = ("<s>", "</s>", "<|user|>", "<think>")
WORDS = ("\u2581", "\u2581a", "\u2581the", "a", "t", "h", "e", "th", "the", "\u2581t")


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate((*SPECIALS, *alphabet))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_piece() -> Tokenizer:
    """As Llama 2's: blanks are written as a character, one is put in front, and what has no token is written in bytes."""
    pieces = (*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS)
    merges = [("t", "h"), ("th", "e"), ("\u2581", "a"), ("\u2581", "t"), ("\u2581", "the")]
    vocabulary = {token: number for number, token in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def opened(tokenizer: Tokenizer, folder: Path, **settings: object) -> OnnxVocabulary:
    """As a folder holds it."""
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, **settings}))
    return OnnxVocabulary(folder, described(tokenizer.get_vocab_size() + 8))


def described(vocabulary: int) -> OnnxFolder:
    """A model with some more logits than there are tokens, as many have."""
    return OnnxFolder(
        name=None,
        description=None,
        world=None,
        context_tokens=64,
        vocabulary=vocabulary,
        ends=(1,),
        layers=1,
        parameters=1,
        kv_bytes_per_token=1,
        size=1,
        adapter_inputs={},
    )


@pytest.fixture(scope="module", params=[byte_level, sentence_piece], ids=lambda make: make.__name__)
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OnnxVocabulary:
    return opened(request.param(), tmp_path_factory.mktemp("tokenizer"))


@given(text=st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="<\u2581"), min_size=1))
def test_the_bytes_of_the_pieces_are_the_text(vocabulary: OnnxVocabulary, text: str) -> None:
    inside = b"".join(vocabulary.piece(token) for token in vocabulary.tokenize_inside(text))
    assert inside.decode() == text
    begun = b"".join(vocabulary.piece(token) for token in vocabulary.tokenize(text))
    assert begun.decode() == (f" {text}" if vocabulary.puts_blank_in_front else text)


def test_control_tokens_are_known_and_silent(vocabulary: OnnxVocabulary) -> None:
    assert vocabulary.control_texts == set(SPECIALS)
    assert vocabulary.tokenize("<|user|>") == [2]
    assert [vocabulary.piece(token) for token in (0, 1, 2)] == [b"", b"", b""]
    assert vocabulary.piece(3) == b"<think>"


def test_the_start_token_is_the_one_that_the_tokenizer_adds(vocabulary: OnnxVocabulary) -> None:
    assert vocabulary.start == 0
    assert (vocabulary.start_text, vocabulary.end_text) == ("<s>", "</s>")


def test_tokens_that_the_tokenizer_does_not_know_have_no_bytes(vocabulary: OnnxVocabulary) -> None:
    assert vocabulary.piece(vocabulary.size - 1) == b""
    assert vocabulary.longest_token >= len("<|user|>")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    opened(byte_level(), tmp_path)
    with pytest.raises(ModelError, match="different models"):
        OnnxVocabulary(tmp_path, described(10))


@pytest.mark.parametrize("text", ["{}", '{"model": {"type": "BPE"}}', '{"model": {"type": "Nothing", "vocab": {}}}'])
def test_a_tokenizer_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match="not a usable tokenizer"):
        OnnxVocabulary(tmp_path, described(10))


def test_a_template_is_found_wherever_it_stands(tmp_path: Path) -> None:
    assert read_template(tmp_path) is None
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "named"}]}))
    assert read_template(tmp_path) == "named"
    settings.write_text(json.dumps({"chat_template": "in the settings"}))
    assert read_template(tmp_path) == "in the settings"
    (tmp_path / "chat_template.jinja").write_text("in its own file")
    assert read_template(tmp_path) == "in its own file"
