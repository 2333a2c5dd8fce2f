// What the client promises whatever the service does. Each method of `Tests` is a test; `Main` runs them all.

using System;
using System.Collections.Generic;
using System.Linq;
using System.Net.Http;
using System.Reflection;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using SubmissionManager;
using SubmissionManager.Models;

static class Runner
{
    static readonly TimeSpan Patience = TimeSpan.FromSeconds(30);

    static int Main()
    {
        var failed = 0;
        var tests = typeof(Tests).GetMethods(BindingFlags.Public | BindingFlags.Instance | BindingFlags.DeclaredOnly);
        foreach (var test in tests)
        {
            using (var server = new Server())
            {
                try
                {
                    var run = (Task)test.Invoke(new Tests(server), null);
                    if (!run.Wait(Patience))
                    {
                        throw new Exception("it has not ended after " + Patience);
                    }
                }
                catch (Exception error)
                {
                    failed++;
                    Console.WriteLine(test.Name + ": " + error.GetBaseException());
                }
            }
        }
        Console.WriteLine(tests.Length + " tests, " + failed + " failed");
        return failed == 0 ? 0 : 1;
    }
}

sealed class Tests
{
    const string Intent = "{\"intentId\":\"a\",\"submissionTarget\":\"t\",\"createdAt\":\"2026-11-16T09:00:00.204386Z\",\"status\":\"pending\"}";
    static readonly Reply Good = Reply.Of(200, Intent, "Idempotent-Replayed: true\r\n");

    readonly Server server;
    readonly SubmissionManagerClient client;

    public Tests(Server server)
    {
        this.server = server;
        client = Client();
    }

    SubmissionManagerClient Client(Action<ClientOptions> change = null)
    {
        var options = new ClientOptions { Url = server.Url, FirstPause = TimeSpan.FromMilliseconds(1) };
        change?.Invoke(options);
        return new SubmissionManagerClient(options);
    }

    void Answers(params Reply[] replies)
    {
        server.Script.Clear();
        server.Asked.Clear();
        replies.ToList().ForEach(server.Script.Enqueue);
    }

    static void Equal<T>(T found, T expected)
    {
        if (!EqualityComparer<T>.Default.Equals(found, expected))
        {
            throw new Exception("expected " + expected + ", but found " + found);
        }
    }

    static void Same<T>(IEnumerable<T> found, params T[] expected)
    {
        Equal(string.Join(" | ", found), string.Join(" | ", expected));
    }

    static async Task<E> Throws<E>(Func<Task> run) where E : Exception
    {
        try
        {
            await run();
        }
        catch (E error)
        {
            return error;
        }
        throw new Exception("there was no " + typeof(E).Name);
    }

    IEnumerable<string> Paths()
    {
        return server.Asked.Select(asked => asked.Path);
    }

    static Reply Ids(Asked asked)
    {
        var items = (List<object>)JsonObject.Parse("{\"all\":" + asked.Body + "}")["all"];
        return Reply.Of(200, "{\"results\":[" + string.Join(",", items.Select(item => Ok((string)((JsonObject)item)["intentId"]))) + "]}");
    }

    static string Ok(string id)
    {
        return "{\"status\":200,\"intent\":{\"intentId\":\"" + id + "\",\"status\":\"pending\"}}";
    }

    static string Bad(int status, string code)
    {
        return "{\"status\":" + status + ",\"error\":{\"code\":\"" + code + "\",\"message\":\"no\"}}";
    }

    static Reply Results(params string[] items)
    {
        return Reply.Of(200, "{\"results\":[" + string.Join(",", items) + "]}");
    }

    IEnumerable<string> Batches()
    {
        return server.Asked.Select(asked => string.Join(",", ((List<object>)JsonObject.Parse("{\"all\":" + asked.Body + "}")["all"])
            .Select(item => (string)((JsonObject)item)["intentId"])));
    }

