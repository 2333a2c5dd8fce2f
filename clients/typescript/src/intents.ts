// `client.intents`: submit intents, follow them, cancel and redrive them.

import {
  BATCH_BYTES,
  BATCH_ITEMS,
  Batcher,
  encodedSubmission,
  packed,
  type BatchResult,
  type BatcherOptions,
  type SubmittedIntent,
} from "./batcher.js";
import { byteLength, encodedObject } from "./encoding.js";
import { errorOf, Unavailable } from "./errors.js";
import type * as models from "./models.js";
import { Pager } from "./paging.js";
import { backoffMs, parsed, pause, unexpected, type CallOptions, type Transport } from "./transport.js";

/** `wait` polls after 100 ms at first, then less and less often. */
const FIRST_POLL_MS = 100;
const LONGEST_POLL_MS = 2_000;
/** The service holds a submission for at most this long. */
const LONGEST_WAIT_SECONDS = 30;
const DEFAULT_WAIT_MS = 60_000;

export interface IntentFilter {
  /** First the intents with exactly this gateway message id, then those whose id starts with it. */
  q?: string;
  status?: models.StatusName;
  submissionTarget?: string;
  redriveId?: string;
  createdAfter?: string;
  createdBefore?: string;
  /** The size of a page: 50 by default, at most 200. */
  limit?: number;
}

export interface WaitOptions extends CallOptions {
  /** How long to wait until the intent has ended: 60 s by default. */
  timeoutMs?: number;
}

