// The errors that the client throws: one class for each code of the service.

using System;

namespace SubmissionManager
{
    /// <summary>
    /// The service answered with an error, or not at all. A code that this client does not know yet is thrown as this class
    /// itself: decide by <c>Code</c> then.
    /// </summary>
    public class SubmissionManagerException : Exception
    {
        /// <summary>The HTTP status of the answer; 0 if there was none.</summary>
        public int Status { get; private set; }

        /// <summary>The code for programs, such as <c>idempotency_conflict</c>.</summary>
        public string Code { get; private set; }

        /// <summary>Further facts for programs, such as <c>conflictingFields</c>; never null.</summary>
        public JsonObject Details { get; private set; } = new JsonObject();

        /// <summary><c>Retry-After</c> of the answer, if there was one.</summary>
        public TimeSpan? RetryAfter { get; private set; }

        internal SubmissionManagerException(string message) : base(message)
        {
        }

        /// <summary>The error of the class that belongs to the code.</summary>
        internal static SubmissionManagerException Of(
            int status, string code, string message, JsonObject details = null, TimeSpan? retryAfter = null)
        {
            var error = New(code, (status == 0 ? "" : status + " ") + code + ": " + message);
            error.Status = status;
            error.Code = code;
            error.Details = details ?? error.Details;
            error.RetryAfter = retryAfter;
            return error;
        }

        static SubmissionManagerException New(string code, string message)
        {
            switch (code)
            {
                case "invalid_request": return new InvalidRequestException(message);
                case "unauthorized": return new UnauthorizedException(message);
                case "forbidden": return new ForbiddenException(message);
                case "not_found": return new NotFoundException(message);
                case "management_node_not_found": return new ManagementNodeNotFoundException(message);
                case "idempotency_conflict": return new IdempotencyConflictException(message);
                case "attempt_in_progress": return new AttemptInProgressException(message);
                case "already_terminal": return new AlreadyTerminalException(message);
                case "invalid_state": return new InvalidStateException(message);
                case "already_redriven": return new AlreadyRedrivenException(message);
                case "already_processed": return new AlreadyProcessedException(message);
                case "not_terminal": return new NotTerminalException(message);
                case "cursor_expired": return new CursorExpiredException(message);
                case "payload_too_large": return new PayloadTooLargeException(message);
                case "policy_rejected": return new PolicyRejectedException(message);
                case "overloaded": return new OverloadedException(message);
                case "store_unavailable": return new StoreUnavailableException(message);
                case "execution_unavailable": return new ExecutionUnavailableException(message);
                case "unreachable": return new UnreachableException(message);
                case "internal_error": return new InternalErrorException(message);
                case "unexpected_answer": return new UnexpectedAnswerException(message);
                case "wait_timeout": return new WaitTimeoutException(message);
                default: return new SubmissionManagerException(message);
            }
        }
    }

    /// <summary>
    /// The request is malformed, or names an unknown target. With status 0, the client refused to send it.
    /// </summary>
    public sealed class InvalidRequestException : SubmissionManagerException
    {
        internal InvalidRequestException(string message) : base(message)
        {
        }
    }

    /// <summary>The token is missing or invalid.</summary>
    public sealed class UnauthorizedException : SubmissionManagerException
    {
        internal UnauthorizedException(string message) : base(message)
        {
        }
    }

    /// <summary>The token lacks the scope, or does not cover the tenant.</summary>
    public sealed class ForbiddenException : SubmissionManagerException
    {
        internal ForbiddenException(string message) : base(message)
        {
        }
    }

    /// <summary>There is no such intent, job, target or path.</summary>
    public class NotFoundException : SubmissionManagerException
    {
        internal NotFoundException(string message) : base(message)
        {
        }
    }

    /// <summary>There is no such management node for this tenant.</summary>
    public sealed class ManagementNodeNotFoundException : NotFoundException
    {
        internal ManagementNodeNotFoundException(string message) : base(message)
        {
        }
    }

    /// <summary>
    /// The request does not fit the state of what it names. Each kind of conflict has a class of its own.
    /// </summary>
    public class ConflictException : SubmissionManagerException
    {
        internal ConflictException(string message) : base(message)
        {
        }
    }

