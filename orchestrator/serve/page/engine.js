// Runs the steps of the hub with wllama, which is llama.cpp in WebAssembly.
import { Wllama } from "/engine/wllama.js";

const ROLES = { ROLE_SYSTEM: "system", ROLE_USER: "user", ROLE_ASSISTANT: "assistant", ROLE_TOOL: "tool" };
const SILENT = { debug() {}, log() {}, warn() {}, error() {} };

export class Failure extends Error {
  constructor(reason, message) { super(message); this.reason = reason; }
}

export class Engine {
  static async load(model, files) {
    const wllama = new Wllama({ default: "/engine/wllama.wasm" }, { logger: SILENT, suppressNativeLog: true });
    wllama.setCompat({ worker: "/engine/compat.js", wasm: "/engine/compat.wasm" }); // browsers without WebAssembly of 64 bits
    await wllama.loadModel(files, { n_ctx: model.context_tokens, n_parallel: 1, n_gpu_layers: 0, jinja: true, warmup: false });
    return new Engine(wllama, model);
  }

  constructor(wllama, model) { this.wllama = wllama; this.model = model; }

  // wllama cannot give log-probabilities where tools are passed, so only a model without tools claims confidence.
  card() {
    const { name, context_tokens, parameters, world, takes_tools } = this.model;
    return {
      name: "near", side: "SIDE_NEAR", model: name, description: "A model in a browser tab.", ...(world && { world }), parameters,
      capabilities: { tools: takes_tools, confidence: !takes_tools, logprobs: !takes_tools, cancellation: true },
      limits: { contextTokens: context_tokens, concurrency: 1 },
      prices: { input: "0", output: "0", source: "runs on this device", asOf: new Date().toISOString().slice(0, 10) },
      execution: { engine: "llama.cpp", provider: "cpu", device: "browser tab", threads: this.wllama.getNumThreads() },
    };
  }

  // Yields the events of a step. Throws a Failure.
  async *step(request, signal) {
    const answer = new Answer(request, this.model), began = performance.now();
    let first = null;
    try {
      signal.throwIfAborted();
      const stream = await this.wllama.createChatCompletion({ ...body(request, this.model), abortSignal: signal });
      for await (const chunk of stream) {
        const text = answer.feed(chunk);
        first ??= (performance.now() - began) / 1000;
        if (text) yield { text };
      }
      signal.throwIfAborted();
    } catch (error) {
      throw signal.aborted ? signal.reason : failure(error);
    }
    yield* answer.events(first);
  }
}

function body(request, model) {
  const tools = request.toolChoice === "TOOL_CHOICE_NONE" ? [] : request.tools ?? [];
  const asked = {
    messages: request.messages.map(message), stream: true, stream_options: { include_usage: true },
    temperature: request.temperature ?? 0, max_tokens: request.maxOutputTokens ?? -1, seed: request.seed, stop: request.stop,
    top_p: request.topP, top_k: request.topK, min_p: request.minP,
    presence_penalty: request.presencePenalty, frequency_penalty: request.frequencyPenalty,
  };
  if (tools.length) {
    asked.tools = tools.map(({ name, description, parametersJson }) =>
      ({ type: "function", function: { name, description, parameters: JSON.parse(parametersJson || "{}") } }));
    asked.tool_choice = request.toolChoice === "TOOL_CHOICE_REQUIRED" ? "required" : "auto";
  }
  return model.takes_tools ? asked : { ...asked, logprobs: true, top_logprobs: request.topLogprobs || 1 }; // 0 would give none at all
}

function message({ role, text, toolCalls, toolResult }) {
  if (toolResult) return { role: "tool", tool_call_id: toolResult.callId, content: toolResult.content ?? "" };
  const calls = toolCalls?.map(({ id, name, argumentsJson }) => ({ id, type: "function", function: { name, arguments: argumentsJson } }));
  return { role: ROLES[role], content: text ?? "", ...(calls && { tool_calls: calls }) };
}

function failure(error) {
  if (/exceeds the available context/.test(error.message)) return new Failure("ContextOverflow", error.message);
  return new Failure(error.name === "RuntimeError" ? "WorkerCrashed" : "Unavailable", `wllama failed: ${error.message}`);
}

class Answer {
  constructor(request, model) { Object.assign(this, { request, model, calls: [], tokens: [], reason: "", usage: {}, timings: {} }); }

  feed({ choices = [], usage, timings }) {
    this.usage = usage ?? this.usage;
    this.timings = timings ?? this.timings;
    const { delta = {}, finish_reason, logprobs } = choices[0] ?? {};
    this.reason = finish_reason ?? this.reason;
    this.tokens.push(...(logprobs?.content ?? []));
    for (const { index, id, function: { name = "", arguments: added = "" } = {} } of delta.tool_calls ?? []) {
      const call = (this.calls[index] ??= { id, name: "", argumentsJson: "" });
      call.name += name;
      call.argumentsJson += added;
    }
    return delta.content;
  }

  *events(firstTokenSeconds) {
    const calls = this.reason === "length" ? [] : this.calls; // the last may be half a call
    for (const call of calls) yield { toolCall: { ...call, id: `call_${crypto.randomUUID()}`, argumentsJson: call.argumentsJson || "{}" } };
    const { prompt_tokens, completion_tokens, prompt_tokens_details } = this.usage;
    yield {
      finished: {
        reason: calls.length ? "FINISH_REASON_TOOL_CALLS" : this.reason === "length" ? "FINISH_REASON_LENGTH" : "FINISH_REASON_STOP",
        usage: { inputTokens: prompt_tokens, outputTokens: completion_tokens, cachedTokens: prompt_tokens_details?.cached_tokens ?? 0 },
        model: this.model.name, confidence: this.confidence(), logprobs: this.logprobs(),
        performance: {
          firstTokenSeconds,
          prefillTokensPerSecond: this.timings.prompt_per_second || undefined,
          decodeTokensPerSecond: this.timings.predicted_per_second || undefined,
        },
      },
    };
  }

  logprobs() {
    const { topLogprobs: most } = this.request, likely = ({ token, logprob }) => ({ token, logprob });
    return most === undefined ? [] : this.tokens.map((each) => ({ ...likely(each), top: each.top_logprobs.slice(0, most).map(likely) }));
  }

  // exp of the lowest mean log-probability over any 4 consecutive tokens, as protocols/confidence.py
  confidence() {
    const values = this.tokens.map(({ logprob }) => Math.min(0, Math.max(-10000, logprob)));
    const mean = (window) => window.reduce((sum, value) => sum + value, 0) / window.length;
    const windows = values.length < 4 ? [values] : values.slice(3).map((_, start) => values.slice(start, start + 4));
    return values.length ? Math.exp(Math.min(...windows.map(mean))) : undefined;
  }
}
