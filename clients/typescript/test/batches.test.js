// Batches: results of items, division by size, automatic batching.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as api from "../dist/index.js";
import { packed } from "../dist/batcher.js";
import { error, fast, HANG_UP, rejected, reply, scripted } from "./support.js";

const site = scripted();
const ok = (intentId) => ({ status: 200, intent: { intentId, status: "pending" } });
const bad = (status, code) => ({ status, error: { code, message: "no" } });
const results = (...each) => reply(200, { results: each });
const echo = ({ body }) => results(...JSON.parse(body).map(({ intentId }) => ok(intentId)));
const submission = (intentId) => ({ intentId, submissionTarget: "t" });
const ids = () => site.asked.map(({ body }) => JSON.parse(body).map(({ intentId }) => intentId));

test("each item has its result", async () => {
  site.script = [results({ ...ok("a"), replayed: true }, bad(400, "invalid_request"), bad(409, "idempotency_conflict"))];
  const found = await site.client().intents.submitBatch([
    { ...submission("a"), payload: new api.RawJson('{ "n": 1.0 }') },
    { ...submission("b"), payload: null },
    submission("c"),
  ]);
  assert.equal(found[0].intent.replayed, true);
  assert.ok(found[1].error instanceof api.InvalidRequest);
  assert.ok(found[2].error instanceof api.IdempotencyConflict);
  const body =
    '[{"intentId":"a","submissionTarget":"t","payload":{ "n": 1.0 }},' +
    '{"intentId":"b","submissionTarget":"t","payload":null},{"intentId":"c","submissionTarget":"t"}]';
  assert.equal(site.asked[0].body, body);
});

test("items that were refused for a while are sent again", async () => {
  site.script = [
    results(ok("a"), bad(503, "overloaded"), bad(400, "invalid_request"), bad(503, "store_unavailable")),
    results(bad(503, "overloaded"), ok("d")),
    results(ok("b")),
  ];
  const found = await site.client().intents.submitBatch([..."abcd"].map(submission));
  assert.deepEqual(ids(), [["a", "b", "c", "d"], ["b", "d"], ["b"]]);
  assert.deepEqual(found.map((each) => each.intent?.intentId), ["a", "b", undefined, "d"]);
});

test("a long list is divided", async () => {
  site.script = echo;
  const names = Array.from({ length: 2100 }, (_, number) => `i${number}`);
  const found = await site.client().intents.submitBatch(names.map(submission));
  assert.deepEqual(ids().map((each) => each.length), [1000, 1000, 100]);
  assert.deepEqual(found.map((each) => each.intent.intentId), names);
  assert.deepEqual(await site.client().intents.submitBatch([]), []);
  assert.deepEqual(packed([40, 40, 40, 200, 1], 10, 100), [2, 1, 1, 1]);
});

test("a failure of the whole is thrown if nothing was stored", async () => {
  site.script = [error(401, "unauthorized")];
  await rejected(site.client().intents.submitBatch([submission("a")]), api.Unauthorized);
  const names = Array.from({ length: 1001 }, (_, number) => `i${number}`);
  site.script = [results(...names.slice(0, 1000).map(ok)), error(401, "unauthorized")];
  const found = await site.client().intents.submitBatch(names.map(submission));
  assert.equal(found.filter((each) => each.intent).length, 1000);
  assert.ok(found[1000].error instanceof api.Unauthorized);
});

test("a batcher sends what came together", async () => {
  fast.on = false;
  site.script = echo;
  const batcher = site.client().intents.batcher({ maxItems: 10, maxDelayMs: 60_000 });
  const names = Array.from({ length: 25 }, (_, number) => `i${number}`);
  const submitted = await Promise.all(names.map((name) => batcher.submit(submission(name))));
  // The last five are sent by closing, not by time.
  await batcher.close();
  const found = await Promise.all(submitted.map(({ result }) => result));
  assert.deepEqual(found.map((each) => each.intentId), names);
  assert.deepEqual(ids().map((each) => each.length), [10, 10, 5]);
  assert.deepEqual(ids().flat(), names);
  await assert.rejects(batcher.submit(submission("x")), /closed/);
});

test("a batcher sends after a delay", async () => {
  site.script = echo;
  const batcher = site.client().intents.batcher({ maxDelayMs: 5 });
  const { result } = await batcher.submit(submission("a"));
  assert.equal((await result).intentId, "a");
  await batcher.submit(submission("b"));
  await batcher.flush();
  assert.deepEqual(ids(), [["a"], ["b"]]);
});

test("a batcher respects the limit of bytes", async () => {
  fast.on = false;
  site.script = echo;
  const batcher = site.client().intents.batcher({ maxBytes: 300, maxDelayMs: 60_000 });
  for (let number = 0; number < 7; number++) {
    // Two bytes each as UTF-8.
    await batcher.submit({ ...submission(`i${number}`), payload: "å".repeat(30) });
  }
  await rejected(batcher.submit({ ...submission("big"), payload: "x".repeat(300) }), api.PayloadTooLarge);
  await batcher.close();
  assert.ok(site.asked.every(({ body }) => Buffer.byteLength(body) <= 300));
  assert.deepEqual(ids().map((each) => each.length), [2, 2, 2, 1]);
});

test("a batcher gives each caller its own error", async () => {
  site.script = [results(ok("a"), bad(409, "idempotency_conflict")), ...Array(5).fill(HANG_UP)];
  const batcher = site.client().intents.batcher({ maxItems: 2, maxDelayMs: 60_000 });
  const [one, two] = [await batcher.submit(submission("a")), await batcher.submit(submission("b"))];
  assert.equal((await one.result).replayed, false);
  await rejected(two.result, api.IdempotencyConflict);
  const lost = await batcher.submit(submission("c"));
  await batcher.flush();
  await rejected(lost.result, api.Unreachable);
});

test("callers wait while too many are waiting", async () => {
  let release;
  const held = new Promise((resolve) => (release = resolve));
  site.script = echo;
  const client = site.client({ fetch: async (...given) => (await held, fetch(...given)) });
  const batcher = client.intents.batcher({ maxItems: 1, maxWaiting: 2, maxDelayMs: 0 });
  for (const name of "abc") {
    await batcher.submit(submission(name));
  }
  let added = false;
  const fourth = batcher.submit(submission("d")).then((submitted) => ((added = true), submitted));
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(added, false);
  release();
  assert.equal((await (await fourth).result).intentId, "d");
  await batcher.close();
});

test("batches have limits", () => {
  for (const wrong of [{ maxItems: 0 }, { maxItems: 1001 }, { maxBytes: 9_000_000 }, { concurrency: 0 }, { maxWaiting: 0 }]) {
    assert.throws(() => site.client().intents.batcher(wrong), TypeError);
  }
});
