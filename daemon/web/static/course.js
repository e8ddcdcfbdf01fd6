// How a job's training went: batch, loss, speed and utilisation, on the time axis of its sizes.

import { el, fill, svg, table } from "./dom.js";
import { frame, narrow, ticksTo, trace } from "./charts.js";
import { counted, moment, number, percent, short } from "./words.js";

/** @typedef {import("./charts.js").Point} Point */
/** @typedef {import("./holdings.js").Stretch} Stretch */
/**
 * What is drawn of a course; `straight`: from point to point, `most` and `tick`: of the axis.
 * @typedef {object} Measure
 * @property {Exclude<keyof Page.Course, "at">} name
 * @property {string} title
 * @property {(value: number) => string} words
 * @property {string} [unit] behind them, but in a table, where it is the head
 * @property {string} about
 * @property {boolean} [straight]
 * @property {number} [most]
 * @property {(value: number) => string} [tick]
 */

/** @type {Measure[]} */
const MEASURES = [
  { name: "batch", title: "Batch", words: (value) => number(value), about: "samples a step, on all GPUs together" },
  { name: "loss", title: "Loss", words: (value) => number(value, value < 0.1 ? 6 : 4), about: "as the job reports it", straight: true },
  { name: "samples_per_second", title: "Speed", words: (value) => number(value, value < 10 ? 2 : 0), unit: " samples/s", about: "its batch by the time of a step", straight: true },
  { name: "utilization", title: "Utilisation", words: (value) => percent(value), about: "of its GPUs, as the agents see it", straight: true, most: 1, tick: percent },
];

/** The part of a job's view that shows it; what is shown is changed in place, so that the table stays open. */
export function course() {
  const figures = el("div", { class: "courses" });
  const missing = el("p", { class: "note" });
  const heads = ["Time", "Batch", "Loss", "Samples/s", "Utilisation"];
  const body = el("tbody");
  const summary = el("summary");
  const same = el(
    "details",
    { class: "note" },
    summary,
    el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Training over time, as a table" }, table(heads, body)),
  );
  const root = el("section", { class: "card" }, el("h2", {}, "Training over time"), figures, missing, same);

  return {
    root,
    /** @param {Page.Life} life @param {Stretch[]} held in which the job had GPUs */
    show(life, held) {
      const known = MEASURES.map((measure) => ({ measure, points: pointsOf(life.course, measure.name) }));
      const drawn = known.filter(({ points }) => points.length);
      const unknown = known.filter(({ points }) => !points.length).map(({ measure }) => measure.title.toLowerCase());
      fill(figures, drawn.map(({ measure, points }) => figure(measure, points, life, held)));
      fill(missing, drawn.length ? `Not reported: ${unknown.join(", ")}.` : "Drawn as soon as the job reports how it trains.");
      missing.hidden = unknown.length === 0;
      same.hidden = drawn.length === 0;
      fill(summary, `The same as a table of ${counted(life.course.at.length, "row")}`);
      fill(body, rows(life));
    },
  };
}

/**
 * @param {Page.Course} course
 * @param {Measure["name"]} name
 * @returns {Point[]}
 */
function pointsOf(course, name) {
  return course[name].flatMap((value, index) => (value === null ? [] : [[course.at[index], value]]));
}

/** @param {Measure} measure @param {Point[]} points @param {Page.Life} life @param {Stretch[]} held */
function figure({ title, words: bare, unit = "", about, straight = false, most, tick = short }, points, life, held) {
  /** @param {number} value */
  const words = (value) => bare(value) + unit;
  const values = points.map(([, value]) => value);
  const [least, largest, last] = [Math.min(...values), Math.max(...values), values[values.length - 1]];
  const top = most ?? largest;
  const drawn = frame({
    from: life.job.submitted,
    to: life.job.ended ?? life.now,
    most: top,
    ticks: ticksTo(top, { steps: 3, whole: false }),
    words: tick,
    width: narrow() ? 380 : 1120,
    height: narrow() ? 120 : 110,
    label: `${title} of job ${life.job.job} over time: ${words(values[0])} at first, ${words(last)} at last, between ${words(least)} and ${words(largest)}`,
  });
  for (const move of life.moves)
    drawn.root.append(svg("g", { class: "mark" }, svg("path", { d: `M${drawn.x(Math.max(move.at, life.job.submitted))} ${drawn.top}V${drawn.y(0)}` })));
  for (const part of parted(points, held)) trace(drawn, part, "course", { straight });
  return el("figure", {}, el("figcaption", {}, title, " ", el("b", {}, words(last)), el("span", { class: "soft" }, `, ${about}`)), drawn.root);
}

/**
 * No line leads over a time in which the job had no GPUs.
 * @param {Point[]} points
 * @param {Stretch[]} held
 */
function parted(points, held) {
  const starts = held.filter(([from], index) => index && from > held[index - 1][1]).map(([from]) => from);
  /** @type {Map<number, Point[]>} */
  const found = new Map();
  for (const point of points) {
    const part = starts.filter((from) => from <= point[0]).length;
    found.set(part, [...(found.get(part) ?? []), point]);
  }
  return [...found.values()];
}

/** @param {Page.Life} life */
function rows({ course, now }) {
  return course.at.map((at, index) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", class: "number" }, moment(at, now)),
      MEASURES.map(({ name, words }) => {
        const value = course[name][index];
        return el("td", { class: "number" }, value === null ? "–" : words(value));
      }),
    ),
  );
}
