// Drawings of values over time, as SVG.

import { svg } from "./dom.js";
import { day, lasting, moment, short } from "./words.js";

/** @typedef {[at: number, value: number]} Point */
/** @typedef {[at: number, ...values: number[]]} Values */
/** @typedef {[at: number, words: string]} Mark */
/**
 * What a drawing shows, from 0 to `most` over these times, and its sizes in pixels.
 * @typedef {object} Framing
 * @property {number} from
 * @property {number} to
 * @property {number} most
 * @property {string} label
 * @property {number[]} [ticks] of the values
 * @property {(value: number) => string} [words] for them
 * @property {number} [width]
 * @property {number} [height]
 * @property {number} [left]
 * @property {number} [right]
 * @property {number} [top]
 * @property {number} [bottom]
 * @property {(from: number, to: number, most: number) => Mark[]} [marks]
 */
/**
 * The same of points, which tell the times themselves.
 * @typedef {Omit<Framing, "from" | "to"> & { from?: number, to?: number }} OfPoints
 */
/** @typedef {ReturnType<typeof frame>} Drawing */

const STEPS = [
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200],
  ...[1, 2, 5, 10, 20, 50, 100, 200].map((days) => 86400 * days),
];

/** Whether there is no more than a phone's width for a drawing. */
export const narrow = () => matchMedia("(max-width: 640px)").matches;

/**
 * Round times between two, some six of them; `zone`: seconds by which days begin later than the clock's zero.
 * @param {number} from
 * @param {number} to
 */
export function timesBetween(from, to, most = 6, zone = new Date(from * 1000).getTimezoneOffset() * 60) {
  const step = STEPS.find((one) => (to - from) / one <= most) ?? 86400 * 365 * Math.ceil((to - from) / (86400 * 365) / most);
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) found.push(at);
  return found;
}

/**
 * The marks of an axis of times of day; the first one of another day is written with the date,
 * since there is no room for it at each.
 * @param {number} from
 * @param {number} to
 * @param {number} most
 * @returns {Mark[]}
 */
export function timesOfDay(from, to, most) {
  const times = timesBetween(from, to, most);
  const step = times.length > 1 ? times[1] - times[0] : 60;
  let before = day(to);
  return times.map((at) => {
    const date = day(at);
    const clock = moment(at, at, { seconds: step < 60 });
    const words = date === before ? clock : /^[0:]+$/.test(clock) ? date : `${date} ${clock}`;
    before = date;
    return [at, step < 86400 ? words : date];
  });
}

/**
 * The marks of an axis of times since a beginning: `06:00`, `1-18:00`, `3 d`.
 * @param {number} from
 * @param {number} to
 * @param {number} most
 * @returns {Mark[]}
 */
export function timesSince(from, to, most) {
  const times = timesBetween(from, to, most, 0);
  const step = times.length > 1 ? times[1] - times[0] : to - from;
  /** @param {number} at */
  const words = (at) => {
    if (at === 0) return "0";
    if (step % 86400 === 0) return `${at / 86400} d`;
    return at < 60 ? `${at} s` : lasting(at).slice(0, step < 60 ? undefined : -3);
  };
  return times.map((at) => [at, words(at)]);
}

/**
 * Round numbers from 0 to `most`, so many steps at most; `whole`: none between 0 and 1.
 * @param {number} most
 */
export function ticksTo(most, { steps = 5, whole = true } = {}) {
  const power = 10 ** Math.floor(Math.log10(most || 1));
  const step = [0.2, 0.25, 0.5, 1, 2, 5].map((times) => times * power).find((one) => most / one <= steps && (!whole || Number.isInteger(one)));
  const found = [];
  for (let index = 0; index * (step ?? 1) <= most; index += 1) found.push(index * (step ?? 1));
  return found;
}

const CHARACTER = 6.5; // pixels of one in a label, more or less
const BESIDE = 6; // pixels between two labels

