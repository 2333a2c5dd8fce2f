// Verification of webhooks, with the example of the Standard Webhooks specification.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Webhook, WebhookVerificationError } from "../dist/index.js";

const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const BODY = '{"test": 2432232314}';
const NOW = 1614265330;
const SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
const HEADERS = { "Webhook-Id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": String(NOW), "webhook-signature": SIGNATURE };
const OTHER = `whsec_${Buffer.alloc(24).toString("base64")}`;

test("signed ones are accepted", async () => {
  const event = { test: 2432232314 };
  assert.deepEqual(await new Webhook(SECRET).verify(BODY, HEADERS, NOW), event);
  assert.deepEqual(await new Webhook(`${OTHER} ${SECRET}`).verify(Buffer.from(BODY), new Headers(HEADERS), NOW + 300), event);
  const several = { ...HEADERS, "webhook-signature": ["v1,AAAA v1a,zzz", SIGNATURE] };
  assert.deepEqual(await new Webhook(SECRET.slice("whsec_".length)).verify(BODY, several, NOW - 300), event);
});

test("all others are refused", async () => {
  const wrong = [
    [OTHER, BODY, HEADERS, NOW],
    [SECRET, `${BODY} `, HEADERS, NOW],
    [SECRET, BODY, HEADERS, NOW + 301],
    [SECRET, BODY, HEADERS, NOW - 301],
    [SECRET, BODY, {}, NOW],
    [SECRET, BODY, { ...HEADERS, "Webhook-Id": "msg_other" }, NOW],
    [SECRET, BODY, { ...HEADERS, "webhook-timestamp": "soon" }, NOW],
    [SECRET, BODY, { ...HEADERS, "webhook-timestamp": "9".repeat(5000) }, NOW],
    [SECRET, BODY, { ...HEADERS, "webhook-signature": "v1,å" }, NOW],
    [SECRET, BODY, { ...HEADERS, "webhook-signature": "" }, NOW],
  ];
  for (const [secret, body, headers, now] of wrong) {
    await assert.rejects(new Webhook(secret).verify(body, headers, now), WebhookVerificationError);
  }
});

test("secrets that cannot be", () => {
  for (const secret of ["", " ", "whsec_", "whsec_!"]) {
    assert.throws(() => new Webhook(secret), TypeError);
  }
});
