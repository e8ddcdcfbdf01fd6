// A row for each job and a column for each policy, drawn on canvases of which only what is seen is drawn.

import { el, fill, foreign } from "./dom.js";
import { labelled, timesSince } from "./charts.js";
import { ending } from "./comparison.js";
import { eachStretch } from "./runs.js";
import { counted, lasting, number, roughly } from "./words.js";

const NAMED = 20; // pixels of a row with its name
export const LEFT = 48; // pixels beside the times of a column, as in the curves above
export const RIGHT = 14;
const SHADES = 5;
const WORDS = 9; // pixels of the lowest row that has room for words
const BESIDE = 16; // pixels between the pointer and what is told of its place
/** @param {number} row */
const font = (row) => `${Math.min(12, Math.floor(row))}px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif`;

/** @typedef {import("./runs.js").Job} Job */
/** @typedef {CanvasRenderingContext2D} Pen */
/** @typedef {ReturnType<typeof palette>} Colours */

/**
 * The GPUs that each shade stands for.
 * @param {number} mostGpus
 */
export function shades(mostGpus) {
  const doublings = Math.ceil(Math.log2(Math.max(mostGpus, 2)));
  const each = Math.ceil((doublings + 1) / SHADES);
  return Array.from({ length: SHADES }, (_, shade) => ({
    least: shade ? 2 ** (each * shade - 1) + 1 : 1,
    most: 2 ** (each * (shade + 1) - 1),
  })).filter(({ least }) => least <= mostGpus);
}

