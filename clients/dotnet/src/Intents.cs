// `client.Intents`: submit intents, follow them, cancel and redrive them.

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq;
using System.Net.Http;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using SubmissionManager.Models;

namespace SubmissionManager
{
    /// <summary>How to submit an intent.</summary>
    public sealed class SubmitOptions
    {
        /// <summary>The time before which no attempt starts; at most 30 days ahead.</summary>
        public DateTimeOffset? NotBefore { get; set; }

        /// <summary>Waits until the first attempt has finished, at most this long and at most 30 s.</summary>
        public int? WaitSeconds { get; set; }

        /// <summary>W3C trace context, forwarded to the gateway.</summary>
        public string Traceparent { get; set; }
    }

    /// <summary>Which intents a list has. Conditions that are null are not checked.</summary>
    public sealed class IntentFilter
    {
        /// <summary>First the intents with exactly this gateway message id, then those whose id starts with it.</summary>
        public string Q { get; set; }

        /// <summary><c>pending</c>, <c>accepted</c>, <c>rejected</c> or <c>exhausted</c>.</summary>
        public string Status { get; set; }

        /// <summary>Only intents of this target.</summary>
        public string SubmissionTarget { get; set; }

        /// <summary>Only intents that this redrive created.</summary>
        public string RedriveId { get; set; }

        /// <summary>Only intents created after this time.</summary>
        public DateTimeOffset? CreatedAfter { get; set; }

        /// <summary>Only intents created before this time.</summary>
        public DateTimeOffset? CreatedBefore { get; set; }

        /// <summary>The size of a page: 50 by default, at most 200.</summary>
        public int? Limit { get; set; }
    }

    /// <summary>What became of one submission of a batch: either <c>Intent</c> or <c>Error</c> is set.</summary>
    public sealed class BatchResult
    {
        /// <summary>The intent, if it is stored.</summary>
        public SubmittedIntent Intent { get; internal set; }

        /// <summary>Why it is not stored.</summary>
        public SubmissionManagerException Error { get; internal set; }
    }

    /// <summary>Submits intents, follows them, cancels and redrives them.</summary>
    public sealed class Intents
    {
        /// <summary>The limits of POST /v1/intents/batch.</summary>
        internal const int BatchItems = 1000;
        internal const int BatchBytes = 8 * 1024 * 1024;
        static readonly TimeSpan FirstPoll = TimeSpan.FromMilliseconds(100);
        static readonly TimeSpan LongestPoll = TimeSpan.FromSeconds(2);
        static readonly TimeSpan DefaultWait = TimeSpan.FromSeconds(60);
        /// <summary>The service holds a submission for at most this long.</summary>
        const int LongestWaitSeconds = 30;

        readonly Transport transport;

        internal Intents(Transport transport)
        {
            this.transport = transport;
        }

        /// <summary>
        /// Submits an intent. Submitting the same again is safe: the intent comes back with <c>Replayed</c> true.
        /// </summary>
        /// <param name="intentId">Your key for the intent, 1 to 200 characters.</param>
        /// <param name="submissionTarget">A target of the service's registry.</param>
        /// <param name="payload">
        /// <c>RawJson</c> or <c>byte[]</c>, which are sent byte for byte; a <c>JsonObject</c>, dictionary, list, string, number
        /// or anonymous object; null for no payload.
        /// </param>
        /// <param name="options">How to submit it.</param>
        /// <param name="cancellation">Cancels the call.</param>
        public async Task<SubmittedIntent> SubmitAsync(
            string intentId, string submissionTarget, object payload = null, SubmitOptions options = null,
            CancellationToken cancellation = default(CancellationToken))
        {
            var request = new SubmitRequest { IntentId = intentId, SubmissionTarget = submissionTarget, NotBefore = options?.NotBefore };
            request.Set("payload", payload);
            var call = new Call
            {
                Method = HttpMethod.Post,
                Template = "/v1/intents",
                Query = { { "waitSeconds", options?.WaitSeconds } },
                Headers = { { "traceparent", options?.Traceparent } },
                Body = JsonWriter.Write(request),
            };
            var answer = await transport.Answer(call, cancellation).ConfigureAwait(false);
            var intent = Model.Of<SubmittedIntent>(answer.Json());
            intent.Replayed = answer.Header("Idempotent-Replayed") == "true";
            return intent;
        }

