// Sends requests and reads answers: token, timeout, retries, errors.
//
// This file is written by hand; the operations are generated (operations.ts). It never follows a redirect, because the
// token would be sent to the other host, and never repeats a request that the service has refused for good.

import type * as models from "./models.js";

/** Longer than the longest waitSeconds, which is 30. */
const DEFAULT_TIMEOUT_MS = 40_000;
/** The pauses between five tries are 0.25 + 0.5 + 1 + 2 s: longer than a proxy needs when an instance is replaced. */
const DEFAULT_TRIES = 5;
const FIRST_PAUSE_MS = 250;
/** If `Retry-After` is longer than this, the client raises the error instead of waiting. */
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
  /** A bearer token, if the service requires one. */
  token?: string | undefined;
  /** How long one try may take. */
  timeoutMs?: number | undefined;
  /** How often a call is made at most, if there is no answer or one that asks for a retry. */
  tries?: number | undefined;
  /** Called for every answer: for logs, or to read headers such as `idempotent-replayed`. */
  onAnswer?: ((method: string, url: string, status: number, headers: Headers) => void) | undefined;
}

export interface CallOptions {
  /** Aborts the call, also while it waits for a retry. The promise is rejected with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** The service answered with an error, or not at all. */
export class SubmissionManagerError extends Error {
  override readonly name = "SubmissionManagerError";

  constructor(
    /** The HTTP status; 0 if there was no answer. */
    readonly status: number,
    /**
     * The code for programs, such as `idempotency_conflict`; `unreachable` if there was no answer, and
     * `unexpected_answer` if the answer is not that of a Submission Manager.
     */
    readonly code: string,
    /** A message for people. */
    message: string,
    /** Further facts for programs, such as `conflictingFields`. */
    readonly details: Record<string, unknown> = {},
    /** `Retry-After` of the answer in seconds, if there was one. */
    readonly retryAfter: number | undefined = undefined,
  ) {
    super(message);
  }
}

type Values = Record<string, unknown>;

interface Request {
  path?: Values;
  query?: Values;
  headers?: Values;
  body?: unknown;
  contentType?: string;
}

/** Makes calls and retries them. */
export class Transport {
  readonly #url: string;
  readonly #token: string | undefined;
  readonly #timeoutMs: number;
  readonly #tries: number;
  readonly #onAnswer: ClientOptions["onAnswer"];

  constructor(options: ClientOptions = {}) {
    const url = options.url ?? "http://127.0.0.1:8082";
    if (!SERVICE_URL.test(url)) {
      throw new TypeError(`"${url}" is not a URL of a service; use one such as http://127.0.0.1:8082`);
    }
    this.#url = url.replace(/\/+$/, "");
    this.#token = options.token;
    this.#timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    this.#tries = options.tries ?? DEFAULT_TRIES;
    this.#onAnswer = options.onAnswer;
    if (!(this.#tries >= 1)) {
      throw new TypeError("tries must be at least 1");
    }
  }

  protected async call<T>(
    method: string,
    template: string,
    expects: "json" | "text" | "nothing",
    options: CallOptions,
    request: Request,
  ): Promise<T> {
    const url = this.#url + filled(template, request.path ?? {}, request.query ?? {});
    const headers: Record<string, string> = { Accept: expects === "json" ? "application/json" : "*/*" };
    if (this.#token) {
      headers["Authorization"] = `Bearer ${this.#token}`;
    }
    for (const [name, given] of Object.entries(request.headers ?? {})) {
      // Without a key, a retry would create a second submission.
      const value = given ?? (name.toLowerCase() === "idempotency-key" ? randomKey() : undefined);
      if (value !== undefined) {
        headers[name] = String(value);
      }
    }
    const init: RequestInit = { method, headers, redirect: "manual" };
    if (request.contentType !== undefined) {
      headers["Content-Type"] = request.contentType;
      // Serialized once, so that every retry sends the same bytes: the service compares them.
      init.body = encoded(request.body, request.contentType);
    }
    const { status, text } = await this.#answer(url, init, options.signal);
    if (expects === "nothing") {
      return undefined as T;
    }
    return (expects === "text" ? text : parsed(status, text)) as T;
  }

  /**
   * Returns the answer, or throws the error. Every call may be retried: submissions are safe by their ids, and the others
   * have the same effect when repeated.
   */
  async #answer(url: string, init: RequestInit, signal: AbortSignal | undefined): Promise<Answer> {
    for (let number = 1; ; number++) {
      let pauseMs = FIRST_PAUSE_MS * 2 ** (number - 1) * (0.5 + Math.random() / 2);
      let failure: SubmissionManagerError;
      const answer = await this.#once(url, init, signal);
      if (answer instanceof SubmissionManagerError) {
        failure = answer;
      } else {
        this.#onAnswer?.(init.method ?? "GET", url, answer.status, answer.headers);
        if (answer.status >= 200 && answer.status < 300) {
          return answer;
        }
        failure = refusal(answer);
        // A little later than requested, so that not all clients come back at once.
        pauseMs += (failure.retryAfter ?? 0) * 1000;
      }
      const repeat = failure.status === 0 ? failure.code === "unreachable" : WORTH_REPEATING.has(failure.status);
      if (!repeat || number >= this.#tries || pauseMs > LONGEST_PAUSE_MS) {
        throw failure;
      }
      await pause(pauseMs, signal);
    }
  }

