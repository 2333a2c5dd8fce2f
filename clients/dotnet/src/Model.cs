// The base of the generated models.

using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;

namespace SubmissionManager.Models
{
    /// <summary>
    /// A typed view of a JSON object. Fields that this version of the client does not know are in <c>Json</c>.
    /// </summary>
    public abstract class Model
    {
        /// <summary>The JSON that the properties read and write.</summary>
        public JsonObject Json { get; internal set; } = new JsonObject();

        /// <summary>The object as JSON.</summary>
        public override string ToString()
        {
            return Json.ToString();
        }

        internal static T Of<T>(JsonObject json) where T : Model, new()
        {
            return new T { Json = json };
        }

        internal object Get(string name)
        {
            return Json[name];
        }

        internal string GetString(string name)
        {
            return Json[name] as string;
        }

        internal long? GetInteger(string name)
        {
            return Json[name] is IConvertible given && !(given is string) ? given.ToInt64(CultureInfo.InvariantCulture) : (long?)null;
        }

        internal double? GetNumber(string name)
        {
            return Json[name] is IConvertible given && !(given is string) ? given.ToDouble(CultureInfo.InvariantCulture) : (double?)null;
        }

        internal bool? GetBoolean(string name)
        {
            return Json[name] as bool?;
        }

        internal DateTimeOffset? GetTime(string name)
        {
            DateTimeOffset time;
            return DateTimeOffset.TryParse(GetString(name), CultureInfo.InvariantCulture, DateTimeStyles.AssumeUniversal, out time)
                ? time
                : (DateTimeOffset?)null;
        }

        internal JsonObject GetObject(string name)
        {
            return Json[name] as JsonObject;
        }

        internal T GetModel<T>(string name) where T : Model, new()
        {
            return Json[name] is JsonObject given ? Of<T>(given) : null;
        }

        internal IReadOnlyList<T> GetModels<T>(string name) where T : Model, new()
        {
            return Json[name] is IEnumerable<object> given ? given.OfType<JsonObject>().Select(Of<T>).ToList() : null;
        }

        internal IReadOnlyList<string> GetStrings(string name)
        {
            return Json[name] is IEnumerable<object> given ? given.OfType<string>().ToList() : null;
        }

        /// <summary>Null removes the field.</summary>
        internal void Set(string name, object value)
        {
            if (value == null)
            {
                Json.Remove(name);
                return;
            }
            var model = value as Model;
            var models = value as IEnumerable<Model>;
            Json[name] = model != null ? model.Json
                : models != null ? models.Select(each => (object)each.Json).ToList()
                : value is IEnumerable<string> ? ((IEnumerable<string>)value).Cast<object>().ToList()
                : value is DateTimeOffset ? JsonWriter.TimeText((DateTimeOffset)value)
                : value;
        }
    }

    /// <summary>An intent, and whether it existed before this submission.</summary>
    public class SubmittedIntent : Intent
    {
        /// <summary>Whether the intent existed before this submission.</summary>
        public bool Replayed { get { return GetBoolean("replayed").GetValueOrDefault(); } internal set { Set("replayed", value); } }
    }
}
