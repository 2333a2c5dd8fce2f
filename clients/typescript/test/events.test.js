// The event feed: cursors, reconnection, broken streams, half an event.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as api from "../dist/index.js";
import { SseParser } from "../dist/sse.js";
import { error, HANG_UP, pieces, rejected, reply, scripted, SILENCE } from "./support.js";

const site = scripted();
const event = (number) => ({ eventId: `e${number}`, eventType: "intent.terminal", occurredAt: "2026-11-16T09:00:00Z", intent: {} });
const sse = (...numbers) =>
  numbers.map((number) => `id: c${number}\nevent: intent.terminal\ndata: ${JSON.stringify(event(number))}\n\n`).join("");
const page = (nextCursor, ...numbers) => reply(200, { events: numbers.map(event), nextCursor });
const lastIds = () => site.asked.map((each) => each.headers["last-event-id"]);

async function read(feed, count) {
  const ids = [];
  while (ids.length < count) {
    ids.push((await feed.next()).value.eventId);
  }
  return ids;
}

test("a stream goes on where it broke", async () => {
  // A comment, an event in two pieces; then it breaks in the middle of the third event.
  const whole = `: hello\n\n${sse(1)}`;
  site.script = [
    pieces([whole.slice(0, 30), whole.slice(30), sse(2) + sse(3).slice(0, 20)], "cut"),
    HANG_UP,
    pieces([sse(3)]),
    pieces([sse(4)], "hold"),
  ];
  const feed = site.client().events.stream({ submissionTarget: "t" });
  assert.equal(feed.cursor, undefined);
  assert.deepEqual(await read(feed, 2), ["e1", "e2"]);
  assert.equal(feed.cursor, "c2");
  assert.deepEqual(await read(feed, 2), ["e3", "e4"]);
  feed.close();
  assert.deepEqual(lastIds(), [undefined, "c2", "c2", "c3"]);
  assert.deepEqual(new Set(site.asked.map((each) => each.path)), new Set(["/v1/events/stream?submissionTarget=t"]));
});

test("the cursor is the one of the event that was read last", async () => {
  site.script = [pieces([sse(1, 2, 3)], "hold")];
  const feed = site.client().events.stream({ after: "c0" });
  assert.equal(feed.cursor, "c0");
  for (const number of [1, 2, 3]) {
    assert.deepEqual(await read(feed, 1), [`e${number}`]);
    assert.equal(feed.cursor, `c${number}`);
  }
  feed.close();
});

test("now is a cursor before the stream begins", async () => {
  site.script = [page("c7"), HANG_UP, pieces([sse(8)], "hold")];
  for await (const { eventId } of site.client().events.stream({ after: "now" })) {
    assert.equal(eventId, "e8");
    break;
  }
  assert.equal(site.asked[0].path, "/v1/events?after=now&limit=1");
  assert.deepEqual(lastIds(), [undefined, "c7", "c7"]);
});

test("polling goes on after failures", async () => {
  site.script = [page("c2", 1, 2), error(503, "overloaded", "0"), HANG_UP, page("c2"), page("c3", 3)];
  const feed = site.client().events.poll({ limit: 2 });
  assert.deepEqual(await read(feed, 1), ["e1"]);
  assert.equal(feed.cursor, undefined);
  assert.deepEqual(await read(feed, 1), ["e2"]);
  assert.equal(feed.cursor, "c2");
  assert.deepEqual(await read(feed, 1), ["e3"]);
  assert.equal(feed.cursor, "c3");
  feed.close();
  const rest = Array(4).fill("/v1/events?limit=2&after=c2&waitSeconds=30");
  assert.deepEqual(site.asked.map((each) => each.path), ["/v1/events?limit=2&waitSeconds=30", ...rest]);
});

test("the first connection is not tried for ever", async () => {
  for (const feed of [site.client({ maxRetries: 2 }).events.stream(), site.client({ maxRetries: 2 }).events.poll()]) {
    site.asked = [];
    site.script = [HANG_UP, HANG_UP, HANG_UP];
    await rejected(feed.next(), api.Unreachable);
    assert.equal(site.asked.length, 3);
  }
});