    public async Task RepeatsTheSameBytesUntilThereIsAnAnswer()
    {
        Answers(Reply.HangUp, Reply.Error(503, "overloaded", "Retry-After: 0\r\n"), Reply.Of(502, "<html>"), Reply.Of(429), Good);
        var found = await Client(options => options.Token = "secret").Intents.SubmitAsync(
            "a", "t", new { text = "å", n = 1 }, new SubmitOptions { WaitSeconds = 3 });
        Equal(found.Replayed, true);
        Equal(found.CreatedAt.Value.UtcDateTime, new DateTime(2026, 11, 16, 9, 0, 0).AddTicks(2043860));
        Equal(server.Asked.Count, 5);
        foreach (var asked in server.Asked)
        {
            Equal(asked.Path, "/v1/intents?waitSeconds=3");
            Equal(asked.Header("Authorization"), "Bearer secret");
            Equal(asked.Body, "{\"intentId\":\"a\",\"submissionTarget\":\"t\",\"payload\":{\"text\":\"å\",\"n\":1}}");
        }
    }

    public async Task PayloadsKeepTheirBytes()
    {
        const string raw = "{ \"n\": 1.00, \"n\": 2,\n \"text\": \"\\u00e5\" }";
        var payloads = new Dictionary<object, string>
        {
            { new RawJson(raw), raw }, { Encoding.UTF8.GetBytes(raw), raw }, { RawJson.Null, "null" },
            { "line\n\u0001\"", "\"line\\n\\u0001\\\"\"" }, { false, "false" }, { 7, "7" }, { 1.5, "1.5" },
            { new object[] { 1, null, "x" }, "[1,null,\"x\"]" },
            { new JsonObject { ["to"] = "+46", ["deep"] = new JsonObject() }, "{\"to\":\"+46\",\"deep\":{}}" },
            { new Dictionary<string, object> { { "a", new[] { 1, 2 } } }, "{\"a\":[1,2]}" },
        };
        foreach (var payload in payloads)
        {
            Answers(Good);
            await client.Intents.SubmitAsync("a", "t", payload.Key);
            Equal(server.Asked[0].Body, "{\"intentId\":\"a\",\"submissionTarget\":\"t\",\"payload\":" + payload.Value + "}");
        }
        Answers(Good);
        await client.Intents.SubmitAsync("a", "t", null, new SubmitOptions { NotBefore = new DateTimeOffset(2026, 11, 17, 9, 0, 0, TimeSpan.FromHours(1)) });
        Equal(server.Asked[0].Body, "{\"intentId\":\"a\",\"submissionTarget\":\"t\",\"notBefore\":\"2026-11-17T08:00:00Z\"}");
    }

    public async Task WhatIsRefusedForGoodIsNotRepeated()
    {
        var kinds = new Dictionary<string, Type>
        {
            { "invalid_request", typeof(InvalidRequestException) }, { "unauthorized", typeof(UnauthorizedException) },
            { "management_node_not_found", typeof(ManagementNodeNotFoundException) },
            { "idempotency_conflict", typeof(IdempotencyConflictException) }, { "cursor_expired", typeof(CursorExpiredException) },
            { "internal_error", typeof(InternalErrorException) }, { "new_code", typeof(SubmissionManagerException) },
        };
        foreach (var kind in kinds)
        {
            Answers(Reply.Error(409, kind.Key));
            var error = await Throws<SubmissionManagerException>(() => client.Intents.GetAsync("a"));
            Equal(error.GetType(), kind.Value);
            Equal(error.Code, kind.Key);
            Equal(error.Message, "409 " + kind.Key + ": no");
            Same((List<object>)error.Details["conflictingFields"], "payload");
            Equal(server.Asked.Count, 1);
        }
        Equal(typeof(ConflictException).IsAssignableFrom(typeof(AttemptInProgressException)), true);
        Equal(typeof(NotFoundException).IsAssignableFrom(typeof(ManagementNodeNotFoundException)), true);
    }

    public async Task GivesUpInTheEnd()
    {
        Answers(Enumerable.Repeat(Reply.Error(503, "overloaded", "Retry-After: 0\r\n"), 5).ToArray());
        var error = await Throws<OverloadedException>(() => client.Intents.GetAsync("a"));
        Equal(error.RetryAfter, TimeSpan.Zero);
        Equal(server.Asked.Count, 5);
        // More than five, because the runtime itself repeats a request on a kept connection that was closed.
        Answers(Enumerable.Repeat(Reply.HangUp, 10).ToArray());
        await Throws<UnreachableException>(() => client.Intents.GetAsync("a"));
        Answers(Reply.Error(503, "overloaded", "Retry-After: 3600\r\n"));
        Equal((await Throws<OverloadedException>(() => client.Intents.GetAsync("a"))).RetryAfter, TimeSpan.FromHours(1));
        Equal(server.Asked.Count, 1);
    }

