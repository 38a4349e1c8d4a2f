// A worker that brings one file of the model into the browser's private storage. It resumes, and checks the SHA-256 while it reads.
const ROUND = new Int32Array(64), START = new Int32Array(8);
for (let n = 2, count = 0; count < 64; n++) { // fractions of the roots of the first primes, as FIPS 180-4 defines them
  let prime = true;
  for (let d = 2; d * d <= n; d++) prime &&= n % d > 0;
  if (!prime) continue;
  if (count < 8) START[count] = (Math.sqrt(n) * 2 ** 32) | 0;
  ROUND[count++] = (Math.cbrt(n) * 2 ** 32) | 0;
}

class Sha256 {
  constructor() { this.state = START.slice(); this.words = new Int32Array(64); this.rest = new Uint8Array(64); this.held = this.length = 0; }

  update(bytes) {
    this.length += bytes.length;
    for (let at = 0; at < bytes.length;) {
      if (!this.held && bytes.length - at >= 64) { this.block(bytes, at); at += 64; continue; }
      const taken = Math.min(64 - this.held, bytes.length - at);
      this.rest.set(bytes.subarray(at, at + taken), this.held);
      at += taken; this.held += taken;
      if (this.held === 64) { this.block(this.rest, 0); this.held = 0; }
    }
  }

  block(bytes, at) {
    const w = this.words, turn = (x, n) => (x >>> n) | (x << (32 - n));
    for (let i = 0; i < 16; i++, at += 4) w[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15], y = w[i - 2];
      const added = (turn(x, 7) ^ turn(x, 18) ^ (x >>> 3)) + (turn(y, 17) ^ turn(y, 19) ^ (y >>> 10));
      w[i] = (w[i - 16] + w[i - 7] + added) | 0;
    }
    let [a, b, c, d, e, f, g, h] = this.state;
    for (let i = 0; i < 64; i++) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + ROUND[i] + w[i]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + one) | 0; d = c; c = b; b = a; a = (one + two) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => { this.state[i] += value; });
  }

  hex() {
    const bits = this.length * 8, end = new Uint8Array((this.held < 56 ? 64 : 128) - this.held);
    end[0] = 0x80;
    new DataView(end.buffer).setBigUint64(end.length - 8, BigInt(bits));
    this.update(end);
    return [...this.state].map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }
}

self.onmessage = async ({ data: { part, token } }) => {
  try {
    await bring(part, token);
    self.postMessage({ done: true });
  } catch (error) {
    self.postMessage({ error: error.message });
  }
};

async function bring({ sha256, bytes }, token) {
  const folder = await navigator.storage.getDirectory();
  const file = await (await folder.getFileHandle(`${sha256}.partial`, { create: true })).createSyncAccessHandle();
  try {
    if (file.getSize() > bytes) file.truncate(0);
    const digest = new Sha256();
    let done = 0;
    const add = (block) => { digest.update(block); done += block.length; self.postMessage({ progress: done / bytes }); };
    const block = new Uint8Array(1 << 20);
    for (let size = file.getSize(); done < size;) add(block.subarray(0, file.read(block, { at: done })));
    if (done < bytes) {
      const headers = { Authorization: `Bearer ${token}`, Range: `bytes=${done}-` };
      const response = await fetch(`/model/${sha256}`, { headers });
      if (response.status !== 206) throw new Error(`the hub answered ${response.status} for the model`);
      const reader = response.body.getReader(); // Safari cannot iterate over it
      for (let next; !(next = await reader.read()).done;) { file.write(next.value, { at: done }); add(next.value); }
      file.flush();
    }
    if (done < bytes) throw new Error("the download ended too early");
    if (done > bytes || digest.hex() !== sha256) { file.truncate(0); throw new Error("the model has the wrong checksum"); }
  } finally {
    file.close();
  }
  await (await folder.getFileHandle(`${sha256}.partial`)).move(`${sha256}.gguf`);
}
