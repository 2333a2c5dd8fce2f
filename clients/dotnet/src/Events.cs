// `client.Events`: what became of intents, in the order of the commits that ended them.

using System;
using System.Collections.Generic;
using System.IO;
using System.Net.Http;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using SubmissionManager.Models;

namespace SubmissionManager
{
    /// <summary>Where a feed starts, and what it has.</summary>
    public sealed class FeedOptions
    {
        /// <summary>The cursor after which to start; <c>now</c> for the end of the feed, null for the oldest event that is kept.</summary>
        public string After { get; set; }

        /// <summary>Only events of intents of this target.</summary>
        public string SubmissionTarget { get; set; }

        /// <summary>
        /// Follows the feed by long polls in place of server-sent events, for networks whose proxies hold streams back. The
        /// cursor then moves after the last event of each page, so after a restart some events may come again.
        /// </summary>
        public bool Poll { get; set; }
    }

    /// <summary>What a feed reads.</summary>
    sealed class FeedSource
    {
        public string Path;
        public string StreamPath;
        public Query Query;
        public string WaitName;
        public string NextName;
    }

    /// <summary>
    /// An endless sequence of events that reconnects by itself and keeps the cursor, for <c>await foreach</c>, or
    /// <c>while (await feed.MoveNextAsync())</c> where the language has none.
    ///
    /// <c>Cursor</c> is the place after the last event that you got. Store it when you have handled the event, and pass it as
    /// <c>After</c> to go on there after a restart: you miss nothing, and get nothing twice.
    ///
    /// If the first connection fails, the feed throws the error after the usual retries. A feed that was connected before
    /// reconnects until it succeeds, with growing pauses of up to 30 s. Errors that a retry cannot change are thrown:
    /// <c>CursorExpiredException</c>, <c>UnauthorizedException</c>, <c>ForbiddenException</c>, <c>InvalidRequestException</c>.
    /// </summary>
    public sealed class EventFeed<T> : IDisposable where T : Model, new()
    {
        /// <summary>The service sends a comment every 15 s; after three of them are missing, the connection is broken.</summary>
        static readonly TimeSpan LongestSilence = TimeSpan.FromSeconds(45);
        static readonly TimeSpan LongestPause = TimeSpan.FromSeconds(30);
        /// <summary>The longest time for which the service holds a long poll.</summary>
        const int PollSeconds = 30;
        const int ChunkBytes = 16 * 1024;

        readonly Transport transport;
        readonly FeedSource source;
        readonly bool polls;
        readonly CancellationToken outer;
        readonly CancellationTokenSource closing;
        readonly Queue<KeyValuePair<string, T>> ready = new Queue<KeyValuePair<string, T>>();
        readonly byte[] chunk = new byte[ChunkBytes];
        HttpResponseMessage response;
        Stream stream;
        SseParser parser = new SseParser();
        int failures;
        bool wasConnected;

        internal EventFeed(Transport transport, FeedSource source, string after, bool polls, CancellationToken cancellation)
        {
            this.transport = transport;
            this.source = source;
            this.polls = polls;
            Cursor = after;
            outer = cancellation;
            closing = CancellationTokenSource.CreateLinkedTokenSource(cancellation);
        }

        /// <summary>The place after the last event that you got.</summary>
        public string Cursor { get; private set; }

        /// <summary>The event that the last <c>MoveNextAsync</c> found.</summary>
        public T Current { get; private set; }

        /// <summary>The feed itself; <c>await foreach</c> calls this.</summary>
        public EventFeed<T> GetAsyncEnumerator()
        {
            return this;
        }

        /// <summary>Waits for the next event; false after <c>Dispose</c>.</summary>
        public async Task<bool> MoveNextAsync()
        {
            while (true)
            {
                outer.ThrowIfCancellationRequested();
                if (closing.IsCancellationRequested)
                {
                    return false;
                }
                if (ready.Count == 0)
                {
                    await Fill().ConfigureAwait(false);
                    continue;
                }
                var next = ready.Dequeue();
                Cursor = next.Key ?? Cursor;
                if (next.Value != null)
                {
                    Current = next.Value;
                    return true;
                }
            }
        }

        /// <summary>Ends the feed and its connection, also while <c>MoveNextAsync</c> waits.</summary>
        public void Dispose()
        {
            closing.Cancel();
            Drop();
        }

        /// <summary>Ends the feed; <c>await foreach</c> calls this when it is left.</summary>
        public Task DisposeAsync()
        {
            Dispose();
            return Task.FromResult(true);
        }

