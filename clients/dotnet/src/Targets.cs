// `client.Targets`: which targets there are, and pausing them.

using System.Collections.Generic;
using System.Net.Http;
using System.Threading;
using System.Threading.Tasks;
using SubmissionManager.Models;

namespace SubmissionManager
{
    /// <summary>Targets with their state.</summary>
    public sealed class Targets
    {
        readonly Transport transport;

        internal Targets(Transport transport)
        {
            this.transport = transport;
        }

        /// <summary>All targets, in order of their names.</summary>
        public async Task<IReadOnlyList<Target>> ListAsync(CancellationToken cancellation = default(CancellationToken))
        {
            var found = await transport.Send<TargetList>(new Call { Template = "/v1/targets" }, cancellation).ConfigureAwait(false);
            return found.Targets;
        }

        /// <summary>
        /// Lets no attempt of the target start until <c>ResumeAsync</c>. Pausing it again has no effect, not even on the reason.
        /// </summary>
        public Task<Target> PauseAsync(
            string submissionTarget, string reason = null, CancellationToken cancellation = default(CancellationToken))
        {
            var body = reason == null ? null : JsonWriter.Write(new PauseRequest { Reason = reason });
            return Change("/v1/targets/{submissionTarget}/pause", submissionTarget, body, cancellation);
        }

        /// <summary>Lets attempts of the target start again.</summary>
        public Task<Target> ResumeAsync(string submissionTarget, CancellationToken cancellation = default(CancellationToken))
        {
            return Change("/v1/targets/{submissionTarget}/resume", submissionTarget, null, cancellation);
        }

        Task<Target> Change(string template, string submissionTarget, string body, CancellationToken cancellation)
        {
            var call = new Call { Method = HttpMethod.Post, Template = template, Path = new[] { submissionTarget }, Body = body };
            return transport.Send<Target>(call, cancellation);
        }
    }
}