    /// <summary>
    /// The id or the key was used before with a different request; <c>Details</c> names what differs.
    /// </summary>
    public sealed class IdempotencyConflictException : ConflictException
    {
        internal IdempotencyConflictException(string message) : base(message)
        {
        }
    }

    /// <summary>
    /// An attempt of the intent is in progress; cancel with <c>afterAttempt: true</c>, or try again later.
    /// </summary>
    public sealed class AttemptInProgressException : ConflictException
    {
        internal AttemptInProgressException(string message) : base(message)
        {
        }
    }

    /// <summary>The intent or job has ended for another reason; <c>Details</c> has its status.</summary>
    public sealed class AlreadyTerminalException : ConflictException
    {
        internal AlreadyTerminalException(string message) : base(message)
        {
        }
    }

    /// <summary>The redrive is in another state, or the intent to be redriven has not failed.</summary>
    public sealed class InvalidStateException : ConflictException
    {
        internal InvalidStateException(string message) : base(message)
        {
        }
    }

    /// <summary>Another intent repeats this one; <c>Details</c> names it.</summary>
    public sealed class AlreadyRedrivenException : ConflictException
    {
        internal AlreadyRedrivenException(string message) : base(message)
        {
        }
    }

    /// <summary>The inbox submission has been processed.</summary>
    public sealed class AlreadyProcessedException : ConflictException
    {
        internal AlreadyProcessedException(string message) : base(message)
        {
        }
    }

    /// <summary>The intent has not ended, so there is no webhook event to deliver again.</summary>
    public sealed class NotTerminalException : ConflictException
    {
        internal NotTerminalException(string message) : base(message)
        {
        }
    }

    /// <summary>
    /// The cursor is older than what the service keeps: start again without one, and compare with your own
    /// records.
    /// </summary>
    public sealed class CursorExpiredException : SubmissionManagerException
    {
        internal CursorExpiredException(string message) : base(message)
        {
        }
    }

    /// <summary>The body is larger than allowed; <c>Details</c> may have <c>maxBytes</c>.</summary>
    public sealed class PayloadTooLargeException : SubmissionManagerException
    {
        internal PayloadTooLargeException(string message) : base(message)
        {
        }
    }

    /// <summary>The management node does not allow this job; <c>Details</c> has the violations.</summary>
    public sealed class PolicyRejectedException : SubmissionManagerException
    {
        internal PolicyRejectedException(string message) : base(message)
        {
        }
    }

    /// <summary>The service cannot do it at the moment. The client has repeated the request without success.</summary>
    public class UnavailableException : SubmissionManagerException
    {
        internal UnavailableException(string message) : base(message)
        {
        }
    }

    /// <summary>The queues of the service are full.</summary>
    public sealed class OverloadedException : UnavailableException
    {
        internal OverloadedException(string message) : base(message)
        {
        }
    }

    /// <summary>
    /// The database does not answer. It is unknown whether the request took effect; repeating it is safe.
    /// </summary>
    public sealed class StoreUnavailableException : UnavailableException
    {
        internal StoreUnavailableException(string message) : base(message)
        {
        }
    }

    /// <summary>The management node is draining, or does not answer.</summary>
    public sealed class ExecutionUnavailableException : UnavailableException
    {
        internal ExecutionUnavailableException(string message) : base(message)
        {
        }
    }

    /// <summary>There was no answer: no connection, a broken one, or a timeout.</summary>
    public sealed class UnreachableException : UnavailableException
    {
        internal UnreachableException(string message) : base(message)
        {
        }
    }

    /// <summary>A defect of the service; its log says more.</summary>
    public sealed class InternalErrorException : SubmissionManagerException
    {
        internal InternalErrorException(string message) : base(message)
        {
        }
    }

    /// <summary>The answer is not that of a Submission Manager; the URL is probably wrong.</summary>
    public sealed class UnexpectedAnswerException : SubmissionManagerException
    {
        internal UnexpectedAnswerException(string message) : base(message)
        {
        }
    }

    /// <summary>The intent had not ended when the time was over. It goes on.</summary>
    public sealed class WaitTimeoutException : SubmissionManagerException
    {
        /// <summary>What was known last.</summary>
        public Models.Intent Intent { get; internal set; }

        internal WaitTimeoutException(string message) : base(message)
        {
        }
    }
}
