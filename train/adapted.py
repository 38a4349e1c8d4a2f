"""Measures adapted models in llama.cpp: greedy, over tasks with unseen names, switching at each tool call's opener and closer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nearfar.device.hardware.processors import Threads
from nearfar.device.llama.devices import CPU_ONLY
from nearfar.device.llama.model import LlamaAdapters, LlamaContext, LlamaModel
from nearfar.device.worker.engine import adapter_of, cells, common_prefix, run, tokens_of
from nearfar.protocols import Message, ToolResult

from .episodes import BOS, END, TOOL_CALL
from .evaluate import drawn_problems, is_right, outcome, parse_call
from .problems import Problem

_CONTEXT: Final = 2048
_MOST_TURNS: Final = 24
_MOST_TOKENS: Final = 320


class Decoder:
    """One model with its adapters; what it has computed of a text before is not computed again."""

    def __init__(self, path: Path, adapters: Sequence[Path] = ()) -> None:
        self.model = LlamaModel(str(path), CPU_ONLY)
        loaded = LlamaAdapters(self.model.handle, {adapter.stem: str(adapter) for adapter in adapters})
        self.context = LlamaContext(self.model, cells=_CONTEXT, sequences=1, threads=Threads(1, 1), adapters=loaded)
        self._cells: list[int] = []

    def read(self, wanted: Sequence[int]) -> int:
        """Bring the cache to exactly these cells; returns the most likely next token."""
        shared = min(common_prefix(self._cells, wanted), len(wanted) - 1)
        self.context.forget(0, shared)
        self._cells = list(wanted[:shared])
        while len(self._cells) < len(wanted):
            piece = wanted[len(self._cells) :][: self.context.batch.capacity]
            self._decode(piece[: run(piece)])
        return int(self.context.logits(self.context.batch.size - 1).argmax())

    def _decode(self, piece: Sequence[int]) -> None:
        self.context.use_adapter(adapter_of(piece))
        self.context.batch.clear()
        self.context.batch.add(tokens_of(piece), position=len(self._cells), sequence=0, last=True)
        if not self.context.decode():
            raise RuntimeError("the text is longer than the context")
        self._cells += piece


@dataclass(frozen=True, slots=True)
class Voice:
    """Who writes a kind of token: a model, with one of its adapters or as it is."""

    decoder: Decoder
    adapter: int = 0


class Speaker:
    """Writes turns in which text has one voice and tool calls, from opener to closer, have another or the same.

    Each model reads everything. What another one wrote, it reads with the adapter of its own voice.
    """

    def __init__(self, text: Voice, calls: Voice) -> None:
        self._voices = (text, calls)
        self._vocabulary = text.decoder.model.vocabulary
        self._opener, self._closer = self._vocabulary.tokenize("".join(TOOL_CALL))

    def reply(self, prompt: str) -> str:
        """Generate until the end of the turn."""
        tokens = self._vocabulary.tokenize(prompt)
        start, most = len(tokens), min(len(tokens) + _MOST_TOKENS, _CONTEXT)
        read: tuple[list[int], list[int]] = ([], [])
        in_call, unread = False, tokens
        while len(tokens) < most:
            in_call = self._read(unread, read, in_call=in_call)
            token = self._voices[in_call].decoder.read(read[in_call])
            if token in self._vocabulary.ends:
                break
            unread = [token]
            tokens += unread
        return b"".join(map(self._vocabulary.piece, tokens[start:])).decode(errors="replace")

    def _read(self, tokens: Sequence[int], read: tuple[list[int], list[int]], *, in_call: bool) -> bool:
        """Add tokens to what each voice has read; returns whether the last one is of a call, which its closer still is."""
        ended = in_call and tokens_of(read[True][-1:])[0] == self._closer
        for token in tokens:
            in_call = (in_call and not ended) or token == self._opener
            ended = token == self._closer
            writer = self._voices[in_call]
            for voice, seen in zip(self._voices, read, strict=True):
                seen += cells([token], writer.adapter if writer.decoder is voice.decoder else voice.adapter)
        return in_call


def carried_out(speaker: Speaker, problem: Problem) -> list[Message]:
    """The work on a task, with the world answering the calls; it ends with the answer, if one was given in time."""
    work: list[Message] = []
    text = f"{BOS}<|user|>{problem.text}{END}"
    for turn in range(_MOST_TURNS):
        said = speaker.reply(f"{text}<|assistant|>")
        words, opener, rest = said.partition(TOOL_CALL[0])
        call = parse_call(opener + rest)
        if call is None:
            return [*work, Message.assistant(said)]
        call = call.model_copy(update={"id": f"call{turn}"})
        result = ToolResult(call_id=call.id, name=call.name, content=outcome(problem, call))
        work += [Message.assistant(words, tool_calls=(call,)), Message.tool(result)]
        text += f"<|assistant|>{said}{END}<|tool|>{result.content}{END}"
    return work


def solves(speaker: Speaker, problem: Problem) -> bool:
    """Whether the task is done right."""
    work = carried_out(speaker, problem)
    return is_right(problem, work[-1].text if work[-1].role == "assistant" else "")


def outcomes(speaker: Speaker, world: str, count: int, seed: int) -> list[bool]:
    """Which of `count` unseen tasks of a world it does right."""
    return [solves(speaker, problem) for problem in drawn_problems(world, count, seed)]
