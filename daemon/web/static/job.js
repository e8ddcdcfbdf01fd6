// One job's life: its sizes over time, what moved it and why, and what is believed of it.

import { el, fill, foreign, measure, svg, table } from "./dom.js";
import { narrow } from "./charts.js";
import { course } from "./course.js";
import { holdings } from "./holdings.js";
import { progress } from "./queue.js";
import { reading } from "./reach.js";
import { counted, lasting, moment, number, percent } from "./words.js";

/** @typedef {import("./holdings.js").Stretch} Stretch */

const AT_ONCE = 6; // nodes of a move

/** @type {import("./main.js").Open} */
export function open(root, store, { rest }) {
  const number_ = rest[0] ?? "";
  const above = el("div", {}, el("p", { class: "empty" }, "…"));
  const training = course();
  const below = el("div");
  training.root.hidden = true;
  root.append(above, training.root, below);

  /** @param {Page.Life} life */
  function show(life) {
    const row = store.table("jobs").get(String(life.job.job));
    const held = stretches(life);
    fill(above, header(life, row), facts(life, row), drawing(life, held));
    training.root.hidden = false;
    training.show(life, held);
    fill(below, why(life), speeds(life), moves(life), recoveries(life));
  }

  /** @param {string} fault */
  function failed(fault) {
    training.root.hidden = true;
    fill(below);
    fill(
      above,
      el("section", { class: "card" }, el("h1", {}, `Job ${number_}`), el("p", { class: "why" }, fault), el("p", {}, el("a", { href: "#/queue" }, "To the queue"))),
    );
  }

  return reading(`/data/job/${encodeURIComponent(number_)}`, { show, failed });
}

/** @param {Page.Life} life @param {Page.Job} [row] */
function header({ job }, row) {
  const state = row?.state ?? job.state;
  return el(
    "section",
    { class: "head" },
    el("h1", {}, `Job ${job.job} `, foreign(job.name, { class: "name", title: job.name })),
    el("span", { class: `badge ${state}` }, state.toLowerCase()),
    el("p", { class: "about" }, foreign(job.user), ", account ", foreign(job.account), row ? [", partition ", foreign(row.partition)] : ""),
  );
}

/** @param {Page.Life} life @param {Page.Job} [row] */
function facts(life, row) {
  const { report } = life.job;
  const share = report?.total_samples ? Math.min(1, report.samples / report.total_samples) : null;
  /** @param {string} value @param {Child} words @param {string} [title] */
  const fact = (value, words, title) => el("div", { class: "tile", title }, el("b", {}, value), el("span", {}, words));
  const speed = report?.batch && report.step_seconds ? report.batch / report.step_seconds : null;
  return el(
    "div",
    { class: "tiles" },
    fact(String(row?.gpus ?? 0), "GPUs now", row?.nodes),
    fact(String(life.job.requested), `asked for (${life.job.sizes.replaceAll("-", "–")})`, "In brackets what it accepts"),
    fact(percent(share), share === null ? "done" : progress(share, ""), "By its own reports"),
    fact(number(report?.batch), "batch", "The global batch size of its last report"),
    fact(speed === null ? "–" : number(speed, speed < 10 ? 1 : 0), "samples/s"),
    fact(number(report?.loss, 4), "loss"),
    fact(number(life.gpu_seconds / 3600, 2), "GPU hours so far"),
  );
}

/**
 * Those in which the job held the same GPUs.
 * @param {Page.Life} life
 */
function stretches({ runs, satellites, now }) {
  /** @type {[at: number, gpus: number, words: string][]} */
  const changes = [];
  /** @param {number | null} from @param {number} to @param {number} gpus @param {string} words */
  const add = (from, to, gpus, words) => {
    if (from !== null && to > from) changes.push([from, gpus, words], [to, -gpus, words]);
  };
  for (const run of runs) {
    let since = run.started;
    for (const held of run.earlier) {
      add(since, held.until, held.gpus, `run ${run.run} on ${held.nodes}`);
      since = held.until;
    }
    add(since, run.ended ?? now, run.gpus, `run ${run.run} on ${run.nodes}`);
  }
  for (const one of satellites) add(one.started, one.ended ?? now, one.gpus, `satellite ${one.satellite} on ${one.nodes}`);
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  /** @type {Stretch[]} */
  const found = [];
  let held = 0;
  /** @type {Map<string, number>} How often each of the words is true. */
  const words = new Map();
  changes.forEach(([at, gpus, said], index) => {
    held += gpus;
    const times = (words.get(said) ?? 0) + Math.sign(gpus);
    if (times) words.set(said, times);
    else words.delete(said);
    const next = changes[index + 1]?.[0];
    if (held > 0 && next > at) found.push([at, next, held, [...words.keys()].join("; ")]);
  });
  return found;
}

