// `client.targets`: which targets there are, and pausing them.

import { encodedObject } from "./encoding.js";
import type * as models from "./models.js";
import type { CallOptions, Transport } from "./transport.js";

export class Targets {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** All targets, in order of their names. */
  async list(options: CallOptions = {}): Promise<models.Target[]> {
    const found = await this.#transport.json<models.TargetList>({ method: "GET", template: "/v1/targets" }, options);
    return found.targets;
  }

  /** Lets no attempt of the target start until `resume`. Pausing it again has no effect, not even on the reason. */
  pause(submissionTarget: string, options: CallOptions & { reason?: string } = {}): Promise<models.Target> {
    const body = options.reason ? encodedObject({ reason: options.reason }) : undefined;
    const call = { method: "POST", template: "/v1/targets/{submissionTarget}/pause", path: { submissionTarget }, body };
    return this.#transport.json(call, options);
  }

  /** Lets attempts of the target start again. */
  resume(submissionTarget: string, options: CallOptions = {}): Promise<models.Target> {
    const call = { method: "POST", template: "/v1/targets/{submissionTarget}/resume", path: { submissionTarget } };
    return this.#transport.json(call, options);
  }
}
