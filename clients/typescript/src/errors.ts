// The errors that the client throws: one class for each code of the service.

/**
 * The service answered with an error, or not at all. Every error of this client is one of these. A code that this client
 * does not know yet is thrown as this class itself: decide by `code` then.
 */
export class SubmissionManagerError extends Error {
  override get name(): string {
    return this.constructor.name;
  }

  constructor(
    /** The HTTP status; 0 if there was no answer. */
    readonly status: number,
    /** The code for programs, such as `idempotency_conflict`. */
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

/** The request is malformed, or names an unknown target. With status 0, the client refused to send it. */
export class InvalidRequest extends SubmissionManagerError {}
/** The token is missing or invalid. */
export class Unauthorized extends SubmissionManagerError {}
/** The token lacks the scope, or does not cover the tenant. */
export class Forbidden extends SubmissionManagerError {}
/** There is no such intent, job, target or path. */
export class NotFound extends SubmissionManagerError {}
/** There is no such management node for this tenant. */
export class ManagementNodeNotFound extends NotFound {}
/** The request does not fit the state of what it names. Each kind of conflict has a class of its own. */
export class Conflict extends SubmissionManagerError {}
/** The id or the key was used before with a different request; `details` names what differs. */
export class IdempotencyConflict extends Conflict {}
/** An attempt of the intent is in progress; cancel with `afterAttempt`, or try again later. */
export class AttemptInProgress extends Conflict {}
/** The intent or job has ended for another reason; `details` has its status. */
export class AlreadyTerminal extends Conflict {}
/** The redrive is in another state, or the intent to be redriven has not failed. */
export class InvalidState extends Conflict {}
/** Another intent repeats this one; `details` names it. */
export class AlreadyRedriven extends Conflict {}
/** The inbox submission has been processed. */
export class AlreadyProcessed extends Conflict {}
/** The intent has not ended, so there is no webhook event to deliver again. */
export class NotTerminal extends Conflict {}
/** The cursor is older than what the service keeps: start again without one, and compare with your own records. */
export class CursorExpired extends SubmissionManagerError {}
/** The body is larger than allowed; `details` may have `maxBytes`. */
export class PayloadTooLarge extends SubmissionManagerError {}
/** The management node does not allow this job; `details` has the violations. */
export class PolicyRejected extends SubmissionManagerError {}
/** The service cannot do it at the moment. The client has repeated the request without success. */
export class Unavailable extends SubmissionManagerError {}
/** The queues of the service are full. */
export class Overloaded extends Unavailable {}
/** The database does not answer. It is unknown whether the request took effect; repeating it is safe. */
export class StoreUnavailable extends Unavailable {}
/** The management node is draining, or does not answer. */
export class ExecutionUnavailable extends Unavailable {}
/** There was no answer: no connection, a broken one, or a timeout. */
export class Unreachable extends Unavailable {}
/** A defect of the service; its log says more. */
export class InternalError extends SubmissionManagerError {}
/** The answer is not that of a Submission Manager; the URL is probably wrong. */
export class UnexpectedAnswer extends SubmissionManagerError {}
/** The intent had not ended when the time was over. It goes on: `details.intent` is what was known last. */
export class WaitTimeout extends SubmissionManagerError {}

const BY_CODE: Record<string, typeof SubmissionManagerError> = {
  invalid_request: InvalidRequest,
  unauthorized: Unauthorized,
  forbidden: Forbidden,
  not_found: NotFound,
  management_node_not_found: ManagementNodeNotFound,
  idempotency_conflict: IdempotencyConflict,
  attempt_in_progress: AttemptInProgress,
  already_terminal: AlreadyTerminal,
  invalid_state: InvalidState,
  already_redriven: AlreadyRedriven,
  already_processed: AlreadyProcessed,
  not_terminal: NotTerminal,
  cursor_expired: CursorExpired,
  payload_too_large: PayloadTooLarge,
  policy_rejected: PolicyRejected,
  overloaded: Overloaded,
  store_unavailable: StoreUnavailable,
  execution_unavailable: ExecutionUnavailable,
  unreachable: Unreachable,
  internal_error: InternalError,
  unexpected_answer: UnexpectedAnswer,
  wait_timeout: WaitTimeout,
};

/** The error of the class that belongs to the code. */
export function errorOf(
  status: number,
  code: string,
  message: string,
  details?: Record<string, unknown> | null,
  retryAfter?: number,
): SubmissionManagerError {
  const kind = Object.hasOwn(BY_CODE, code) ? BY_CODE[code] : undefined;
  return new (kind ?? SubmissionManagerError)(status, code, message, details ?? {}, retryAfter);
}
