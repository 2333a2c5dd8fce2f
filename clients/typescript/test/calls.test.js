// What single calls promise whatever the service does: retries, errors, exact bytes, lists, waiting.
// Needs the build: npm run build && npm test

import assert from "node:assert/strict";
import { test } from "node:test";

import * as api from "../dist/index.js";
import { errorOf } from "../dist/errors.js";
import { pauseBeforeRetry } from "../dist/transport.js";
import { error, fast, GOOD, HANG_UP, INTENT, rejected, reply, scripted, SILENCE } from "./support.js";

const site = scripted();
const REPLAYED = { ...INTENT, replayed: true };
const SUBMISSION = { intentId: "a", submissionTarget: "t", payload: { text: "å", n: 1 } };

async function refused(...script) {
  site.script = script;
  return rejected(site.client().intents.submit(SUBMISSION), api.SubmissionManagerError);
}

test("repeats the same bytes until there is an answer", async () => {
  site.script = [HANG_UP, error(503, "overloaded", "0"), reply(502, "<html>"), reply(429), GOOD];
  const client = site.client({ token: "secret" });
  assert.deepEqual(await client.intents.submit(SUBMISSION, { waitSeconds: 3 }), REPLAYED);
  assert.equal(site.asked.length, 5);
  for (const each of site.asked) {
    assert.equal(each.path, "/v1/intents?waitSeconds=3");
    assert.equal(each.headers.authorization, "Bearer secret");
    assert.equal(each.body, '{"intentId":"a","submissionTarget":"t","payload":{"text":"å","n":1}}');
  }
});

test("payloads keep their bytes", async () => {
  const raw = '{ "n": 1.00, "n": 2,\n "text": "\\u00e5" }';
  const payloads = [
    [new api.RawJson(raw), raw],
    [new TextEncoder().encode(raw), raw],
    [raw, JSON.stringify(raw)],
    [null, "null"],
    [[], "[]"],
    [false, "false"],
    [0, "0"],
  ];
  for (const [payload, sent] of payloads) {
    site.script = [GOOD];
    await site.client().intents.submit({ intentId: "a", submissionTarget: "t", payload });
    assert.equal(site.asked.at(-1).body, `{"intentId":"a","submissionTarget":"t","payload":${sent}}`);
  }
  site.script = [GOOD];
  await site.client().intents.submit({ intentId: "a", submissionTarget: "t", notBefore: "2026-11-17T08:00:00Z" });
  assert.equal(site.asked.at(-1).body, '{"intentId":"a","submissionTarget":"t","notBefore":"2026-11-17T08:00:00Z"}');
});

test("what is refused for good is not repeated", async () => {
  const kinds = [
    [400, "invalid_request", api.InvalidRequest],
    [401, "unauthorized", api.Unauthorized],
    [404, "management_node_not_found", api.NotFound],
    [409, "idempotency_conflict", api.IdempotencyConflict],
    [409, "already_terminal", api.Conflict],
    [500, "internal_error", api.InternalError],
    [409, "new_code", api.SubmissionManagerError],
    [409, "constructor", api.SubmissionManagerError],
  ];
  for (const [status, code, kind] of kinds) {
    const failure = await refused(error(status, code, undefined, { conflictingFields: ["payload"] }));
    assert.ok(failure instanceof kind, `${failure.name} for ${code}`);
    assert.deepEqual([failure.status, failure.code, failure.message], [status, code, "no"]);
    assert.deepEqual(failure.details, { conflictingFields: ["payload"] });
  }
  assert.equal(site.asked.length, kinds.length);
});

test("gives up in the end", async () => {
  const failure = await refused(...Array(5).fill(error(503, "overloaded", "0")));
  assert.ok(failure instanceof api.Overloaded && failure.name === "Overloaded");
  assert.deepEqual([failure.status, failure.retryAfter, site.asked.length], [503, 0, 5]);
  assert.ok((await refused(...Array(5).fill(HANG_UP))) instanceof api.Unreachable);
});

test("a long pause is for the caller to make", async () => {
  assert.equal((await refused(error(503, "overloaded", "3600"))).retryAfter, 3600);
  assert.equal(site.asked.length, 1);
});

