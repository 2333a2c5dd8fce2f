// JSON: a small reader and writer, so that the client needs no package. netstandard2.0 has no JSON library that .NET
// Framework, Mono and .NET share: System.Text.Json is a package, and DataContractJsonSerializer cannot hold JSON of any shape.

using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Text;

namespace SubmissionManager
{
    /// <summary>
    /// JSON that is sent byte for byte as it is: for payloads that your JSON library has serialized. A <c>byte[]</c> means
    /// the same.
    /// </summary>
    public sealed class RawJson
    {
        /// <summary>The JSON value <c>null</c>, which differs from no payload.</summary>
        public static readonly RawJson Null = new RawJson("null");

        /// <summary>The JSON.</summary>
        public string Text { get; private set; }

        /// <summary>Takes the text of one JSON value.</summary>
        public RawJson(string text)
        {
            Text = text ?? throw new ArgumentNullException(nameof(text));
        }
    }

    /// <summary>
    /// A JSON object. Values are null, <c>string</c>, <c>bool</c>, <c>long</c>, <c>double</c>, <c>JsonObject</c> and
    /// <c>List&lt;object&gt;</c>. Names keep their order.
    /// </summary>
    public sealed class JsonObject : IEnumerable<KeyValuePair<string, object>>
    {
        readonly List<string> names = new List<string>();
        readonly Dictionary<string, object> values = new Dictionary<string, object>(StringComparer.Ordinal);

        /// <summary>The value of a name; null if there is none.</summary>
        public object this[string name]
        {
            get
            {
                object value;
                return values.TryGetValue(name, out value) ? value : null;
            }
            set
            {
                if (!values.ContainsKey(name))
                {
                    names.Add(name);
                }
                values[name] = value;
            }
        }

        /// <summary>Whether there is a value for the name, which may be null.</summary>
        public bool Contains(string name)
        {
            return values.ContainsKey(name);
        }

        /// <summary>Removes a name and its value.</summary>
        public void Remove(string name)
        {
            names.Remove(name);
            values.Remove(name);
        }

        /// <summary>All names with their values, in order.</summary>
        public IEnumerator<KeyValuePair<string, object>> GetEnumerator()
        {
            foreach (var name in names)
            {
                yield return new KeyValuePair<string, object>(name, values[name]);
            }
        }

        IEnumerator IEnumerable.GetEnumerator()
        {
            return GetEnumerator();
        }

        /// <summary>Parses a JSON object; throws <c>FormatException</c> if the text is none.</summary>
        public static JsonObject Parse(string text)
        {
            return JsonReader.Read(text) as JsonObject ?? throw new FormatException("this is not a JSON object");
        }

        /// <summary>The object as JSON.</summary>
        public override string ToString()
        {
            return JsonWriter.Write(this);
        }
    }

    static class JsonWriter
    {
        /// <summary>Deeper values are refused, also cycles.</summary>
        const int MaxDepth = 500;

        /// <summary>A value as JSON. The form is that of other languages, so a payload has the same bytes from all of them.</summary>
        public static string Write(object value)
        {
            var text = new StringBuilder();
            Write(text, value, 0);
            return text.ToString();
        }

        static void Write(StringBuilder text, object value, int depth)
        {
            if (depth > MaxDepth)
            {
                throw Unsendable("it is nested too deeply");
            }
            if (value == null)
            {
                text.Append("null");
            }
            else if (value is string)
            {
                WriteString(text, (string)value);
            }
            else if (value is bool)
            {
                text.Append((bool)value ? "true" : "false");
            }
            else if (value is RawJson)
            {
                text.Append(Checked(((RawJson)value).Text));
            }
            else if (value is byte[])
            {
                text.Append(Checked(Decoded((byte[])value)));
            }
            else if (value is Models.Model)
            {
                Write(text, ((Models.Model)value).Json, depth);
            }
            else if (value is DateTimeOffset)
            {
                WriteString(text, TimeText((DateTimeOffset)value));
            }
            else if (value is double || value is float)
            {
                WriteDouble(text, Convert.ToDouble(value, CultureInfo.InvariantCulture));
            }
            else if (value is IEnumerable<KeyValuePair<string, object>>)
            {
                WriteObject(text, (IEnumerable<KeyValuePair<string, object>>)value, depth);
            }
            else if (value is IEnumerable)
            {
                WriteArray(text, (IEnumerable)value, depth);
            }
            else
            {
                WriteOther(text, value, depth);
            }
        }