        /// <summary>Waits for more. Failures end here, unless a retry cannot change them.</summary>
        async Task Fill()
        {
            TimeSpan pause;
            try
            {
                await (polls ? Poll() : Read()).ConfigureAwait(false);
                return;
            }
            catch (OperationCanceledException) when (closing.IsCancellationRequested)
            {
                return;
            }
            catch (SubmissionManagerException error)
            {
                Drop();
                if (closing.IsCancellationRequested)
                {
                    return;
                }
                failures++;
                if (!Transport.IsWorthRepeating(error) || (!wasConnected && failures > transport.MaxRetries))
                {
                    throw;
                }
                pause = transport.Backoff(failures) + (error.RetryAfter ?? TimeSpan.Zero);
                pause = pause < parser.Retry ? parser.Retry : pause;
            }
            // A cancelled pause ends here, and `MoveNextAsync` sees why.
            await Task.WhenAny(Task.Delay(pause < LongestPause ? pause : LongestPause, closing.Token)).ConfigureAwait(false);
        }

        async Task Poll()
        {
            var after = Cursor;
            var query = source.Query.With("after", after).With(source.WaitName, after == "now" ? 0 : PollSeconds);
            var events = new List<T>();
            var next = await GetPage(query, events).ConfigureAwait(false);
            failures = 0;
            wasConnected = true;
            for (var index = 0; index < events.Count; index++)
            {
                // The cursor is the one after the whole page, so it is only right for the last event.
                ready.Enqueue(new KeyValuePair<string, T>(index == events.Count - 1 ? next : null, events[index]));
            }
            if (events.Count == 0)
            {
                Cursor = next;
            }
        }

        async Task<string> GetPage(Query query, List<T> events)
        {
            var answer = await transport.Once(new Call { Template = source.Path, Query = query }, closing.Token).ConfigureAwait(false);
            var page = Model.Of<EventPage>(answer.Json());
            var next = page.GetString(source.NextName);
            events.AddRange(page.GetModels<T>("events") ?? throw answer.Unexpected());
            return next ?? throw answer.Unexpected();
        }

        async Task Read()
        {
            if (stream == null)
            {
                if (Cursor == "now")
                {
                    // A cursor instead of "now": otherwise what happens during a reconnection would be lost.
                    Cursor = await GetPage(source.Query.With("after", "now").With("limit", 1), new List<T>()).ConfigureAwait(false);
                    return;
                }
                await Open().ConfigureAwait(false);
            }
            var count = await ReadChunk().ConfigureAwait(false);
            if (count == 0)
            {
                // A clean end: the instance stops, or this reader was too slow. Another instance has the same events.
                throw SubmissionManagerException.Of(0, "unreachable", "the stream has ended");
            }
            failures = 0;
            wasConnected = true;
            foreach (var found in parser.Feed(chunk, count))
            {
                ready.Enqueue(new KeyValuePair<string, T>(found.Key, found.Value == null ? null : EventOf(found.Value)));
            }
        }

        async Task Open()
        {
            parser = new SseParser();
            var call = new Call { Template = source.StreamPath, Query = source.Query, Accept = "text/event-stream" };
            call.Headers["Last-Event-ID"] = Cursor;
            using (var late = CancellationTokenSource.CreateLinkedTokenSource(closing.Token))
            {
                late.CancelAfter(LongestSilence);
                response = await transport.Stream(call, late.Token).ConfigureAwait(false);
            }
            stream = await response.Content.ReadAsStreamAsync().ConfigureAwait(false);
        }

        /// <summary>Reads what has arrived; 0 at the end. Disposing the response ends the read.</summary>
        async Task<int> ReadChunk()
        {
            var open = response;
            using (var late = CancellationTokenSource.CreateLinkedTokenSource(closing.Token))
            using (late.Token.Register(open.Dispose))
            {
                late.CancelAfter(LongestSilence);
                try
                {
                    var reading = stream.ReadAsync(chunk, 0, chunk.Length, late.Token);
                    var ended = new TaskCompletionSource<int>(TaskCreationOptions.RunContinuationsAsynchronously);
                    using (late.Token.Register(() => ended.TrySetResult(0)))
                    {
                        // Not every runtime ends the read then.
                        return await (await Task.WhenAny(reading, ended.Task).ConfigureAwait(false)).ConfigureAwait(false);
                    }
                }
                catch (Exception error) when (Transport.IsNoAnswer(error) || error is NullReferenceException)
                {
                    throw SubmissionManagerException.Of(0, "unreachable", "the stream broke: " + error.Message);
                }
            }
        }

