// Submits an intent to a Submission Manager in C# and follows it, step by step.
//
//   dotnet run --project examples/csharp
//   mcs -r:System.Net.Http -r:System.Runtime.Serialization -out:submit.exe examples/csharp/Program.cs && mono submit.exe
//
// SM_URL is the address of the service (http://127.0.0.1:8082 by default). With SM_TOKEN, a job is submitted too. Made for
// `submission-manager demo`, whose gateways answer as "simulate" in a payload says. Exits with 1 if an answer is not as
// promised. One file for .NET 8 and Mono: C# 7, and the JSON serializer that both have.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Net.Http;
using System.Net.Http.Headers;
using System.Runtime.Serialization;
using System.Runtime.Serialization.Json;
using System.Threading.Tasks;

// The JSON of requests and answers, with the fields that are used here.

[DataContract]
public class SubmitRequest
{
    [DataMember(Name = "intentId", Order = 1)] public string IntentId { get; set; }
    [DataMember(Name = "submissionTarget", Order = 2)] public string SubmissionTarget { get; set; }
    [DataMember(Name = "payload", Order = 3)] public Message Payload { get; set; }
}

/// <summary>The payload for the gateway; you define its fields.</summary>
[DataContract]
public class Message
{
    [DataMember(Name = "to", Order = 1)] public string To { get; set; }
    [DataMember(Name = "message", Order = 2)] public string Text { get; set; }
    [DataMember(Name = "simulate", Order = 3, EmitDefaultValue = false)] public string Simulate { get; set; }
}

[DataContract]
public class Intent
{
    [DataMember(Name = "intentId")] public string IntentId { get; set; }
    [DataMember(Name = "createdAt")] public string CreatedAt { get; set; }
    [DataMember(Name = "status")] public string Status { get; set; }
}

[DataContract]
public class Attempt
{
    [DataMember(Name = "attemptNumber")] public int AttemptNumber { get; set; }
    [DataMember(Name = "startedAt")] public string StartedAt { get; set; }
    [DataMember(Name = "outcomeStatus")] public string OutcomeStatus { get; set; }
    [DataMember(Name = "error")] public string Error { get; set; }
}

[DataContract]
public class History
{
    [DataMember(Name = "intent")] public Intent Intent { get; set; }
    [DataMember(Name = "attempts")] public Attempt[] Attempts { get; set; }
}

[DataContract]
public class IntentList
{
    [DataMember(Name = "intents")] public Intent[] Intents { get; set; }
}

[DataContract]
public class JobCommand
{
    [DataMember(Name = "tenant_id")] public string TenantId { get; set; }
    [DataMember(Name = "workspace_id")] public string WorkspaceId { get; set; }
    [DataMember(Name = "job_id")] public string JobId { get; set; }
    [DataMember(Name = "idempotency_key")] public string IdempotencyKey { get; set; }
    [DataMember(Name = "management_node_id")] public string ManagementNodeId { get; set; }
    [DataMember(Name = "execution_profile")] public ExecutionProfile ExecutionProfile { get; set; }
    [DataMember(Name = "resource_shape")] public ResourceShape ResourceShape { get; set; }
    [DataMember(Name = "payload_ref")] public PayloadRef PayloadRef { get; set; }
    [DataMember(Name = "requested_by")] public RequestedBy RequestedBy { get; set; }
}

[DataContract]
public class ExecutionProfile
{
    [DataMember(Name = "queue_name")] public string QueueName { get; set; }
}

[DataContract]
public class ResourceShape
{
    [DataMember(Name = "cpu")] public int Cpu { get; set; }
    [DataMember(Name = "memory_mib")] public int MemoryMib { get; set; }
    [DataMember(Name = "walltime_seconds")] public int WalltimeSeconds { get; set; }
}

[DataContract]
public class PayloadRef
{
    [DataMember(Name = "input_uri")] public string InputUri { get; set; }
}

[DataContract]
public class RequestedBy
{
    [DataMember(Name = "user_id")] public string UserId { get; set; }
}

/// <summary>A job, or the answer to its submission, which has no status.</summary>
[DataContract]
public class Job
{
    [DataMember(Name = "job_id")] public string JobId { get; set; }
    [DataMember(Name = "submission_id")] public string SubmissionId { get; set; }
    [DataMember(Name = "status")] public string Status { get; set; }
}

[DataContract]
public class ErrorAnswer
{
    [DataMember(Name = "error")] public ErrorBody Error { get; set; }
}

[DataContract]
public class ErrorBody
{
    [DataMember(Name = "code")] public string Code { get; set; }
    [DataMember(Name = "message")] public string Message { get; set; }
    [DataMember(Name = "details")] public ErrorDetails Details { get; set; }
}

[DataContract]
public class ErrorDetails
{
    [DataMember(Name = "conflictingFields")] public string[] ConflictingFields { get; set; }
}

/// <summary>The service answered with an error, or not at all.</summary>
public class SubmissionManagerException : Exception
{
    public int Status { get; }
    public ErrorBody Error { get; }