export class Intents {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * Submits an intent. Submitting the same again is safe: the intent comes back with `replayed` true. A payload is any JSON
   * value; `RawJson` and `Uint8Array` are sent byte for byte. `waitSeconds` waits until the first attempt has finished, at
   * most that long and at most 30 s.
   */
  async submit(
    submission: models.SubmitRequest,
    options: CallOptions & { waitSeconds?: number; traceparent?: string } = {},
  ): Promise<SubmittedIntent> {
    const answer = await this.#transport.answer(
      {
        method: "POST",
        template: "/v1/intents",
        query: { waitSeconds: options.waitSeconds },
        headers: { traceparent: options.traceparent },
        body: encodedSubmission(submission),
      },
      options,
    );
    return { ...parsed<models.Intent>(answer), replayed: answer.headers.get("idempotent-replayed") === "true" };
  }

  /** Submits an intent and waits until it has ended; throws `WaitTimeout` if it has not after `timeoutMs`. */
  async submitAndWait(submission: models.SubmitRequest, options: WaitOptions = {}): Promise<models.Intent> {
    const timeoutMs = options.timeoutMs ?? DEFAULT_WAIT_MS;
    const until = Date.now() + timeoutMs;
    const waitSeconds = Math.max(0, Math.min(Math.floor(timeoutMs / 1000), LONGEST_WAIT_SECONDS));
    const intent = await this.submit(submission, { waitSeconds, signal: options.signal });
    if (intent.status !== "pending") {
      return intent;
    }
    return this.wait(submission.intentId, { signal: options.signal, timeoutMs: Math.max(0, until - Date.now()) });
  }

  /**
   * Waits until an intent has ended; throws `WaitTimeout` if it has not after `timeoutMs`. It polls. To learn what became
   * of many intents, follow `client.events` instead.
   */
  async wait(intentId: string, options: WaitOptions = {}): Promise<models.Intent> {
    const timeoutMs = options.timeoutMs ?? DEFAULT_WAIT_MS;
    const until = Date.now() + timeoutMs;
    for (let pauseMs = FIRST_POLL_MS; ; pauseMs = Math.min(pauseMs * 1.5, LONGEST_POLL_MS)) {
      const intent = await this.get(intentId, options);
      const left = until - Date.now();
      if (intent.status !== "pending") {
        return intent;
      }
      if (left <= 0) {
        throw errorOf(0, "wait_timeout", `${intentId} is still pending after ${timeoutMs} ms`, { intent });
      }
      await pause(Math.min(pauseMs * (0.5 + Math.random() / 2), left), options.signal);
    }
  }

  /**
   * Submits many intents and returns a result for each, in order. One that fails does not affect the others.
   *
   * More than 1,000 intents or 8 MiB are divided into several requests. Intents that are refused because the service is
   * overloaded are submitted again. If the first request fails as a whole, its error is thrown; if a later one does, the
   * remaining results have the error. Submitting the same intents again is safe.
   */
  async submitBatch(
    submissions: Iterable<models.SubmitRequest>,
    options: CallOptions & { traceparent?: string } = {},
  ): Promise<BatchResult[]> {
    const items = Array.from(submissions, encodedSubmission);
    const results: BatchResult[] = [];
    for (const count of packed(items.map(byteLength), BATCH_ITEMS, BATCH_BYTES)) {
      try {
        results.push(...(await this.#sendBatch(items.slice(results.length, results.length + count), options)));
      } catch (error) {
        if (results.length === 0 || !(error instanceof Error && "code" in error)) {
          throw error;
        }
        const rest = items.slice(results.length).map(() => ({ error }) as BatchResult);
        return [...results, ...rest];
      }
    }
    return results;
  }

  /** Batches single submissions automatically; see `Batcher`. */
  batcher(options: BatcherOptions = {}): Batcher {
    return new Batcher((items) => this.#sendBatch(items, {}), options);
  }

  /** Sends one batch, and again those of its items that were refused for a while. */
  async #sendBatch(items: string[], options: CallOptions & { traceparent?: string }): Promise<BatchResult[]> {
    const results = await this.#sendOnce(items, options);
    for (let number = 1; number <= this.#transport.maxRetries; number++) {
      const refused = [...results.keys()].filter((index) => results[index]?.error instanceof Unavailable);
      if (refused.length === 0) {
        break;
      }
      await pause(backoffMs(number), options.signal);
      // After retries of its own; the results say which items were refused.
      const again = await this.#sendOnce(refused.map((index) => items[index] ?? ""), options).catch(() => undefined);
      if (again === undefined) {
        options.signal?.throwIfAborted();
        break;
      }
      again.forEach((result, place) => (results[refused[place] ?? 0] = result));
    }
    return results;
  }

  async #sendOnce(items: string[], options: CallOptions & { traceparent?: string }): Promise<BatchResult[]> {
    const answer = await this.#transport.answer(
      {
        method: "POST",
        template: "/v1/intents/batch",
        headers: { traceparent: options.traceparent },
        body: `[${items.join(",")}]`,
      },
      options,
    );
    const { results } = parsed<models.BatchResults>(answer);
    if (!Array.isArray(results) || results.length !== items.length) {
      throw unexpected(answer);
    }
    return results.map(({ status, intent, error, replayed }): BatchResult => {
      if (intent) {
        return { intent: { ...intent, replayed: replayed ?? false } };
      }
      if (!error) {
        throw unexpected(answer);
      }
      return { error: errorOf(status, error.code, error.message, error.details) };
    });
  }

  /** An intent and its status; throws `NotFound`. */
  get(intentId: string, options: CallOptions = {}): Promise<models.Intent> {
    return this.#transport.json({ method: "GET", template: "/v1/intents/{intentId}", path: { intentId } }, options);
  }

  /** An intent with all its attempts and its webhook event. */
  history(intentId: string, options: CallOptions = {}): Promise<models.History> {
    return this.#transport.json({ method: "GET", template: "/v1/intents/{intentId}/history", path: { intentId } }, options);
  }

  /** Intents, newest first; pages are fetched as you iterate. */
  list(filter: IntentFilter = {}, options: CallOptions = {}): Pager<models.Intent> {
    return new Pager(this.#transport, "/v1/intents", "intents", { ...filter }, options);
  }

  /**
   * Cancels an intent that waits for an attempt. `mayHaveBeenSent` of the answer is false if its gateway cannot have
   * received it. Throws `AttemptInProgress` unless `afterAttempt` is set; then the attempt finishes, and no further one
   * starts. Throws `AlreadyTerminal` if the intent has ended for another reason.
   */
  cancel(intentId: string, options: CallOptions & { afterAttempt?: boolean } = {}): Promise<models.CancelledIntent> {
    const query = { afterAttempt: options.afterAttempt };
    const call = { method: "POST", template: "/v1/intents/{intentId}/cancel", path: { intentId }, query };
    return this.#transport.json(call, options);
  }

  /** Sends one failed intent again, as a new intent, with its old payload or another one. */
  redrive(intentId: string, options: CallOptions & { payload?: unknown } = {}): Promise<models.Intent> {
    const body = encodedObject({ payload: options.payload });
    const call = { method: "POST", template: "/v1/intents/{intentId}/redrive", path: { intentId }, body, repeatable: false };
    return this.#transport.json(call, options);
  }

  /** Makes the webhook event of an intent due now, whether or not it was delivered before. */
  redeliverWebhook(intentId: string, options: CallOptions = {}): Promise<models.Webhook> {
    const call = { method: "POST", template: "/v1/intents/{intentId}/webhook/redeliver", path: { intentId } };
    return this.#transport.json(call, options);
  }
}
