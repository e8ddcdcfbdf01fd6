// What one job holds over time, on the page and in reports.

import { frame } from "./charts.js";
import { svg } from "./dom.js";
import { counted, lasting } from "./words.js";

/** @typedef {[from: number, to: number, gpus: number, words: string]} Stretch */

/**
 * Until its `end` a bar for each stretch, a low one where it waits in between, and what it asked for.
 * @param {Stretch[]} stretches
 * @param {Omit<import("./charts.js").Framing, "most"> & { end?: number, asked: number, most?: number }} options
 */
export function holdings(stretches, { from, to, end = to, asked, most = 1, ...options }) {
  const drawn = frame({ from, to, most: Math.max(asked, most, ...stretches.map((one) => one[2])), ...options });
  const base = drawn.y(0);
  /** @param {number} begin @param {number} until @param {number} gpus @param {string} name @param {string} words */
  const part = (begin, until, gpus, name, words) =>
    drawn.root.append(
      svg(
        "rect",
        { class: name, x: drawn.x(begin), width: Math.max(1, drawn.x(until) - drawn.x(begin)), y: gpus ? drawn.y(gpus) : base - 5, height: gpus ? base - drawn.y(gpus) : 5 },
        svg("title", {}, words),
      ),
    );
  /** @param {number} begin @param {number} until */
  const waits = (begin, until) => part(begin, until, 0, "waits", `waits for ${lasting(until - begin)}`);
  let idle = from;
  for (const [begin, until, gpus, words] of stretches) {
    if (begin > idle) waits(idle, begin);
    part(begin, until, gpus, "runs", `${counted(gpus, "GPU")} for ${lasting(until - begin)}${words ? `: ${words}` : ""}`);
    idle = until;
  }
  if (end > idle + 1) waits(idle, end);
  drawn.root.append(
    svg("path", { class: "asked", d: `M${drawn.left} ${drawn.y(asked)}H${drawn.width - drawn.right}` }, svg("title", {}, `asked for ${asked}`)),
  );
  return { ...drawn, base };
}