test("pauses grow and respect Retry-After", () => {
  const pauseMs = (number, retryAfter) =>
    pauseBeforeRetry({ method: "GET", template: "/" }, number, 4, errorOf(503, "overloaded", "", {}, retryAfter));
  [[125, 250], [250, 500], [500, 1000], [1000, 2000]].forEach(([least, most], index) => {
    const found = pauseMs(index + 1);
    assert.ok(found >= least && found <= most, String(found));
  });
  assert.ok(pauseMs(1, 1) >= 1125 && pauseMs(1, 1) <= 1250);
  assert.equal(pauseMs(5), undefined);
  assert.equal(pauseMs(1, 31), undefined);
});

test("a timeout is unreachable and repeated", async () => {
  fast.on = false;
  site.script = [SILENCE, GOOD];
  assert.deepEqual(await site.client({ timeoutMs: 500 }).intents.get("a"), INTENT);
  site.script = [SILENCE];
  const failure = await rejected(site.client({ timeoutMs: 50, maxRetries: 0 }).intents.get("a"), api.Unreachable);
  assert.match(failure.message, /no answer within 50 ms/);
});

test("what is not safe to repeat is not repeated after a lost answer", async () => {
  const client = site.client();
  for (const answer of [HANG_UP, error(503, "store_unavailable", "0"), reply(502)]) {
    site.script = [answer];
    await rejected(client.redrives.start("r"), api.SubmissionManagerError);
  }
  assert.equal(site.asked.length, 3);
  site.script = [error(503, "overloaded", "0"), reply(200, { redriveId: "r" })];
  assert.equal((await client.redrives.start("r", { ratePerSecond: 5 })).redriveId, "r");
  assert.equal(site.asked.at(-1).body, '{"ratePerSecond":5}');
});

test("redirects are not followed", async () => {
  for (const status of [301, 302, 303, 307, 308]) {
    const failure = await refused(reply(status, "", { location: `${site.url}/elsewhere` }));
    assert.deepEqual([failure.status, failure.code], [status, "unexpected_answer"]);
  }
  assert.equal(site.asked.length, 5);
});

test("answers of something else", async () => {
  for (const answer of [reply(200, "<html> Welcome"), reply(200, '["Welcome"]'), reply(404, "<html> Welcome"), reply(404, '{"error": "Welcome"}')]) {
    const failure = await refused(answer);
    assert.ok(failure instanceof api.UnexpectedAnswer);
    assert.equal(failure.status, answer.status);
    assert.match(failure.message, /Welcome/);
  }
});

test("a repetition to the inbox has the same key", async () => {
  const received = reply(202, { id: "x" });
  site.script = [HANG_UP, received, received, received];
  for (const idempotencyKey of [undefined, undefined, "form-1"]) {
    await site.client().inbox.submit({ client_slug: "acme", channel: "form", payload: {} }, { idempotencyKey });
  }
  const keys = site.asked.map((each) => each.headers["idempotency-key"]);
  assert.equal(keys[0], keys[1]);
  assert.deepEqual([new Set(keys).size, keys[3]], [3, "form-1"]);
});

test("ids are encoded", async () => {
  site.script = [GOOD];
  await site.client({ url: `${site.url}/` }).intents.get("a/../b?c å%2F");
  assert.equal(site.asked[0].path, "/v1/intents/a%2F..%2Fb%3Fc%20%C3%A5%252F");
});

test("what cannot be sent is an error of the client", async () => {
  const circle = [];
  circle.push(circle);
  const { intents, inbox } = site.client();
  const submit = (payload) => intents.submit({ intentId: "a", submissionTarget: "t", payload });
  const toInbox = (idempotencyKey) => inbox.submit({ client_slug: "a", channel: "form", payload: 1 }, { idempotencyKey });
  const calls = [
    () => submit(1n),
    () => submit(circle),
    () => submit(() => 1),
    () => submit(new api.RawJson('1,"submissionTarget":"other"')),
    () => submit(new api.RawJson('"\ud83d"')),
    () => submit(new Uint8Array([0xff])),
    () => toInbox("schlüssel-€"),
    () => toInbox("a\r\nX-Other: b"),
    ...["", ".", "..", "\ud83d"].map((id) => () => intents.get(id)),
  ];
  for (const call of calls) {
    // Some are errors of the call itself, before there is a promise.
    const failure = await rejected(Promise.resolve().then(call), api.InvalidRequest);
    assert.equal(failure.status, 0);
  }
  assert.deepEqual(site.asked, []);
});

