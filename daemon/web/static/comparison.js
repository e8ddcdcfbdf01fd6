// What the policies of a replay came to: figures, completion times, the table of jobs, and one job under all of them.

import { el, foreign } from "./dom.js";
import { frame, timesSince, trace } from "./charts.js";
import { holdings } from "./holdings.js";
import { eachStretch } from "./runs.js";
import { counted, lasting, number, percent, roughly } from "./words.js";

const POLICIES = 8; // colours and dashes; then they repeat

/** @typedef {import("./runs.js").Replay} Replay */
/** @typedef {import("./runs.js").Job} Job */

/** @param {number} seconds */
const milliseconds = (seconds) => `${number(1000 * seconds, 1)} ms`;
/** @type {[name: keyof Report.Figures, words: string, written: (value: number) => string][]} */
const FIGURES = [
  ["average_jct_s", "Average completion time", lasting],
  ["median_jct_s", "Median", lasting],
  ["p90_jct_s", "90th percentile", lasting],
  ["p99_jct_s", "99th percentile", lasting],
  ["makespan_s", "Makespan", lasting],
  ["average_wait_s", "Average wait without GPUs", lasting],
  ["gpu_hours", "GPU-hours held", (hours) => number(hours, hours < 10 ? 2 : 0)],
  ["utilisation", "Share of the GPU-hours until the last end", percent],
  ["cost", "Cost of the GPU-hours held", (cost) => number(cost, 2)],
  ["resizes_per_job", "Changes of placement per job", (changes) => number(changes, 2)],
  ["lost_to_moves", "Share of the GPU-hours lost to moves", (share) => percent(share, 1)],
  ["decide_s_mean", "CPU time of a round, mean", milliseconds],
  ["decide_s_p99", "CPU time of a round, 99th percentile", milliseconds],
];
/** @type {Set<keyof Report.Figures>} Shares already. */
const NO_RATIO = new Set(["utilisation", "lost_to_moves"]);

/**
 * A policy's name with its colour.
 * @param {{ policy: string }} run
 * @param {number} which
 */
export function policy(run, which) {
  return [el("i", { class: `key p${which % POLICIES}` }), foreign(run.policy)];
}

/** @param {number | null} ratio */
function times(ratio) {
  return ratio === null || !Number.isFinite(ratio) ? "–" : `${number(ratio, 2)}×`;
}

/**
 * The figures of all runs, each with its ratio to the first one.
 * @param {Replay} replay
 */
export function figures({ runs }) {
  const rows = FIGURES.filter(([name]) => runs.some((run) => run.figures[name] !== null)).map(([name, words, written]) => {
    const values = runs.map((run) => run.figures[name]);
    const known = values.flatMap((value) => value ?? []);
    const least = Math.min(...known);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, words),
      values.map((value, which) => {
        const best = name !== "utilisation" && value === least && known.some((other) => other !== least);
        const ratio = which && !NO_RATIO.has(name) && value !== null && values[0] !== null ? times(value / values[0]) : null;
        return el("td", { class: best ? "number best" : "number" }, value === null ? "–" : written(value), ratio && [" ", el("span", { class: "soft ratio" }, ratio)]);
      }),
    );
  });
  return el(
    "section",
    { class: "card" },
    el("h2", {}, "Figures"),
    el(
      "div",
      { class: "wide" },
      el(
        "table",
        { class: "figures" },
        el("thead", {}, el("tr", {}, el("td", {}), runs.map((run, which) => el("th", { scope: "col" }, policy(run, which))))),
        el("tbody", {}, rows),
      ),
    ),
    runs.length > 1 && el("p", { class: "note" }, "Bold: the least of a row. ×: against ", foreign(runs[0].policy), "."),
    runs.map(({ policy: name, notes }) => notes.map((note) => el("p", { class: "note" }, foreign(name), ": ", foreign(note)))),
  );
}

/** @param {number} unit @param {number[]} times */
const rungs = (unit, ...times) => times.map((each) => Math.log10(unit * each));
/** Round times, as logarithms: those that an axis has even where there is room for few, and others. */
const ROUND = [...rungs(1, 1, 10), ...rungs(60, 1, 10), ...rungs(3600, 1), ...rungs(86400, 1, 10, 100, 1e3, 1e4, 1e5)];
const BETWEEN = [...[1, 60].flatMap((unit) => rungs(unit, 2, 5, 20, 30)), ...rungs(3600, 2, 5, 10), ...[1, 10, 100, 1e3, 1e4].flatMap((days) => rungs(86400 * days, 2, 5))];
const LADDER = [...ROUND, ...BETWEEN].sort((a, b) => a - b);

/**
 * The marks of an axis of logarithms that begins and ends with a mark.
 * @param {number} from
 * @param {number} to
 * @param {number} most
 * @returns {import("./charts.js").Mark[]}
 */
function logarithmic(from, to, most) {
  const apart = (to - from) / most;
  const chosen = [from, to];
  for (const at of [...ROUND, ...BETWEEN])
    if (at > from && at < to && chosen.every((other) => Math.abs(at - other) >= apart)) chosen.push(at);
  return chosen.map((at) => [at, roughly(Math.round(10 ** at))]);
}

