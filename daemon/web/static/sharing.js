// Which jobs share a GPU, how fast each one is there beside alone, and which were separated.

import { el, fill, foreign, Keyed, measure, table } from "./dom.js";
import { jobLink } from "./queue.js";
import { reading } from "./reach.js";
import { counted, moment, number, percent } from "./words.js";

export const title = "Sharing";

/** @typedef {{ node: string, gpu: number }} Gpu */
/**
 * What is told of both jobs of a pair.
 * @typedef {Gpu & { together: string, times: string[], parted: string }} Common
 */
/**
 * One job of a pair, with its speed now where that is told; null: not known.
 * @typedef {Page.Half & { name?: string, speed?: number | null, common?: Common }} Row
 */

/** @type {import("./main.js").Open} */
export function open(root, store) {
  const about = el("p", { class: "about" }, "…");
  const now = pairsTable(["Speed now"], []);
  const before = pairsTable([], ["Until"]);
  const key = el(
    "p",
    { class: "note" },
    el("i", { class: "key now" }), " expected", el("i", { class: "key then" }), " measured; both of the job's speed alone on such a GPU, by all that is known of it",
  );
  const gpus = el("ul", { class: "plain" });
  const past = el("section", { class: "card" }, el("h2", {}, "Shared a GPU before"), before.root);
  const closed = el("section", { class: "card" }, el("h2", {}, "GPUs that are not shared for a while"), gpus);
  for (const part of [now.root, key, past, closed]) part.hidden = true;
  root.append(el("section", { class: "card" }, el("h2", {}, "GPUs that two jobs share"), about, now.root, key), past, closed);

  /** @param {Page.Sharing} told */
  function show(told) {
    const open_ = told.pairs.filter((pair) => pair.ended === null);
    const over = told.pairs.filter((pair) => pair.ended !== null);
    const jobs = store.table("jobs");
    fill(about, words(told, open_.length, store.operator));
    now.show(open_, jobs, told.now);
    before.show(over, jobs, told.now);
    now.root.hidden = open_.length === 0;
    key.hidden = told.pairs.length === 0;
    past.hidden = over.length === 0;
    closed.hidden = told.closed.length === 0;
    fill(gpus, told.closed.map((gpu) => el("li", {}, where(gpu), ": ", foreign(gpu.why))));
  }

  /** @param {string} fault */
  function failed(fault) {
    fill(about, el("span", { class: "why" }, fault));
  }

  return reading("/data/sharing", { show, failed });
}

/** @param {Page.Sharing} told @param {number} own @param {boolean} operator */
function words({ allowed, shared }, own, operator) {
  const others = operator || shared <= own ? "" : ` In the whole cluster two jobs share ${shared === 1 ? "a GPU" : `each of ${counted(shared, "GPU")}`} now.`;
  if (own) return `Two jobs that need little of a GPU are put on one where both together do more than one alone.${others}`;
  if (!allowed) return "Jobs share no GPUs here: it is off in onesd's configuration ([sharing] allow).";
  const none = operator ? "No two jobs share a GPU now." : "None of your jobs shares a GPU now.";
  return `${none}${others} Policies that put jobs together, such as liquid, do so where both lose little by it.`;
}

/**
 * @param {Gpu} gpu
 * @returns {Child}
 */
const where = ({ node, gpu }) => [foreign(node), ` GPU\u00a0${gpu}`];

/**
 * A table of pairs, two rows to each; the further heads are of columns for each job, and for both.
 * @param {string[]} each
 * @param {string[]} both
 */
function pairsTable(each, both) {
  const heads = ["GPU", "Job", "Of its speed alone", ...each, "Both together", "Since", ...both, "Separated"];
  const body = el("tbody");
  /** @type {Keyed<Row>} */
  const rows = new Keyed(body, (_, row) => pairRow(row));
  return {
    root: el("div", { class: "wide" }, table(heads, body, { class: "pairs" })),
    /** @param {Page.Pair[]} pairs @param {Map<string, Page.Job>} jobs @param {number} now */
    show(pairs, jobs, now) {
      rows.show(
        pairs.flatMap((pair) =>
          pair.jobs.map((half, which) => {
            const job = jobs.get(String(half.job));
            /** @type {Row} */
            const row = { ...half, name: job?.name, speed: each.length ? job?.speed ?? null : undefined };
            const times = [pair.since, ...(both.length ? [pair.ended] : [])].map((at) => moment(at, now));
            const common = { node: pair.node, gpu: pair.gpu, together: together(pair), times, parted: pair.parted };
            return /** @type {[string, Row]} */ ([`${pair.node} ${pair.gpu} ${pair.since} ${which}`, which ? row : { ...row, common }]);
          }),
        ),
      );
    },
  };
}

/**
 * One job's cells; in the first one's row those of both, too.
 * @param {Row} row
 */
function pairRow({ job, name, expected, measured, speed, common }) {
  return el(
    "tr",
    { class: common ? null : "second" },
    common && el("th", { scope: "row", rowspan: 2 }, where(common)),
    el("td", { class: job === null ? "soft" : null }, job === null ? "another user's" : jobLink({ job, name })),
    el("td", {}, job === null ? "–" : speeds(expected, measured)),
    speed !== undefined && el("td", { class: "number" }, speed ? `${number(speed, speed < 10 ? 1 : 0)} samples/s` : "–"),
    common && [
      el("td", { rowspan: 2 }, common.together),
      common.times.map((at) => el("td", { rowspan: 2, class: "time" }, at)),
      el("td", { rowspan: 2, class: "why" }, common.parted ? foreign(common.parted) : "no"),
    ],
  );
}

/** @param {number | null} expected @param {number | null} measured */
function speeds(expected, measured) {
  const known = [
    { name: "now", share: expected, words: expected === null ? "not known" : percent(expected) },
    { name: "then", share: measured, words: measured === null ? "not yet" : percent(measured) },
  ];
  const bars = known.map(({ name, share, words }) => measure(Math.min(1, share ?? 0), words, name));
  const label = `expected: ${known[0].words}, measured: ${known[1].words}`;
  return el("span", { class: "both", role: "img", "aria-label": label }, bars);
}

/**
 * What both do on the GPU, beside what one alone would do.
 * @param {Page.Pair} pair
 */
function together({ jobs: [first, second] }) {
  if (first.measured !== null && second.measured !== null) return `${percent(first.measured + second.measured)} measured`;
  if (first.expected !== null && second.expected !== null) return `${percent(first.expected + second.expected)} expected`;
  return "–";
}