/** @param {Page.Life} life @param {Stretch[]} held */
function drawing(life, held) {
  const to = life.job.ended ?? life.now;
  const from = life.job.submitted;
  const drawn = holdings(held, {
    from, to, asked: life.job.requested, width: narrow() ? 380 : 1120, height: narrow() ? 190 : 220, top: 26, label: `GPUs of job ${life.job.job} over time`,
  });
  let number_of_move = 0;
  for (const move of life.moves) {
    number_of_move += 1;
    const x = drawn.x(Math.min(Math.max(move.at, from), to));
    drawn.root.append(
      svg(
        "g",
        { class: `mark ${move.outcome === "done" ? "done" : move.outcome ? "refused" : "moving"}` },
        svg("path", { d: `M${x} ${drawn.top - 2}V${drawn.base}` }),
        svg("circle", { cx: x, cy: drawn.top - 9, r: 8 }),
        svg("text", { x, y: drawn.top - 5.5, "text-anchor": "middle" }, String(number_of_move)),
        svg("title", {}, `${moment(move.at, life.now)} ${move.kind}: ${move.reason}`),
      ),
    );
  }
  return el(
    "section",
    { class: "card" },
    el("h2", {}, "GPUs over time"),
    drawn.root,
    el(
      "ul",
      { class: "legend" },
      el("li", {}, el("i", { class: "key fill elastic" }), "held"),
      el("li", {}, el("i", { class: "key waits" }), "waiting"),
      el("li", {}, el("i", { class: "key dashed" }), "asked for"),
      el("li", {}, el("i", { class: "key round" }, "1"), "a move; see below"),
    ),
  );
}

/** @param {Page.Life} life */
function why(life) {
  const [, ...lines] = life.lines;
  return el("section", { class: "card" }, el("h2", {}, "Why"), el("ul", { class: "plain" }, lines.map((one) => el("li", {}, one))), life.meta.note && el("p", { class: "note" }, life.meta.note));
}

/** @param {Page.Life} life */
function speeds({ speeds: all }) {
  const known = all.flatMap(({ samples_per_second: speed, ...one }) => (speed === undefined ? [] : { ...one, speed }));
  if (!known.length) return null;
  const most = Math.max(...known.map((one) => one.speed));
  return el(
    "section",
    { class: "card" },
    el("h2", {}, "What each size would bring"),
    el(
      "div",
      { class: "wide" },
      table(
        ["GPUs", "Samples/s", "of the fastest", "Time left", ""],
        el(
          "tbody",
          {},
          known.map((one) =>
            el(
              "tr",
              { class: one.note.startsWith("now") ? "now" : null },
              el("th", { scope: "row", class: "number" }, String(one.gpus)),
              el("td", { class: "number" }, number(one.speed, most < 10 ? 2 : 0)),
              el("td", {}, measure(one.speed / most, percent(one.speed / most))),
              el("td", { class: "number" }, lasting(one.time_left)),
              el("td", { class: "soft" }, one.note),
            ),
          ),
        ),
      ),
    ),
  );
}

/** @param {Record<string, number>} target GPUs by node */
function places(target) {
  const all = Object.entries(target);
  const first = all.slice(0, AT_ONCE).map(([node, gpus]) => `${gpus} on ${node}`).join(", ");
  if (all.length <= AT_ONCE) return first;
  const sum = all.reduce((so_far, [, gpus]) => so_far + gpus, 0);
  return `${counted(sum, "GPU")}: ${first} and ${counted(all.length - AT_ONCE, "more node")}`;
}

/** @param {Page.Life} life */
function moves({ moves: all, now }) {
  return el(
    "section",
    { class: "card" },
    el("h2", {}, "Moves"),
    all.length === 0 && el("p", { class: "empty" }, "onesd has not moved it."),
    el(
      "ol",
      { class: "rows events" },
      all
        .map((move, index) =>
          el(
            "li",
            {},
            el("time", {}, moment(move.at, now)),
            el(
              "span",
              { class: "what" },
              el("i", { class: "key round" }, String(index + 1)),
              el("span", { class: `kind ${move.kind}` }, move.kind),
              el("span", { class: "soft" }, move.target ? places(move.target) : "gives its GPUs back"),
              move.batch ? el("span", { class: "soft" }, `batch ${number(move.batch)}`) : null,
              el("span", { class: `outcome ${move.outcome === "done" ? "done" : move.outcome ? "refused" : "moving"}` }, move.outcome || `under way: ${move.step}`),
            ),
            el("span", { class: "why" }, move.reason),
          ),
        )
        .reverse(),
    ),
  );
}

/** @param {Page.Life} life */
function recoveries({ recoveries: all, now }) {
  if (!all.length) return null;
  return el(
    "section",
    { class: "card" },
    el("h2", {}, "Workers lost"),
    el(
      "ol",
      { class: "rows events" },
      all.map((one) => el("li", {}, el("time", {}, moment(one.at, now)), el("span", { class: "why" }, one.words))).reverse(),
    ),
  );
}