        /// <summary>
        /// Submits an intent and waits until it has ended; throws <c>WaitTimeoutException</c> if it has not after
        /// <c>timeout</c>, 60 s by default.
        /// </summary>
        public async Task<Intent> SubmitAndWaitAsync(
            string intentId, string submissionTarget, object payload = null, TimeSpan? timeout = null,
            CancellationToken cancellation = default(CancellationToken))
        {
            var watch = Stopwatch.StartNew();
            var limit = timeout ?? DefaultWait;
            var options = new SubmitOptions { WaitSeconds = (int)Math.Max(0, Math.Min(limit.TotalSeconds, LongestWaitSeconds)) };
            var intent = await SubmitAsync(intentId, submissionTarget, payload, options, cancellation).ConfigureAwait(false);
            return intent.Status != "pending"
                ? intent
                : await WaitAsync(intentId, limit - watch.Elapsed, cancellation).ConfigureAwait(false);
        }

        /// <summary>
        /// Waits until an intent has ended; throws <c>WaitTimeoutException</c> if it has not after <c>timeout</c>, 60 s by
        /// default. It polls. To learn what became of many intents, follow <c>client.Events</c> instead.
        /// </summary>
        public async Task<Intent> WaitAsync(
            string intentId, TimeSpan? timeout = null, CancellationToken cancellation = default(CancellationToken))
        {
            var watch = Stopwatch.StartNew();
            var limit = timeout ?? DefaultWait;
            for (var pause = FirstPoll; ; pause = Shorter(TimeSpan.FromTicks(pause.Ticks * 3 / 2), LongestPoll))
            {
                var intent = await GetAsync(intentId, cancellation).ConfigureAwait(false);
                var left = limit - watch.Elapsed;
                if (intent.Status != "pending")
                {
                    return intent;
                }
                if (left <= TimeSpan.Zero)
                {
                    var message = intentId + " is still pending after " + limit;
                    var error = (WaitTimeoutException)SubmissionManagerException.Of(0, "wait_timeout", message);
                    error.Intent = intent;
                    throw error;
                }
                await Task.Delay(Shorter(pause, left), cancellation).ConfigureAwait(false);
            }
        }

        static TimeSpan Shorter(TimeSpan one, TimeSpan other)
        {
            return one < other ? one : other;
        }

        /// <summary>
        /// Submits many intents and returns a result for each, in order. One that fails does not affect the others.
        ///
        /// More than 1,000 intents or 8 MiB are divided into several requests. Intents that are refused because the service is
        /// overloaded are submitted again. If the first request fails as a whole, its error is thrown; if a later one does, the
        /// remaining results have the error. Submitting the same intents again is safe.
        /// </summary>
        public async Task<IReadOnlyList<BatchResult>> SubmitBatchAsync(
            IEnumerable<SubmitRequest> submissions, CancellationToken cancellation = default(CancellationToken))
        {
            var items = submissions.Select(JsonWriter.Write).ToList();
            var results = new List<BatchResult>();
            foreach (var count in Packed(items.Select(Encoding.UTF8.GetByteCount), BatchItems, BatchBytes).ToList())
            {
                try
                {
                    results.AddRange(await SendBatch(items.GetRange(results.Count, count), cancellation).ConfigureAwait(false));
                }
                catch (SubmissionManagerException error) when (results.Count > 0)
                {
                    results.AddRange(items.Skip(results.Count).Select(_ => new BatchResult { Error = error }).ToList());
                    break;
                }
            }
            return results;
        }

        /// <summary>Batches single submissions automatically; see <c>Batcher</c>.</summary>
        public Batcher CreateBatcher(BatcherOptions options = null)
        {
            return new Batcher(items => SendBatch(items, CancellationToken.None), options ?? new BatcherOptions());
        }

        /// <summary>Divides items of these sizes into batches that respect both limits; the number of items of each.</summary>
        internal static IEnumerable<int> Packed(IEnumerable<int> sizes, int maxItems, int maxBytes)
        {
            int count = 0, total = 2;
            foreach (var size in sizes)
            {
                if (count > 0 && (count == maxItems || total + size + 1 > maxBytes))
                {
                    yield return count;
                    count = 0;
                    total = 2;
                }
                count++;
                total += size + 1;
            }
            if (count > 0)
            {
                yield return count;
            }
        }

        /// <summary>Sends one batch, and again those of its items that were refused for a while.</summary>
        async Task<List<BatchResult>> SendBatch(List<string> items, CancellationToken cancellation)
        {
            var results = await SendOnce(items, cancellation).ConfigureAwait(false);
            for (var number = 1; number <= transport.MaxRetries; number++)
            {
                var refused = Enumerable.Range(0, items.Count).Where(index => results[index].Error is UnavailableException).ToList();
                if (refused.Count == 0)
                {
                    break;
                }
                await Task.Delay(transport.Backoff(number), cancellation).ConfigureAwait(false);
                List<BatchResult> again;
                try
                {
                    again = await SendOnce(refused.ConvertAll(index => items[index]), cancellation).ConfigureAwait(false);
                }
                catch (SubmissionManagerException)
                {
                    break; // after retries of its own; the results say which items were refused
                }
                for (var place = 0; place < refused.Count; place++)
                {
                    results[refused[place]] = again[place];
                }
            }
            return results;
        }

