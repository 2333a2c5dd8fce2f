// `client.redrives`: send failed intents again, in bulk.

import { encodedObject } from "./encoding.js";
import type * as models from "./models.js";
import { Pager } from "./paging.js";
import type { CallOptions, Transport } from "./transport.js";

/** Changes of a redrive are not repeated after a lost answer: a repeated `start` would be `InvalidState`. Use `get`. */
export class Redrives {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Plans a redrive. Nothing is sent; a plan that is not started is deleted after a day. */
  plan(request: models.PlanRequest, options: CallOptions = {}): Promise<models.Redrive> {
    // A plan that was made twice does nothing.
    return this.#transport.json({ method: "POST", template: "/v1/redrives", body: encodedObject({ ...request }) }, options);
  }

  /** Starts a plan: 1 to 1,000 intents a second, 10 by default. */
  start(redriveId: string, options: CallOptions & { ratePerSecond?: number } = {}): Promise<models.Redrive> {
    const body = encodedObject({ ratePerSecond: options.ratePerSecond });
    return this.#change("/v1/redrives/{redriveId}/start", redriveId, options, body);
  }

  /** Stops creating intents until `resume`. */
  pause(redriveId: string, options: CallOptions = {}): Promise<models.Redrive> {
    return this.#change("/v1/redrives/{redriveId}/pause", redriveId, options);
  }

  /** Goes on with a paused redrive. */
  resume(redriveId: string, options: CallOptions = {}): Promise<models.Redrive> {
    return this.#change("/v1/redrives/{redriveId}/resume", redriveId, options);
  }

  /** Ends a redrive; the intents that it created stay. */
  cancel(redriveId: string, options: CallOptions = {}): Promise<models.Redrive> {
    return this.#change("/v1/redrives/{redriveId}/cancel", redriveId, options);
  }

  /** A redrive with its state and progress. */
  get(redriveId: string, options: CallOptions = {}): Promise<models.Redrive> {
    return this.#transport.json({ method: "GET", template: "/v1/redrives/{redriveId}", path: { redriveId } }, options);
  }

  /** All redrives, newest first. */
  list(filter: { limit?: number } = {}, options: CallOptions = {}): Pager<models.Redrive> {
    return new Pager(this.#transport, "/v1/redrives", "redrives", { ...filter }, options);
  }

  #change(template: string, redriveId: string, options: CallOptions, body?: string): Promise<models.Redrive> {
    return this.#transport.json({ method: "POST", template, path: { redriveId }, body, repeatable: false }, options);
  }
}