test("every answer is told, and tokens are asked for", async () => {
  site.script = [reply(503), GOOD];
  const told = [];
  const tokens = ["old", "new"];
  const onAnswer = (method, url, status, headers) => told.push([method, url, status, headers.get("idempotent-replayed")]);
  await site.client({ onAnswer, token: async () => tokens.shift() }).intents.get("a");
  const where = `${site.url}/v1/intents/a`;
  assert.deepEqual(told, [["GET", where, 503, null], ["GET", where, 200, "true"]]);
  assert.deepEqual(site.asked.map((each) => each.headers.authorization), ["Bearer old", "Bearer new"]);
});

test("a list fetches its pages when they are needed", async () => {
  const first = reply(200, { intents: [{ intentId: "1" }, { intentId: "2" }], nextCursor: "c/1" });
  const last = reply(200, { intents: [{ intentId: "3" }], nextCursor: null });
  const found = site.client().intents.list({ status: "exhausted", limit: 2 });
  assert.deepEqual(site.asked, []);
  site.script = [first, HANG_UP, last];
  const ids = [];
  for await (const intent of found) {
    ids.push(intent.intentId);
  }
  assert.deepEqual(ids, ["1", "2", "3"]);
  const query = "/v1/intents?status=exhausted&limit=2";
  assert.deepEqual(site.asked.map((each) => each.path), [query, `${query}&cursor=c%2F1`, `${query}&cursor=c%2F1`]);
  site.script = [reply(200, { something: "else" })];
  await rejected(found.page(), api.UnexpectedAnswer);
  site.script = [first, last];
  const pages = [];
  for await (const page of found.pages()) {
    pages.push([page.items.length, page.nextCursor]);
  }
  assert.deepEqual(pages, [[2, "c/1"], [1, null]]);
});

test("wait polls until the end", async () => {
  site.script = [GOOD, GOOD, GOOD, reply(200, { ...INTENT, status: "accepted" })];
  const done = await site.client().intents.submitAndWait(SUBMISSION, { timeoutMs: 5_000 });
  assert.equal(done.status, "accepted");
  const paths = ["/v1/intents?waitSeconds=5", ...Array(3).fill("/v1/intents/a")];
  assert.deepEqual(site.asked.map((each) => each.path), paths);
  site.script = [GOOD];
  const failure = await rejected(site.client().intents.wait("a", { timeoutMs: 0 }), api.WaitTimeout);
  assert.deepEqual(failure.details.intent, INTENT);
});

test("cancel says what it may", async () => {
  site.script = [error(409, "attempt_in_progress"), reply(202, { ...INTENT, mayHaveBeenSent: true })];
  const { intents } = site.client();
  await rejected(intents.cancel("a"), api.AttemptInProgress);
  assert.equal((await intents.cancel("a", { afterAttempt: true })).mayHaveBeenSent, true);
  assert.deepEqual(site.asked.map((each) => each.path), ["/v1/intents/a/cancel", "/v1/intents/a/cancel?afterAttempt=true"]);
});

test("other calls are possible", async () => {
  site.script = [reply(200, { entries: [] }), HANG_UP];
  assert.deepEqual(await site.client().request("GET", "/v1/audit", { query: { limit: 5 } }), { entries: [] });
  await rejected(site.client().request("POST", "/v1/new", { body: { a: 1 } }), api.Unreachable);
  assert.deepEqual(site.asked.map((each) => [each.path, each.body]), [["/v1/audit?limit=5", ""], ["/v1/new", '{"a":1}']]);
});

test("a call can be aborted, in progress and between two tries", async () => {
  fast.on = false;
  for (const answer of [SILENCE, error(503, "overloaded", "20")]) {
    site.asked = [];
    site.script = [answer];
    const controller = new AbortController();
    const call = site.client().intents.get("a", { signal: controller.signal });
    while (site.asked.length === 0) {
      await new Promise((resolve) => setImmediate(resolve));
    }
    controller.abort(new Error("enough"));
    await assert.rejects(call, /enough/);
  }
});

test("urls that cannot be", () => {
  for (const url of ["", "127.0.0.1:8082", "ftp://example", "http://", "file:///etc/passwd", "http://a?b", "http://a:b", "http://user@a"]) {
    assert.throws(() => new api.Client({ url }), TypeError);
  }
  for (const url of ["https://submissions.example/below", "http://[::1]:8082/", "http://localhost"]) {
    new api.Client({ url });
  }
  assert.throws(() => new api.Client({ maxRetries: -1 }), TypeError);
});
