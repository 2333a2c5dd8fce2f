// Batches: many submissions in few requests.

import { byteLength, encodedObject } from "./encoding.js";
import { errorOf, type SubmissionManagerError } from "./errors.js";
import type * as models from "./models.js";

/** The limits of POST /v1/intents/batch. */
export const BATCH_ITEMS = 1000;
export const BATCH_BYTES = 8 * 1024 * 1024;

/** An intent, and whether it existed before this submission. */
export interface SubmittedIntent extends models.Intent {
  replayed: boolean;
}

/** What became of one submission of a batch. */
export type BatchResult =
  | { intent: SubmittedIntent; error?: undefined }
  | { intent?: undefined; error: SubmissionManagerError };

/** A submission as JSON. Its payload may be `RawJson` or a `Uint8Array`. */
export function encodedSubmission({ intentId, submissionTarget, notBefore, payload }: models.SubmitRequest): string {
  return encodedObject({ intentId, submissionTarget, notBefore: notBefore ?? undefined, payload });
}

/** Divides items into batches that respect both limits, and returns how many items each has. */
export function packed(sizes: readonly number[], maxItems: number, maxBytes: number): number[] {
  const counts: number[] = [];
  let [count, total] = [0, 2];
  for (const size of sizes) {
    if (count > 0 && (count === maxItems || total + size + 1 > maxBytes)) {
      counts.push(count);
      [count, total] = [0, 2];
    }
    count++;
    total += size + 1;
  }
  return count > 0 ? [...counts, count] : counts;
}

export interface BatcherOptions {
  /** Submissions in a batch: 1,000 by default, which is the most. */
  maxItems?: number;
  /** Bytes of a batch: 8 MiB by default, which is the most. */
  maxBytes?: number;
  /** How long the first submission of a batch waits for others: 20 ms by default. */
  maxDelayMs?: number;
  /** While so many submissions wait, `submit` waits too: 10,000 by default. */
  maxWaiting?: number;
  /** How many batches are sent at the same time: 1 by default. */
  concurrency?: number;
}

interface Waiting {
  item: string;
  size: number;
  resolve: (intent: SubmittedIntent) => void;
  reject: (error: unknown) => void;
}

/**
 * Collects submissions and sends them as batches: when one has `maxItems` or `maxBytes`, or `maxDelayMs` after its first
 * submission. Call `close` at the end: it sends the rest and waits for all results.
 */
export class Batcher {
  readonly #send: (items: string[]) => Promise<BatchResult[]>;
  readonly #options: Required<BatcherOptions>;
  #waiting: Waiting[] = [];
  #bytes = 0;
  #sending = new Set<Promise<void>>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #due = false;
  #closed = false;
  #onRoom: Array<() => void> = [];

  /** @internal */
  constructor(send: (items: string[]) => Promise<BatchResult[]>, options: BatcherOptions) {
    const { maxItems = BATCH_ITEMS, maxBytes = BATCH_BYTES, maxDelayMs = 20, maxWaiting = 10_000, concurrency = 1 } = options;
    const right = maxItems >= 1 && maxItems <= BATCH_ITEMS && maxBytes >= 1 && maxBytes <= BATCH_BYTES;
    if (!right || !(maxWaiting >= 1) || !(concurrency >= 1)) {
      throw new TypeError(`a batch has 1 to ${BATCH_ITEMS} items and at most ${BATCH_BYTES} bytes`);
    }
    this.#send = send;
    this.#options = { maxItems, maxBytes, maxDelayMs, maxWaiting, concurrency };
  }

  /**
   * Adds a submission. The returned promise waits only while too many are waiting; `result` is a promise of the intent,
   * rejected with the error of that submission alone.
   */
  async submit(submission: models.SubmitRequest): Promise<{ result: Promise<SubmittedIntent> }> {
    const item = encodedSubmission(submission);
    const size = byteLength(item);
    if (size + 3 > this.#options.maxBytes) {
      const details = { maxBytes: this.#options.maxBytes };
      throw errorOf(0, "payload_too_large", `${submission.intentId} is larger than a batch`, details);
    }
    while (this.#waiting.length >= this.#options.maxWaiting && !this.#closed) {
      await new Promise<void>((resolve) => this.#onRoom.push(resolve));
    }
    if (this.#closed) {
      throw new TypeError("the batcher is closed");
    }
    const result = new Promise<SubmittedIntent>((resolve, reject) => {
      this.#waiting.push({ item, size, resolve, reject });
    });
    // An error that nobody looks at must not end the process: `flush` and `close` wait for all results.
    result.catch(() => undefined);
    this.#bytes += size + 1;
    this.#start();
    return { result };
  }

  /** Sends what waits, and waits until every submission has its result. */
  async flush(): Promise<void> {
    while (this.#waiting.length > 0 || this.#sending.size > 0) {
      this.#due = true;
      this.#start();
      await Promise.race(this.#sending);
    }
  }

  /** Sends what waits, waits for all results, and refuses further submissions. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#makeRoom();
    await this.flush();
  }

  /** Sends batches that are full or due, as far as there are slots. */
  #start(): void {
    while (this.#waiting.length > 0 && this.#sending.size < this.#options.concurrency && (this.#due || this.#isFull())) {
      const [count = 0] = packed(this.#waiting.map(({ size }) => size), this.#options.maxItems, this.#options.maxBytes);
      const batch = this.#waiting.splice(0, count);
      this.#bytes -= batch.reduce((total, { size }) => total + size + 1, 0);
      this.#due = this.#due && this.#waiting.length > 0;
      const sending = this.#deliver(batch).then(() => {
        this.#sending.delete(sending);
        this.#start();
      });
      this.#sending.add(sending);
      this.#makeRoom();
    }
    if (this.#waiting.length > 0 && !this.#due) {
      this.#timer ??= setTimeout(() => {
        this.#timer = undefined;
        this.#due = this.#waiting.length > 0;
        this.#start();
      }, this.#options.maxDelayMs);
    } else {
      clearTimeout(this.#timer);
      this.#timer = undefined;
    }
  }

  #isFull(): boolean {
    return this.#waiting.length >= this.#options.maxItems || this.#bytes >= this.#options.maxBytes;
  }

  #makeRoom(): void {
    const waiting = this.#onRoom;
    this.#onRoom = [];
    waiting.forEach((resolve) => resolve());
  }

  async #deliver(batch: Waiting[]): Promise<void> {
    try {
      const results = await this.#send(batch.map(({ item }) => item));
      batch.forEach(({ resolve, reject }, index) => {
        const result = results[index];
        result?.intent ? resolve(result.intent) : reject(result?.error);
      });
    } catch (error) {
      batch.forEach(({ reject }) => reject(error));
    }
  }
}
