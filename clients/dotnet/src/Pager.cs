// Lists that fetch their pages as they are read.

using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;

namespace SubmissionManager
{
    /// <summary>One page of a list.</summary>
    public sealed class Page<T>
    {
        /// <summary>The items, in the order of the list.</summary>
        public IReadOnlyList<T> Items { get; internal set; }

        /// <summary>The cursor of the next page; null on the last page.</summary>
        public string NextCursor { get; internal set; }
    }

    /// <summary>
    /// All items of a list, for <c>await foreach</c>. It may be iterated several times, each from the start.
    ///
    /// This is not <c>IAsyncEnumerable</c>, which netstandard2.0 has only in a package. <c>await foreach</c> needs no
    /// interface, and where the language has none, <c>while (await items.MoveNextAsync())</c> does the same.
    /// </summary>
    public sealed class Pager<T> where T : Models.Model, new()
    {
        readonly Transport transport;
        readonly string path;
        readonly string key;
        readonly Query query;
        readonly CancellationToken cancellation;
        readonly string nextKey;

        internal Pager(
            Transport transport, string path, string key, Query query, CancellationToken cancellation, string nextKey = "nextCursor")
        {
            this.transport = transport;
            this.path = path;
            this.key = key;
            this.query = query;
            this.cancellation = cancellation;
            this.nextKey = nextKey;
        }

        /// <summary>One page: the first one, or the one after a <c>NextCursor</c>.</summary>
        public async Task<Page<T>> GetPageAsync(string cursor = null)
        {
            var call = new Call { Template = path, Query = query.With("cursor", cursor) };
            var answer = await transport.Answer(call, cancellation).ConfigureAwait(false);
            var found = Models.Model.Of<Found>(answer.Json());
            return new Page<T> { Items = found.GetModels<T>(key) ?? throw answer.Unexpected(), NextCursor = found.GetString(nextKey) };
        }

        /// <summary>The first <c>most</c> items.</summary>
        public async Task<List<T>> TakeAsync(int most)
        {
            var taken = new List<T>();
            var items = GetAsyncEnumerator();
            while (taken.Count < most && await items.MoveNextAsync().ConfigureAwait(false))
            {
                taken.Add(items.Current);
            }
            return taken;
        }

        /// <summary>An enumerator over all items; <c>await foreach</c> calls it.</summary>
        public PagerEnumerator<T> GetAsyncEnumerator()
        {
            return new PagerEnumerator<T>(this);
        }

        sealed class Found : Models.Model
        {
        }
    }

    /// <summary>Goes through the items of a list and fetches its pages.</summary>
    public sealed class PagerEnumerator<T> where T : Models.Model, new()
    {
        readonly Pager<T> pager;
        readonly Queue<T> ready = new Queue<T>();
        string cursor;
        bool ended;

        internal PagerEnumerator(Pager<T> pager)
        {
            this.pager = pager;
        }

        /// <summary>The item that the last <c>MoveNextAsync</c> found.</summary>
        public T Current { get; private set; }

        /// <summary>Goes to the next item; false at the end.</summary>
        public async Task<bool> MoveNextAsync()
        {
            while (ready.Count == 0)
            {
                if (ended)
                {
                    return false;
                }
                var page = await pager.GetPageAsync(cursor).ConfigureAwait(false);
                page.Items.ToList().ForEach(ready.Enqueue);
                cursor = page.NextCursor;
                ended = cursor == null;
            }
            Current = ready.Dequeue();
            return true;
        }
    }
}