        static T EventOf(string data)
        {
            try
            {
                return Model.Of<T>(JsonObject.Parse(data));
            }
            catch (FormatException)
            {
                var shown = data.Substring(0, Math.Min(data.Length, Transport.ShownCharacters));
                throw SubmissionManagerException.Of(200, "unexpected_answer", "the data of an event is not JSON: " + shown);
            }
        }

        void Drop()
        {
            var open = response;
            response = null;
            stream = null;
            open?.Dispose();
        }

        sealed class EventPage : Model
        {
        }
    }

    /// <summary>Parses server-sent events from bytes in pieces of any size. What is incomplete at the end is dropped.</summary>
    sealed class SseParser
    {
        /// <summary>Bytes of one line. An event has an intent without its payload: about 2 KiB with the longest ids.</summary>
        const int LongestLine = 1024 * 1024;

        readonly MemoryStream line = new MemoryStream();
        bool afterReturn;
        string id;
        StringBuilder data;

        /// <summary>How long the service wants clients to wait until they connect again.</summary>
        public TimeSpan Retry { get; private set; }

        /// <summary>Id and data of each event that is complete now; data is null if there was only an id.</summary>
        public IEnumerable<KeyValuePair<string, string>> Feed(byte[] bytes, int count)
        {
            for (var index = 0; index < count; index++)
            {
                var each = bytes[index];
                var secondHalf = each == '\n' && afterReturn;
                afterReturn = each == '\r';
                if (secondHalf)
                {
                    continue;
                }
                if (each != '\n' && each != '\r')
                {
                    Append(each);
                    continue;
                }
                if (line.Length > 0)
                {
                    Field(Encoding.UTF8.GetString(line.ToArray()));
                    line.SetLength(0);
                    continue;
                }
                if (id != null || data != null)
                {
                    yield return new KeyValuePair<string, string>(id, data?.ToString());
                }
                id = null;
                data = null;
            }
        }

        void Append(byte each)
        {
            if (line.Length == LongestLine)
            {
                throw SubmissionManagerException.Of(200, "unexpected_answer", "a line of an event has more than 1 MiB");
            }
            line.WriteByte(each);
        }

        void Field(string text)
        {
            var colon = text.IndexOf(':');
            var name = colon < 0 ? text : text.Substring(0, colon);
            var value = colon < 0 ? "" : text.Substring(colon + 1);
            value = value.StartsWith(" ", StringComparison.Ordinal) ? value.Substring(1) : value;
            uint milliseconds;
            if (name == "data")
            {
                data = data == null ? new StringBuilder(value) : data.Append('\n').Append(value);
            }
            else if (name == "id" && value.IndexOf('\0') < 0)
            {
                id = value;
            }
            else if (name == "retry" && uint.TryParse(value, out milliseconds))
            {
                Retry = TimeSpan.FromMilliseconds(milliseconds);
            }
        }
    }

    /// <summary>Terminal events of all intents.</summary>
    public sealed class Events
    {
        readonly Transport transport;

        internal Events(Transport transport)
        {
            this.transport = transport;
        }

        /// <summary>
        /// One page of events, for readers that keep the cursor themselves. <c>waitSeconds</c> waits until there is an event, at
        /// most that long and at most 30 s.
        /// </summary>
        public Task<EventList> ListAsync(
            string after = null, int? limit = null, int? waitSeconds = null, string submissionTarget = null,
            CancellationToken cancellation = default(CancellationToken))
        {
            var query = new Query
            {
                { "after", after }, { "limit", limit }, { "waitSeconds", waitSeconds }, { "submissionTarget", submissionTarget },
            };
            return transport.Send<EventList>(new Call { Template = "/v1/events", Query = query }, cancellation);
        }

        /// <summary>Follows the feed, by server-sent events unless <c>Poll</c> is set.</summary>
        public EventFeed<Event> Follow(FeedOptions options = null, CancellationToken cancellation = default(CancellationToken))
        {
            options = options ?? new FeedOptions();
            var source = new FeedSource
            {
                Path = "/v1/events",
                StreamPath = "/v1/events/stream",
                Query = new Query { { "submissionTarget", options.SubmissionTarget } },
                WaitName = "waitSeconds",
                NextName = "nextCursor",
            };
            return new EventFeed<Event>(transport, source, options.After, options.Poll, cancellation);
        }
    }
}
