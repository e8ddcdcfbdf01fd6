// Who has had how much: GPU hours of the last day, and what is held and waited for now.

import { el, fill, foreign, measure, table } from "./dom.js";
import { counted, lasting, number, percent } from "./words.js";

export const title = "Shares";

/** @type {import("./main.js").Open} */
export function open(root, store) {
  const body = el("tbody");
  const about = el("p", { class: "about" });
  const heads = ["Account and user", "GPU hours", "of all", "GPUs held", "Jobs waiting", "Runs ended of", "Waited, on average"];
  root.append(
    el(
      "section",
      { class: "card" },
      el("h2", {}, "GPU time of the last 24 hours"),
      about,
      el("div", { class: "wide" }, table(heads, body)),
    ),
  );
  return {
    update() {
      const rows = [...store.table("shares").values()];
      const all = rows.reduce((sum, row) => sum + row.gpu_hours, 0);
      fill(
        about,
        store.operator ? "" : "Yours alone. ",
        "Elastic jobs alone. What runs counts up to now; the mean wait, from submission to the first start, is that of jobs of which a run has ended.",
      );
      /** @type {Map<string, Page.Share[]>} */
      const accounts = new Map();
      for (const row of rows) accounts.set(row.account, [...(accounts.get(row.account) ?? []), row]);
      const sums = [...accounts.entries()].map(([account, users]) => ({ account, users, sum: total(users) }));
      sums.sort((a, b) => b.sum.gpu_hours - a.sum.gpu_hours);
      fill(
        body,
        sums.flatMap(({ account, users, sum }) => [
          line(foreign(account), sum, all, "account"),
          users.sort((a, b) => b.gpu_hours - a.gpu_hours).map((user) => line(foreign(user.user), user, all, "user")),
        ]),
      );
    },
  };
}

/** @typedef {Omit<Page.Share, "user" | "account">} Had */

/**
 * @param {Page.Share[]} users
 * @returns {Had}
 */
function total(users) {
  /** @param {(user: Page.Share) => number} of */
  const sum = (of) => users.reduce((so_far, user) => so_far + of(user), 0);
  const waits = users.flatMap(({ waited, jobs }) => (waited === null ? [] : { waited, jobs }));
  const ended = waits.reduce((so_far, { jobs }) => so_far + jobs, 0);
  const waited = waits.length ? waits.reduce((so_far, one) => so_far + one.waited * one.jobs, 0) / Math.max(1, ended) : null;
  return { gpu_hours: sum((user) => user.gpu_hours), jobs: sum((user) => user.jobs), held: sum((user) => user.held), waiting: sum((user) => user.waiting), waited };
}

/** @param {Child} name @param {Had} row @param {number} all @param {string} kind */
function line(name, row, all, kind) {
  const share = row.gpu_hours / Math.max(all, 1e-9);
  return el(
    "tr",
    { class: kind },
    el("th", { scope: "row" }, name),
    el("td", { class: "number" }, number(row.gpu_hours, 1)),
    el("td", {}, measure(share, all ? percent(share) : "–")),
    el("td", { class: "number" }, number(row.held)),
    el("td", { class: "number" }, number(row.waiting)),
    el("td", { class: "number" }, counted(row.jobs, "job")),
    el("td", { class: "number" }, lasting(row.waited)),
  );
}