    public async Task PausesGrowAndRespectRetryAfter()
    {
        await Task.Yield();
        var transport = new Transport(new ClientOptions());
        for (var number = 1; number <= 5; number++)
        {
            TimeSpan pause;
            var error = SubmissionManagerException.Of(503, "overloaded", "", null, TimeSpan.FromSeconds(1));
            Equal(transport.PauseBeforeRetry(new Call(), number, error, out pause), number < 5);
            var longest = 1 + 0.25 * Math.Pow(2, number - 1);
            Equal(pause.TotalSeconds <= longest && pause.TotalSeconds >= 1 + (longest - 1) / 2, true);
        }
    }

    public async Task ATimeoutIsUnreachableAndRepeated()
    {
        Answers(Reply.Silence, Good);
        var impatient = Client(options => options.Timeout = TimeSpan.FromMilliseconds(500));
        Equal((await impatient.Intents.GetAsync("a")).IntentId, "a");
        Answers(Reply.Silence);
        var error = await Throws<UnreachableException>(() => Client(options =>
        {
            options.Timeout = TimeSpan.FromMilliseconds(50);
            options.MaxRetries = 0;
        }).Intents.GetAsync("a"));
        Equal(error.Message.Contains("no answer within 0.05 s"), true);
    }

    public async Task ACallCanBeCancelled()
    {
        foreach (var reply in new[] { Reply.Silence, Reply.Error(503, "overloaded", "Retry-After: 20\r\n") })
        {
            Answers(reply);
            var source = new CancellationTokenSource();
            var call = client.Intents.GetAsync("a", source.Token);
            while (server.Asked.Count == 0)
            {
                await Task.Delay(1);
            }
            source.Cancel();
            await Throws<OperationCanceledException>(() => call);
        }
    }

    public async Task WhatIsNotSafeToRepeatIsNotRepeatedAfterALostAnswer()
    {
        foreach (var reply in new[] { Reply.HangUp, Reply.Error(503, "store_unavailable", "Retry-After: 0\r\n"), Reply.Of(502) })
        {
            Answers(reply);
            await Throws<SubmissionManagerException>(() => client.Redrives.StartAsync("r"));
            Equal(server.Asked.Count, 1);
        }
        Answers(Reply.Error(503, "overloaded", "Retry-After: 0\r\n"), Reply.Of(200, "{\"redriveId\":\"r\"}"));
        Equal((await client.Redrives.StartAsync("r", 5)).RedriveId, "r");
        Equal(server.Asked[1].Body, "{\"ratePerSecond\":5}");
    }

    public async Task AnswersOfSomethingElse()
    {
        foreach (var reply in new[] { Reply.Of(200, "<html> Welcome"), Reply.Of(200, "[\"Welcome\"]"), Reply.Of(404, "<html> Welcome"), Reply.Of(404, "{\"error\":\"Welcome\"}"),
            Reply.Of(302, "Welcome", "Location: " + server.Url + "/elsewhere\r\n") })
        {
            Answers(reply);
            var error = await Throws<UnexpectedAnswerException>(() => client.Intents.GetAsync("a"));
            Equal(error.Status, reply.Status);
            Equal(error.Message.Contains("Welcome"), true);
            Equal(server.Asked.Count, 1);
        }
    }

    public async Task WhatCannotBeSentIsAnErrorOfTheClient()
    {
        Answers();
        var circle = new JsonObject();
        circle["self"] = circle;
        foreach (var payload in new object[] { "\ud83d", new RawJson("1,\"submissionTarget\":\"other\""), new RawJson("\"\ud83d\""), double.NaN,
            circle, new Uri("http://a"), new byte[] { 0xff }, new Dictionary<string, object> { { "\ud83d", 1 } } })
        {
            Equal((await Throws<InvalidRequestException>(() => client.Intents.SubmitAsync("a", "t", payload))).Status, 0);
        }
        foreach (var id in new[] { "", ".", "..", "\ud83d" })
        {
            await Throws<InvalidRequestException>(() => client.Intents.GetAsync(id));
        }
        var form = new InboxSubmissionRequest { ClientSlug = "acme", Channel = "form", Payload = 1 };
        await Throws<InvalidRequestException>(() => client.Inbox.SubmitAsync(form, "schlüssel-€"));
        await Throws<InvalidRequestException>(() => client.Inbox.SubmitAsync(form, "a\r\nX-Other: b"));
        Equal(server.Asked.Count, 0);
    }

