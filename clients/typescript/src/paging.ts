// Lists that fetch their pages as they are read.

import type { Values } from "./encoding.js";
import { parsed, unexpected, type CallOptions, type Transport } from "./transport.js";

/** One page of a list. `nextCursor` is null on the last page. */
export interface Page<T> {
  items: T[];
  nextCursor: string | null;
}

/** All items of a list. Iterate over it, or over `pages()`; it may be iterated several times, each from the start. */
export class Pager<T> implements AsyncIterable<T> {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #key: string;
  readonly #query: Values;
  readonly #options: CallOptions;
  readonly #nextKey: string;

  /** @internal */
  constructor(transport: Transport, path: string, key: string, query: Values, options: CallOptions, nextKey = "nextCursor") {
    this.#transport = transport;
    this.#path = path;
    this.#key = key;
    this.#query = query;
    this.#options = options;
    this.#nextKey = nextKey;
  }

  /** One page: the first one, or the one after a `nextCursor`. */
  async page(cursor?: string): Promise<Page<T>> {
    const query = { ...this.#query, cursor };
    const answer = await this.#transport.answer({ method: "GET", template: this.#path, query }, this.#options);
    const found = parsed<Record<string, unknown>>(answer);
    const items = found[this.#key];
    if (!Array.isArray(items)) {
      throw unexpected(answer);
    }
    return { items: items as T[], nextCursor: (found[this.#nextKey] as string | null | undefined) ?? null };
  }

  /** All pages. */
  async *pages(): AsyncGenerator<Page<T>, void, undefined> {
    let page = await this.page();
    yield page;
    while (page.nextCursor !== null) {
      page = await this.page(page.nextCursor);
      yield page;
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for await (const page of this.pages()) {
      yield* page.items;
    }
  }
}