  /** Makes one try. Returns the answer, or an error if there was none. */
  async #once(url: string, init: RequestInit, signal: AbortSignal | undefined): Promise<Answer | SubmissionManagerError> {
    signal?.throwIfAborted();
    const controller = new AbortController();
    const giveUp = () => controller.abort(signal?.reason);
    const late = new Error(`no answer within ${this.#timeoutMs} ms`);
    const timer = setTimeout(() => controller.abort(late), this.#timeoutMs);
    signal?.addEventListener("abort", giveUp);
    try {
      const response = await fetch(url, { ...init, signal: controller.signal });
      return { status: response.status, headers: response.headers, text: await response.text() };
    } catch (error) {
      signal?.throwIfAborted();
      const text = `${url} does not answer (${cause(error)}); is the URL right, and the service up?`;
      return new SubmissionManagerError(0, "unreachable", text);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", giveUp);
    }
  }
}

interface Answer {
  status: number;
  headers: Headers;
  text: string;
}

/** The reason of a failed `fetch`, which its error has as its cause. */
function cause(error: unknown): string {
  const inner = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const code = (inner as { code?: unknown }).code;
  return (inner instanceof Error && inner.message) || String(code ?? inner);
}

function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      signal?.aborted ? reject(signal.reason) : resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });
}

function filled(template: string, path: Values, query: Values): string {
  const place = template.replace(/{([^}]+)}/g, (_, name: string) => {
    const text = String(path[name]);
    // A URL would lose these, however they are encoded.
    if (text === "" || text === "." || text === "..") {
      throw new TypeError(`${name} must not be "${text}", which has no place in a URL`);
    }
    return encodeURIComponent(text);
  });
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null) {
        given.append(name, String(each));
      }
    }
  }
  const text = given.toString();
  return text ? `${place}?${text}` : place;
}

function encoded(body: unknown, contentType: string): BodyInit {
  if (contentType === "application/json") {
    return JSON.stringify(body);
  }
  if (contentType === "application/x-www-form-urlencoded") {
    return new URLSearchParams(body as Record<string, string>).toString();
  }
  return body as BodyInit;
}

/** `crypto.randomUUID` is missing in Node 18 and on pages without https. The key must be unique, but not secret. */
function randomKey(): string {
  const part = () => Math.random().toString(36).slice(2);
  return `${Date.now().toString(36)}-${part()}${part()}`;
}

function parsed(status: number, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw unexpected(status, text, undefined);
  }
}

function refusal({ status, headers, text }: Answer): SubmissionManagerError {
  // A date in Retry-After is ignored; the client then waits as if there were none.
  const said = headers.get("retry-after")?.trim() ?? "";
  const retryAfter = /^[0-9]+$/.test(said) ? Number(said) : undefined;
  try {
    const { error } = JSON.parse(text) as models.Error;
    if (typeof error.code === "string") {
      return new SubmissionManagerError(status, error.code, error.message, error.details ?? {}, retryAfter);
    }
  } catch {
    // Not an answer of the service.
  }
  return unexpected(status, text, retryAfter);
}

function unexpected(status: number, text: string, retryAfter: number | undefined): SubmissionManagerError {
  const shown = text.split(/\s+/).join(" ").trim().slice(0, SHOWN_CHARACTERS) || "nothing";
  const message = `this is not how a Submission Manager answers (${shown}); is the URL right?`;
  return new SubmissionManagerError(status, "unexpected_answer", message, {}, retryAfter);
}