        static void WriteOther(StringBuilder text, object value, int depth)
        {
            var type = value.GetType();
            if (value is sbyte || value is byte || value is short || value is ushort || value is int || value is uint
                || value is long || value is ulong || value is decimal)
            {
                text.Append(((IFormattable)value).ToString(null, CultureInfo.InvariantCulture));
            }
            else if (type.IsDefined(typeof(CompilerGeneratedAttribute), false) && type.Name.Contains("Anon"))
            {
                WriteObject(text, Properties(value, type), depth);
            }
            else
            {
                throw Unsendable("serialize " + type.Name + " with your JSON library and pass a RawJson");
            }
        }

        static IEnumerable<KeyValuePair<string, object>> Properties(object value, Type type)
        {
            foreach (var property in type.GetProperties(BindingFlags.Public | BindingFlags.Instance))
            {
                yield return new KeyValuePair<string, object>(property.Name, property.GetValue(value, null));
            }
        }

        static void WriteObject(StringBuilder text, IEnumerable<KeyValuePair<string, object>> members, int depth)
        {
            var separator = "{";
            foreach (var member in members)
            {
                text.Append(separator);
                separator = ",";
                WriteString(text, member.Key);
                text.Append(':');
                Write(text, member.Value, depth + 1);
            }
            text.Append(separator == "{" ? "{}" : "}");
        }

        static void WriteArray(StringBuilder text, IEnumerable items, int depth)
        {
            var separator = "[";
            foreach (var item in items)
            {
                text.Append(separator);
                separator = ",";
                Write(text, item, depth + 1);
            }
            text.Append(separator == "[" ? "[]" : "]");
        }

        static void WriteDouble(StringBuilder text, double value)
        {
            if (double.IsNaN(value) || double.IsInfinity(value))
            {
                throw Unsendable("JSON has no " + value.ToString(CultureInfo.InvariantCulture));
            }
            text.Append(value.ToString("R", CultureInfo.InvariantCulture));
        }

        public static void WriteString(StringBuilder text, string value)
        {
            text.Append('"');
            for (var index = 0; index < value.Length; index++)
            {
                var each = value[index];
                switch (each)
                {
                    case '"': text.Append("\\\""); break;
                    case '\\': text.Append("\\\\"); break;
                    case '\b': text.Append("\\b"); break;
                    case '\f': text.Append("\\f"); break;
                    case '\n': text.Append("\\n"); break;
                    case '\r': text.Append("\\r"); break;
                    case '\t': text.Append("\\t"); break;
                    default:
                        if (each < ' ')
                        {
                            text.Append("\\u").Append(((int)each).ToString("x4", CultureInfo.InvariantCulture));
                        }
                        else
                        {
                            text.Append(each);
                        }
                        break;
                }
            }
            text.Append('"');
            RequireWholePairs(value);
        }

        /// <summary>A time as the API has it.</summary>
        public static string TimeText(DateTimeOffset time)
        {
            return time.UtcDateTime.ToString("yyyy-MM-dd'T'HH:mm:ss.FFFFFF'Z'", CultureInfo.InvariantCulture);
        }

        /// <summary>Anything but one JSON value would change the request around it.</summary>
        static string Checked(string raw)
        {
            try
            {
                JsonReader.Read(raw);
            }
            catch (FormatException error)
            {
                throw Unsendable(error.Message);
            }
            RequireWholePairs(raw);
            return raw;
        }

        static string Decoded(byte[] raw)
        {
            try
            {
                return new UTF8Encoding(false, true).GetString(raw);
            }
            catch (ArgumentException error)
            {
                throw Unsendable(error.Message);
            }
        }

        static void RequireWholePairs(string text)
        {
            for (var index = 0; index < text.Length; index++)
            {
                if (char.IsHighSurrogate(text[index]) && index + 1 < text.Length && char.IsLowSurrogate(text[index + 1]))
                {
                    index++;
                }
                else if (char.IsSurrogate(text[index]))
                {
                    throw Unsendable("the text has half a surrogate pair");
                }
            }
        }

        static SubmissionManagerException Unsendable(string why)
        {
            return SubmissionManagerException.Of(0, "invalid_request", "the body cannot be sent: " + why);
        }
    }

    /// <summary>Parses JSON; throws <c>FormatException</c>.</summary>
    sealed class JsonReader
    {
        /// <summary>Deeper values are refused, so that no text can exhaust the stack.</summary>
        const int MaxDepth = 500;