    public async Task IdsAreEncodedAndKeysAreRepeated()
    {
        Answers(Good);
        await client.Intents.GetAsync("a/../b?c å%2F");
        Same(Paths(), "/v1/intents/a%2F..%2Fb%3Fc%20%C3%A5%252F");
        var received = Reply.Of(202, "{\"id\":\"x\"}");
        Answers(Reply.HangUp, received, received);
        var form = new InboxSubmissionRequest { ClientSlug = "acme", Channel = "form", Payload = new { } };
        await client.Inbox.SubmitAsync(form);
        await client.Inbox.SubmitAsync(form, "form-1");
        var keys = server.Asked.Select(asked => asked.Header("Idempotency-Key")).ToList();
        Equal(keys[0], keys[1]);
        Equal(keys[2], "form-1");
        Equal(server.Asked[0].Body, "{\"client_slug\":\"acme\",\"channel\":\"form\",\"payload\":{}}");
    }

    public async Task TokensAreAskedForAndAnswersTold()
    {
        Answers(Reply.Of(503), Good);
        var tokens = new Queue<string>(new[] { "old", "new" });
        var told = new List<int>();
        await Client(options =>
        {
            options.TokenProvider = () => Task.FromResult(tokens.Dequeue());
            options.OnAnswer = response => told.Add((int)response.StatusCode);
        }).Intents.GetAsync("a");
        Same(server.Asked.Select(asked => asked.Header("Authorization")), "Bearer old", "Bearer new");
        Same(told, 503, 200);
    }

    public async Task AListFetchesItsPagesWhenTheyAreNeeded()
    {
        Answers(Reply.Of(200, "{\"intents\":[{\"intentId\":\"1\"},{\"intentId\":\"2\"}],\"nextCursor\":\"c/1\"}"), Reply.HangUp,
            Reply.Of(200, "{\"intents\":[{\"intentId\":\"3\"}],\"nextCursor\":null}"));
        var intents = client.Intents.List(new IntentFilter { Status = "exhausted", Limit = 2 }).GetAsyncEnumerator();
        Equal(server.Asked.Count, 0);
        var ids = new List<string>();
        while (await intents.MoveNextAsync())
        {
            ids.Add(intents.Current.IntentId);
        }
        Same(ids, "1", "2", "3");
        const string query = "/v1/intents?status=exhausted&limit=2";
        Same(Paths(), query, query + "&cursor=c%2F1", query + "&cursor=c%2F1");
        Answers(Reply.Of(200, "{\"something\":\"else\"}"));
        await Throws<UnexpectedAnswerException>(() => client.Intents.List().GetPageAsync());
    }

    public async Task WaitPollsUntilTheEnd()
    {
        Answers(Good, Good, Good, Reply.Of(200, Intent.Replace("pending", "accepted")));
        Equal((await client.Intents.SubmitAndWaitAsync("a", "t", null, TimeSpan.FromSeconds(5))).Status, "accepted");
        Same(Paths(), "/v1/intents?waitSeconds=5", "/v1/intents/a", "/v1/intents/a", "/v1/intents/a");
        Answers(Good);
        var error = await Throws<WaitTimeoutException>(() => client.Intents.WaitAsync("a", TimeSpan.Zero));
        Equal(error.Intent.Status, "pending");
    }

    public async Task OtherCalls()
    {
        Answers(Reply.Error(409, "attempt_in_progress"), Reply.Of(202, "{\"intentId\":\"a\",\"mayHaveBeenSent\":true}"),
            Reply.Of(200, "{\"entries\":[]}"), Reply.HangUp);
        await Throws<AttemptInProgressException>(() => client.Intents.CancelAsync("a"));
        Equal((await client.Intents.CancelAsync("a", true)).MayHaveBeenSent, true);
        Equal((await client.RequestAsync(HttpMethod.Get, "/v1/audit?limit=5")).ToString(), "{\"entries\":[]}");
        await Throws<UnreachableException>(() => client.RequestAsync(HttpMethod.Post, "/v1/new", new { a = 1 }));
        Same(Paths(), "/v1/intents/a/cancel", "/v1/intents/a/cancel?afterAttempt=true", "/v1/audit?limit=5", "/v1/new");
    }