    public SubmissionManagerException(int status, ErrorBody error)
        : base((status == 0 ? "" : status + " ") + error.Code + ": " + error.Message)
    {
        Status = status;
        Error = error;
    }
}

/// <summary>Makes calls and retries them; ids make that safe.</summary>
public sealed class SubmissionManager : IDisposable
{
    const int Tries = 5;
    static readonly TimeSpan FirstPause = TimeSpan.FromMilliseconds(250);
    static readonly TimeSpan LongestPause = TimeSpan.FromSeconds(30);
    static readonly int[] WorthRepeating = { 429, 502, 503, 504 };

    readonly Random random = new Random();
    readonly HttpClient http;
    readonly string url;

    /// <summary>Whether the last answer showed an intent that existed before.</summary>
    public bool Replayed { get; private set; }

    public SubmissionManager(string url, string token)
    {
        this.url = url.TrimEnd('/');
        // A redirect would send the token to another host.
        http = new HttpClient(new HttpClientHandler { AllowAutoRedirect = false });
        // Longer than the longest waitSeconds, which is 30.
        http.Timeout = TimeSpan.FromSeconds(40);
        http.DefaultRequestHeaders.ExpectContinue = false;
        if (token != null)
        {
            http.DefaultRequestHeaders.Authorization = new AuthenticationHeaderValue("Bearer", token);
        }
    }

    public void Dispose()
    {
        http.Dispose();
    }

    public Task<T> Get<T>(string path)
    {
        return Call<T>(HttpMethod.Get, path, null);
    }

    public Task<T> Post<T>(string path, object body)
    {
        // Serialized once, so that every retry sends the same bytes: the service compares them.
        using (var stream = new MemoryStream())
        {
            new DataContractJsonSerializer(body.GetType()).WriteObject(stream, body);
            return Call<T>(HttpMethod.Post, path, stream.ToArray());
        }
    }

    async Task<T> Call<T>(HttpMethod method, string path, byte[] body)
    {
        for (var number = 1; ; number++)
        {
            var pause = TimeSpan.FromTicks((long)(FirstPause.Ticks * Math.Pow(2, number - 1) * (0.5 + random.NextDouble() / 2)));
            SubmissionManagerException failure;
            try
            {
                using (var request = new HttpRequestMessage(method, url + path))
                {
                    if (body != null)
                    {
                        request.Content = new ByteArrayContent(body);
                        request.Content.Headers.ContentType = new MediaTypeHeaderValue("application/json");
                    }
                    using (var response = await http.SendAsync(request).ConfigureAwait(false))
                    {
                        var answer = await response.Content.ReadAsByteArrayAsync().ConfigureAwait(false);
                        if (response.IsSuccessStatusCode)
                        {
                            IEnumerable<string> values;
                            Replayed = response.Headers.TryGetValues("Idempotent-Replayed", out values) && values.Contains("true");
                            return Read<T>(answer) is T read ? read : throw Refusal((int)response.StatusCode, null);
                        }
                        failure = Refusal((int)response.StatusCode, Read<ErrorAnswer>(answer));
                        // A little later than requested, so that not all clients come back at once.
                        pause += response.Headers.RetryAfter?.Delta ?? TimeSpan.Zero;
                    }
                }
            }
            catch (Exception error) when (error is HttpRequestException || error is TaskCanceledException)
            {
                var reason = (error.InnerException ?? error).Message;
                var text = url + " does not answer (" + reason + "); is SM_URL right, and the service up?";
                failure = new SubmissionManagerException(0, new ErrorBody { Code = "unreachable", Message = text });
            }
            var repeat = failure.Status == 0 || WorthRepeating.Contains(failure.Status);
            if (!repeat || number == Tries || pause > LongestPause)
            {
                throw failure;
            }
            await Task.Delay(pause).ConfigureAwait(false);
        }
    }

    /// <summary>Returns null if the text is not JSON.</summary>
    static object Read<T>(byte[] answer)
    {
        try
        {
            return new DataContractJsonSerializer(typeof(T)).ReadObject(new MemoryStream(answer));
        }
        catch (SerializationException)
        {
            return null;
        }
    }

    static SubmissionManagerException Refusal(int status, object answer)
    {
        const string text = "this is not how a Submission Manager answers; is SM_URL right?";
        var error = (answer as ErrorAnswer)?.Error;
        return new SubmissionManagerException(status, error ?? new ErrorBody { Code = "unexpected_answer", Message = text });
    }
}

public static class Program
{
    /// <summary>Longer than the deadline of sms.realtime, which is 30 s.</summary>
    static readonly TimeSpan Patience = TimeSpan.FromSeconds(60);