test("a feed that was connected reconnects without a limit", async () => {
  site.script = [pieces([sse(1)]), ...Array(7).fill(HANG_UP), pieces([sse(2)], "hold")];
  const feed = site.client({ maxRetries: 0 }).events.stream();
  assert.deepEqual(await read(feed, 2), ["e1", "e2"]);
  feed.close();
});

test("errors that last are thrown", async () => {
  for (const [status, code, kind] of [[410, "cursor_expired", api.CursorExpired], [401, "unauthorized", api.Unauthorized]]) {
    site.script = [pieces([sse(1)]), error(status, code)];
    const feed = site.client().events.stream();
    await read(feed, 1);
    await rejected(feed.next(), kind);
  }
  site.script = [pieces(["data: <html>\n\n"], "hold")];
  await rejected(site.client().events.stream().next(), api.UnexpectedAnswer);
});

test("a feed that waits can be closed, and aborted", async () => {
  for (const [script, feedOf] of [
    [[pieces([": hello\n\n"], "hold")], (options) => site.client().events.stream(options)],
    [[SILENCE], (options) => site.client().events.stream(options)],
    [[SILENCE], (options) => site.client().events.poll(options)],
  ]) {
    for (const aborts of [false, true]) {
      site.script = [...script];
      site.asked = [];
      const controller = new AbortController();
      const feed = feedOf({ signal: controller.signal });
      const next = feed.next();
      while (site.asked.length === 0) {
        await new Promise((resolve) => setImmediate(resolve));
      }
      aborts ? controller.abort(new Error("enough")) : feed.close();
      aborts ? await assert.rejects(next, /enough/) : assert.deepEqual(await next, { done: true, value: undefined });
    }
  }
});

test("one page, and events of jobs", async () => {
  site.script = [page("c2", 2)];
  const found = await site.client().events.list({ after: "c1", limit: 10, waitSeconds: 5, submissionTarget: "t" });
  assert.deepEqual([found.events[0].eventId, found.nextCursor], ["e2", "c2"]);
  const job = { event_id: "e1", event_type: "job.terminal", job: {} };
  site.script = [pieces([`id: j1\ndata: ${JSON.stringify(job)}\n\n`], "hold"), reply(200, { events: [job], next_cursor: "j2" })];
  const [stream, poll] = [
    site.client().jobs.events("acme"),
    site.client().jobs.events("acme", { workspace_id: "w1", after: "j1", streaming: false }),
  ];
  assert.deepEqual([(await stream.next()).value, stream.cursor], [job, "j1"]);
  stream.close();
  assert.deepEqual([(await poll.next()).value, poll.cursor], [job, "j2"]);
  const paths = [
    "/v1/events?after=c1&limit=10&waitSeconds=5&submissionTarget=t",
    "/v1/jobs/events/stream?tenant_id=acme",
    "/v1/jobs/events?tenant_id=acme&workspace_id=w1&after=j1&wait_seconds=30",
  ];
  assert.deepEqual(site.asked.map((each) => each.path), paths);
});

test("pieces of any size give the same events", () => {
  const text = ": hi\r\n\r\nid: 1\r\nevent: x\r\ndata: a\r\ndata:b\r\n\r\nid:2\rdata: c\r\rid: 3\n\ndata: å\n\nretry: 9\n\ndata: half";
  const expected = [["1", "a\nb"], ["2", "c"], ["3", undefined], [undefined, "å"]];
  for (const size of [1, 2, 3, 7, text.length]) {
    const parser = new SseParser();
    const found = [];
    for (let start = 0; start < text.length; start += size) {
      found.push(...[...parser.feed(text.slice(start, start + size))].map(({ id, data }) => [id, data]));
    }
    assert.deepEqual(found, expected);
    assert.equal(parser.retryMs, 9);
  }
  const parser = new SseParser();
  assert.throws(() => {
    for (let number = 0; number < 2000; number++) {
      [...parser.feed("x".repeat(1024))];
    }
  }, api.UnexpectedAnswer);
});
