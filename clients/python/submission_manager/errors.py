"""The errors that the client raises: one class for each code of the service.

Every class is a `SubmissionManagerError`, so one `except` catches all of them. A code that this client does not know yet
is raised as `SubmissionManagerError` itself: decide by `error.code` then.
"""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Iterator, Optional, Type


class SubmissionManagerError(Exception):
    """The service answered with an error, or not at all.

    status: the HTTP status of the answer; 0 if there was none
    code: the code for programs, such as `idempotency_conflict`
    message: a message for people
    details: further facts for programs, such as `conflictingFields`
    retry_after: `Retry-After` of the answer in seconds, if there was one
    """

    known_code: ClassVar[str] = ""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Optional[Dict[str, Any]] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(f"{code}: {message}" if status == 0 else f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.details = details or {}
        self.retry_after = retry_after


class InvalidRequest(SubmissionManagerError):
    """The request is malformed, or names an unknown target. With status 0, the client refused to send it."""

    known_code = "invalid_request"


class Unauthorized(SubmissionManagerError):
    """The token is missing or invalid."""

    known_code = "unauthorized"


class Forbidden(SubmissionManagerError):
    """The token lacks the scope, or does not cover the tenant."""

    known_code = "forbidden"


class NotFound(SubmissionManagerError):
    """There is no such intent, job, target or path."""

    known_code = "not_found"


class ManagementNodeNotFound(NotFound):
    """There is no such management node for this tenant."""

    known_code = "management_node_not_found"


class Conflict(SubmissionManagerError):
    """The request does not fit the state of what it names. Each kind of conflict has a class of its own."""


class IdempotencyConflict(Conflict):
    """The id or the key was used before with a different request; `details` names what differs."""

    known_code = "idempotency_conflict"


class AttemptInProgress(Conflict):
    """An attempt of the intent is in progress; cancel with `after_attempt=True`, or try again later."""

    known_code = "attempt_in_progress"


class AlreadyTerminal(Conflict):
    """The intent or job has ended for another reason; `details` has its status."""

    known_code = "already_terminal"


class InvalidState(Conflict):
    """The redrive is in another state, or the intent to be redriven has not failed."""

    known_code = "invalid_state"


class AlreadyRedriven(Conflict):
    """Another intent repeats this one; `details` names it."""

    known_code = "already_redriven"


class AlreadyProcessed(Conflict):
    """The inbox submission has been processed."""

    known_code = "already_processed"


class NotTerminal(Conflict):
    """The intent has not ended, so there is no webhook event to deliver again."""

    known_code = "not_terminal"


class CursorExpired(SubmissionManagerError):
    """The cursor is older than what the service keeps: start again without one, and compare with your own records."""

    known_code = "cursor_expired"


class PayloadTooLarge(SubmissionManagerError):
    """The body is larger than allowed; `details` may have `maxBytes`."""

    known_code = "payload_too_large"


class PolicyRejected(SubmissionManagerError):
    """The management node does not allow this job; `details` has the violations."""

    known_code = "policy_rejected"


class Unavailable(SubmissionManagerError):
    """The service cannot do it at the moment. The client has repeated the request without success."""


class Overloaded(Unavailable):
    """The queues of the service are full."""

    known_code = "overloaded"


class StoreUnavailable(Unavailable):
    """The database does not answer. It is unknown whether the request took effect; repeating it is safe."""

    known_code = "store_unavailable"


class ExecutionUnavailable(Unavailable):
    """The management node is draining, or does not answer."""

    known_code = "execution_unavailable"


class Unreachable(Unavailable):
    """There was no answer: no connection, a broken one, or a timeout."""

    known_code = "unreachable"


class InternalError(SubmissionManagerError):
    """A defect of the service; its log says more."""

    known_code = "internal_error"


class UnexpectedAnswer(SubmissionManagerError):
    """The answer is not that of a Submission Manager; the URL is probably wrong."""

    known_code = "unexpected_answer"


class WaitTimeout(SubmissionManagerError, TimeoutError):
    """The intent had not ended when the time was over. It goes on: `intent` is what was known last."""

    known_code = "wait_timeout"
    intent: Any = None


def _subclasses(of: Type[SubmissionManagerError]) -> Iterator[Type[SubmissionManagerError]]:
    for each in of.__subclasses__():
        yield each
        yield from _subclasses(each)


_BY_CODE: Dict[str, Type[SubmissionManagerError]] = {
    each.known_code: each for each in _subclasses(SubmissionManagerError) if each.known_code
}


def error_of(
    status: int,
    code: str,
    message: str,
    details: Optional[Dict[str, Any]] = None,
    retry_after: Optional[float] = None,
) -> SubmissionManagerError:
    """The error of the class that belongs to the code."""
    return _BY_CODE.get(code, SubmissionManagerError)(status, code, message, details, retry_after)