        async Task<List<BatchResult>> SendOnce(List<string> items, CancellationToken cancellation)
        {
            var call = new Call
            {
                Method = HttpMethod.Post,
                Template = "/v1/intents/batch",
                Body = "[" + string.Join(",", items) + "]",
            };
            var answer = await transport.Answer(call, cancellation).ConfigureAwait(false);
            var results = Model.Of<BatchResults>(answer.Json()).Results;
            if (results == null || results.Count != items.Count || results.Any(each => each.Intent == null && each.Error == null))
            {
                throw answer.Unexpected();
            }
            return results.Select(ResultOf).ToList();
        }

        static BatchResult ResultOf(BatchItem item)
        {
            if (item.Intent == null)
            {
                var error = item.Error;
                return new BatchResult
                {
                    Error = SubmissionManagerException.Of((int)item.Status, error.Code, error.Message, error.Details),
                };
            }
            var intent = Model.Of<SubmittedIntent>(item.Intent.Json);
            intent.Replayed = item.Replayed == true;
            return new BatchResult { Intent = intent };
        }

        /// <summary>An intent and its status; throws <c>NotFoundException</c>.</summary>
        public Task<Intent> GetAsync(string intentId, CancellationToken cancellation = default(CancellationToken))
        {
            return transport.Send<Intent>(new Call { Template = "/v1/intents/{intentId}", Path = new[] { intentId } }, cancellation);
        }

        /// <summary>An intent with all its attempts and its webhook event.</summary>
        public Task<History> GetHistoryAsync(string intentId, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call { Template = "/v1/intents/{intentId}/history", Path = new[] { intentId } };
            return transport.Send<History>(call, cancellation);
        }

        /// <summary>Intents, newest first; pages are fetched as you iterate.</summary>
        public Pager<Intent> List(IntentFilter filter = null, CancellationToken cancellation = default(CancellationToken))
        {
            filter = filter ?? new IntentFilter();
            var query = new Query
            {
                { "q", filter.Q }, { "status", filter.Status }, { "submissionTarget", filter.SubmissionTarget },
                { "redriveId", filter.RedriveId }, { "createdAfter", filter.CreatedAfter },
                { "createdBefore", filter.CreatedBefore }, { "limit", filter.Limit },
            };
            return new Pager<Intent>(transport, "/v1/intents", "intents", query, cancellation);
        }

        /// <summary>
        /// Cancels an intent that waits for an attempt. <c>MayHaveBeenSent</c> of the answer is false if its gateway cannot
        /// have received it. Throws <c>AttemptInProgressException</c> unless <c>afterAttempt</c> is set; then the attempt
        /// finishes, and no further one starts. Throws <c>AlreadyTerminalException</c> if it has ended for another reason.
        /// </summary>
        public Task<CancelledIntent> CancelAsync(
            string intentId, bool afterAttempt = false, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call
            {
                Method = HttpMethod.Post,
                Template = "/v1/intents/{intentId}/cancel",
                Path = new[] { intentId },
                Query = { { "afterAttempt", afterAttempt ? true : (bool?)null } },
            };
            return transport.Send<CancelledIntent>(call, cancellation);
        }

        /// <summary>Sends one failed intent again, as a new intent, with its old payload or another one.</summary>
        public Task<Intent> RedriveAsync(
            string intentId, object payload = null, CancellationToken cancellation = default(CancellationToken))
        {
            var request = new RedriveIntentRequest();
            request.Set("payload", payload);
            var call = new Call
            {
                Method = HttpMethod.Post,
                Template = "/v1/intents/{intentId}/redrive",
                Path = new[] { intentId },
                Body = JsonWriter.Write(request),
                Repeatable = false,
            };
            return transport.Send<Intent>(call, cancellation);
        }

        /// <summary>Makes the webhook event of an intent due now, whether or not it was delivered before.</summary>
        public Task<Webhook> RedeliverWebhookAsync(string intentId, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call
            {
                Method = HttpMethod.Post,
                Template = "/v1/intents/{intentId}/webhook/redeliver",
                Path = new[] { intentId },
            };
            return transport.Send<Webhook>(call, cancellation);
        }
    }
}
