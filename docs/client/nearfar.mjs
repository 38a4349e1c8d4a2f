// nearfar.mjs
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const PROTOS = fileURLToPath(new URL("./proto", import.meta.url)); // a copy of protocols/proto
const { AgentService } = grpc.loadPackageDefinition(
  protoLoader.loadSync("nearfar/v1/agent.proto", { includeDirs: [PROTOS], enums: String, longs: Number, oneofs: true, defaults: true }),
).nearfar.v1;
const OPTIONS = {
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 5_000,
  "grpc.max_receive_message_length": 32 * 1024 * 1024,
  "grpc.initial_reconnect_backoff_ms": 200,
  "grpc.enable_retries": 0,
};
const BROKEN = [grpc.status.UNAVAILABLE, grpc.status.INTERNAL, grpc.status.UNKNOWN, grpc.status.CANCELLED];
const RESUME_MS = 4_000;

const rpc = protobuf.parse(`syntax = "proto3"; package google.rpc;
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
  message RetryInfo { Duration retry_delay = 1; }
  message Duration { int64 seconds = 1; int32 nanos = 2; }`).root;

export class NearfarError extends Error {
  constructor(reason, message, hint, retryAfter) {
    super(message);
    Object.assign(this, { reason, hint, retryAfter }); // retryAfter: in seconds, undefined where the server names no time
  }

  /** The error that a server of Nearfar raised; undefined if the call failed on its way. */
  static of(failure) {
    const [trailer] = failure.metadata?.get("grpc-status-details-bin") ?? [];
    const details = trailer ? rpc.lookupType("google.rpc.Status").decode(trailer).details : [];
    const find = (name) => {
      const detail = details.find(({ typeUrl }) => typeUrl.endsWith(`/google.rpc.${name}`));
      return detail && rpc.lookupType(`google.rpc.${name}`).decode(detail.value);
    };
    const info = find("ErrorInfo");
    if (info?.domain !== "nearfar") return undefined;
    const delay = find("RetryInfo")?.retryDelay;
    return new NearfarError(info.reason, failure.details, info.metadata.hint, delay && Number(delay.seconds) + delay.nanos / 1e9);
  }
}

export class Client {
  /** `authority`: the certificate, in PEM, that signed the server's; unset, the public ones count. */
  constructor(address, { token, authority } = {}) {
    const isLocal = /^(localhost:|127\.|\[::1\]|unix:)/.test(address) && !authority;
    const credentials = isLocal ? grpc.credentials.createInsecure() : grpc.credentials.createSsl(authority);
    this.stub = new AgentService(address, credentials, OPTIONS);
    this.metadata = new grpc.Metadata();
    if (token) this.metadata.set("authorization", `Bearer ${token}`);
  }

  close() {
    this.stub.close();
  }

  /** The cards of the server's agents. */
  async describe() {
    return (await this.unary("describe", {}, 10_000)).agents;
  }

  /** Yield the events of one step. Leave the loop early, and the server stops computing it. */
  async *step(request, { agent = "", key = randomUUID(), seconds = 120 } = {}) {
    const call = { agent, idempotencyKey: key, reader: randomUUID(), request };
    const reading = { deadline: Date.now() + seconds * 1000, received: 0, accepted: false, over: false };
    try {
      while (!reading.over) {
        try {
          yield* this.read(call, reading);
        } catch (failure) {
          await recover(failure, call, reading);
        }
      }
    } finally {
      if (!reading.over) await this.cancel(call).catch(() => {});
    }
  }

  /** Yield the events of one attempt. */
  async *read(call, reading) {
    const stream = this.stub.step(call, this.metadata, { deadline: reading.deadline });
    stream.on("metadata", (metadata) => (reading.accepted ||= metadata.get("nearfar-accepted").length > 0));
    stream.on("error", () => {}); // the loop raises it, too
    try {
      for await (const event of stream) {
        reading.received += 1;
        reading.accepted = true;
        reading.giveUpAt = reading.delay = undefined;
        reading.over = event.event === "finished";
        yield event;
      }
      if (!reading.over) throw new Error("the server ended the stream without saying why");
    } finally {
      stream.cancel();
    }
  }

  /** Stop computing the step. */
  async cancel({ idempotencyKey, reader }) {
    await this.unary("cancel", { idempotencyKey, reader }, 1_000);
  }

  unary(method, message, milliseconds) {
    const options = { deadline: Date.now() + milliseconds };
    return new Promise((resolve, reject) => {
      this.stub[method](message, this.metadata, options, (failure, reply) =>
        failure ? reject(NearfarError.of(failure) ?? failure) : resolve(reply),
      );
    });
  }
}

/** Prepare the next attempt, or raise what `failure` stands for. */
async function recover(failure, call, reading) {
  if (reading.over) return; // the connection broke when everything had come
  const raised = NearfarError.of(failure);
  if (raised?.reason === "ResumeLost" && !reading.accepted) {
    delete call.resumeFrom; // the request never arrived: send it again as a new one
    return;
  }
  reading.giveUpAt ??= Date.now() + RESUME_MS;
  if (raised || !BROKEN.includes(failure.code) || Date.now() > reading.giveUpAt) {
    reading.over = true;
    throw raised ?? failure;
  }
  reading.delay = Math.min(2 * (reading.delay ?? 25), 1_000);
  await sleep(Math.random() * reading.delay);
  call.resumeFrom = reading.received;
}
