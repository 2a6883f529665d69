// A table behind <div class="gr-table" data-choose="kind,arch"></div> gets a search field (all words must occur in a row),
// and a list of choices for each column named in data-choose.
function grFilter() {
  for (const place of document.querySelectorAll("div.gr-table:not([data-ready])")) {
    place.dataset.ready = "1";
    let next = place.nextElementSibling;
    while (next && !next.querySelector("table") && next.tagName !== "TABLE") next = next.nextElementSibling;
    const table = next && (next.tagName === "TABLE" ? next : next.querySelector("table"));
    if (!table) continue;
    const heads = [...table.tHead.rows[0].cells].map((c) => c.textContent.trim());
    const rows = [...table.tBodies[0].rows].map((row) => ({ row, text: row.textContent.toLowerCase(), cells: [...row.cells].map((c) => c.textContent.trim()) }));
    const bar = document.createElement("div");
    bar.className = "gr-filter";
    const words = Object.assign(document.createElement("input"), { type: "search", placeholder: "Filter: all words must occur, for example  ldmatrix trans" });
    words.setAttribute("aria-label", "Filter the table");
    const count = document.createElement("output");
    const choices = (place.dataset.choose || "").split(",").filter(Boolean).map((name) => {
      const column = heads.indexOf(name);
      const select = document.createElement("select");
      select.setAttribute("aria-label", name);
      select.append(new Option(`every ${name}`, ""));
      for (const value of new Set(rows.map((r) => r.cells[column]))) select.append(new Option(value, value));
      return { column, select };
    });
    const show = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const r of rows) {
        const fits = wanted.every((w) => r.text.includes(w)) && choices.every((c) => !c.select.value || r.cells[c.column] === c.select.value);
        r.row.hidden = !fits;
        shown += fits;
      }
      count.value = `${shown} of ${rows.length}`;
    };
    bar.append(words, ...choices.map((c) => c.select), count);
    bar.addEventListener("input", show);
    place.append(bar);
    show();
  }
}
if (window.document$) window.document$.subscribe(grFilter);
else document.addEventListener("DOMContentLoaded", grFilter);
