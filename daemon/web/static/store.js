// What the page knows: tables of rows by key, and single values, as onesd last told them.

/**
 * A job with how many GPUs it has somewhere.
 * @typedef {[job: Page.Job, gpus: number]} Holder
 */

export class Store {
  /** @type {Map<string, Map<string, unknown>>} */
  tables = new Map();
  /** Complete as soon as a state was taken; until then no view is shown. */
  values = /** @type {Page.Values} */ ({});
  now = 0; // onesd's clock when it told that ...
  heard = 0; // ... and ours
  operator = false; // whether the user may see all, and steer

  /** That onesd's clock is in, by which times are written with or without a date. */
  get day() {
    return new Date(this.now * 1000).toDateString();
  }

  /**
   * All of it, in the place of what was known.
   * @param {Page.State} state
   */
  take(state) {
    this.tables = new Map();
    this.values = /** @type {Page.Values} */ ({});
    this.change(state);
  }

  /**
   * What has changed since.
   * @param {Page.State} message
   */
  change(message) {
    this.now = message.now;
    this.heard = performance.now();
    for (const part of [message.common, message.own]) {
      Object.assign(this.values, part.values);
      for (const [name, { put, gone }] of Object.entries(part.tables)) {
        const table = this.rows(name);
        for (const key of gone) table.delete(key);
        for (const [key, row] of Object.entries(put)) table.set(key, row);
      }
    }
  }

  /** @param {string} name */
  rows(name) {
    const known = this.tables.get(name) ?? new Map();
    this.tables.set(name, known);
    return known;
  }

  /**
   * @template {keyof Page.Tables} Name
   * @param {Name} name
   */
  table(name) {
    return /** @type {Map<string, Page.Tables[Name]>} */ (this.rows(name));
  }

  /**
   * A job with what is told of it, and when it may start.
   * @param {Page.Job} job
   * @returns {Page.Job & Page.Reason}
   */
  explained(job) {
    return { ...job, ...(this.table("reasons").get(job.reason) ?? { why: "", at: null }) };
  }

  /** Who holds which GPUs of each node, of the jobs that are known. */
  holders() {
    /** @type {Map<string, Holder[]>} */
    const found = new Map();
    for (const job of this.table("jobs").values())
      for (const [node, gpus] of Object.entries(job.on)) {
        const there = found.get(node) ?? [];
        there.push([job, gpus]);
        found.set(node, there);
      }
    return found;
  }
}
