// The client: its settings, and the resources of the service.

using System;
using System.Linq;
using System.Net.Http;
using System.Threading;
using System.Threading.Tasks;

namespace SubmissionManager
{
    /// <summary>The settings of a client.</summary>
    public sealed class ClientOptions
    {
        /// <summary>The base URL of the service, such as https://submissions.example.</summary>
        public string Url { get; set; } = "http://127.0.0.1:8082";

        /// <summary>A bearer token, if the service requires one.</summary>
        public string Token { get; set; }

        /// <summary>Returns the bearer token that is valid now, in place of <c>Token</c>; it is called for every try.</summary>
        public Func<Task<string>> TokenProvider { get; set; }

        /// <summary>How long one try may take. Longer than the longest <c>WaitSeconds</c>, which is 30.</summary>
        public TimeSpan Timeout { get; set; } = TimeSpan.FromSeconds(40);

        /// <summary>
        /// How often a call is repeated at most, if there is no answer or one that asks for it. The pauses before four
        /// retries are 0.25 + 0.5 + 1 + 2 s: longer than a proxy needs when an instance is replaced.
        /// </summary>
        public int MaxRetries { get; set; } = 4;

        /// <summary>Called for every answer, for logs and metrics.</summary>
        public Action<HttpResponseMessage> OnAnswer { get; set; }

        /// <summary>
        /// The handler of <c>HttpClient</c>, for proxies, certificates or a handler that your host shares. It must not follow
        /// redirects. The client does not dispose it.
        /// </summary>
        public HttpMessageHandler Handler { get; set; }

        /// <summary>The first pause; shorter in tests.</summary>
        internal TimeSpan FirstPause = TimeSpan.FromMilliseconds(250);
    }

    /// <summary>
    /// A client of the Submission Manager. It keeps connections: use one for the whole process, from any thread. Errors are
    /// <c>SubmissionManagerException</c>.
    /// </summary>
    public sealed class SubmissionManagerClient : IDisposable
    {
        internal const string Version = "0.3.0";

        readonly Transport transport;

        /// <summary>Submit intents, follow them, cancel and redrive them.</summary>
        public Intents Intents { get; private set; }

        /// <summary>The event feed: what became of intents.</summary>
        public Events Events { get; private set; }

        /// <summary>Send failed intents again, in bulk.</summary>
        public Redrives Redrives { get; private set; }

        /// <summary>Which targets there are, and pausing them.</summary>
        public Targets Targets { get; private set; }

        /// <summary>Jobs of tenants for management nodes.</summary>
        public Jobs Jobs { get; private set; }

        /// <summary>Inbound submissions, and the contacts and messages that are made of them.</summary>
        public Inbox Inbox { get; private set; }

        /// <summary>Makes a client of the service at a URL.</summary>
        public SubmissionManagerClient(string url, string token = null) : this(new ClientOptions { Url = url, Token = token })
        {
        }

        /// <summary>Makes a client with these settings.</summary>
        public SubmissionManagerClient(ClientOptions options)
        {
            transport = new Transport(options);
            Intents = new Intents(transport);
            Events = new Events(transport);
            Redrives = new Redrives(transport);
            Targets = new Targets(transport);
            Jobs = new Jobs(transport);
            Inbox = new Inbox(transport);
        }

        /// <summary>
        /// Makes a call that this client has no method for, and returns its JSON. Ids in the path must be encoded already.
        /// Only GET is retried after a lost answer.
        /// </summary>
        public async Task<JsonObject> RequestAsync(
            HttpMethod method, string path, object body = null, CancellationToken cancellation = default(CancellationToken))
        {
            var call = new Call
            {
                Method = method,
                Template = path.Replace("{", "%7B").Replace("}", "%7D"),
                Body = body == null ? null : JsonWriter.Write(body),
                Repeatable = method == HttpMethod.Get,
            };
            return (await transport.Answer(call, cancellation).ConfigureAwait(false)).Json();
        }

        /// <summary>Closes the connections.</summary>
        public void Dispose()
        {
            transport.Dispose();
        }
    }
}