    public static int Main()
    {
        var url = Setting("SM_URL") ?? "http://127.0.0.1:8082";
        var token = Setting("SM_TOKEN");
        Uri parsed;
        if (!Uri.TryCreate(url, UriKind.Absolute, out parsed) || !parsed.Scheme.StartsWith("http", StringComparison.Ordinal))
        {
            Console.Error.WriteLine("SM_URL is not a URL of a service; use one such as http://127.0.0.1:8082");
            return 1;
        }
        try
        {
            using (var service = new SubmissionManager(url, token))
            {
                Run(service, token != null).GetAwaiter().GetResult();
            }
            return 0;
        }
        catch (Exception error) when (error is SubmissionManagerException || error is InvalidOperationException)
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

    static async Task Run(SubmissionManager service, bool withJob)
    {
        var run = "example-cs-" + Guid.NewGuid().ToString("N").Substring(0, 12);
        await Submit(service, run).ConfigureAwait(false);
        await Follow(service, run).ConfigureAwait(false);
        if (withJob)
        {
            await SubmitJob(service, run).ConfigureAwait(false);
        }
        else
        {
            Console.WriteLine("no job: SM_TOKEN is not set");
        }
    }

    static async Task Submit(SubmissionManager service, string run)
    {
        var request = new SubmitRequest
        {
            // Your key: submitting the same id again returns the same intent.
            IntentId = run + "-hello",
            SubmissionTarget = "sms.realtime",
            Payload = new Message { To = "+46700000001", Text = "Hello" },
        };
        var intent = await service.Post<Intent>("/v1/intents?waitSeconds=10", request).ConfigureAwait(false);
        Console.WriteLine("submitted " + intent.IntentId + ": " + intent.Status);
        Expect(intent.Status == "accepted" && !service.Replayed, "a new intent that is accepted");

        var again = await service.Post<Intent>("/v1/intents", request).ConfigureAwait(false);
        Console.WriteLine("submitted the same again: it was there before, since " + again.CreatedAt);
        Expect(again.CreatedAt == intent.CreatedAt && service.Replayed, "the same intent when sent again");

        request.Payload.Text = "Something else";
        SubmissionManagerException refused = null;
        try
        {
            await service.Post<Intent>("/v1/intents", request).ConfigureAwait(false);
        }
        catch (SubmissionManagerException error)
        {
            refused = error;
        }
        Expect(refused != null && refused.Error.Code == "idempotency_conflict", "a conflict");
        Console.WriteLine("submitted something else under that id: " + refused.Message);
        Expect(refused.Error.Details.ConflictingFields.SequenceEqual(new[] { "payload" }), "the fields that differ");
    }

    static async Task Follow(SubmissionManager service, string run)
    {
        var request = new SubmitRequest
        {
            IntentId = run + "-stubborn",
            SubmissionTarget = "sms.realtime",
            Payload = new Message { To = "+46700000001", Text = "Hello", Simulate = "fail:1" },
        };
        await service.Post<Intent>("/v1/intents", request).ConfigureAwait(false);
        var intent = await UntilTerminal(service, request.IntentId).ConfigureAwait(false);
        Console.WriteLine(intent.IntentId + " has ended: " + intent.Status);
        var path = "/v1/intents/" + Uri.EscapeDataString(intent.IntentId);
        var history = await service.Get<History>(path + "/history").ConfigureAwait(false);
        foreach (var attempt in history.Attempts)
        {
            var outcome = attempt.OutcomeStatus ?? attempt.Error;
            Console.WriteLine("  attempt " + attempt.AttemptNumber + " at " + attempt.StartedAt + ": " + outcome);
        }
        Expect(intent.Status == "accepted", "an intent that is accepted in the end");
        Expect(history.Attempts.Length == 2, "two attempts");

        var found = await service.Get<IntentList>("/v1/intents?limit=10&q=" + Uri.EscapeDataString(run)).ConfigureAwait(false);
        var ids = string.Join(", ", found.Intents.Select(each => each.IntentId));
        Console.WriteLine("found by how their ids begin: " + ids);
        Expect(ids == run + "-hello, " + run + "-stubborn", "both intents in the list");
    }

    /// <summary>Polls until the intent has ended. A webhook makes polling unnecessary: see examples/webhook.</summary>
    static async Task<Intent> UntilTerminal(SubmissionManager service, string intentId)
    {
        var deadline = DateTime.UtcNow + Patience;
        while (true)
        {
            var intent = await service.Get<Intent>("/v1/intents/" + Uri.EscapeDataString(intentId)).ConfigureAwait(false);
            if (intent.Status != "pending")
            {
                return intent;
            }
            Expect(DateTime.UtcNow < deadline, intentId + " is still pending after " + Patience);
            await Task.Delay(200).ConfigureAwait(false);
        }
    }

    static async Task SubmitJob(SubmissionManager service, string run)
    {
        var command = new JobCommand
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
        };
        var accepted = await service.Post<Job>("/v1/jobs", command).ConfigureAwait(false);
        var job = await service.Get<Job>("/v1/jobs/" + accepted.SubmissionId).ConfigureAwait(false);
        Console.WriteLine("job " + job.JobId + " is " + job.Status + ", as submission " + job.SubmissionId);
        Expect(job.JobId == command.JobId, "the job that was submitted");
    }
}
