// `client.Redrives`: send failed intents again, in bulk.

using System.Net.Http;
using System.Threading;
using System.Threading.Tasks;
using SubmissionManager.Models;

namespace SubmissionManager
{
    /// <summary>
    /// Sends failed intents again. Changes of a redrive are not repeated after a lost answer: a repeated start would be
    /// <c>InvalidStateException</c>. Use <c>GetAsync</c> to see what happened.
    /// </summary>
    public sealed class Redrives
    {
        readonly Transport transport;

        internal Redrives(Transport transport)
        {
            this.transport = transport;
        }

        /// <summary>Plans a redrive. Nothing is sent; a plan that is not started is deleted after a day.</summary>
        public Task<Redrive> PlanAsync(PlanRequest request, CancellationToken cancellation = default(CancellationToken))
        {
            // A plan that was made twice does nothing.
            var call = new Call { Method = HttpMethod.Post, Template = "/v1/redrives", Body = JsonWriter.Write(request) };
            return transport.Send<Redrive>(call, cancellation);
        }

        /// <summary>Starts a plan: 1 to 1,000 intents a second, 10 by default.</summary>
        public Task<Redrive> StartAsync(
            string redriveId, int? ratePerSecond = null, CancellationToken cancellation = default(CancellationToken))
        {
            var request = new StartRequest { RatePerSecond = ratePerSecond };
            return Change("/v1/redrives/{redriveId}/start", redriveId, JsonWriter.Write(request), cancellation);
        }

        /// <summary>Stops creating intents until <c>ResumeAsync</c>.</summary>
        public Task<Redrive> PauseAsync(string redriveId, CancellationToken cancellation = default(CancellationToken))
        {
            return Change("/v1/redrives/{redriveId}/pause", redriveId, null, cancellation);
        }

        /// <summary>Goes on with a paused redrive.</summary>
        public Task<Redrive> ResumeAsync(string redriveId, CancellationToken cancellation = default(CancellationToken))
        {
            return Change("/v1/redrives/{redriveId}/resume", redriveId, null, cancellation);
        }

        /// <summary>Ends a redrive; the intents that it created stay.</summary>
        public Task<Redrive> CancelAsync(string redriveId, CancellationToken cancellation = default(CancellationToken))
        {
            return Change("/v1/redrives/{redriveId}/cancel", redriveId, null, cancellation);
        }

        /// <summary>A redrive with its state and progress.</summary>
        public Task<Redrive> GetAsync(string redriveId, CancellationToken cancellation = default(CancellationToken))
        {
            return transport.Send<Redrive>(new Call { Template = "/v1/redrives/{redriveId}", Path = new[] { redriveId } }, cancellation);
        }

        /// <summary>All redrives, newest first.</summary>
        public Pager<Redrive> List(int? limit = null, CancellationToken cancellation = default(CancellationToken))
        {
            return new Pager<Redrive>(transport, "/v1/redrives", "redrives", new Query { { "limit", limit } }, cancellation);
        }

        Task<Redrive> Change(string template, string redriveId, string body, CancellationToken cancellation)
        {
            var call = new Call { Method = HttpMethod.Post, Template = template, Path = new[] { redriveId }, Body = body, Repeatable = false };
            return transport.Send<Redrive>(call, cancellation);
        }
    }
}
