// Submits an intent to a Submission Manager in C# and follows it, step by step, with the client in clients/dotnet.
//
//   dotnet run --project examples/csharp
//
// SM_URL is the address of the service (http://127.0.0.1:8082 by default). With SM_TOKEN, a job is submitted too. Made for
// `submission-manager demo`, whose gateways answer as "simulate" in a payload says. Exits with 1 if an answer is not as
// promised. It is C# 7, so that Mono's compiler can build it: in C# 8, the loops can be `await foreach`.

using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading.Tasks;
using SubmissionManager;
using SubmissionManager.Models;

public static class Program
{
    /// <summary>Longer than the deadline of sms.realtime, which is 30 s.</summary>
    static readonly TimeSpan Patience = TimeSpan.FromSeconds(60);

    public static int Main()
    {
        var token = Setting("SM_TOKEN");
        try
        {
            using (var client = new SubmissionManagerClient(Setting("SM_URL") ?? "http://127.0.0.1:8082", token))
            {
                Run(client, token != null).GetAwaiter().GetResult();
            }
            return 0;
        }
        catch (Exception error) when (error is SubmissionManagerException || error is InvalidOperationException || error is ArgumentException)
        {
            Console.Error.WriteLine(error.Message);
            return 1;
        }
    }

    static string Setting(string name)
    {
        var value = Environment.GetEnvironmentVariable(name);
        return string.IsNullOrEmpty(value) ? null : value;
    }

    static void Expect(bool promised, string what)
    {
        if (!promised)
        {
            throw new InvalidOperationException("not as promised: " + what);
        }
    }

    static async Task Run(SubmissionManagerClient client, bool withJob)
    {
        var run = "example-cs-" + Guid.NewGuid().ToString("N").Substring(0, 12);
        await Submit(client, run).ConfigureAwait(false);
        await Follow(client, run).ConfigureAwait(false);
        await SubmitMany(client, run).ConfigureAwait(false);
        if (withJob)
        {
            await SubmitJob(client, run).ConfigureAwait(false);
        }
        else
        {
            Console.WriteLine("no job: SM_TOKEN is not set");
        }
    }

    static async Task Submit(SubmissionManagerClient client, string run)
    {
        // Your key: submitting the same id again returns the same intent.
        var id = run + "-hello";
        // RawJson takes what your JSON library has serialized; an anonymous object does for a few fields.
        var payload = new { to = "+46700000001", message = "Hello" };
        var options = new SubmitOptions { WaitSeconds = 10 };
        var intent = await client.Intents.SubmitAsync(id, "sms.realtime", payload, options).ConfigureAwait(false);
        Console.WriteLine("submitted " + intent.IntentId + ": " + intent.Status);
        Expect(intent.Status == "accepted" && !intent.Replayed, "a new intent that is accepted");

        var again = await client.Intents.SubmitAsync(id, "sms.realtime", payload).ConfigureAwait(false);
        Console.WriteLine("submitted the same again: it was there before, since " + again.CreatedAt.Value.ToString("O"));
        Expect(again.CreatedAt == intent.CreatedAt && again.Replayed, "the same intent when sent again");

        try
        {
            await client.Intents.SubmitAsync(id, "sms.realtime", new { to = "+46700000001", message = "Something else" }).ConfigureAwait(false);
            Expect(false, "a conflict");
        }
        catch (IdempotencyConflictException error)
        {
            Console.WriteLine("submitted something else under that id: " + error.Message);
            var fields = (List<object>)error.Details["conflictingFields"];
            Expect(fields.SequenceEqual(new object[] { "payload" }), "the fields that differ");
        }
    }

    static async Task Follow(SubmissionManagerClient client, string run)
    {
        var id = run + "-stubborn";
        var payload = new { to = "+46700000001", message = "Hello", simulate = "fail:1" };
        var intent = await client.Intents.SubmitAndWaitAsync(id, "sms.realtime", payload, Patience).ConfigureAwait(false);
        Console.WriteLine(intent.IntentId + " has ended: " + intent.Status);
        var history = await client.Intents.GetHistoryAsync(id).ConfigureAwait(false);
        foreach (var attempt in history.Attempts)
        {
            var outcome = attempt.OutcomeStatus ?? attempt.Error;
            Console.WriteLine("  attempt " + attempt.AttemptNumber + " at " + attempt.StartedAt.Value.ToString("O") + ": " + outcome);
        }
        Expect(intent.Status == "accepted", "an intent that is accepted in the end");
        Expect(history.Attempts.Count == 2, "two attempts");

        var ids = new List<string>();
        var found = client.Intents.List(new IntentFilter { Q = run, Limit = 1 }).GetAsyncEnumerator();
        while (await found.MoveNextAsync().ConfigureAwait(false))
        {
            ids.Add(found.Current.IntentId);
        }
        Console.WriteLine("found by how their ids begin: " + string.Join(", ", ids));
        Expect(ids.SequenceEqual(new[] { run + "-hello", id }), "both intents in the list");
    }

    static async Task SubmitMany(SubmissionManagerClient client, string run)
    {
        var batcher = client.Intents.CreateBatcher();
        var results = new List<Task<SubmittedIntent>>();
        for (var n = 0; n < 1500; n++)
        {
            results.Add(await batcher.SubmitAsync(run + "-many-" + n, "sms.bulk", new { n }).ConfigureAwait(false));
        }
        await batcher.CloseAsync().ConfigureAwait(false);
        var stored = await Task.WhenAll(results).ConfigureAwait(false);
        Console.WriteLine("submitted " + stored.Length + " intents in batches");
        Expect(stored.All(each => !each.Replayed), "every intent of the batches is new");
    }

    static async Task SubmitJob(SubmissionManagerClient client, string run)
    {
        var accepted = await client.Jobs.SubmitAsync(new JobCommand
        {
            TenantId = "acme",
            WorkspaceId = "w1",
            JobId = run + "-job",
            IdempotencyKey = run + "-job-1",
            ManagementNodeId = "node-a",
            ExecutionProfile = new ExecutionProfile { QueueName = "short" },
            ResourceShape = new ResourceShape { Cpu = 4, MemoryMib = 8192, WalltimeSeconds = 600 },
            PayloadRef = new PayloadRef { InputUri = "s3://acme-jobs/1001/input.json" },
            RequestedBy = new RequestedBy { UserId = "user-7" },
        }).ConfigureAwait(false);
        var job = await client.Jobs.GetAsync(accepted.SubmissionId).ConfigureAwait(false);
        Console.WriteLine("job " + job.JobId + " is " + job.Status + ", as submission " + job.SubmissionId);
        Expect(job.JobId == run + "-job", "the job that was submitted");
    }
}
