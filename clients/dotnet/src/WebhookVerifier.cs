// Verifies webhooks that the service sends: Standard Webhooks signatures.

using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Security.Cryptography;
using System.Text;
using SubmissionManager.Models;

namespace SubmissionManager
{
    /// <summary>The webhook is not signed with the secret, or its timestamp is too far from now. Answer 400 or 401.</summary>
    public sealed class WebhookVerificationException : Exception
    {
        internal WebhookVerificationException(string message) : base(message)
        {
        }
    }

    /// <summary>Verifies webhooks with a secret.</summary>
    public sealed class WebhookVerifier
    {
        /// <summary>As in the libraries of Standard Webhooks: an old event cannot be replayed.</summary>
        const int ToleranceSeconds = 5 * 60;
        const string Prefix = "whsec_";

        readonly List<byte[]> keys;

        /// <summary>
        /// Takes <c>whsec_</c> and base64, as the service has it; several, separated by spaces, while a secret is replaced.
        /// </summary>
        public WebhookVerifier(string secret)
        {
            try
            {
                keys = secret.Split(new[] { ' ' }, StringSplitOptions.RemoveEmptyEntries).Select(Key).ToList();
            }
            catch (FormatException)
            {
                keys = new List<byte[]>();
            }
            if (keys.Count == 0 || keys.Any(key => key.Length == 0))
            {
                throw new ArgumentException("a webhook secret is whsec_ followed by base64", nameof(secret));
            }
        }

        /// <summary>Returns the event; throws <c>WebhookVerificationException</c>.</summary>
        /// <param name="body">The exact bytes of the request.</param>
        /// <param name="id">The header <c>webhook-id</c>; null if it is missing, as for the others.</param>
        /// <param name="timestamp">The header <c>webhook-timestamp</c>.</param>
        /// <param name="signatures">The header <c>webhook-signature</c>.</param>
        /// <param name="now">The time to compare with; by default the clock.</param>
        public Event Verify(byte[] body, string id, string timestamp, string signatures, DateTimeOffset? now = null)
        {
            if (string.IsNullOrEmpty(id) || string.IsNullOrEmpty(timestamp) || signatures == null)
            {
                throw new WebhookVerificationException("webhook-id, webhook-timestamp or webhook-signature is missing");
            }
            uint seconds;
            if (!uint.TryParse(timestamp, NumberStyles.None, CultureInfo.InvariantCulture, out seconds))
            {
                throw new WebhookVerificationException("webhook-timestamp is not a number of seconds");
            }
            if (Math.Abs((now ?? DateTimeOffset.UtcNow).ToUnixTimeSeconds() - seconds) > ToleranceSeconds)
            {
                throw new WebhookVerificationException("webhook-timestamp is more than five minutes from now");
            }
            var signed = Encoding.UTF8.GetBytes(id + "." + timestamp + ".").Concat(body).ToArray();
            var given = signatures.Split(new[] { ' ' }, StringSplitOptions.RemoveEmptyEntries);
            if (!keys.Any(key => given.Any(each => AreEqual(each, Signature(key, signed)))))
            {
                throw new WebhookVerificationException("no signature is that of this body under this secret");
            }
            return Model.Of<Event>(JsonObject.Parse(Encoding.UTF8.GetString(body)));
        }

        static byte[] Key(string secret)
        {
            return Convert.FromBase64String(secret.StartsWith(Prefix, StringComparison.Ordinal) ? secret.Substring(Prefix.Length) : secret);
        }

        static string Signature(byte[] key, byte[] signed)
        {
            using (var hmac = new HMACSHA256(key))
            {
                return "v1," + Convert.ToBase64String(hmac.ComputeHash(signed));
            }
        }

        /// <summary>Compares in constant time, so that a signature cannot be guessed character by character.</summary>
        static bool AreEqual(string given, string expected)
        {
            var different = given.Length ^ expected.Length;
            for (var index = 0; index < Math.Min(given.Length, expected.Length); index++)
            {
                different |= given[index] ^ expected[index];
            }
            return different == 0;
        }
    }
}
