// The event feed: what became of intents, in the order of the commits that ended them.

import type { Values } from "./encoding.js";
import { errorOf, SubmissionManagerError } from "./errors.js";
import type * as models from "./models.js";
import { SseParser } from "./sse.js";
import { backoffMs, isWorthRepeating, parsed, pause, unexpected, type CallOptions, type Transport } from "./transport.js";

/** The service sends a comment every 15 s; after three of them are missing, the connection is broken. */
const LONGEST_SILENCE_MS = 45_000;
/** The longest time for which the service holds a long poll. */
const POLL_SECONDS = 30;

export interface FeedOptions {
  /** The cursor after which to start; `now` for the end of the feed, undefined for the oldest event that is kept. */
  after?: string | undefined;
  /** Ends the feed with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** An open stream, and what ends it. */
interface Stream {
  pieces: ReadableStreamDefaultReader<Uint8Array>;
  end: (reason?: unknown) => void;
}

/** @internal What a feed reads, and how. */
export interface FeedSource {
  path: string;
  streamPath: string;
  query: Values;
  streaming: boolean;
  /** The names of the parameter that waits, and of the cursor in a page. */
  waitName: string;
  nextName: string;
}

/**
 * An endless iterator over events that reconnects by itself and keeps the cursor.
 *
 * `cursor` is the place after the last event that you got. Store it when you have handled the event, and pass it as
 * `after` to go on there after a restart: you miss nothing, and get nothing twice.
 *
 * If the first connection fails, the feed throws the error after the usual retries. A feed that was connected before
 * reconnects until it succeeds, with growing pauses of up to 30 s. Errors that a retry cannot change are thrown:
 * `CursorExpired`, `Unauthorized`, `Forbidden`, `InvalidRequest`. Leaving a `for await` loop ends the feed.
 */
export class EventFeed<E> implements AsyncIterableIterator<E> {
  cursor: string | undefined;
  readonly #transport: Transport;
  readonly #source: FeedSource;
  readonly #closing = new AbortController();
  readonly #outer: AbortSignal | undefined;
  readonly #onOuter = () => this.close();
  #ready: Array<{ cursor: string | undefined; event: E | undefined }> = [];
  #stream: Stream | undefined;
  #parser = new SseParser();
  #decoder = new TextDecoder();
  #failures = 0;
  #wasConnected = false;

  /** @internal */
  constructor(transport: Transport, source: FeedSource, options: FeedOptions) {
    this.#transport = transport;
    this.#source = source;
    this.cursor = options.after;
    this.#outer = options.signal;
    this.#outer?.addEventListener("abort", this.#onOuter);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<E, undefined>> {
    for (;;) {
      this.#outer?.throwIfAborted();
      if (this.#closing.signal.aborted) {
        return { done: true, value: undefined };
      }
      const ready = this.#ready.shift();
      if (ready === undefined) {
        await this.#fill();
        continue;
      }
      this.cursor = ready.cursor ?? this.cursor;
      if (ready.event !== undefined) {
        return { done: false, value: ready.event };
      }
    }
  }

  async return(): Promise<IteratorResult<E, undefined>> {
    this.close();
    return { done: true, value: undefined };
  }

  /** Ends the feed and its connection, also while `next` waits. */
  close(): void {
    this.#outer?.removeEventListener("abort", this.#onOuter);
    this.#closing.abort();
    this.#drop();
  }

