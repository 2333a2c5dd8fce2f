// A server that answers as a test says.

import { createServer } from "node:http";
import { after, before, beforeEach } from "node:test";

import { Client } from "../dist/index.js";

export const INTENT = { intentId: "a", submissionTarget: "t", createdAt: "2026-11-16T09:00:00.000000Z", status: "pending" };
/** Closes the connection without an answer. */
export const HANG_UP = "hang up";
/** Answers nothing. */
export const SILENCE = "silence";

/** An answer with a whole body: JSON, unless it is a string. */
export const reply = (status, body = "", headers = {}) => ({ status, body, headers });
export const GOOD = reply(200, INTENT, { "idempotent-replayed": "true" });
export const error = (status, code, retryAfter, details = {}) =>
  reply(status, { error: { code, message: "no", details } }, retryAfter === undefined ? {} : { "retry-after": retryAfter });
/** A stream; `end` is "end", "cut" (the connection breaks) or "hold" (it stays open and silent). */
export const pieces = (texts, end = "end") => ({ texts, end });

/** Starts the server for the tests of a file. A script is a list of answers, or a function that makes each. */
export function scripted() {
  const site = { script: [], asked: [], url: "", client: undefined };
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", async () => {
      const asked = { method: request.method, path: request.url, headers: request.headers, body: Buffer.concat(chunks).toString() };
      site.asked.push(asked);
      const answer = typeof site.script === "function" ? site.script(asked) : site.script.shift();
      if (answer === HANG_UP) {
        request.socket.destroy();
      } else if (answer?.texts) {
        response.writeHead(200, { "content-type": "text/event-stream" });
        for (const text of answer.texts) {
          await new Promise((resolve) => response.write(text, resolve));
        }
        answer.end === "cut" ? request.socket.destroy() : answer.end === "end" && response.end();
      } else if (answer !== SILENCE) {
        const { status, body, headers } = answer ?? error(500, "no_script_left");
        response.writeHead(status, headers).end(typeof body === "string" ? body : JSON.stringify(body));
      }
    });
  });
  before(async () => {
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    site.url = `http://127.0.0.1:${server.address().port}`;
    site.client = (options = {}) => new Client({ url: site.url, ...options });
  });
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  beforeEach(() => {
    site.script = [];
    site.asked = [];
    // Pauses are tested without waiting for them: half of a very short one.
    globalThis.setTimeout = (run, ms, ...rest) => realTimeout(run, ms > 40 && ms < 30_000 && fast.on ? 1 : ms, ...rest);
    fast.on = true;
  });
  after(() => (globalThis.setTimeout = realTimeout));
  return site;
}

const realTimeout = globalThis.setTimeout;
/** While `on`, waits of less than 30 s end at once. Timeouts of calls are longer by default. */
export const fast = { on: true };

export async function rejected(promise, kind) {
  const failure = await promise.then(
    () => undefined,
    (reason) => reason,
  );
  if (!(failure instanceof kind)) {
    throw new Error(`it is not ${kind.name}: ${failure}`);
  }
  return failure;
}