export class Lanes {
  /**
   * @param {import("./runs.js").Replay} replay
   * @param {import("./span.js").Span} span
   * @param {{ choose: (job: Job) => void }} on
   */
  constructor(replay, span, { choose }) {
    this.replay = replay;
    this.span = span;
    this.choose = choose;
    /** @type {Job[]} */
    this.rows = [];
    this.named = true;
    /** @type {Job | null} */
    this.chosen = null;
    this.due = false;
    this.shades = shades(replay.mostGpus);
    this.names = canvas("names");
    this.columns = replay.runs.map(() => canvas("lane"));
    this.stage = el("div", { class: "stage columns" }, this.names.node, this.columns.map((column) => column.node));
    // Laid over the row: painting all of them anew for each that the pointer crosses takes too long.
    this.lit = el("div", { class: "lit", hidden: true });
    this.sizer = el("div", { class: "sizer" }, this.stage, this.lit);
    this.tip = el("div", { class: "tip", hidden: true });
    this.root = el("div", { class: "lanes", scroll: () => this.draw() }, this.sizer, this.tip);
    this.columns.forEach((column, which) => {
      span.attach(column.node, (x) => this.timeAt(x), { clicked: (event) => this.click(event) });
      column.node.addEventListener("pointermove", (event) => this.point(event, which));
      column.node.addEventListener("pointerleave", () => this.light(-1));
    });
    this.names.node.addEventListener("click", (event) => this.click(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    // Paper is light, and takes the canvases as they are.
    /** @param {boolean} paper */
    const onto = (paper) => {
      this.root.classList.toggle("paper", paper);
      this.paint();
    };
    addEventListener("beforeprint", () => onto(true));
    addEventListener("afterprint", () => onto(false));
  }

  get row() {
    return this.named ? NAMED : Math.min(NAMED, this.root.clientHeight / Math.max(this.rows.length, 1));
  }

  /** @param {number} x */
  timeAt(x) {
    const width = this.columns[0].node.clientWidth - LEFT - RIGHT;
    return this.span.from + ((x - LEFT) / width) * (this.span.to - this.span.from);
  }

  /**
   * Which jobs, and whether each has room for its name; else all of them are seen at once.
   * @param {Job[]} rows
   * @param {{ named: boolean, chosen: Job | null }} how
   */
  show(rows, { named, chosen }) {
    this.rows = rows;
    this.named = named;
    this.chosen = chosen;
    this.root.style.height = `min(${Math.max(rows.length, 1) * NAMED + 2}px, max(60vh, 240px))`;
    this.sizer.style.height = named ? `${rows.length * NAMED}px` : "100%";
    this.light(-1);
    this.draw();
  }

  /**
   * Scroll until a job is seen.
   * @param {Job} job
   */
  reach(job) {
    const top = this.rows.indexOf(job) * this.row;
    if (top < 0) return;
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    else if (top + this.row > this.root.scrollTop + this.root.clientHeight) this.root.scrollTop = top + this.row - this.root.clientHeight;
  }

  /**
   * Which row is there.
   * @param {MouseEvent} event
   */
  at(event) {
    const y = event.clientY - this.root.getBoundingClientRect().top + this.root.scrollTop;
    return Math.floor(y / this.row);
  }

  /** @param {MouseEvent} event */
  click(event) {
    const job = this.rows[this.at(event)];
    if (job) this.choose(job);
  }

  /** @param {number} index of a row; where there is none, none is lit */
  light(index) {
    this.lit.hidden = this.tip.hidden = !(index in this.rows);
    const { row } = this;
    this.lit.style.top = `${index * row - (row < 4 ? 1 : 0)}px`;
    this.lit.style.height = `${Math.max(row, 3)}px`;
  }

  /** @param {PointerEvent} event @param {number} which */
  point(event, which) {
    const index = this.at(event);
    this.light(index);
    const job = this.rows[index];
    if (!job) return;
    const at = this.timeAt(event.clientX - this.columns[which].node.getBoundingClientRect().left);
    const lived = this.replay.runs[which].jobs[job.at];
    const beside = at < this.span.from || at > this.span.to; // where it says how long the job took
    let now = at < job.submitted && !beside ? "not yet submitted" : ending(lived);
    eachStretch(job, lived, (from, to, gpus) => {
      if (!beside && from <= at && at < to) now = `${gpus ? counted(gpus, "GPU") : "waits"} for ${lasting(to - from)}`;
    });
    fill(this.tip, foreign(job.name), job.also && foreign(job.also), el("span", {}, now), !beside && el("span", { class: "soft" }, `at ${lasting(at)}`));
    const { width, height } = this.tip.getBoundingClientRect();
    const { clientWidth, clientHeight } = document.documentElement;
    const below = event.clientY + BESIDE + height <= clientHeight;
    this.tip.style.left = `${Math.max(0, Math.min(event.clientX + BESIDE, clientWidth - width))}px`;
    this.tip.style.top = `${below ? event.clientY + BESIDE : event.clientY - BESIDE - height}px`;
  }

  /** Soon, and once for all that has changed until then. */
  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.paint();
    });
  }

  paint() {
    const height = this.root.clientHeight;
    if (!height) return;
    this.stage.style.height = `${height}px`;
    const { row } = this;
    const first = Math.floor(this.root.scrollTop / row);
    const last = Math.min(this.rows.length, Math.ceil((this.root.scrollTop + height) / row));
    const colours = palette(this.root);
    const pens = { names: this.names.begin(height), columns: this.columns.map((column) => column.begin(height)) };
    this.columns.forEach((column, which) => this.grid(pens.columns[which], column.node.clientWidth, height, colours));
    for (let index = first; index < last; index += 1) {
      const job = this.rows[index];
      const top = index * row - this.root.scrollTop;
      this.paintName(pens.names, job, top, row, colours);
      this.columns.forEach((column, which) => this.paintJob(pens.columns[which], column.node.clientWidth, job, which, top, row, colours));
    }
  }

  /** @param {Pen} pen @param {number} width @param {number} height @param {Colours} colours */
  grid(pen, width, height, colours) {
    const { from, to } = this.span;
    pen.fillStyle = colours.line;
    for (const { at } of labelled({ from, to, width, left: LEFT, right: RIGHT, marks: timesSince }))
      pen.fillRect(LEFT + ((at - from) / (to - from)) * (width - LEFT - RIGHT), 0, 1, height);
  }

  /** @param {Pen} pen @param {Job} job @param {number} top @param {number} row @param {Colours} colours */
  paintName(pen, job, top, row, colours) {
    const width = this.names.node.clientWidth;
    this.mark(pen, width, job, top, row, colours);
    if (row < WORDS) return;
    pen.fillStyle = colours.ink;
    pen.font = font(row);
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.fillText(fitting(pen, job.also ? `${job.name} ${job.also}` : job.name, width - 10), 8, top + row / 2);
  }

  /** @param {Pen} pen @param {number} width @param {Job} job @param {number} top @param {number} row @param {Colours} colours */
  mark(pen, width, job, top, row, colours) {
    if (job !== this.chosen) return;
    pen.fillStyle = colours.accent;
    pen.globalAlpha = 0.22;
    pen.fillRect(0, top - (row < 4 ? 1 : 0), width, Math.max(row, 3));
    pen.globalAlpha = 1;
  }

  /** @param {Pen} pen @param {number} width @param {Job} job @param {number} which @param {number} top @param {number} row @param {Colours} colours */
  paintJob(pen, width, job, which, top, row, colours) {
    const { from, to } = this.span;
    const lived = this.replay.runs[which].jobs[job.at];
    this.mark(pen, width, job, top, row, colours);
    if (row >= WORDS) {
      pen.font = font(row);
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      pen.fillStyle = lived.cut ? colours.bad : colours.soft;
      pen.fillText(this.took(job, which), LEFT - 5, top + row / 2);
    }
    if (job.submitted > to || lived.finished < from) return;
    const each = (width - LEFT - RIGHT) / (to - from);
    const most = this.replay.most[job.at];
    eachStretch(job, lived, (begin, end, gpus) => {
      if (end < from || begin > to) return;
      const left = LEFT + (Math.max(begin, from) - from) * each;
      const wide = Math.max((Math.min(end, to) - Math.max(begin, from)) * each, 0.6);
      if (!gpus) {
        pen.fillStyle = colours.wait;
        const thick = row < 4 ? row * 0.5 : 2;
        pen.fillRect(left, top + (row - thick) / 2, wide, thick);
        return;
      }
      const shade = this.shades.findIndex(({ most: largest }) => gpus <= largest);
      const high = row < 8 ? Math.max(row * 0.9, 1) : (row - 3) * (0.6 + 0.4 * (gpus / most));
      pen.fillStyle = colours.shades[shade];
      pen.fillRect(left, top + row - (row < 8 ? 0 : 1.5) - high, wide, high);
      if (high < WORDS || wide < WORDS) return;
      pen.font = font(high);
      const words = String(gpus);
      if (pen.measureText(words).width > wide - 4) return;
      pen.fillStyle = colours.on[shade];
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText(words, left + wide / 2, top + row - 1 - high / 2);
    });
    if (!lived.cut || lived.finished > to) return;
    pen.fillStyle = colours.bad;
    pen.fillRect(LEFT + (lived.finished - from) * each, top, 3, Math.max(row - 1, 1));
  }

  /**
   * How long, or how many times as long as under the first policy, where it was done.
   * @param {Job} job
   * @param {number} which
   */
  took(job, which) {
    const { cut, took } = this.replay.runs[which].jobs[job.at];
    if (cut) return "limit";
    if (!which) return roughly(took);
    const ratio = this.replay.ratio(job, which);
    return ratio === null ? "–" : `${number(ratio, 2)}×`;
  }
}