  /** Waits for more. Failures end here, unless a retry cannot change them. */
  async #fill(): Promise<void> {
    try {
      await (this.#source.streaming ? this.#read() : this.#poll());
    } catch (error) {
      this.#drop();
      if (this.#closing.signal.aborted) {
        return;
      }
      if (!(error instanceof SubmissionManagerError) || !isWorthRepeating(error)) {
        throw error;
      }
      this.#failures++;
      if (!this.#wasConnected && this.#failures > this.#transport.maxRetries) {
        throw error;
      }
      const pauseMs = Math.max(backoffMs(this.#failures) + (error.retryAfter ?? 0) * 1000, this.#parser.retryMs);
      await pause(pauseMs, this.#closing.signal).catch(() => undefined);
    }
  }

  async #poll(): Promise<void> {
    const wait = { [this.#source.waitName]: this.cursor === "now" ? 0 : POLL_SECONDS };
    const query = { ...this.#source.query, after: this.cursor, ...wait };
    const { events, nextCursor } = await this.#page(query);
    this.#connected();
    // The cursor is the one after the whole page, so it is only right for the last event.
    this.#ready = events.map((event, index) => ({ cursor: index === events.length - 1 ? nextCursor : undefined, event }));
    if (events.length === 0) {
      this.cursor = nextCursor;
    }
  }

  async #read(): Promise<void> {
    if (this.#stream === undefined) {
      if (this.cursor === "now") {
        // A cursor instead of "now": otherwise what happens during a reconnection would be lost.
        this.cursor = (await this.#page({ ...this.#source.query, after: "now", limit: 1 })).nextCursor;
        return;
      }
      this.#stream = await this.#open();
    }
    const { pieces, end } = this.#stream;
    const timer = setTimeout(() => end(new Error("the stream is silent")), LONGEST_SILENCE_MS);
    const piece = await pieces
      .read()
      .catch((error: unknown) => {
        throw errorOf(0, "unreachable", `the stream broke: ${String(error)}`);
      })
      .finally(() => clearTimeout(timer));
    if (piece.done) {
      // A clean end: the instance stops, or this reader was too slow. Another instance has the same events.
      throw errorOf(0, "unreachable", "the stream has ended");
    }
    this.#connected();
    for (const { id, data } of this.#parser.feed(this.#decoder.decode(piece.value, { stream: true }))) {
      this.#ready.push({ cursor: id, event: data === undefined ? undefined : eventOf<E>(data) });
    }
  }

  async #open(): Promise<Stream> {
    this.#parser = new SseParser();
    this.#decoder = new TextDecoder();
    const controller = new AbortController();
    const end = (reason?: unknown) => controller.abort(reason);
    this.#closing.signal.addEventListener("abort", end, { once: true });
    const timer = setTimeout(() => end(new Error("no answer")), LONGEST_SILENCE_MS);
    try {
      const response = await this.#transport.open(
        {
          method: "GET",
          template: this.#source.streamPath,
          query: this.#source.query,
          headers: { "Last-Event-ID": this.cursor },
          accept: "text/event-stream",
        },
        controller.signal,
      );
      if (response.body === null) {
        throw errorOf(response.status, "unexpected_answer", "the stream has no body");
      }
      return {
        pieces: response.body.getReader(),
        end: (reason) => {
          this.#closing.signal.removeEventListener("abort", end);
          end(reason);
        },
      };
    } finally {
      clearTimeout(timer);
    }
  }

  async #page(query: Values): Promise<{ events: E[]; nextCursor: string }> {
    const answer = await this.#transport.once(
      { method: "GET", template: this.#source.path, query },
      { signal: this.#closing.signal },
    );
    const page = parsed<Record<string, unknown>>(answer);
    const [events, nextCursor] = [page["events"], page[this.#source.nextName]];
    if (!Array.isArray(events) || typeof nextCursor !== "string") {
      throw unexpected(answer);
    }
    return { events: events as E[], nextCursor };
  }

  #connected(): void {
    this.#failures = 0;
    this.#wasConnected = true;
  }

  #drop(): void {
    this.#stream?.end();
    this.#stream = undefined;
  }
}

function eventOf<E>(data: string): E {
  try {
    return JSON.parse(data) as E;
  } catch {
    throw errorOf(200, "unexpected_answer", `the data of an event is not JSON: ${data.slice(0, 200)}`);
  }
}

/** `client.events`: terminal events of all intents. */
export class Events {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * One page of events, for readers that keep the cursor themselves. `waitSeconds` waits until there is an event, at most
   * that long and at most 30 s.
   */
  list(
    filter: { after?: string; limit?: number; waitSeconds?: number; submissionTarget?: string } = {},
    options: CallOptions = {},
  ): Promise<models.EventList> {
    return this.#transport.json({ method: "GET", template: "/v1/events", query: { ...filter } }, options);
  }

  /** Follows the feed by server-sent events. */
  stream(options: FeedOptions & { submissionTarget?: string } = {}): EventFeed<models.Event> {
    return this.#feed(options, { submissionTarget: options.submissionTarget }, true);
  }

  /**
   * Follows the feed by long polls, for networks whose proxies hold streams back. The cursor moves after the last event of
   * each page, so after a restart up to `limit` events may come again.
   */
  poll(options: FeedOptions & { submissionTarget?: string; limit?: number } = {}): EventFeed<models.Event> {
    return this.#feed(options, { submissionTarget: options.submissionTarget, limit: options.limit }, false);
  }

  #feed(options: FeedOptions, query: Values, streaming: boolean): EventFeed<models.Event> {
    const names = { waitName: "waitSeconds", nextName: "nextCursor" };
    const source = { path: "/v1/events", streamPath: "/v1/events/stream", query, streaming, ...names };
    return new EventFeed<models.Event>(this.#transport, source, options);
  }
}
