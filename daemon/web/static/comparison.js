// What the policies of a replay came to: figures, completion times, the table of jobs, and one job under all of them.

import { el, foreign } from "./dom.js";
import { frame, timesSince, trace } from "./charts.js";
import { holdings } from "./holdings.js";
import { eachStretch } from "./runs.js";
import { lasting, number, percent, roughly } from "./words.js";

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
  ["gpu_hours", "GPU-hours held", number],
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
        return el("td", { class: best ? "number best" : "number" }, value === null ? "–" : written(value), ratio && el("span", { class: "soft ratio" }, ratio));
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

const LOGARITHMIC = [1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400];

/**
 * The share of the jobs that were done within a time of their submission, which is drawn logarithmically.
 * @param {Replay} replay
 * @param {number} width
 */
export function completionTimes({ runs }, width) {
  const every = runs.map((run) => run.completions.map((seconds) => Math.log10(Math.max(seconds, 1))));
  const from = Math.min(...every.map((one) => one[0]));
  const to = Math.max(...every.map((one) => one[one.length - 1]), from + 0.1);
  /** @returns {import("./charts.js").Mark[]} */
  const marks = () => {
    const within = LOGARITHMIC.filter((seconds) => Math.log10(seconds) >= from && Math.log10(seconds) <= to);
    return within.map((seconds) => [Math.log10(seconds), roughly(seconds)]);
  };
  const label = "Share of the jobs that were done within a time of their submission, under each policy";
  const drawn = frame({ from, to, most: 100, marks, width, height: width > 500 ? 260 : 190, label });
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
 * A job's completion under one policy, in words.
 * @param {Replay} replay
 * @param {Job} job
 * @param {number} which
 */
function completion(replay, job, which) {
  const { took } = replay.runs[which].jobs[job.at];
  return [lasting(took), which > 0 && el("span", { class: "soft ratio" }, times(replay.ratio(job, which)))];
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
    el("th", { scope: "row", class: "name" }, el("button", { class: "plain", "aria-pressed": String(chosen), "data-focus": "job", click: choose }, foreign(job.name, { title: job.name }))),
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
      job.family !== job.name && [foreign(job.family), ", "],
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
        el("figcaption", {}, policy(run, which), el("span", { class: "soft" }, " done in ", completion(replay, job, which), `, waited ${lasting(one.waited)}, ${one.resizes} changes of placement`)),
        drawn.root,
      );
    }),
  );
}