/**
 * The marks of an axis whose labels have room beside those before them, and how far from the left edge each is written:
 * within the drawing, which may be nearer its middle than the mark.
 * @param {Pick<Framing, "from" | "to" | "marks"> & { width: number, left: number, right: number }} axis
 */
export function labelled({ from, to, width, left, right, marks = timesOfDay }) {
  const each = (width - left - right) / (to - from || 1);
  /** @type {{ at: number, said: string, half: number, middle: number }[]} */
  const found = [];
  for (const [at, said] of marks(from, to, width > 500 ? 6 : 3)) {
    const half = (said.length * CHARACTER) / 2;
    const middle = Math.min(Math.max(left + (at - from) * each, half), width - half);
    if (found.every((other) => Math.abs(middle - other.middle) >= half + other.half + BESIDE)) found.push({ at, said, half, middle });
  }
  return found;
}

/**
 * The frame of a drawing over time: how wide it is, its grid, and where values lie.
 * @param {Framing} framing
 */
export function frame({ from, to, most, ticks = ticksTo(most), words = short, width = 720, height = 200, left = 40, right = 20, top = 10, bottom = 24, label, marks = timesOfDay }) {
  const span = to - from || 1;
  /** @param {number} at */
  const x = (at) => left + ((at - from) / span) * (width - left - right);
  /** @param {number} value */
  const y = (value) => height - bottom - (value / (most || 1)) * (height - top - bottom);
  const grid = [];
  for (const value of ticks)
    grid.push(
      svg("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }),
      svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, words(value)),
    );
  for (const { said, middle } of labelled({ from, to, width, left, right, marks }))
    grid.push(svg("text", { x: middle, y: height - 6, "text-anchor": "middle" }, said));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, grid);
  return { root, x, y, width, height, left, right, top, bottom };
}

/**
 * Values one on top of the other; `points` are [at, first, second, ...].
 * @param {Values[]} points
 * @param {string[]} classes
 * @param {OfPoints} options
 */
export function stacked(points, classes, options) {
  const drawn = frame({ from: points[0][0], to: points[points.length - 1][0], ...options });
  const base = points.map(() => 0);
  classes.forEach((name, which) => {
    const upper = points.map((point, index) => base[index] + point[which + 1]);
    const there = steps(points, upper, drawn);
    const back = steps(points, base, drawn, true);
    drawn.root.append(svg("path", { class: `area ${name}`, d: `M${there}L${back}Z` }));
    upper.forEach((value, index) => (base[index] = value));
  });
  return drawn;
}

/**
 * A line through [at, value], each of which lasts until the next one.
 * @param {Point[]} points
 * @param {string} name
 * @param {OfPoints} options
 */
export function line(points, name, options) {
  const drawn = frame({ from: points[0][0], to: points[points.length - 1][0], ...options });
  trace(drawn, points, name);
  return drawn;
}

/**
 * Such a line into a drawing; `straight`: from point to point instead.
 * @param {Drawing} drawn
 * @param {Point[]} points
 * @param {string} name
 */
export function trace(drawn, points, name, { straight = false } = {}) {
  const there = straight
    ? points.map(([at, value]) => `${drawn.x(at).toFixed(1)} ${drawn.y(value).toFixed(1)}`).join("L")
    : steps(points, points.map((point) => point[1]), drawn);
  // With something to go on to, a single point is a dot.
  drawn.root.append(svg("path", { class: `line ${name}`, d: `M${there}h0.01` }));
}

/**
 * Each value lasts until the next one.
 * @param {Values[]} points
 * @param {number[]} values
 * @param {Drawing} drawn
 */
function steps(points, values, { x, y }, backwards = false) {
  /** @type {string[]} */
  const path = [];
  values.forEach((value, index) => {
    if (index) path.push(`${x(points[index][0]).toFixed(1)} ${y(values[index - 1]).toFixed(1)}`);
    path.push(`${x(points[index][0]).toFixed(1)} ${y(value).toFixed(1)}`);
  });
  return (backwards ? path.reverse() : path).join("L");
}