    public async Task EachItemOfABatchHasItsResult()
    {
        Answers(
            Results(Ok("a"), Bad(503, "overloaded"), Bad(400, "invalid_request"), Bad(503, "store_unavailable")),
            Results(Bad(503, "overloaded"), Ok("d")),
            Results(Ok("b").Replace("{\"status\":200", "{\"status\":200,\"replayed\":true")));
        var found = await client.Intents.SubmitBatchAsync(
            new[] { "a", "b", "c", "d" }.Select(id => new SubmitRequest { IntentId = id, SubmissionTarget = "t", Payload = new RawJson("{ }") }));
        Same(Batches(), "a,b,c,d", "b,d", "b");
        Same(found.Select(each => each.Intent?.IntentId ?? each.Error.Code), "a", "b", "invalid_request", "d");
        Same(found.Select(each => each.Intent?.Replayed == true), false, true, false, false);
        Equal(server.Asked[2].Body, "[{\"intentId\":\"b\",\"submissionTarget\":\"t\",\"payload\":{ }}]");
    }

    public async Task ALongListIsDivided()
    {
        server.Answers = Ids;
        var ids = Enumerable.Range(0, 2100).Select(number => "i" + number).ToArray();
        var found = await client.Intents.SubmitBatchAsync(ids.Select(id => new SubmitRequest { IntentId = id, SubmissionTarget = "t" }));
        Same(found.Select(each => each.Intent.IntentId), ids);
        Same(Batches().Select(batch => batch.Split(',').Length), 1000, 1000, 100);
        Same(Intents.Packed(new[] { 40, 40, 40, 200, 1 }, 10, 100), 2, 1, 1, 1);
    }

    public async Task AFailureOfTheWholeIsThrownIfNothingWasStored()
    {
        Answers(Reply.Error(401, "unauthorized"));
        var ids = Enumerable.Range(0, 1001).Select(number => "i" + number).ToArray();
        var requests = ids.Select(id => new SubmitRequest { IntentId = id, SubmissionTarget = "t" });
        await Throws<UnauthorizedException>(() => client.Intents.SubmitBatchAsync(requests));
        Answers(Results(ids.Take(1000).Select(Ok).ToArray()), Reply.Error(401, "unauthorized"));
        var found = await client.Intents.SubmitBatchAsync(requests);
        Equal(found.Count(each => each.Intent != null), 1000);
        Equal(found[1000].Error is UnauthorizedException, true);
    }

    public async Task ABatcherSendsWhatCameTogether()
    {
        server.Answers = Ids;
        var batcher = client.Intents.CreateBatcher(new BatcherOptions { MaxItems = 10, MaxDelay = TimeSpan.FromMinutes(1) });
        var results = new List<Task<SubmittedIntent>>();
        for (var number = 0; number < 25; number++)
        {
            results.Add(await batcher.SubmitAsync("i" + number, "t", new { number }));
        }
        // The last five are sent by closing, not by time.
        await batcher.CloseAsync();
        Same((await Task.WhenAll(results)).Select(intent => intent.IntentId), Enumerable.Range(0, 25).Select(number => "i" + number).ToArray());
        Same(Batches().Select(batch => batch.Split(',').Length), 10, 10, 5);
        await Throws<InvalidOperationException>(() => batcher.SubmitAsync("x", "t"));
    }

    public async Task ABatcherSendsAfterADelay()
    {
        server.Answers = Ids;
        var batcher = client.Intents.CreateBatcher(new BatcherOptions { MaxDelay = TimeSpan.FromMilliseconds(5) });
        Equal((await await batcher.SubmitAsync("a", "t")).IntentId, "a");
        await batcher.SubmitAsync("b", "t");
        await batcher.FlushAsync();
        Same(Batches(), "a", "b");
    }

