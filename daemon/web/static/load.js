// Loads all other scripts, and the whole page again where a part of it did not come: a browser drops
// what is under way when the network changes, and does not ask for it a second time.

const AGAIN = 3000; // ms until the page is loaded again

import("./main.js").then(
  () => {
    const known = getComputedStyle(document.documentElement);
    if (!known.getPropertyValue("--page")) again("its style sheet");
  },
  (fault) => {
    if (fault instanceof TypeError) again(fault.message); // as the network's faults are everywhere
    else document.body.append(`This page needs a newer browser (${fault}).`);
  },
);

/** @param {string} what */
function again(what) {
  document.body.append(`A part of this page did not come (${what}); it is loaded again in a moment.`);
  setTimeout(() => location.reload(), AGAIN);
}
