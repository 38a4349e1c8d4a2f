// ask.mjs
import { readFileSync } from "node:fs";
import { Client, NearfarError } from "./nearfar.mjs";

const { NEARFAR_ADDRESS: address, NEARFAR_TOKEN: token, NEARFAR_AUTHORITY: authority } = process.env;
const client = new Client(address, { token, authority: authority && readFileSync(authority) });
const request = { messages: [{ role: "ROLE_USER", text: process.argv[2] }], sensitivity: "SENSITIVITY_PUBLIC", maxOutputTokens: 500 };
try {
  for await (const event of client.step(request, { seconds: 60 })) {
    if (event.event === "text") process.stdout.write(event.text);
    if (event.event === "finished") console.error(`\n${event.finished.model}: ${event.finished.usage.outputTokens} tokens`);
  }
} catch (error) {
  if (!(error instanceof NearfarError)) throw error;
  console.error(`${error.reason}: ${error.message}`, { hint: error.hint, retryAfter: error.retryAfter });
  process.exitCode = 1;
} finally {
  client.close();
}
