"use strict";
// A click sorts ascending, the next one descending; what is missing stays last.
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, table = head.closest("table"), body = table.tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[head.cellIndex].dataset.sort;
    const order = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    const rows = [...body.rows];
    rows.sort((r, s) => {
      const a = key(r), b = key(s);
      if (!a || !b) return !a - !b;
      return down ? order(b, a) : order(a, b);
    });
    body.append(...rows);
  });
}
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
