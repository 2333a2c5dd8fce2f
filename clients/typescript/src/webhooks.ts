// Verifies webhooks that the service sends: Standard Webhooks signatures, with Web Crypto.

import type * as models from "./models.js";

/** As in the libraries of Standard Webhooks: an old event cannot be replayed. */
const TOLERANCE_SECONDS = 5 * 60;

/** The webhook is not signed with the secret, or its timestamp is too far from now. Answer 400 or 401. */
export class WebhookVerificationError extends Error {
  override readonly name = "WebhookVerificationError";
}

/** The headers of a request, as `Headers` or as Node has them. */
export type WebhookHeaders = Headers | Record<string, string | string[] | undefined>;

/** Verifies webhooks with a secret. */
export class Webhook {
  readonly #secrets: Uint8Array<ArrayBuffer>[];

  /** @param secret `whsec_` and base64, as the service has it; several, separated by spaces, while a secret is replaced */
  constructor(secret: string) {
    this.#secrets = secret.split(/\s+/).filter(Boolean).map((each) => bytesOf(each.replace(/^whsec_/, "")));
    if (this.#secrets.length === 0 || this.#secrets.some((each) => each.length === 0)) {
      throw new TypeError("a webhook secret is whsec_ followed by base64");
    }
  }

  /**
   * Returns the event; rejects with `WebhookVerificationError`.
   *
   * @param body the exact bytes of the request, or its text
   * @param now the time to compare with, in seconds since 1970; by default the clock
   */
  async verify(body: string | Uint8Array, headers: WebhookHeaders, now: number = Date.now() / 1000): Promise<models.Event> {
    const id = header(headers, "webhook-id");
    const timestamp = header(headers, "webhook-timestamp");
    const signatures = header(headers, "webhook-signature");
    if (!id || !timestamp || signatures === undefined) {
      throw new WebhookVerificationError("webhook-id, webhook-timestamp or webhook-signature is missing");
    }
    if (!/^[0-9]{1,12}$/.test(timestamp)) {
      throw new WebhookVerificationError("webhook-timestamp is not a number of seconds");
    }
    if (Math.abs(now - Number(timestamp)) > TOLERANCE_SECONDS) {
      throw new WebhookVerificationError("webhook-timestamp is more than five minutes from now");
    }
    const raw = typeof body === "string" ? new TextEncoder().encode(body) : body;
    const head = new TextEncoder().encode(`${id}.${timestamp}.`);
    const signed = new Uint8Array(head.length + raw.length);
    signed.set(head);
    signed.set(raw, head.length);
    const { subtle } = await webCrypto();
    for (const secret of this.#secrets) {
      const key = await subtle.importKey("raw", secret, { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
      for (const given of signatures.split(/\s+/)) {
        // `verify` compares in constant time, so that a signature cannot be guessed byte by byte.
        if (given.startsWith("v1,") && (await subtle.verify("HMAC", key, bytesOf(given.slice(3)), signed))) {
          return JSON.parse(new TextDecoder().decode(raw)) as models.Event;
        }
      }
    }
    throw new WebhookVerificationError("no signature is that of this body under this secret");
  }
}

function header(headers: WebhookHeaders, name: string): string | undefined {
  if (headers instanceof Headers) {
    return headers.get(name) ?? undefined;
  }
  const found = Object.entries(headers).find(([each]) => each.toLowerCase() === name)?.[1];
  return Array.isArray(found) ? found.join(" ") : found;
}

/** The bytes of a base64 text; empty if it is none. */
function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  try {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

/** Web Crypto. Node 18 has it only in a module; a name that is not written out keeps bundlers from looking for it. */
async function webCrypto(): Promise<Crypto> {
  const name = "node:crypto";
  return globalThis.crypto ?? ((await import(name)) as { webcrypto: Crypto }).webcrypto;
}
