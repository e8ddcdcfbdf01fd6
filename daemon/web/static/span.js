// The stretch of time that all drawings of a report show, and how it is chosen in any of them.

import { el } from "./dom.js";

const SHORTEST = 10; // seconds
const CLICK = 4; // pixels by which a pointer may move and still have clicked

export class Span {
  /** @param {number} end @param {() => void} changed */
  constructor(end, changed) {
    this.end = end;
    this.changed = changed;
    this.from = 0;
    this.to = end;
  }

  get whole() {
    return this.from <= 0 && this.to >= this.end;
  }

  /**
   * These times, put into the right order and kept within the replay.
   * @param {number} one
   * @param {number} other
   */
  set(one, other) {
    const [from, to] = [Math.min(one, other), Math.max(one, other)];
    const length = Math.min(Math.max(to - from, SHORTEST), this.end);
    const begin = Math.min(Math.max((from + to - length) / 2, 0), this.end - length);
    if (!Number.isFinite(begin) || (begin === this.from && begin + length === this.to)) return;
    [this.from, this.to] = [begin, begin + length];
    this.changed();
  }

  all() {
    this.set(0, this.end);
  }

  /**
   * By this factor, so that this time stays where it is.
   * @param {number} factor
   * @param {number} at
   */
  zoom(factor, at = (this.from + this.to) / 2) {
    this.set(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  /**
   * On, by a share of what is shown.
   * @param {number} share
   */
  move(share) {
    const way = Math.min(Math.max((this.to - this.from) * share, -this.from), this.end - this.to);
    this.set(this.from + way, this.to + way);
  }

  /**
   * Ctrl and the wheel zoom where the pointer is, Shift and the wheel move, dragging chooses.
   * @param {HTMLElement} node
   * @param {(x: number) => number} timeAt which time lies at a distance from the node's left edge
   * @param {{ clicked?: (event: PointerEvent) => void }} on
   */
  attach(node, timeAt, { clicked = () => {} } = {}) {
    /** @param {MouseEvent} event */
    const across = (event) => event.clientX - node.getBoundingClientRect().left;
    /** @param {WheelEvent} event */
    const wheel = (event) => {
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), timeAt(across(event)));
      else if (event.shiftKey && !this.whole) this.move(Math.sign(event.deltaY || event.deltaX) / 8);
      else return;
      event.preventDefault();
    };
    node.addEventListener("wheel", wheel, { passive: false });
    node.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const start = across(event);
      const mark = el("div", { class: "selecting" });
      const touch = event.pointerType === "touch"; // which scrolls, and does not choose
      if (!touch) {
        node.append(mark);
        node.setPointerCapture(event.pointerId);
        event.preventDefault();
      }
      /** @param {PointerEvent} now */
      const moved = (now) => {
        mark.style.left = `${Math.min(start, across(now))}px`;
        mark.style.width = `${Math.abs(across(now) - start)}px`;
      };
      /** @param {PointerEvent} now */
      const done = (now) => {
        node.removeEventListener("pointermove", moved);
        node.removeEventListener("pointerup", done);
        node.removeEventListener("pointercancel", done);
        mark.remove();
        if (now.type === "pointercancel") return;
        if (Math.abs(across(now) - start) <= CLICK) clicked(now);
        else if (!touch) this.set(timeAt(start), timeAt(across(now)));
      };
      node.addEventListener("pointermove", moved);
      node.addEventListener("pointerup", done);
      node.addEventListener("pointercancel", done);
    });
  }
}