        readonly string text;
        int at;

        JsonReader(string text)
        {
            this.text = text;
        }

        public static object Read(string text)
        {
            var reader = new JsonReader(text);
            var value = reader.Value(0);
            reader.Blanks();
            if (reader.at < text.Length)
            {
                throw reader.Wrong();
            }
            return value;
        }

        object Value(int depth)
        {
            if (depth > MaxDepth)
            {
                throw new FormatException("the JSON is nested too deeply");
            }
            Blanks();
            switch (Peek())
            {
                case '{': return Object(depth);
                case '[': return Array(depth);
                case '"': return String();
                case 't': return Word("true", true);
                case 'f': return Word("false", false);
                case 'n': return Word("null", null);
                default: return Number();
            }
        }

        JsonObject Object(int depth)
        {
            var found = new JsonObject();
            at++;
            Blanks();
            if (Peek() == '}')
            {
                at++;
                return found;
            }
            while (true)
            {
                Blanks();
                if (Peek() != '"')
                {
                    throw Wrong();
                }
                var name = String();
                Blanks();
                Take(':');
                found[name] = Value(depth + 1);
                Blanks();
                if (Peek() == '}')
                {
                    at++;
                    return found;
                }
                Take(',');
            }
        }

        List<object> Array(int depth)
        {
            var found = new List<object>();
            at++;
            Blanks();
            if (Peek() == ']')
            {
                at++;
                return found;
            }
            while (true)
            {
                found.Add(Value(depth + 1));
                Blanks();
                if (Peek() == ']')
                {
                    at++;
                    return found;
                }
                Take(',');
            }
        }

        string String()
        {
            var found = new StringBuilder();
            at++;
            while (true)
            {
                var each = Peek();
                at++;
                if (each == '"')
                {
                    return found.ToString();
                }
                if (each < ' ')
                {
                    throw Wrong();
                }
                found.Append(each == '\\' ? Escaped() : each);
            }
        }

        char Escaped()
        {
            var each = Peek();
            at++;
            switch (each)
            {
                case '"': case '\\': case '/': return each;
                case 'b': return '\b';
                case 'f': return '\f';
                case 'n': return '\n';
                case 'r': return '\r';
                case 't': return '\t';
                case 'u':
                    ushort code;
                    if (at + 4 > text.Length
                        || !ushort.TryParse(text.Substring(at, 4), NumberStyles.AllowHexSpecifier, CultureInfo.InvariantCulture, out code))
                    {
                        throw Wrong();
                    }
                    at += 4;
                    return (char)code;
                default: throw Wrong();
            }
        }

        object Number()
        {
            var start = at;
            At('-');
            if (!At('0'))
            {
                Digits();
            }
            var whole = true;
            if (At('.'))
            {
                whole = false;
                Digits();
            }
            if (At('e') || At('E'))
            {
                whole = false;
                if (!At('+'))
                {
                    At('-');
                }
                Digits();
            }
            var number = text.Substring(start, at - start);
            long integer;
            if (whole && long.TryParse(number, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out integer))
            {
                return integer;
            }
            double value;
            // Older runtimes refuse numbers that are too large; newer ones call them infinite.
            return double.TryParse(number, NumberStyles.Float, CultureInfo.InvariantCulture, out value) ? value : double.PositiveInfinity;
        }

        void Digits()
        {
            var start = at;
            while (at < text.Length && text[at] >= '0' && text[at] <= '9')
            {
                at++;
            }
            if (at == start)
            {
                throw Wrong();
            }
        }

        object Word(string word, object value)
        {
            if (string.CompareOrdinal(text, at, word, 0, word.Length) != 0)
            {
                throw Wrong();
            }
            at += word.Length;
            return value;
        }

        void Blanks()
        {
            while (at < text.Length && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r'))
            {
                at++;
            }
        }

        char Peek()
        {
            return at < text.Length ? text[at] : throw Wrong();
        }

        bool At(char expected)
        {
            if (at < text.Length && text[at] == expected)
            {
                at++;
                return true;
            }
            return false;
        }

        void Take(char expected)
        {
            if (!At(expected))
            {
                throw Wrong();
            }
        }

        FormatException Wrong()
        {
            return new FormatException("this is not JSON, at character " + at.ToString(CultureInfo.InvariantCulture));
        }
    }
}
