// Elastic jobs: those that wait, with what they wait for, and those that run.

import { remember } from "./address.js";
import { bar, el, fill, foreign, Keyed, tabs } from "./dom.js";
import { moment, number, percent } from "./words.js";

export const title = "Queue";
const AT_ONCE = 200; // rows

/**
 * As much of a job as a link to it needs.
 * @typedef {{ job: number, name?: string }} NamedJob
 */
/** @typedef {Page.Job & Page.Reason} Explained */
/** @typedef {[key: string, job: Explained]} Row */

/** @type {[name: string, words: string, value: (job: Explained) => string | number][]} */
const COLUMNS = [
  ["job", "Job", (job) => job.job],
  ["name", "Name", (job) => job.name],
  ["user", "User", (job) => job.user],
  ["account", "Account", (job) => job.account],
  ["partition", "Partition", (job) => job.partition],
  ["state", "State", (job) => job.state],
  ["gpus", "GPUs", (job) => job.gpus],
  ["asked", "Asked", (job) => job.asked],
  ["submitted", "Submitted", (job) => job.submitted],
  ["done", "Progress", (job) => job.done ?? -1],
  ["at", "May start", (job) => job.at ?? Infinity],
  ["why", "Why", (job) => job.why],
];
/** @type {Record<string, string>} */
const FILTERS = { waiting: "Waiting", running: "Running", all: "All" };

/**
 * A job's number and name, as a link to its view.
 * @param {NamedJob} job
 */
export function jobLink(job) {
  return el(
    "a",
    { class: "job", href: `#/job/${job.job}`, "data-focus": `job-${job.job}` },
    el("b", {}, String(job.job)),
    job.name !== undefined && [" ", foreign(job.name, { class: "name", title: job.name })],
  );
}

/** @type {import("./main.js").Open} */
export function open(root, store, { rest, query }) {
  const filter = Object.hasOwn(FILTERS, rest[0]) ? rest[0] : "all";
  let sort = query.get("sort") ?? "";
  let find = query.get("find") ?? "";
  let most = AT_ONCE;
  const search = el("input", {
    type: "search", placeholder: "Find a job, name, user, node …  ( / )", "aria-label": "Find", value: find,
    input: () => {
      find = search.value;
      choose();
    },
  });
  const heads = COLUMNS.map(([name, words]) => {
    const click = () => {
      sort = sort === name ? `-${name}` : name;
      showHeads();
      choose();
    };
    return el("th", { scope: "col", class: name }, el("button", { click }, words));
  });
  const body = el("tbody");
  /** @type {Keyed<Explained>} */
  const rows = new Keyed(body, (_, job) => row(job, store));
  const count = el("p", { class: "note", role: "status" });
  const more = el("button", { click: () => ((most += AT_ONCE), update()) }, "Show more");
  root.append(
    el("div", { class: "tools" }, tabs("Which jobs", "queue", FILTERS, filter), search),
    el("div", { class: "wide card" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body)),
    count,
    more,
  );

  function choose() {
    remember(`queue/${filter}`, { find, sort });
    update();
  }

  function showHeads() {
    COLUMNS.forEach(([name], which) => {
      heads[which].ariaSort = sort === `-${name}` ? "descending" : sort === name ? "ascending" : null;
    });
  }

  function update() {
    const wanted = [...store.table("jobs").entries()]
      .filter(([, job]) => belongs(job, filter))
      .map(([key, job]) => /** @type {Row} */ ([key, store.explained(job)]))
      .filter(([, job]) => found(job, find));
    wanted.sort(order(sort));
    rows.show(wanted.slice(0, most), store.day);
    more.hidden = wanted.length <= most;
    const of = store.operator ? "" : " of yours";
    const shown = wanted.length > most ? `the first ${number(most)} of ` : "";
    fill(count, wanted.length ? `${shown}${number(wanted.length)} ${wanted.length === 1 ? "job" : "jobs"}${of}` : `No such job${of}.`);
  }
  showHeads();
  return { update };
}

/** @param {Page.Job} job @param {string} filter */
function belongs(job, filter) {
  return filter === "all" || (filter === "running") === job.gpus > 0;
}

/** @param {Explained} job @param {string} find */
function found(job, find) {
  const words = find.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  // Each node by its name: several stand folded in `nodes`.
  const nodes = Object.keys(job.on).join(" ");
  const text = `${job.job} ${job.name} ${job.user} ${job.account} ${job.partition} ${job.state} ${job.nodes} ${nodes} ${job.why}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

/**
 * @param {string} sort
 * @returns {(one: Row, other: Row) => number}
 */
function order(sort) {
  const value = COLUMNS.find(([name]) => name === sort.replace(/^-/, ""))?.[2];
  const turn = sort.startsWith("-") ? -1 : 1;
  // Unless it was chosen: who waits before who runs, and then in the order of submission.
  if (!value) return ([, a], [, b]) => Number(a.gpus > 0) - Number(b.gpus > 0) || a.submitted - b.submitted || a.job - b.job;
  return ([, a], [, b]) => {
    const [first, second] = [value(a), value(b)];
    const less = typeof first === "number" && typeof second === "number" ? first - second : String(first).localeCompare(String(second), "en", { numeric: true });
    return turn * (less || 0) || a.job - b.job;
  };
}

/** @param {Explained} job @param {import("./store.js").Store} store */
function row(job, store) {
  return el(
    "tr",
    { class: job.gpus ? "runs" : "waits" },
    el("th", { scope: "row", class: "job" }, el("a", { href: `#/job/${job.job}`, "data-focus": "job" }, String(job.job))),
    el("td", { class: "name" }, foreign(job.name, { title: job.name })),
    el("td", { class: "user" }, foreign(job.user)),
    el("td", { class: "account" }, foreign(job.account)),
    el("td", { class: "partition" }, foreign(job.partition)),
    el("td", { class: "state" }, el("span", { class: `badge ${job.state}` }, job.state.toLowerCase())),
    el("td", { class: "number" }, job.gpus ? String(job.gpus) : ""),
    el("td", { class: "number", title: `accepts ${job.sizes}` }, String(job.asked), el("span", { class: "soft" }, ` (${job.sizes})`)),
    el("td", { class: "time" }, moment(job.submitted, store.now, { seconds: false })),
    el("td", { class: "number" }, job.done === null ? "" : progress(job.done)),
    el("td", { class: "time" }, job.at ? moment(job.at, store.now, { seconds: false }) : job.gpus ? "" : "–"),
    el("td", { class: "why" }, job.why || (job.gpus ? "" : "–")),
  );
}

/**
 * A bar with its percentage, or other words.
 * @param {number} share
 * @param {string} words
 */
export function progress(share, words = percent(share)) {
  return el("span", { class: "progress", role: "img", "aria-label": percent(share) }, bar(share), words);
}
