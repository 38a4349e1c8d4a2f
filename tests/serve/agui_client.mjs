// Talks to /agui as interfaces do, by the protocol's own client, which refuses events that are out of order. Prints what it has in the end.
import { HttpAgent } from "@ag-ui/client";

const [url, token] = process.argv.slice(2);
const agent = new HttpAgent({ url, headers: { authorization: `Bearer ${token}` }, threadId: "t1" });
const paint = { name: "paint", description: "Paint the page.", parameters: { type: "object", properties: { color: { type: "string" } } } };
const kinds = [];
let number = 0;

function add(role, content, more = {}) {
  agent.addMessage({ id: `m${++number}`, role, content, ...more });
}

async function run(options) {
  const heard = [];
  await agent.runAgent(options, { onEvent: ({ event }) => void heard.push(event.type) });
  kinds.push(heard);
}

add("user", "Paint it.");
await run({ tools: [paint] });
for (const call of agent.messages.at(-1).toolCalls) add("tool", "painted", { toolCallId: call.id });
await run({ tools: [paint] });
add("user", "Pay 5.");
await run({});
const interrupts = agent.pendingInterrupts;
await run({ resume: interrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: { approved: true } })) });
const messages = agent.messages.map(({ role, content, toolCalls }) => ({ role, content, calls: (toolCalls ?? []).map((call) => call.function) }));
console.log(JSON.stringify({ kinds, interrupts, messages }));
