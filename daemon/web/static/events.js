// What was moved, and what was refused, the latest first.

import { remember } from "./address.js";
import { el, Keyed, tabs } from "./dom.js";
import { moment, number } from "./words.js";

export const title = "Events";
const FILTERS = { all: "All", moves: "Moves", refusals: "Refusals" };
const AT_ONCE = 150;

/**
 * Held before and after, in GPUs.
 * @param {Page.Event} event
 */
function sizes({ kind, gpus, gpus_after: after }) {
  if (kind === "preempt") return gpus ? `${gpus} → 0` : "→ 0";
  return gpus ? `${gpus} → ${after}` : `→ ${after}`;
}

/** @param {string} word of an outcome */
const way = (word) => (word === "done" ? "done" : word === "under way" ? "moving" : "refused");

/** @param {string} outcome */
const wordOf = (outcome) => outcome.split(":")[0];

/**
 * How it went, in a word with a colour beside it.
 * @param {Page.Event} event
 */
export function result({ outcome, ended, at, times }) {
  const word = wordOf(outcome);
  const took = word === "done" && ended !== null && ended > at ? ` in ${number(ended - at)} s` : "";
  const often = times > 1 ? `, ${number(times)} times` : "";
  return el("span", { class: `outcome ${way(word)}`, title: outcome }, `${word}${took}${often}`);
}

/** @param {Page.Event} event @param {import("./store.js").Store} store */
export function eventRow(event, store) {
  const detail = event.outcome.includes(": ") ? event.outcome.slice(event.outcome.indexOf(": ") + 2) : "";
  return el(
    "li",
    {},
    el("time", {}, moment(event.at, store.now)),
    el(
      "span",
      { class: "what" },
      el("span", { class: `kind ${event.kind}` }, event.kind),
      el("a", { href: `#/job/${event.job}`, "data-focus": "job" }, `job ${event.job}`),
      el("span", { class: "soft" }, sizes(event)),
      result(event),
    ),
    el("span", { class: "why" }, event.reason, detail && event.outcome !== "done" ? ` (${detail})` : ""),
  );
}

/** @type {import("./main.js").Open} */
export function open(root, store, { rest, query }) {
  const filter = Object.hasOwn(FILTERS, rest[0]) ? rest[0] : "all";
  let find = query.get("find") ?? "";
  let most = AT_ONCE;
  const search = el("input", {
    type: "search", placeholder: "Find a job, move or word …  ( / )", "aria-label": "Find", value: find,
    input: () => {
      find = search.value;
      remember(`events/${filter}`, { find });
      update();
    },
  });
  const list = el("ol", { class: "rows events" });
  /** @type {Keyed<Page.Event>} */
  const rows = new Keyed(list, (_, event) => eventRow(event, store));
  const none = el("p", { class: "empty" }, "Nothing of that kind has happened.");
  const more = el("button", { click: () => ((most += AT_ONCE), update()) }, "Show more");
  root.append(
    el("div", { class: "tools" }, tabs("Which events", "events", FILTERS, filter), search),
    el("section", { class: "card" }, list, none),
    more,
  );
  function update() {
    const words = find.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = [...store.table("events").entries()].filter(([key, event]) => {
      const refusal = key.startsWith("r") || way(wordOf(event.outcome)) === "refused";
      if (filter === "moves" && key.startsWith("r")) return false;
      if (filter === "refusals" && !refusal) return false;
      const text = `${event.job} job ${event.job} ${event.kind} ${event.user} ${event.reason} ${event.outcome}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    wanted.sort((a, b) => b[1].at - a[1].at);
    rows.show(wanted.slice(0, most), store.day);
    none.hidden = wanted.length > 0;
    more.hidden = wanted.length <= most;
  }
  return { update };
}