    public async Task ABatcherRespectsTheLimitOfBytes()
    {
        server.Answers = Ids;
        var batcher = client.Intents.CreateBatcher(new BatcherOptions { MaxBytes = 300, MaxDelay = TimeSpan.FromMinutes(1) });
        for (var number = 0; number < 7; number++)
        {
            // Two bytes each as UTF-8.
            await batcher.SubmitAsync("i" + number, "t", new string('å', 30));
        }
        await Throws<PayloadTooLargeException>(() => batcher.SubmitAsync("big", "t", new string('x', 300)));
        await batcher.CloseAsync();
        Equal(server.Asked.All(asked => Encoding.UTF8.GetByteCount(asked.Body) <= 300), true);
        Same(Batches().Select(batch => batch.Split(',').Length), 2, 2, 2, 1);
    }

    public async Task ABatcherGivesEachCallerItsOwnError()
    {
        Answers(new[] { Results(Ok("a"), Bad(409, "idempotency_conflict")) }.Concat(Enumerable.Repeat(Reply.HangUp, 10)).ToArray());
        var batcher = client.Intents.CreateBatcher(new BatcherOptions { MaxItems = 2, MaxDelay = TimeSpan.FromMinutes(1) });
        var one = await batcher.SubmitAsync("a", "t");
        var two = await batcher.SubmitAsync("b", "t");
        Equal((await one).Replayed, false);
        await Throws<IdempotencyConflictException>(() => two);
        var lost = await batcher.SubmitAsync("c", "t");
        await batcher.FlushAsync();
        await Throws<UnreachableException>(() => lost);
    }

    public async Task ManyCallersShareABatcherWithLittleRoom()
    {
        server.Answers = Ids;
        var batcher = client.Intents.CreateBatcher(
            new BatcherOptions { MaxItems = 4, MaxWaiting = 2, MaxDelay = TimeSpan.FromMilliseconds(1), Concurrency = 2 });
        var found = await Task.WhenAll(Enumerable.Range(0, 4).Select(caller => Task.Run(async () =>
        {
            var ids = new List<string>();
            for (var number = 0; number < 10; number++)
            {
                ids.Add((await await batcher.SubmitAsync(caller + "-" + number, "t")).IntentId);
            }
            return ids;
        })));
        Equal(found.SelectMany(ids => ids).Distinct().Count(), 40);
    }

    static string Json(int number)
    {
        return "{\"eventId\":\"e" + number + "\",\"eventType\":\"intent.terminal\",\"intent\":{}}";
    }

    static string Sse(params int[] numbers)
    {
        return string.Concat(numbers.Select(number => "id: c" + number + "\nevent: intent.terminal\ndata: " + Json(number) + "\n\n"));
    }

    static Reply Page(string next, params int[] numbers)
    {
        return Reply.Of(200, "{\"events\":[" + string.Join(",", numbers.Select(Json)) + "],\"nextCursor\":\"" + next + "\"}");
    }

    static async Task<string> Next(EventFeed<Event> feed)
    {
        Equal(await feed.MoveNextAsync(), true);
        return feed.Current.EventId + " " + feed.Cursor;
    }

    public async Task AStreamGoesOnWhereItBroke()
    {
        // A comment, an event in two pieces; then it breaks in the middle of the third event.
        var whole = ": hello\n\n" + Sse(1);
        Answers(
            Reply.Stream(End.Cut, whole.Substring(0, 30), whole.Substring(30), Sse(2) + Sse(3).Substring(0, 20)),
            Reply.HangUp, Reply.Stream(End.Clean, Sse(3)), Reply.Stream(End.Hold, Sse(4, 5)));
        using (var feed = client.Events.Follow(new FeedOptions { SubmissionTarget = "t" }))
        {
            for (var number = 1; number <= 5; number++)
            {
                Equal(await Next(feed), "e" + number + " c" + number);
            }
        }
        Same(server.Asked.Select(asked => asked.Header("Last-Event-ID")), null, "c2", "c2", "c3");
        Same(Paths().Distinct(), "/v1/events/stream?submissionTarget=t");
    }

    public async Task NowIsACursorBeforeTheStreamBegins()
    {
        Answers(Page("c7"), Reply.HangUp, Reply.Stream(End.Hold, "retry: 1\n: no events\nid: c7x\n\n", Sse(8)));
        using (var feed = client.Events.Follow(new FeedOptions { After = "now" }))
        {
            Equal(await Next(feed), "e8 c8");
        }
        Same(Paths(), "/v1/events?after=now&limit=1", "/v1/events/stream", "/v1/events/stream");
        Same(server.Asked.Select(asked => asked.Header("Last-Event-ID")), null, "c7", "c7");
    }