/** @param {string} name */
function canvas(name) {
  const sheet = el("canvas", { "aria-hidden": "true" });
  const pen = /** @type {Pen} */ (sheet.getContext("2d"));
  const node = el("div", { class: name }, sheet);
  /**
   * Empty, as large as its place, and measured in the page's own pixels.
   * @param {number} height
   */
  const begin = (height) => {
    const width = node.clientWidth;
    const fine = Math.min(devicePixelRatio || 1, 2);
    if (sheet.width !== Math.round(width * fine) || sheet.height !== Math.round(height * fine)) {
      sheet.width = Math.round(width * fine);
      sheet.height = Math.round(height * fine);
      sheet.style.width = `${width}px`;
      sheet.style.height = `${height}px`;
    }
    pen.setTransform(fine, 0, 0, fine, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  };
  return { node, begin };
}

/**
 * The colours of the style, of which a canvas knows nothing.
 * @param {Element} root
 */
function palette(root) {
  const style = getComputedStyle(root);
  /** @param {string} name */
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  const found = Array.from({ length: SHADES }, (_, shade) => named(`g${shade}`));
  return {
    ink: named("ink"),
    soft: named("soft"),
    line: named("line"),
    wait: named("wait"),
    bad: named("bad"),
    accent: named("accent"),
    shades: found,
    on: found.map((colour) => (light(colour) ? "#0d1117" : "#fff")),
  };
}

/** @param {string} colour */
function light(colour) {
  const [red, green, blue] = [1, 3, 5].map((from) => parseInt(colour.slice(from, from + 2), 16));
  return 0.3 * red + 0.59 * green + 0.11 * blue > 125;
}

/**
 * As much of a text as has room.
 * @param {Pen} pen
 * @param {string} text
 * @param {number} width
 */
function fitting(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}