/**
 * The share of the jobs that had ended within a time of their submission, which is drawn logarithmically.
 * @param {Replay} replay
 * @param {number} width
 */
export function completionTimes({ runs }, width) {
  const every = runs.map((run) => run.completions.map((seconds) => Math.log10(Math.max(seconds, 1))));
  const [first, last] = [Math.min(...every.map((one) => one[0])), Math.max(...every.map((one) => one[one.length - 1]))];
  const from = LADDER.filter((at) => at <= first).at(-1) ?? first;
  const to = LADDER.find((at) => at >= last && at > from) ?? last;
  const label = "Share of the jobs that had ended within a time of their submission, under each policy";
  const drawn = frame({ from, to, most: 100, marks: logarithmic, width, height: width > 500 ? 260 : 190, label });
  every.forEach((one, which) => {
    /** @type {import("./charts.js").Point[]} */
    const shares = one.map((at, index) => [at, (100 * (index + 1)) / one.length]);
    trace(drawn, [[from, 0], ...shares, [to, 100]], `p${which % POLICIES}`);
  });
  return drawn.root;
}

/**
 * The colours of the policies.
 * @param {Replay} replay
 */
export function legend({ runs }) {
  return el("ul", { class: "legend" }, runs.map((run, which) => el("li", {}, policy(run, which))));
}

/**
 * How long a job took under one policy, and how many times as long as under the first one.
 * @param {Replay} replay
 * @param {Job} job
 * @param {number} which
 */
function completion(replay, job, which) {
  const { took, cut } = replay.runs[which].jobs[job.at];
  if (cut) return [lasting(took), " ", el("span", { class: "cut", title: "It was ended by its time limit before it was done" }, "time limit")];
  return [lasting(took), which > 0 && [" ", el("span", { class: "soft ratio" }, times(replay.ratio(job, which)))]];
}

/**
 * How a job ended, in words.
 * @param {import("./runs.js").Lived} lived
 */
export function ending({ took, cut }) {
  return `${cut ? "ended by its time limit after" : "done in"} ${lasting(took)}`;
}

/**
 * The table of jobs, which says in words what the drawings show.
 * @param {Replay} replay
 */
export function heads({ runs }) {
  return el("tr", {}, ["Job", "User", "Submitted", "Asked"].map((words) => el("th", { scope: "col" }, words)), runs.map((run, which) => el("th", { scope: "col" }, policy(run, which))));
}

/** @param {Replay} replay @param {Job} job @param {{ chosen: boolean, choose: () => void }} how */
export function row(replay, job, { chosen, choose }) {
  return el(
    "tr",
    { class: chosen ? "now" : null },
    el("th", { scope: "row", class: "name" }, el("button", { class: "plain", "aria-pressed": String(chosen), "data-focus": "job", click: choose }, foreign(job.name, { title: job.name })), job.also && [" ", foreign(job.also, { class: "soft", title: job.also })]),
    el("td", { class: "user" }, foreign(job.user)),
    el("td", { class: "number" }, lasting(job.submitted)),
    el("td", { class: "number" }, `${job.asked} `, el("span", { class: "soft" }, `(${job.sizes})`)),
    replay.runs.map((_, which) => el("td", { class: "number" }, completion(replay, job, which))),
  );
}

/**
 * One job under every policy.
 * @param {Replay} replay
 * @param {Job} job
 * @param {number} width
 * @param {{ zoom: (from: number, to: number) => void, close: () => void }} on
 */
export function life(replay, job, width, { zoom, close }) {
  const lived = replay.runs.map((run) => run.jobs[job.at]);
  const to = Math.max(job.submitted + 1, ...lived.map((one) => one.finished));
  return el(
    "section",
    { class: "card life", "aria-label": "The chosen job" },
    el(
      "div",
      { class: "head" },
      el("h2", {}, "Job ", foreign(job.name)),
      el("button", { click: () => zoom(job.submitted, to) }, "Zoom to its times"),
      el("button", { click: close }, "Close"),
    ),
    el(
      "p",
      { class: "about" },
      job.also && [foreign(job.also), ", "],
      "user ", foreign(job.user), ", account ", foreign(job.account),
      `; submitted after ${lasting(job.submitted)}, asked for ${job.asked}, accepts ${job.sizes}`,
    ),
    replay.runs.map((run, which) => {
      const one = lived[which];
      /** @type {import("./holdings.js").Stretch[]} */
      const stretches = [];
      eachStretch(job, one, (begin, end, gpus) => {
        if (gpus) stretches.push([begin, end, gpus, ""]);
      });
      const drawn = holdings(stretches, {
        from: job.submitted, to, end: one.finished, asked: job.asked, most: replay.most[job.at], width, height: 120, top: 12, marks: timesSince, label: `GPUs of the job over time under ${run.policy}`,
      });
      return el(
        "figure",
        {},
        el("figcaption", {}, policy(run, which), el("span", { class: "soft" }, " ", one.cut ? ending(one) : ["done in ", completion(replay, job, which)], `, waited ${lasting(one.waited)}, ${counted(one.resizes, "change")} of placement`)),
        drawn.root,
      );
    }),
  );
}
