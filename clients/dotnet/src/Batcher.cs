// Automatic batching: many submissions in few requests.

using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using SubmissionManager.Models;

namespace SubmissionManager
{
    /// <summary>When a batcher sends.</summary>
    public sealed class BatcherOptions
    {
        /// <summary>Submissions in a batch; at most 1,000.</summary>
        public int MaxItems { get; set; } = Intents.BatchItems;

        /// <summary>Bytes of a batch; at most 8 MiB.</summary>
        public int MaxBytes { get; set; } = Intents.BatchBytes;

        /// <summary>How long the first submission of a batch waits for others.</summary>
        public TimeSpan MaxDelay { get; set; } = TimeSpan.FromMilliseconds(20);

        /// <summary>While so many submissions wait, <c>SubmitAsync</c> waits too.</summary>
        public int MaxWaiting { get; set; } = 10 * Intents.BatchItems;

        /// <summary>How many batches are sent at the same time.</summary>
        public int Concurrency { get; set; } = 1;
    }

    /// <summary>
    /// Collects submissions and sends them as batches: when one has <c>MaxItems</c> or <c>MaxBytes</c>, or <c>MaxDelay</c> after
    /// its first submission. Call <c>CloseAsync</c> at the end: it sends the rest and waits for all results. Any thread may use it.
    /// </summary>
    public sealed class Batcher
    {
        sealed class Item
        {
            public string Text;
            public int Size;
            public readonly TaskCompletionSource<SubmittedIntent> Result =
                new TaskCompletionSource<SubmittedIntent>(TaskCreationOptions.RunContinuationsAsynchronously);
        }

        readonly Func<List<string>, Task<List<BatchResult>>> send;
        readonly BatcherOptions options;
        readonly SemaphoreSlim room;
        readonly object locked = new object();
        readonly List<Item> waiting = new List<Item>();
        readonly HashSet<Task> sending = new HashSet<Task>();
        long bytes;
        /// <summary>Whether what waits is to be sent although it is not full.</summary>
        bool due;
        bool timed;
        bool closed;

        internal Batcher(Func<List<string>, Task<List<BatchResult>>> send, BatcherOptions options)
        {
            if (options.MaxItems < 1 || options.MaxItems > Intents.BatchItems || options.MaxBytes < 1
                || options.MaxBytes > Intents.BatchBytes || options.MaxWaiting < 1 || options.Concurrency < 1)
            {
                throw new ArgumentException("a batch has 1 to 1,000 items and at most 8 MiB");
            }
            this.send = send;
            this.options = options;
            room = new SemaphoreSlim(options.MaxWaiting);
        }

        /// <summary>
        /// Adds a submission. The returned task waits only while too many are waiting; its result is a task of the intent, which
        /// fails with the error of that submission alone.
        /// </summary>
        public Task<Task<SubmittedIntent>> SubmitAsync(
            string intentId, string submissionTarget, object payload = null, CancellationToken cancellation = default(CancellationToken))
        {
            var request = new SubmitRequest { IntentId = intentId, SubmissionTarget = submissionTarget };
            request.Set("payload", payload);
            return SubmitAsync(request, cancellation);
        }

        /// <summary>Adds a submission, as the other overload does.</summary>
        public async Task<Task<SubmittedIntent>> SubmitAsync(
            SubmitRequest request, CancellationToken cancellation = default(CancellationToken))
        {
            var item = new Item { Text = JsonWriter.Write(request) };
            item.Size = Encoding.UTF8.GetByteCount(item.Text);
            if (item.Size + 3 > options.MaxBytes)
            {
                throw SubmissionManagerException.Of(
                    0, "payload_too_large", request.IntentId + " is larger than a batch", new JsonObject { ["maxBytes"] = (long)options.MaxBytes });
            }
            await room.WaitAsync(cancellation).ConfigureAwait(false);
            lock (locked)
            {
                if (closed)
                {
                    room.Release();
                    throw new InvalidOperationException("the batcher is closed");
                }
                waiting.Add(item);
                bytes += item.Size + 1;
            }
            Start();
            return item.Result.Task;
        }

        /// <summary>Sends what waits, and waits until every submission has its result.</summary>
        public async Task FlushAsync()
        {
            while (true)
            {
                Task[] open;
                lock (locked)
                {
                    due = waiting.Count > 0;
                }
                Start();
                lock (locked)
                {
                    open = sending.ToArray();
                    if (open.Length == 0 && waiting.Count == 0)
                    {
                        return;
                    }
                }
                // Between two batches there may be none for a moment.
                await Task.WhenAny(open.Length == 0 ? new[] { Task.Delay(1) } : open).ConfigureAwait(false);
            }
        }

        /// <summary>Sends what waits, waits for all results, and refuses further submissions.</summary>
        public Task CloseAsync()
        {
            lock (locked)
            {
                closed = true;
            }
            return FlushAsync();
        }

        /// <summary>Sends batches that are full or due, as far as there are slots.</summary>
        void Start()
        {
            while (true)
            {
                List<Item> batch;
                lock (locked)
                {
                    var full = waiting.Count >= options.MaxItems || bytes >= options.MaxBytes;
                    if (waiting.Count == 0 || sending.Count >= options.Concurrency || !(due || full))
                    {
                        StartTimer();
                        return;
                    }
                    var count = Intents.Packed(waiting.Select(each => each.Size), options.MaxItems, options.MaxBytes).First();
                    batch = waiting.GetRange(0, count);
                    waiting.RemoveRange(0, count);
                    bytes -= batch.Sum(each => each.Size + 1L);
                    due = due && waiting.Count > 0;
                    var begin = new TaskCompletionSource<bool>(TaskCreationOptions.RunContinuationsAsynchronously);
                    var sent = Deliver(begin.Task, batch);
                    sending.Add(sent);
                    sent.ContinueWith(Ended, TaskScheduler.Default);
                    begin.SetResult(true);
                }
                room.Release(batch.Count);
            }
        }

        void Ended(Task sent)
        {
            lock (locked)
            {
                sending.Remove(sent);
            }
            Start();
        }

        void StartTimer()
        {
            if (waiting.Count == 0 || due || timed)
            {
                return;
            }
            timed = true;
            Task.Delay(options.MaxDelay).ContinueWith(
                _ =>
                {
                    lock (locked)
                    {
                        timed = false;
                        due = waiting.Count > 0;
                    }
                    Start();
                },
                TaskScheduler.Default);
        }

        async Task Deliver(Task begin, List<Item> batch)
        {
            await begin.ConfigureAwait(false);
            try
            {
                var results = await send(batch.ConvertAll(item => item.Text)).ConfigureAwait(false);
                for (var index = 0; index < batch.Count; index++)
                {
                    if (results[index].Error == null)
                    {
                        batch[index].Result.TrySetResult(results[index].Intent);
                    }
                    else
                    {
                        Fail(batch[index], results[index].Error);
                    }
                }
            }
            catch (Exception error)
            {
                batch.ForEach(item => Fail(item, error));
            }
        }

        static void Fail(Item item, Exception error)
        {
            item.Result.TrySetException(error);
            // Looked at here, so that an error that nobody awaits is not reported as unobserved.
            GC.KeepAlive(item.Result.Task.Exception);
        }
    }
}
