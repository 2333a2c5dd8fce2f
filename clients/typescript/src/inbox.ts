// `client.inbox`: inbound submissions, and the contacts and messages that are made of them.

import { encodedObject } from "./encoding.js";
import type * as models from "./models.js";
import { Pager } from "./paging.js";
import type { CallOptions, Transport } from "./transport.js";

export class Inbox {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Submits to the inbox. Without an `idempotencyKey` each call gets a new one, so that its retries are safe. */
  submit(
    request: models.InboxSubmissionRequest,
    options: CallOptions & { idempotencyKey?: string | undefined } = {},
  ): Promise<models.InboxReceived> {
    const headers = { "Idempotency-Key": options.idempotencyKey ?? randomKey() };
    const body = encodedObject({ ...request, source_url: request.source_url ?? undefined });
    return this.#transport.json({ method: "POST", template: "/v1/inbox/submissions", headers, body }, options);
  }

  /** An inbox submission with its payload. */
  get(id: string, options: CallOptions = {}): Promise<models.InboxSubmissionDetail> {
    return this.#transport.json({ method: "GET", template: "/v1/inbox/submissions/{id}", path: { id } }, options);
  }

  /** Inbox submissions of a client, newest first. */
  list(
    clientSlug: string,
    filter: { state?: models.SubmissionStateName; limit?: number } = {},
    options: CallOptions = {},
  ): Pager<models.InboxSubmission> {
    const query = { client_slug: clientSlug, ...filter };
    return new Pager(this.#transport, "/v1/inbox/submissions", "submissions", query, options);
  }

  /** Contacts of a client, newest first. */
  contacts(clientSlug: string, filter: { limit?: number } = {}, options: CallOptions = {}): Pager<models.InboxContact> {
    return new Pager(this.#transport, "/v1/inbox/contacts", "contacts", { client_slug: clientSlug, ...filter }, options);
  }

  /** Messages of a client, newest first. */
  messages(
    clientSlug: string,
    filter: { contact_id?: number; limit?: number } = {},
    options: CallOptions = {},
  ): Pager<models.InboxMessage> {
    return new Pager(this.#transport, "/v1/inbox/messages", "messages", { client_slug: clientSlug, ...filter }, options);
  }

  /** Makes a failed inbox submission due now. */
  reprocess(id: string, options: CallOptions = {}): Promise<models.InboxSubmission> {
    return this.#transport.json({ method: "POST", template: "/v1/inbox/submissions/{id}/reprocess", path: { id } }, options);
  }

  /** Makes up to a thousand parked submissions of a client due now; call it again while `more` is true. */
  reprocessParked(clientSlug: string, options: CallOptions = {}): Promise<models.InboxReprocessed> {
    const query = { client_slug: clientSlug };
    return this.#transport.json({ method: "POST", template: "/v1/inbox/submissions/reprocess", query }, options);
  }
}

/** `crypto.randomUUID` is missing in Node 18 and on pages without https. The key must be unique, but not secret. */
function randomKey(): string {
  const part = () => Math.random().toString(36).slice(2);
  return `${Date.now().toString(36)}-${part()}${part()}`;
}
