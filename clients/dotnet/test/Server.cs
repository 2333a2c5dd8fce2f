// A server that answers as a test says, on raw sockets, so that it can break connections anywhere.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

/// <summary>What the client sent.</summary>
sealed class Asked
{
    public string Method, Path, Body;
    public readonly Dictionary<string, string> Headers = new Dictionary<string, string>(StringComparer.OrdinalIgnoreCase);

    public string Header(string name)
    {
        string value;
        return Headers.TryGetValue(name, out value) ? value : null;
    }
}

enum End { Whole, Clean, Cut, Hold }

/// <summary>An answer: a whole one, or the pieces of a stream and how it ends. Without a status it is none at all.</summary>
sealed class Reply
{
    public int Status;
    public string Body = "";
    public string Headers = "";
    public string[] Pieces = new string[0];
    public End End = End.Whole;

    public static readonly Reply HangUp = new Reply { End = End.Cut };
    public static readonly Reply Silence = new Reply { End = End.Hold };

    public static Reply Of(int status, string body = "", string headers = "")
    {
        return new Reply { Status = status, Body = body, Headers = headers };
    }

    public static Reply Error(int status, string code, string headers = "")
    {
        return Of(status, "{\"error\":{\"code\":\"" + code + "\",\"message\":\"no\",\"details\":{\"conflictingFields\":[\"payload\"]}}}", headers);
    }

    public static Reply Stream(End end, params string[] pieces)
    {
        return new Reply { Status = 200, Pieces = pieces, End = end };
    }
}

sealed class Server : IDisposable
{
    readonly TcpListener listener = new TcpListener(IPAddress.Loopback, 0);
    readonly ManualResetEvent over = new ManualResetEvent(false);

    public readonly List<Asked> Asked = new List<Asked>();
    public readonly Queue<Reply> Script = new Queue<Reply>();
    /// <summary>Makes each answer, in place of the script.</summary>
    public Func<Asked, Reply> Answers;
    public readonly string Url;

    public Server()
    {
        listener.Start();
        Url = "http://127.0.0.1:" + ((IPEndPoint)listener.LocalEndpoint).Port;
        Accept();
    }

    public void Dispose()
    {
        over.Set();
        listener.Stop();
    }

    async void Accept()
    {
        try
        {
            while (true)
            {
                var client = await listener.AcceptTcpClientAsync().ConfigureAwait(false);
                new Thread(() => Serve(client)) { IsBackground = true }.Start();
            }
        }
        catch (Exception error) when (error is SocketException || error is InvalidOperationException)
        {
            // The test is over.
        }
    }

    void Serve(TcpClient client)
    {
        try
        {
            using (client)
            using (var stream = client.GetStream())
            {
                client.NoDelay = true;
                while (One(stream))
                {
                }
            }
        }
        catch (IOException)
        {
            // The client has closed the connection.
        }
    }

    /// <summary>Answers one request; returns whether the connection stays open.</summary>
    bool One(Stream stream)
    {
        var asked = Read(stream);
        if (asked == null)
        {
            return false;
        }
        Reply reply;
        lock (Asked)
        {
            Asked.Add(asked);
            reply = Answers != null ? Answers(asked) : Script.Count > 0 ? Script.Dequeue() : Reply.Error(500, "no_script_left");
        }
        if (reply.Status != 0 && reply.End == End.Whole)
        {
            var body = Encoding.UTF8.GetBytes(reply.Body);
            Write(stream, "HTTP/1.1 " + reply.Status + " X\r\nContent-Length: " + body.Length + "\r\n" + reply.Headers + "\r\n" + reply.Body);
            return true;
        }
        if (reply.Status != 0)
        {
            Write(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            foreach (var piece in reply.Pieces)
            {
                Write(stream, Encoding.UTF8.GetByteCount(piece).ToString("x") + "\r\n" + piece + "\r\n");
            }
        }
        if (reply.End == End.Clean)
        {
            Write(stream, "0\r\n\r\n");
        }
        if (reply.End == End.Hold)
        {
            over.WaitOne();
        }
        return false;
    }

    static void Write(Stream stream, string text)
    {
        var bytes = Encoding.UTF8.GetBytes(text);
        stream.Write(bytes, 0, bytes.Length);
        stream.Flush();
    }

    static Asked Read(Stream stream)
    {
        var head = new List<byte>();
        while (head.Count < 4 || Encoding.ASCII.GetString(head.Skip(head.Count - 4).ToArray()) != "\r\n\r\n")
        {
            var next = stream.ReadByte();
            if (next < 0)
            {
                return null;
            }
            head.Add((byte)next);
        }
        var lines = Encoding.ASCII.GetString(head.ToArray()).Split(new[] { "\r\n" }, StringSplitOptions.RemoveEmptyEntries);
        var asked = new Asked { Method = lines[0].Split(' ')[0], Path = lines[0].Split(' ')[1] };
        foreach (var line in lines.Skip(1))
        {
            asked.Headers[line.Substring(0, line.IndexOf(':'))] = line.Substring(line.IndexOf(':') + 1).Trim();
        }
        var body = new byte[int.Parse(asked.Header("Content-Length") ?? "0")];
        for (var read = 0; read < body.Length;)
        {
            read += stream.Read(body, read, body.Length - read);
        }
        asked.Body = Encoding.UTF8.GetString(body);
        return asked;
    }
}
