// `client.Inbox`: inbound submissions, and the contacts and messages that are made of them.

using System;
using System.Net.Http;
using System.Threading;
using System.Threading.Tasks;
using SubmissionManager.Models;

namespace SubmissionManager
{
    /// <summary>Inbound submissions, contacts and messages.</summary>
    public sealed class Inbox
    {
        readonly Transport transport;

        internal Inbox(Transport transport)
        {
            this.transport = transport;
        }

        /// <summary>
        /// Submits to the inbox. Without an <c>idempotencyKey</c> each call gets a new one, so that its retries are safe.
        /// </summary>
        public Task<InboxReceived> SubmitAsync(
            InboxSubmissionRequest request, string idempotencyKey = null, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call { Method = HttpMethod.Post, Template = "/v1/inbox/submissions", Body = JsonWriter.Write(request) };
            call.Headers["Idempotency-Key"] = idempotencyKey ?? Guid.NewGuid().ToString();
            return transport.Send<InboxReceived>(call, cancellation);
        }

        /// <summary>An inbox submission with its payload.</summary>
        public Task<InboxSubmissionDetail> GetAsync(string id, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call { Template = "/v1/inbox/submissions/{id}", Path = new[] { id } };
            return transport.Send<InboxSubmissionDetail>(call, cancellation);
        }

        /// <summary>Inbox submissions of a client, newest first.</summary>
        public Pager<InboxSubmission> List(
            string clientSlug, string state = null, int? limit = null, CancellationToken cancellation = default(CancellationToken))
        {
            var query = new Query { { "client_slug", clientSlug }, { "state", state }, { "limit", limit } };
            return new Pager<InboxSubmission>(transport, "/v1/inbox/submissions", "submissions", query, cancellation);
        }

        /// <summary>Contacts of a client, newest first.</summary>
        public Pager<InboxContact> Contacts(
            string clientSlug, int? limit = null, CancellationToken cancellation = default(CancellationToken))
        {
            var query = new Query { { "client_slug", clientSlug }, { "limit", limit } };
            return new Pager<InboxContact>(transport, "/v1/inbox/contacts", "contacts", query, cancellation);
        }

        /// <summary>Messages of a client, newest first.</summary>
        public Pager<InboxMessage> Messages(
            string clientSlug, long? contactId = null, int? limit = null, CancellationToken cancellation = default(CancellationToken))
        {
            var query = new Query { { "client_slug", clientSlug }, { "contact_id", contactId }, { "limit", limit } };
            return new Pager<InboxMessage>(transport, "/v1/inbox/messages", "messages", query, cancellation);
        }

        /// <summary>Makes a failed inbox submission due now.</summary>
        public Task<InboxSubmission> ReprocessAsync(string id, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call { Method = HttpMethod.Post, Template = "/v1/inbox/submissions/{id}/reprocess", Path = new[] { id } };
            return transport.Send<InboxSubmission>(call, cancellation);
        }

        /// <summary>
        /// Makes up to a thousand parked submissions of a client due now; call it again while <c>More</c> is true.
        /// </summary>
        public Task<InboxReprocessed> ReprocessParkedAsync(
            string clientSlug, CancellationToken cancellation = default(CancellationToken))
        {
            var query = new Query { { "client_slug", clientSlug } };
            var call = new Call { Method = HttpMethod.Post, Template = "/v1/inbox/submissions/reprocess", Query = query };
            return transport.Send<InboxReprocessed>(call, cancellation);
        }
    }
}
