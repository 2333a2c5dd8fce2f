// What users of the client import: the client, its error, and the JSON as types.

import { Operations } from "./operations.js";

export type * as models from "./models.js";
export { SubmissionManagerError, type CallOptions, type ClientOptions } from "./transport.js";

/** Everything the service can be asked, as methods; they reject with `SubmissionManagerError`. */
export class Client extends Operations {}
