// What users of the client import: the client, its errors, and the JSON as types.

import { encoded, type Values } from "./encoding.js";
import { Events } from "./events.js";
import { Inbox } from "./inbox.js";
import { Intents } from "./intents.js";
import { Jobs } from "./jobs.js";
import { Redrives } from "./redrives.js";
import { Targets } from "./targets.js";
import { Transport, type CallOptions, type ClientOptions } from "./transport.js";

export { Batcher, type BatchResult, type BatcherOptions, type SubmittedIntent } from "./batcher.js";
export { RawJson } from "./encoding.js";
export {
  AlreadyProcessed,
  AlreadyRedriven,
  AlreadyTerminal,
  AttemptInProgress,
  Conflict,
  CursorExpired,
  ExecutionUnavailable,
  Forbidden,
  IdempotencyConflict,
  InternalError,
  InvalidRequest,
  InvalidState,
  ManagementNodeNotFound,
  NotFound,
  NotTerminal,
  Overloaded,
  PayloadTooLarge,
  PolicyRejected,
  StoreUnavailable,
  SubmissionManagerError,
  Unauthorized,
  Unavailable,
  UnexpectedAnswer,
  Unreachable,
  WaitTimeout,
} from "./errors.js";
export { EventFeed, type FeedOptions } from "./events.js";
export type { IntentFilter, WaitOptions } from "./intents.js";
export type { JobFilter } from "./jobs.js";
export type * as models from "./models.js";
export { Pager, type Page } from "./paging.js";
export type { CallOptions, ClientOptions } from "./transport.js";
export { Webhook, WebhookVerificationError, type WebhookHeaders } from "./webhooks.js";

/** A client of the Submission Manager. Its methods reject with `SubmissionManagerError`. */
export class Client {
  readonly intents: Intents;
  readonly events: Events;
  readonly redrives: Redrives;
  readonly targets: Targets;
  readonly jobs: Jobs;
  readonly inbox: Inbox;
  readonly #transport: Transport;

  constructor(options: ClientOptions = {}) {
    this.#transport = new Transport(options);
    this.intents = new Intents(this.#transport);
    this.events = new Events(this.#transport);
    this.redrives = new Redrives(this.#transport);
    this.targets = new Targets(this.#transport);
    this.jobs = new Jobs(this.#transport);
    this.inbox = new Inbox(this.#transport);
  }

  /**
   * Makes a call that this client has no method for, and returns its JSON. Ids in the path must be encoded already. Only GET
   * is retried after a lost answer, unless `repeatable` says otherwise.
   */
  request<T = unknown>(
    method: string,
    path: string,
    options: CallOptions & { query?: Values; body?: unknown; repeatable?: boolean } = {},
  ): Promise<T> {
    const body = options.body === undefined ? undefined : encoded(options.body);
    const repeatable = options.repeatable ?? method === "GET";
    const template = path.replaceAll("{", "%7B");
    return this.#transport.json<T>({ method, template, query: options.query ?? {}, body, repeatable }, options);
  }
}
