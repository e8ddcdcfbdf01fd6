// What was chosen in a view, as the address of the page has it.

/**
 * Put it there, without a new entry in the browser's history, and into the links to the view's
 * other variants.
 * @param {string} view
 * @param {Record<string, string | null>} chosen what is empty is left out
 */
export function remember(view, chosen) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(chosen)) if (value) query.set(name, value);
  const chosenIn = query.toString() && `?${query}`;
  history.replaceState(null, "", `#/${view}${chosenIn}`);
  for (const link of document.querySelectorAll(".tabs a")) {
    const [place] = (link.getAttribute("href") ?? "").split("?");
    link.setAttribute("href", place + chosenIn);
  }
}
