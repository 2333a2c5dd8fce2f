// Sends requests, retries them, and turns answers into JSON or errors.

using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Http;
using System.Net.Http.Headers;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace SubmissionManager
{
    /// <summary>One call of the API, before it becomes a request.</summary>
    sealed class Call
    {
        public HttpMethod Method = HttpMethod.Get;
        public string Template;
        public string[] Path = new string[0];
        public Query Query = new Query();
        public Dictionary<string, string> Headers = new Dictionary<string, string>();
        public string Body;

        /// <summary>False if repeating it would have another effect, so that it must not be retried if it may have arrived.</summary>
        public bool Repeatable = true;
        public string Accept = "application/json";
    }

    /// <summary>The parameters of a query; those that are null are left out.</summary>
    sealed class Query : List<KeyValuePair<string, object>>
    {
        public void Add(string name, object value)
        {
            Add(new KeyValuePair<string, object>(name, value));
        }

        public Query With(string name, object value)
        {
            var copy = new Query();
            copy.AddRange(this.Where(each => each.Key != name));
            copy.Add(name, value);
            return copy;
        }
    }

    sealed class Answer
    {
        public int Status;
        public HttpResponseHeaders Headers;
        public string Text;

        public JsonObject Json()
        {
            try
            {
                return JsonObject.Parse(Text);
            }
            catch (FormatException)
            {
                throw Unexpected();
            }
        }

        public string Header(string name)
        {
            IEnumerable<string> values;
            return Headers.TryGetValues(name, out values) ? values.FirstOrDefault() : null;
        }

        /// <summary>The error that an answer outside 2xx stands for.</summary>
        public SubmissionManagerException Error()
        {
            // A date in Retry-After is ignored; the client then waits as if there were none.
            var retryAfter = Headers.RetryAfter?.Delta;
            try
            {
                var error = JsonObject.Parse(Text)["error"] as JsonObject;
                var code = error?["code"] as string;
                if (code != null)
                {
                    return SubmissionManagerException.Of(Status, code, error["message"] as string, error["details"] as JsonObject, retryAfter);
                }
            }
            catch (FormatException)
            {
                // Not an answer of the service.
            }
            return Unexpected(retryAfter);
        }

        public SubmissionManagerException Unexpected(TimeSpan? retryAfter = null)
        {
            var shown = string.Join(" ", Text.Split((char[])null, StringSplitOptions.RemoveEmptyEntries));
            shown = shown.Length == 0 ? "nothing" : shown.Substring(0, Math.Min(shown.Length, Transport.ShownCharacters));
            var message = "this is not how a Submission Manager answers (" + shown + "); is the URL right?";
            return SubmissionManagerException.Of(Status, "unexpected_answer", message, null, retryAfter);
        }
    }

    /// <summary>What all resources of a client share. It follows no redirect, because the token would be sent to the other host.</summary>
    sealed class Transport : IDisposable
    {
        static readonly TimeSpan LongestPause = TimeSpan.FromSeconds(30);
        /// <summary>How many characters of an unexpected answer an error quotes.</summary>
        internal const int ShownCharacters = 200;
        /// <summary>Connections to the service, where the runtime allows only two by default.</summary>
        const int Connections = 64;

        readonly ClientOptions options;
        readonly string url;
        readonly HttpClient http;
        readonly Random random = new Random();

        public int MaxRetries { get { return options.MaxRetries; } }

        public Transport(ClientOptions options)
        {
            Uri parsed;
            var given = options.Url ?? "";
            if (!Uri.TryCreate(given, UriKind.Absolute, out parsed) || (parsed.Scheme != "http" && parsed.Scheme != "https")
                || parsed.Query != "" || parsed.Fragment != "" || parsed.UserInfo != "" || parsed.Host == "" || given.Contains("?"))
            {
                throw new ArgumentException("'" + given + "' is not a URL of a service; use one such as http://127.0.0.1:8082");
            }
            if (options.MaxRetries < 0)
            {
                throw new ArgumentException("MaxRetries must not be negative");
            }
            this.options = options;
            url = given.TrimEnd('/');
            ServicePointManager.FindServicePoint(parsed).ConnectionLimit = Connections;
            http = new HttpClient(options.Handler ?? new HttpClientHandler { AllowAutoRedirect = false }, options.Handler == null);
            // Every try has a timeout of its own.
            http.Timeout = Timeout.InfiniteTimeSpan;
            http.DefaultRequestHeaders.ExpectContinue = false;
        }

        public void Dispose()
        {
            http.Dispose();
        }

        public async Task<T> Send<T>(Call call, CancellationToken cancellation) where T : Models.Model, new()
        {
            return Models.Model.Of<T>((await Answer(call, cancellation).ConfigureAwait(false)).Json());
        }

        /// <summary>The answer, after as many retries as are allowed; throws the last error.</summary>
        public async Task<Answer> Answer(Call call, CancellationToken cancellation)
        {
            for (var number = 1; ; number++)
            {
                TimeSpan pause;
                try
                {
                    return await Once(call, cancellation).ConfigureAwait(false);
                }
                catch (SubmissionManagerException error) when (PauseBeforeRetry(call, number, error, out pause))
                {
                }
                await Task.Delay(pause, cancellation).ConfigureAwait(false);
            }
        }

        /// <summary>The answer of one try.</summary>
        public async Task<Answer> Once(Call call, CancellationToken cancellation)
        {
            using (var late = CancellationTokenSource.CreateLinkedTokenSource(cancellation))
            {
                late.CancelAfter(options.Timeout);
                using (var request = await Request(call).ConfigureAwait(false))
                using (var response = await Open(request, late.Token, cancellation).ConfigureAwait(false))
                {
                    var text = await Text(response, request, late.Token, cancellation).ConfigureAwait(false);
                    var answer = new Answer { Status = (int)response.StatusCode, Headers = response.Headers, Text = text };
                    return response.IsSuccessStatusCode ? answer : throw answer.Error();
                }
            }
        }

        /// <summary>An answer whose body is read piece by piece; one try. The caller disposes it.</summary>
        public async Task<HttpResponseMessage> Stream(Call call, CancellationToken cancellation)
        {
            var request = await Request(call).ConfigureAwait(false);
            var response = await Open(request, cancellation, cancellation).ConfigureAwait(false);
            if (response.IsSuccessStatusCode)
            {
                return response;
            }
            using (response)
            {
                var text = await Text(response, request, cancellation, cancellation).ConfigureAwait(false);
                throw new Answer { Status = (int)response.StatusCode, Headers = response.Headers, Text = text }.Error();
            }
        }

        async Task<HttpResponseMessage> Open(HttpRequestMessage request, CancellationToken late, CancellationToken cancellation)
        {
            try
            {
                var response = await http.SendAsync(request, HttpCompletionOption.ResponseHeadersRead, late).ConfigureAwait(false);
                options.OnAnswer?.Invoke(response);
                return response;
            }
            catch (Exception error) when (IsNoAnswer(error))
            {
                cancellation.ThrowIfCancellationRequested();
                throw NoAnswer(request, error);
            }
        }

        async Task<string> Text(
            HttpResponseMessage response, HttpRequestMessage request, CancellationToken late, CancellationToken cancellation)
        {
            // Not every runtime lets a token end this read, but the end of the response does.
            using (late.Register(response.Dispose))
            {
                try
                {
                    var bytes = await response.Content.ReadAsByteArrayAsync().ConfigureAwait(false);
                    return Encoding.UTF8.GetString(bytes);
                }
                catch (Exception error) when (IsNoAnswer(error))
                {
                    cancellation.ThrowIfCancellationRequested();
                    throw NoAnswer(request, error);
                }
            }
        }

        internal static bool IsNoAnswer(Exception error)
        {
            return error is HttpRequestException || error is OperationCanceledException || error is IOException
                || error is WebException || error is ObjectDisposedException;
        }

        SubmissionManagerException NoAnswer(HttpRequestMessage request, Exception error)
        {
            var late = "no answer within " + options.Timeout.TotalSeconds.ToString(CultureInfo.InvariantCulture) + " s";
            var reason = error is OperationCanceledException || error is ObjectDisposedException ? late : error.GetBaseException().Message;
            var message = request.RequestUri + " does not answer (" + reason + "); is the URL right, and the service up?";
            return SubmissionManagerException.Of(0, "unreachable", message);
        }

        /// <summary>The request of a call; it is made anew for every try, because the token may have changed.</summary>
        async Task<HttpRequestMessage> Request(Call call)
        {
            var request = new HttpRequestMessage(call.Method, new Uri(url + Filled(call)));
            request.Headers.TryAddWithoutValidation("Accept", call.Accept);
            request.Headers.TryAddWithoutValidation("User-Agent", "submission-manager-dotnet/" + SubmissionManagerClient.Version);
            var token = options.TokenProvider == null ? options.Token : await options.TokenProvider().ConfigureAwait(false);
            if (!string.IsNullOrEmpty(token))
            {
                Add(request, "Authorization", "Bearer " + token);
            }
            foreach (var header in call.Headers.Where(each => each.Value != null))
            {
                Add(request, header.Key, header.Value);
            }
            if (call.Body != null)
            {
                request.Content = new ByteArrayContent(Encoding.UTF8.GetBytes(call.Body));
                request.Content.Headers.ContentType = new MediaTypeHeaderValue("application/json");
            }
            return request;
        }

        static void Add(HttpRequestMessage request, string name, string value)
        {
            if (value.Any(each => each < ' ' || each > '~'))
            {
                throw Unsendable(name, "it must be of printable ASCII characters");
            }
            request.Headers.TryAddWithoutValidation(name, value);
        }

        static string Filled(Call call)
        {
            var filled = new StringBuilder();
            var parts = call.Template.Split('{', '}');
            for (var index = 0; index < parts.Length; index++)
            {
                filled.Append(index % 2 == 0 ? parts[index] : Segment(parts[index], call.Path[index / 2]));
            }
            var separator = '?';
            foreach (var each in call.Query.Where(each => each.Value != null))
            {
                filled.Append(separator).Append(each.Key).Append('=').Append(Encoded(each.Key, QueryText(each.Value)));
                separator = '&';
            }
            return filled.ToString();
        }

        static string Segment(string name, string id)
        {
            // A URL would lose these, however they are encoded.
            if (string.IsNullOrEmpty(id) || id == "." || id == "..")
            {
                throw Unsendable(name, "'" + id + "' has no place in a URL");
            }
            return Encoded(name, id);
        }

        static string Encoded(string name, string text)
        {
            try
            {
                return string.Concat(new UTF8Encoding(false, true).GetBytes(text).Select(EncodedByte));
            }
            catch (EncoderFallbackException error)
            {
                throw Unsendable(name, error.Message);
            }
        }

        static string EncodedByte(byte each)
        {
            var character = (char)each;
            var plain = (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z')
                || (character >= '0' && character <= '9') || "-._~".IndexOf(character) >= 0;
            return plain ? character.ToString() : "%" + each.ToString("X2", CultureInfo.InvariantCulture);
        }

        static string QueryText(object value)
        {
            return value is bool ? ((bool)value ? "true" : "false")
                : value is DateTimeOffset ? JsonWriter.TimeText((DateTimeOffset)value)
                : Convert.ToString(value, CultureInfo.InvariantCulture);
        }

        static SubmissionManagerException Unsendable(string what, string why)
        {
            return SubmissionManagerException.Of(0, "invalid_request", what + " cannot be sent: " + why);
        }

        /// <summary>Whether the same request may succeed later.</summary>
        public static bool IsWorthRepeating(SubmissionManagerException error)
        {
            return error is UnreachableException || error.Status == 429 || (error.Status >= 502 && error.Status <= 504);
        }

        /// <summary>Whether to repeat a call, and how long to wait before retry <c>number</c> (from 1).</summary>
        internal bool PauseBeforeRetry(Call call, int number, SubmissionManagerException error, out TimeSpan pause)
        {
            // Without a guarantee that repeating does no harm, only a refusal before anything happened may be repeated.
            var safe = call.Repeatable || error.Status == 429 || error is OverloadedException;
            // A little later than requested, so that not all clients come back at once.
            pause = Backoff(number) + (error.RetryAfter ?? TimeSpan.Zero);
            return safe && IsWorthRepeating(error) && number <= options.MaxRetries && pause <= LongestPause;
        }

        /// <summary>The pause doubles, and is up to half shorter, so that clients do not come at once.</summary>
        public TimeSpan Backoff(int number)
        {
            double part;
            lock (random)
            {
                part = 0.5 + random.NextDouble() / 2;
            }
            var doubled = options.FirstPause.TotalSeconds * Math.Pow(2, Math.Min(number - 1, 16));
            return TimeSpan.FromSeconds(Math.Min(doubled, LongestPause.TotalSeconds) * part);
        }
    }
}
