// `client.jobs`: jobs of tenants for management nodes. Every call needs a token of the tenant.

import { encoded } from "./encoding.js";
import { EventFeed, type FeedOptions } from "./events.js";
import type * as models from "./models.js";
import { Pager } from "./paging.js";
import type { CallOptions, Transport } from "./transport.js";

export interface JobFilter {
  workspace_id?: string;
  job_id?: string;
  status?: models.StatusName;
  /** The size of a page: 50 by default, at most 200. */
  limit?: number;
}

export class Jobs {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Submits a job. Its `idempotency_key` makes repeating it safe: the first answer comes back. */
  submit(command: models.JobCommand, options: CallOptions & { traceparent?: string } = {}): Promise<models.JobAccepted> {
    const headers = { traceparent: options.traceparent };
    return this.#transport.json({ method: "POST", template: "/v1/jobs", headers, body: encoded(command) }, options);
  }

  /** A job and its status; throws `NotFound`, also if it belongs to another tenant. */
  get(submissionId: string, options: CallOptions = {}): Promise<models.Job> {
    return this.#transport.json(call("GET", "/v1/jobs/{submission_id}", submissionId), options);
  }

  /** A job with all its attempts. */
  history(submissionId: string, options: CallOptions = {}): Promise<models.JobHistory> {
    return this.#transport.json(call("GET", "/v1/jobs/{submission_id}/history", submissionId), options);
  }

  /** Jobs of a tenant, newest first; pages are fetched as you iterate. */
  list(tenantId: string, filter: JobFilter = {}, options: CallOptions = {}): Pager<models.Job> {
    return new Pager(this.#transport, "/v1/jobs", "jobs", { tenant_id: tenantId, ...filter }, options, "next_cursor");
  }

  /** Cancels a job that waits for an attempt, by the rules of `intents.cancel`. */
  cancel(submissionId: string, options: CallOptions & { afterAttempt?: boolean } = {}): Promise<models.CancelledJob> {
    const query = { afterAttempt: options.afterAttempt };
    return this.#transport.json({ ...call("POST", "/v1/jobs/{submission_id}/cancel", submissionId), query }, options);
  }

  /** Follows the events of a tenant's jobs, by server-sent events or by long polls; see `client.events`. */
  events(
    tenantId: string,
    options: FeedOptions & { workspace_id?: string; streaming?: boolean } = {},
  ): EventFeed<models.JobEvent> {
    const source = {
      path: "/v1/jobs/events",
      streamPath: "/v1/jobs/events/stream",
      query: { tenant_id: tenantId, workspace_id: options.workspace_id },
      streaming: options.streaming ?? true,
      waitName: "wait_seconds",
      nextName: "next_cursor",
    };
    return new EventFeed<models.JobEvent>(this.#transport, source, options);
  }
}

function call(method: string, template: string, submissionId: string) {
  return { method, template, path: { submission_id: submissionId } };
}
