// What the client promises whatever the service does, held against a server that does as it is told.
// Needs the build: npm run build && npm test

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";

import { Client, SubmissionManagerError } from "../dist/index.js";

const INTENT = { intentId: "a", submissionTarget: "t", createdAt: "2026-11-16T09:00:00.000000Z", status: "pending" };
const ASKED = { intentId: "a", submissionTarget: "t", payload: { text: "å", n: 1 } };
const GOOD = [200, { "idempotent-replayed": "true" }, JSON.stringify(INTENT)];
const HANG_UP = null;
const error = (status, code, headers = {}, details = {}) => [
  status,
  headers,
  JSON.stringify({ error: { code, message: "no", details } }),
];

let answers = [];
let asked = [];
let url;
const server = createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    asked.push({ path: request.url, headers: request.headers, body: Buffer.concat(chunks).toString() });
    const answer = answers.shift();
    if (answer === HANG_UP) {
      request.socket.destroy();
    } else if (answer !== undefined) {
      response.writeHead(answer[0], answer[1]).end(answer[2]);
    }
  });
});

before(async () => {
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${server.address().port}`;
});
after(() => {
  server.closeAllConnections();
  server.close();
});
beforeEach(() => {
  answers = [];
  asked = [];
});

async function refused(...given) {
  answers = given;
  const failure = await new Client({ url, tries: 2 }).submitIntent(ASKED).then(
    () => assert.fail("it was not refused"),
    (reason) => reason,
  );
  assert.ok(failure instanceof SubmissionManagerError, String(failure));
  return failure;
}

test("repeats the same bytes until there is an answer", async () => {
  const bad = [HANG_UP, error(503, "overloaded", { "retry-after": "0" }), [502, {}, "<html>"], [429, {}, ""]];
  // An answer may get lost on a busy machine, and is then asked for again.
  answers = [...bad, ...Array(4).fill(GOOD)];
  const client = new Client({ url, token: "secret", timeoutMs: 5_000, tries: 8 });
  assert.deepEqual(await client.submitIntent(ASKED, { waitSeconds: 3 }), INTENT);
  assert.ok(asked.length > bad.length, String(asked.length));
  for (const each of asked) {
    assert.equal(each.path, "/v1/intents?waitSeconds=3");
    assert.equal(each.headers.authorization, "Bearer secret");
    assert.equal(each.body, '{"intentId":"a","submissionTarget":"t","payload":{"text":"å","n":1}}');
  }
});

test("what is refused for good is not repeated", async () => {
  for (const [status, code] of [[400, "invalid_request"], [401, "unauthorized"], [409, "idempotency_conflict"], [500, "x"]]) {
    const failure = await refused(error(status, code, {}, { conflictingFields: ["payload"] }));
    assert.deepEqual([failure.status, failure.code, failure.message], [status, code, "no"]);
    assert.deepEqual(failure.details, { conflictingFields: ["payload"] });
  }
  assert.equal(asked.length, 4);
});

test("gives up in the end", async () => {
  const failure = await refused(...Array(2).fill(error(503, "overloaded", { "retry-after": "0" })));
  assert.deepEqual([failure.status, failure.code, failure.retryAfter], [503, "overloaded", 0]);
  assert.equal((await refused(HANG_UP, HANG_UP)).code, "unreachable");
});

test("a long pause is the caller's to make", async () => {
  const failure = await refused(error(503, "overloaded", { "retry-after": "3600" }));
  assert.equal(failure.retryAfter, 3600);
  assert.equal(asked.length, 1);
});

test("redirects are not followed", async () => {
  for (const status of [301, 302, 303, 307, 308]) {
    const failure = await refused([status, { location: `${url}/elsewhere` }, ""]);
    assert.deepEqual([failure.status, failure.code], [status, "unexpected_answer"]);
  }
  assert.equal(asked.length, 5);
});

test("answers of something else", async () => {
  for (const answer of [[200, {}, "<html> Welcome"], [404, {}, "<html> Welcome"], [404, {}, '{"error": "Welcome"}']]) {
    const failure = await refused(answer);
    assert.deepEqual([failure.status, failure.code], [answer[0], "unexpected_answer"]);
    assert.match(failure.message, /Welcome/);
  }
});

test("a repetition to the inbox has the same key", async () => {
  const received = [202, {}, '{"id": "x"}'];
  answers = [HANG_UP, received, received, received];
  const client = new Client({ url });
  for (const idempotencyKey of [undefined, undefined, "form-1"]) {
    await client.submitToInbox({ client_slug: "acme", channel: "form", payload: {} }, { idempotencyKey });
  }
  const keys = asked.map((each) => each.headers["idempotency-key"]);
  assert.equal(keys[0], keys[1]);
  assert.deepEqual([new Set(keys).size, keys[3]], [3, "form-1"]);
});

test("ids are encoded", async () => {
  answers = [GOOD];
  await new Client({ url: `${url}/` }).getIntent("a/../b?c å%2F");
  assert.equal(asked[0].path, "/v1/intents/a%2F..%2Fb%3Fc%20%C3%A5%252F");
  for (const text of ["", ".", ".."]) {
    await assert.rejects(new Client({ url }).getIntent(text), TypeError);
  }
});

test("every answer is told", async () => {
  answers = [[503, {}, ""], GOOD];
  const told = [];
  const onAnswer = (method, where, status, headers) => told.push([method, where, status, headers.get("idempotent-replayed")]);
  await new Client({ url, onAnswer }).getIntent("a");
  const where = `${url}/v1/intents/a`;
  assert.deepEqual(told, [["GET", where, 503, null], ["GET", where, 200, "true"]]);
});

test("a call can be given up, under way and between two tries", async () => {
  for (const answer of [undefined, error(503, "overloaded", { "retry-after": "20" })]) {
    asked = [];
    answers = [answer];
    const controller = new AbortController();
    const call = new Client({ url }).getIntent("a", { signal: controller.signal });
    while (asked.length === 0) {
      await new Promise((resolve) => setImmediate(resolve));
    }
    controller.abort(new Error("enough"));
    await assert.rejects(call, /enough/);
  }
});

test("a try takes no longer than it may", async () => {
  const failure = await new Client({ url, timeoutMs: 50, tries: 2 }).getIntent("a").catch((reason) => reason);
  assert.equal(failure.code, "unreachable");
  assert.match(failure.message, /no answer within 50 ms/);
  assert.equal(asked.length, 2);
});

test("urls that cannot be", () => {
  for (const wrong of ["", "127.0.0.1:8082", "ftp://example", "http://", "file:///etc/passwd", "http://a?b", "http://a:b", "http://user@a"]) {
    assert.throws(() => new Client({ url: wrong }), TypeError);
  }
  for (const right of ["https://submissions.example/below", "http://[::1]:8082/", "http://localhost"]) {
    new Client({ url: right });
  }
});