    public async Task PollingGoesOnAfterFailures()
    {
        Answers(Page("c2", 1, 2), Reply.Error(503, "overloaded", "Retry-After: 0\r\n"), Reply.HangUp, Page("c2"), Page("c3", 3));
        using (var feed = client.Events.Follow(new FeedOptions { Poll = true }))
        {
            Equal(await Next(feed), "e1 ");
            Equal(await Next(feed), "e2 c2");
            Equal(await Next(feed), "e3 c3");
        }
        const string next = "/v1/events?after=c2&waitSeconds=30";
        Same(Paths(), "/v1/events?waitSeconds=30", next, next, next, next);
    }

    public async Task TheFirstConnectionIsNotTriedForEver()
    {
        foreach (var poll in new[] { false, true })
        {
            Answers(Reply.HangUp, Reply.HangUp, Reply.HangUp);
            var feed = Client(options => options.MaxRetries = 2).Events.Follow(new FeedOptions { Poll = poll });
            await Throws<UnreachableException>(() => feed.MoveNextAsync());
            Equal(server.Asked.Count, 3);
        }
    }

    public async Task AFeedThatWasConnectedReconnectsWithoutALimit()
    {
        Answers(new[] { Reply.Stream(End.Clean, Sse(1)) }.Concat(Enumerable.Repeat(Reply.HangUp, 7))
            .Concat(new[] { Reply.Stream(End.Hold, Sse(2)) }).ToArray());
        using (var feed = Client(options => options.MaxRetries = 0).Events.Follow())
        {
            Equal(await Next(feed), "e1 c1");
            Equal(await Next(feed), "e2 c2");
        }
    }

    public async Task ErrorsThatLastAreThrown()
    {
        Answers(Reply.Stream(End.Clean, Sse(1)), Reply.Error(410, "cursor_expired"));
        var feed = client.Events.Follow();
        await Next(feed);
        await Throws<CursorExpiredException>(() => feed.MoveNextAsync());
        Answers(Reply.Stream(End.Hold, "data: <html>\n\n"));
        await Throws<UnexpectedAnswerException>(() => client.Events.Follow().MoveNextAsync());
    }

    public async Task AFeedThatWaitsCanBeClosedAndCancelled()
    {
        foreach (var poll in new[] { false, true })
        {
            foreach (var cancels in new[] { false, true })
            {
                Answers(poll ? Reply.Silence : Reply.Stream(End.Hold, ": hello\n\n"));
                var source = new CancellationTokenSource();
                var feed = client.Events.Follow(new FeedOptions { Poll = poll }, source.Token);
                var next = feed.MoveNextAsync();
                while (server.Asked.Count == 0)
                {
                    await Task.Delay(1);
                }
                if (cancels)
                {
                    source.Cancel();
                    await Throws<OperationCanceledException>(() => next);
                }
                else
                {
                    feed.Dispose();
                    Equal(await next, false);
                }
            }
        }
    }

    public async Task EventsOfJobs()
    {
        const string job = "{\"event_id\":\"e1\",\"job\":{\"job_id\":\"j\"}}";
        Answers(Reply.Stream(End.Hold, "id: j1\ndata: " + job + "\n\n"), Reply.Of(200, "{\"events\":[" + job + "],\"next_cursor\":\"j2\"}"));
        using (var feed = client.Jobs.Follow("acme"))
        {
            await feed.MoveNextAsync();
            Equal(feed.Current.Job.JobId + " " + feed.Cursor, "j j1");
        }
        using (var feed = client.Jobs.Follow("acme", "w1", new FeedOptions { After = "j1", Poll = true }))
        {
            await feed.MoveNextAsync();
            Equal(feed.Cursor, "j2");
        }
        Same(Paths(), "/v1/jobs/events/stream?tenant_id=acme", "/v1/jobs/events?tenant_id=acme&workspace_id=w1&after=j1&wait_seconds=30");
    }

