// Sends requests, retries them, and turns answers into JSON or errors.
//
// It never follows a redirect, because the token would be sent to the other host.

import { filled, unsendable, type Values } from "./encoding.js";
import { errorOf, type SubmissionManagerError } from "./errors.js";
import type * as models from "./models.js";

/** Longer than the longest waitSeconds, which is 30. */
const DEFAULT_TIMEOUT_MS = 40_000;
/** The pauses before four retries are 0.25 + 0.5 + 1 + 2 s: longer than a proxy needs when an instance is replaced. */
const DEFAULT_MAX_RETRIES = 4;
const FIRST_PAUSE_MS = 250;
/** If `Retry-After` is longer than this, the client throws the error instead of waiting. Feeds pause no longer than this. */
const LONGEST_PAUSE_MS = 30_000;
/** The statuses of overload, and of a proxy or an instance that is being replaced. */
const WORTH_REPEATING = new Set([429, 502, 503, 504]);
/** How many characters of an unexpected answer an error quotes. */
const SHOWN_CHARACTERS = 200;

/** Scheme, host name or address in brackets, optional port and path. A query is refused, because paths are appended. */
const SERVICE_URL = /^https?:\/\/([^/?#@:[\]\s]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?(\/[^?#\s]*)?$/;

export interface ClientOptions {
  /** The base URL of the service, such as https://submissions.example; http://127.0.0.1:8082 by default. */
  url?: string | undefined;
  /** A bearer token, or a function that returns the one that is valid now; it is called for every try. */
  token?: string | (() => string | Promise<string>) | undefined;
  /** How long one try may take. */
  timeoutMs?: number | undefined;
  /** How often a call is repeated at most, if there is no answer or one that asks for it. */
  maxRetries?: number | undefined;
  /** Called for every answer, for logs and metrics. */
  onAnswer?: ((method: string, url: string, status: number, headers: Headers) => void) | undefined;
  /** Used in place of the global `fetch`, for proxies and tests. */
  fetch?: typeof fetch | undefined;
}

export interface CallOptions {
  /** Aborts the call, also while it waits for a retry. The promise is rejected with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** One call of the API, before it becomes a request. */
export interface Call {
  method: string;
  template: string;
  path?: Record<string, string>;
  query?: Values;
  headers?: Record<string, string | undefined>;
  body?: string | undefined;
  /** False if repeating it would have another effect, so that it must not be retried if it may have arrived. */
  repeatable?: boolean;
  accept?: string;
}

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
}

/** What all resources of a client share. */
export class Transport {
  readonly maxRetries: number;
  readonly #url: string;
  readonly #token: ClientOptions["token"];
  readonly #timeoutMs: number;
  readonly #onAnswer: ClientOptions["onAnswer"];
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    const url = options.url ?? "http://127.0.0.1:8082";
    if (!SERVICE_URL.test(url)) {
      throw new TypeError(`"${url}" is not a URL of a service; use one such as http://127.0.0.1:8082`);
    }
    this.#url = url.replace(/\/+$/, "");
    this.#token = options.token;
    this.#timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    this.#onAnswer = options.onAnswer;
    // A browser's fetch must be called without a receiver.
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    this.maxRetries = options.maxRetries ?? DEFAULT_MAX_RETRIES;
    if (!(this.maxRetries >= 0)) {
      throw new TypeError("maxRetries must not be negative");
    }
  }

  /** The JSON of the answer. */
  async json<T>(call: Call, options: CallOptions = {}): Promise<T> {
    return parsed<T>(await this.answer(call, options));
  }

  /** The answer, after as many retries as are allowed; throws the last error. */
  async answer(call: Call, options: CallOptions = {}): Promise<Answer> {
    for (let number = 1; ; number++) {
      let failure: SubmissionManagerError;
      const answer = await this.#try(call, options.signal);
      if ("text" in answer) {
        if (answer.status >= 200 && answer.status < 300) {
          return answer;
        }
        failure = errorOfAnswer(answer);
      } else {
        failure = answer;
      }
      const pauseMs = pauseBeforeRetry(call, number, this.maxRetries, failure);
      if (pauseMs === undefined) {
        throw failure;
      }
      await pause(pauseMs, options.signal);
    }
  }

  /** The answer of one try. */
  async once(call: Call, options: CallOptions = {}): Promise<Answer> {
    const answer = await this.#try(call, options.signal);
    if (!("text" in answer)) {
      throw answer;
    }
    if (answer.status < 200 || answer.status >= 300) {
      throw errorOfAnswer(answer);
    }
    return answer;
  }

  /** An answer whose body is read piece by piece; one try. The signal ends it. */
  async open(call: Call, signal: AbortSignal): Promise<Response> {
    const { url, init } = await this.#request(call);
    const response = await this.#fetch(url, { ...init, signal }).catch((error: unknown) => {
      throw noAnswer(url, error);
    });
    this.#onAnswer?.(call.method, url, response.status, response.headers);
    if (response.ok) {
      return response;
    }
    const text = await response.text().catch(() => "");
    throw errorOfAnswer({ status: response.status, headers: response.headers, text });
  }

  /** Makes one try. Returns the answer, or an error if there was none. */
  async #try(call: Call, signal: AbortSignal | undefined): Promise<Answer | SubmissionManagerError> {
    signal?.throwIfAborted();
    const { url, init } = await this.#request(call);
    const controller = new AbortController();
    const giveUp = () => controller.abort(signal?.reason);
    const timer = setTimeout(() => controller.abort(new Error(`no answer within ${this.#timeoutMs} ms`)), this.#timeoutMs);
    signal?.addEventListener("abort", giveUp);
    try {
      const response = await this.#fetch(url, { ...init, signal: controller.signal });
      const answer = { status: response.status, headers: response.headers, text: await response.text() };
      this.#onAnswer?.(call.method, url, answer.status, answer.headers);
      return answer;
    } catch (error) {
      signal?.throwIfAborted();
      return noAnswer(url, controller.signal.aborted ? controller.signal.reason : error);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", giveUp);
    }
  }

  /** The request of a call; it is made anew for every try, because the token may have changed. */
  async #request(call: Call): Promise<{ url: string; init: RequestInit }> {
    const headers: Record<string, string> = { Accept: call.accept ?? "application/json" };
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    if (token) {
      headers["Authorization"] = `Bearer ${token}`;
    }
    for (const [name, value] of Object.entries(call.headers ?? {})) {
      if (value !== undefined) {
        headers[name] = value;
      }
    }
    for (const [name, value] of Object.entries(headers)) {
      if (!/^[\x20-\x7e]*$/.test(value)) {
        throw unsendable(name, "it must be of printable ASCII characters");
      }
    }
    const init: RequestInit = { method: call.method, headers, redirect: "manual" };
    if (call.body !== undefined) {
      headers["Content-Type"] = "application/json";
      init.body = call.body;
    }
    return { url: this.#url + filled(call.template, call.path ?? {}, call.query ?? {}), init };
  }
}

