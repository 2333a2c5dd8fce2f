// Parses server-sent events.

import { errorOf } from "./errors.js";

/** Characters of one event. An event has an intent without its payload: about 2 KiB with the longest ids. */
const LONGEST_EVENT = 1024 * 1024;

export interface ServerSentEvent {
  id: string | undefined;
  /** Undefined if there was only an id. */
  data: string | undefined;
}

/** Parses server-sent events from text in pieces of any size. What is incomplete when a stream ends is dropped. */
export class SseParser {
  /** How long the service wants clients to wait until they connect again. */
  retryMs = 0;
  #rest = "";
  #id: string | undefined;
  #data: string[] = [];

  /** The events that are complete now. */
  *feed(chunk: string): Generator<ServerSentEvent, void, undefined> {
    this.#rest += chunk;
    if (this.#rest.length > LONGEST_EVENT) {
      throw errorOf(200, "unexpected_answer", `an event has more than ${LONGEST_EVENT} characters`);
    }
    if (!/[\r\n]/.test(chunk) && !this.#rest.includes("\r")) {
      return;
    }
    // A line feed may still follow a carriage return at the end.
    const lines = this.#rest.split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line) {
        this.#field(line);
        continue;
      }
      if (this.#data.length > 0 || this.#id !== undefined) {
        yield { id: this.#id, data: this.#data.length > 0 ? this.#data.join("\n") : undefined };
      }
      this.#id = undefined;
      this.#data = [];
    }
  }

  #field(line: string): void {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") {
      this.#data.push(value);
    } else if (name === "id" && !value.includes("\0")) {
      this.#id = value;
    } else if (name === "retry" && /^[0-9]{1,9}$/.test(value)) {
      this.retryMs = Number(value);
    }
  }
}
