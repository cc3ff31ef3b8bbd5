"use strict";
// Click a heading to sort by its column: numbers from large to small, names from a to z, again to turn round.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th"), table = heading.closest("table"), body = table.tBodies[0];
    const words = heading.cellIndex === 0;
    const turned = heading.getAttribute("aria-sort") === (words ? "ascending" : "descending");
    const direction = words === turned ? "descending" : "ascending";
    const key = (row) => {
      const cell = row.cells[heading.cellIndex], number = cell.querySelector("data");
      return words ? cell.textContent : number ? Number(number.value) : -Infinity; // no number: below all
    };
    const rows = [...body.rows].map((row) => [key(row), row]);
    const sign = direction === "ascending" ? 1 : -1;
    rows.sort(([a], [b]) => sign * (words ? a.localeCompare(b) : a === b ? 0 : a < b ? -1 : 1));
    body.append(...rows.map(([, row]) => row));
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", direction);
  });
}
