// `client.Jobs`: jobs of tenants for management nodes. Every call needs a token of the tenant.

using System.Net.Http;
using System.Threading;
using System.Threading.Tasks;
using SubmissionManager.Models;

namespace SubmissionManager
{
    /// <summary>Which jobs a list has. Conditions that are null are not checked.</summary>
    public sealed class JobFilter
    {
        /// <summary>Only jobs of this workspace.</summary>
        public string WorkspaceId { get; set; }

        /// <summary>Only jobs with this id of the tenant.</summary>
        public string JobId { get; set; }

        /// <summary><c>pending</c>, <c>accepted</c>, <c>rejected</c> or <c>exhausted</c>.</summary>
        public string Status { get; set; }

        /// <summary>The size of a page: 50 by default, at most 200.</summary>
        public int? Limit { get; set; }
    }

    /// <summary>Jobs of tenants.</summary>
    public sealed class Jobs
    {
        readonly Transport transport;

        internal Jobs(Transport transport)
        {
            this.transport = transport;
        }

        /// <summary>Submits a job. Its <c>IdempotencyKey</c> makes repeating it safe: the first answer comes back.</summary>
        public Task<JobAccepted> SubmitAsync(
            JobCommand command, string traceparent = null, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call { Method = HttpMethod.Post, Template = "/v1/jobs", Body = JsonWriter.Write(command) };
            call.Headers["traceparent"] = traceparent;
            return transport.Send<JobAccepted>(call, cancellation);
        }

        /// <summary>A job and its status; throws <c>NotFoundException</c>, also if it belongs to another tenant.</summary>
        public Task<Job> GetAsync(string submissionId, CancellationToken cancellation = default(CancellationToken))
        {
            return transport.Send<Job>(new Call { Template = "/v1/jobs/{submission_id}", Path = new[] { submissionId } }, cancellation);
        }

        /// <summary>A job with all its attempts.</summary>
        public Task<JobHistory> GetHistoryAsync(string submissionId, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call { Template = "/v1/jobs/{submission_id}/history", Path = new[] { submissionId } };
            return transport.Send<JobHistory>(call, cancellation);
        }

        /// <summary>Jobs of a tenant, newest first; pages are fetched as you iterate.</summary>
        public Pager<Job> List(string tenantId, JobFilter filter = null, CancellationToken cancellation = default(CancellationToken))
        {
            filter = filter ?? new JobFilter();
            var query = new Query
            {
                { "tenant_id", tenantId }, { "workspace_id", filter.WorkspaceId }, { "job_id", filter.JobId },
                { "status", filter.Status }, { "limit", filter.Limit },
            };
            return new Pager<Job>(transport, "/v1/jobs", "jobs", query, cancellation, "next_cursor");
        }

        /// <summary>Cancels a job that waits for an attempt, by the rules of <c>Intents.CancelAsync</c>.</summary>
        public Task<CancelledJob> CancelAsync(
            string submissionId, bool afterAttempt = false, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call
            {
                Method = HttpMethod.Post,
                Template = "/v1/jobs/{submission_id}/cancel",
                Path = new[] { submissionId },
                Query = { { "afterAttempt", afterAttempt ? true : (bool?)null } },
            };
            return transport.Send<CancelledJob>(call, cancellation);
        }

        /// <summary>Follows the events of a tenant's jobs; see <c>client.Events</c>. <c>SubmissionTarget</c> is not used.</summary>
        public EventFeed<JobEvent> Follow(
            string tenantId, string workspaceId = null, FeedOptions options = null,
            CancellationToken cancellation = default(CancellationToken))
        {
            options = options ?? new FeedOptions();
            var source = new FeedSource
            {
                Path = "/v1/jobs/events",
                StreamPath = "/v1/jobs/events/stream",
                Query = new Query { { "tenant_id", tenantId }, { "workspace_id", workspaceId } },
                WaitName = "wait_seconds",
                NextName = "next_cursor",
            };
            return new EventFeed<JobEvent>(transport, source, options.After, options.Poll, cancellation);
        }
    }
}