    public async Task PiecesOfAnySizeGiveTheSameEvents()
    {
        await Task.Yield();
        var text = Encoding.UTF8.GetBytes(
            ": hi\r\n\r\nid: 1\r\nevent: x\r\ndata: a\r\ndata:b\r\n\r\nid:2\rdata: c\r\rid: 3\n\ndata: å\n\nretry: 9\n\ndata: half");
        foreach (var size in new[] { 1, 2, 3, 7, text.Length })
        {
            var parser = new SseParser();
            var found = new List<string>();
            for (var start = 0; start < text.Length; start += size)
            {
                var piece = text.Skip(start).Take(size).ToArray();
                found.AddRange(parser.Feed(piece, piece.Length).Select(each => (each.Key ?? "-") + ":" + (each.Value ?? "-")));
            }
            Same(found, "1:a\nb", "2:c", "3:-", "-:å");
            Equal(parser.Retry, TimeSpan.FromMilliseconds(9));
        }
        await Throws<UnexpectedAnswerException>(() => Task.FromResult(new SseParser().Feed(new byte[2000000], 2000000).Count()));
    }

    public async Task WebhooksAreVerified()
    {
        const string secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", id = "msg_p5jXN8AQM9LWM0D4loKWxJek", at = "1614265330";
        const string signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        var other = "whsec_" + Convert.ToBase64String(new byte[24]);
        var body = Encoding.UTF8.GetBytes("{\"test\": 2432232314}");
        var now = DateTimeOffset.FromUnixTimeSeconds(1614265330);
        Equal((long)new WebhookVerifier(secret).Verify(body, id, at, signature, now).Json["test"], 2432232314L);
        new WebhookVerifier(other + " " + secret).Verify(body, id, at, "v1,AAAA " + signature, now.AddMinutes(5));
        var wrong = new Action[]
        {
            () => new WebhookVerifier(other).Verify(body, id, at, signature, now),
            () => new WebhookVerifier(secret).Verify(body.Concat(new byte[] { 32 }).ToArray(), id, at, signature, now),
            () => new WebhookVerifier(secret).Verify(body, "msg_other", at, signature, now),
            () => new WebhookVerifier(secret).Verify(body, id, at, signature, now.AddSeconds(301)),
            () => new WebhookVerifier(secret).Verify(body, id, at, signature, now.AddSeconds(-301)),
            () => new WebhookVerifier(secret).Verify(body, id, "soon", signature, now),
            () => new WebhookVerifier(secret).Verify(body, id, at, "v1,å", now),
            () => new WebhookVerifier(secret).Verify(body, null, null, null, now),
        };
        foreach (var each in wrong)
        {
            await Throws<WebhookVerificationException>(() => Task.Run(each));
        }
        foreach (var secrets in new[] { "", " ", "whsec_", "whsec_!" })
        {
            await Throws<ArgumentException>(() => Task.Run(() => new WebhookVerifier(secrets)));
        }
    }

    public async Task JsonIsReadStrictly()
    {
        var read = JsonObject.Parse(" {\"a\" : [1, -2.5e3, true, null, \"\\u00e5\\n\"], \"b\":{}, \"big\": 123456789012345678901} ");
        Equal(read.ToString(), "{\"a\":[1,-2500,true,null,\"å\\n\"],\"b\":{},\"big\":1.2345678901234568E+20}");
        foreach (var text in new[] { "", "{", "[]", "{\"a\":1,}", "{a:1}", "{\"a\":01}", "{\"a\":1} x", "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}", "{\"a\":tru}",
            "{\"a\":.5}", "{\"a\":-}", "{\"a\":1e}", "{\"a\":\"\\u12\"}", "{\"a\" 1}", "{\"a\":" + new string('[', 100000) })
        {
            await Throws<FormatException>(() => Task.Run(() => JsonObject.Parse(text)));
        }
    }

    public async Task UrlsThatCannotBe()
    {
        foreach (var url in new[] { "", "127.0.0.1:8082", "ftp://example", "http://", "file:///etc/passwd", "http://a?b", "http://a:b", "http://user@a" })
        {
            await Throws<ArgumentException>(() => Task.Run(() => new SubmissionManagerClient(url)));
        }
        foreach (var url in new[] { "https://submissions.example/below", "http://[::1]:8082/", "http://localhost" })
        {
            new SubmissionManagerClient(url).Dispose();
        }
        await Throws<ArgumentException>(() => Task.Run(() => client.Intents.CreateBatcher(new BatcherOptions { MaxItems = 1001 })));
    }
}
