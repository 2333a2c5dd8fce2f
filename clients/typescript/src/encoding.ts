// Requests as JSON and URLs. Payloads that were serialized elsewhere keep their bytes.

import { errorOf, type SubmissionManagerError } from "./errors.js";

/** JSON that is sent byte for byte as it is: for payloads that were serialized elsewhere. A `Uint8Array` means the same. */
export class RawJson {
  constructor(readonly text: string) {}
}

export type Values = Record<string, unknown>;

export function unsendable(what: string, why: unknown): SubmissionManagerError {
  return errorOf(0, "invalid_request", `${what} cannot be sent: ${why instanceof Error ? why.message : String(why)}`);
}

/** A value as JSON; `RawJson` and `Uint8Array` as they are. */
export function encoded(value: unknown): string {
  try {
    if (value instanceof RawJson || value instanceof Uint8Array) {
      const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
      const raw = value instanceof RawJson ? value.text : decoder.decode(value);
      if (/\p{Surrogate}/u.test(raw)) {
        throw new TypeError("the text has half a surrogate pair");
      }
      // Anything but one JSON value would change the request around it.
      JSON.parse(raw);
      return raw;
    }
    const text: string | undefined = JSON.stringify(value);
    if (text === undefined) {
      throw new TypeError(`${typeof value} is not JSON`);
    }
    return text;
  } catch (error) {
    throw unsendable("the body", error);
  }
}

/** An object as JSON without the fields that are undefined; raw values keep their bytes. */
export function encodedObject(fields: Values): string {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined);
  return `{${given.map(([name, value]) => `${JSON.stringify(name)}:${encoded(value)}`).join(",")}}`;
}

/** How many bytes a text has as UTF-8. */
export function byteLength(text: string): number {
  return new TextEncoder().encode(text).length;
}

/** A path and a query, filled into a template such as `/v1/intents/{intentId}`. */
export function filled(template: string, path: Record<string, string>, query: Values): string {
  const place = template.replace(/{([^}]+)}/g, (_, name: string) => {
    const text = String(path[name]);
    // A URL would lose these, however they are encoded.
    if (text === "" || text === "." || text === "..") {
      throw unsendable(name, `"${text}" has no place in a URL`);
    }
    try {
      return encodeURIComponent(text);
    } catch (error) {
      throw unsendable(name, error);
    }
  });
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null) {
      given.append(name, String(value));
    }
  }
  const text = given.toString();
  return text ? `${place}?${text}` : place;
}