/** The JSON of an answer: the service answers every call of this client with an object. */
export function parsed<T>(answer: Answer): T {
  let found: unknown;
  try {
    found = JSON.parse(answer.text);
  } catch {
    // Not an answer of the service.
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) {
    throw unexpected(answer);
  }
  return found as T;
}

/** The error that an answer outside 2xx stands for. */
export function errorOfAnswer(answer: Answer): SubmissionManagerError {
  // A date in Retry-After is ignored; the client then waits as if there were none.
  const said = answer.headers.get("retry-after")?.trim() ?? "";
  const retryAfter = /^[0-9]+$/.test(said) ? Number(said) : undefined;
  try {
    const { error } = JSON.parse(answer.text) as models.Error;
    if (typeof error.code === "string") {
      return errorOf(answer.status, error.code, error.message, error.details, retryAfter);
    }
  } catch {
    // Not an answer of the service.
  }
  return unexpected(answer, retryAfter);
}

export function unexpected({ status, text }: Answer, retryAfter?: number): SubmissionManagerError {
  const shown = text.split(/\s+/).join(" ").trim().slice(0, SHOWN_CHARACTERS) || "nothing";
  const message = `this is not how a Submission Manager answers (${shown}); is the URL right?`;
  return errorOf(status, "unexpected_answer", message, {}, retryAfter);
}

/** The pause before retry `number` (from 1): it doubles, and is up to half shorter, so that clients do not come at once. */
export function backoffMs(number: number): number {
  return Math.min(FIRST_PAUSE_MS * 2 ** Math.min(number - 1, 16), LONGEST_PAUSE_MS) * (0.5 + Math.random() / 2);
}

/** How long to wait before retry `number`, or undefined if there is to be no retry. */
export function pauseBeforeRetry(
  call: Call,
  number: number,
  maxRetries: number,
  error: SubmissionManagerError,
): number | undefined {
  // Without a guarantee that repeating does no harm, only a refusal before anything happened may be repeated.
  const safe = call.repeatable !== false || error.status === 429 || error.code === "overloaded";
  if (!isWorthRepeating(error) || !safe || number > maxRetries) {
    return undefined;
  }
  // A little later than requested, so that not all clients come back at once.
  const pauseMs = backoffMs(number) + (error.retryAfter ?? 0) * 1000;
  return pauseMs <= LONGEST_PAUSE_MS ? pauseMs : undefined;
}

/** Whether the same request may succeed later. */
export function isWorthRepeating(error: SubmissionManagerError): boolean {
  return WORTH_REPEATING.has(error.status) || error.code === "unreachable";
}

/** Waits; rejects with the reason of the signal if that comes first. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      signal?.aborted ? reject(signal.reason) : resolve();
    };
    const timer = setTimeout(done, Math.min(ms, LONGEST_PAUSE_MS));
    signal?.addEventListener("abort", done);
    if (signal?.aborted) {
      done();
    }
  });
}

function noAnswer(url: string, error: unknown): SubmissionManagerError {
  return errorOf(0, "unreachable", `${url} does not answer (${cause(error)}); is the URL right, and the service up?`);
}

/** The reason of a failed `fetch`, which its error has as its cause. */
function cause(error: unknown): string {
  const inner = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const code = (inner as { code?: unknown } | undefined)?.code;
  return (inner instanceof Error && inner.message) || String(code ?? inner);
}
