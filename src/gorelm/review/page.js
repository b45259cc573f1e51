"use strict";
// Text from the table reaches the page through textContent alone, never as HTML.

const PAGE = 50;
const MOST_TARGETS = 12; // shown of a row at first, the worst; of fewer, all in their order
const MOST_INPUTS = 30; // of similar rows
const VERDICTS = [
  ["wrong", "Wrong row", "w"],
  ["cells", "Wrong cells", "c"],
  ["right", "Right", "r"],
  ["unsure", "Unsure", "u"],
];
const KINDS = { row: "wrong row", cell: "wrong cell", input: "wrong input", duplicate: "contradicting duplicate" };
const $ = (id) => document.getElementById(id);

let state = null; // of the whole table
let rows = []; // of this page, as the server sent them
let total = 0, first = 0, more = false;
let elsewhere = 0; // rows that a search finds in another list
let chosen = null; // number of the chosen row
let detail = null; // of the chosen row
let marked = new Set(); // its targets that are marked as wrong
let points = null; // behind the plots
let everyTarget = false; // whether all of many targets are shown
let opening = true; // until the row of the address has been shown
let noteTimer = 0;

// -- small helpers ---------------------------------------------------------------------------------

function make(tag, options = {}, ...children) {
  const svg = ["svg", "circle", "line", "rect", "text", "path", "title", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A value as it stands in the table, and one that was computed.
const exactly = new Intl.NumberFormat("en", { maximumSignificantDigits: 12 });
const roughly = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const briefly = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const signed = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, signDisplay: "exceptZero" });
// Inputs may be years or codes, which are written without separators.
const ungrouped = new Intl.NumberFormat("en", { maximumSignificantDigits: 12, useGrouping: false });
const tiny = (value) => value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e15);
function written(value, format) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  return tiny(value) ? value.toExponential(3) : format.format(value);
}
const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
const label = (row) => [
  row.line !== null ? `Line ${row.line}` : `Row ${row.row}`,
  ...(row.id !== null ? [`id ${row.id}`] : []),
].join(" · ");

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The review has ended: start it again with gorelm review. What you decided before is saved.");
  }
  const content = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(content.error || `the server answered ${answer.status}`);
  return content;
}

const send = (path, content) => ask(path, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content), keepalive: true,
});

function say(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
}

const trying = (act) => async (...given) => {
  try {
    await act(...given);
  } catch (error) {
    say(error.message);
  }
};

// -- the whole table -------------------------------------------------------------------------------

async function look() {
  const before = state;
  state = await ask("api/state");
  const fit = state.fit;
  document.title = `Review ${state.name}`;
  $("name").textContent = state.name;
  const counts = state.counts, decided = counts.wrong + counts.right + counts.unsure;
  const certain = fit.contaminated === false && counts.flagged ? `; ${counts.certain || "none"} certain` : "";
  const facts = state.fitted
    ? [`Findings in ${counts.flagged.toLocaleString("en")} of ${count(counts.all, "row")}${certain}`] : [];
  if (decided) facts.push(`decided: ${counts.wrong} wrong, ${counts.right} right, ${counts.unsure} unsure`);
  if (state.fitted && state.since_fit) facts.push(`${count(state.since_fit, "decision")} since the fit`);
  const errors = (fit.errors || []).filter((value) => value !== null);
  if (errors.length) {
    const mean = errors.reduce((sum, value) => sum + value, 0) / errors.length;
    facts.push(`relative RMSE ${mean.toFixed(2)}`);
    $("summary").title = "Relative RMSE of rows not flagged, predicted by models that did not see them: 0 is perfect, " +
      `1 no better than predicting the mean. ${state.targets.map((name, j) => `${name} ${written(fit.errors[j], briefly)}`).join(", ")}`;
  }
  if (state.elsewhere) facts.push(`${count(state.elsewhere, "decision")} about rows that the table no longer has`);
  $("summary").textContent = facts.join(" · ");
  $("refit").disabled = fit.state === "fitting";
  $("refit").classList.toggle("strong", state.since_fit > 0 && fit.state !== "fitting");
  for (const option of $("show").options) {
    const number = counts[option.value];
    option.textContent = option.textContent.replace(/ \([\d,]+\)$/, "") +
      (number === undefined ? "" : ` (${number.toLocaleString("en")})`);
  }
  showFit(fit);
  if (fit.notes) showNotes(fit.notes);
  if (before && before.fit.state === "fitting" && fit.state !== "fitting" || !before && state.fitted) {
    points = await ask("api/points");
    await load(); // the order has changed
  } else if (before && before.version !== state.version) {
    await refresh();
  }
}

function showNotes(notes) {
  $("notes").hidden = !notes.length;
  $("notes").querySelector("ul").replaceChildren(...notes.map((text) => make("li", { text })));
}

function showFit(fit) {
  const place = $("fit");
  place.classList.toggle("bad", fit.state === "failed");
  if (fit.state === "fitting") {
    const bar = place.querySelector("progress") || make("progress", { max: 1 });
    if (fit.total > 1) bar.value = fit.done / fit.total;
    else bar.removeAttribute("value");
    const text = place.querySelector("span") || make("span", { class: "soft" });
    text.textContent = `Fitting: ${fit.step}${fit.total > 1 ? ` ${fit.done} of ${fit.total}` : ""}, ${Math.round(fit.seconds)} s`;
    if (!bar.parentNode) place.replaceChildren(bar, text);
  } else {
    place.replaceChildren();
    if (fit.state === "failed") place.textContent = `The fit failed: ${fit.message}`;
  }
}

async function watch() {
  await trying(async () => {
    await look();
    if ($("message").textContent.startsWith("The review has ended")) say("");
  })();
  setTimeout(watch, state && state.fit.state === "fitting" ? 500 : 4000);
}

// -- the list --------------------------------------------------------------------------------------

async function load(where = {}) {
  const asked = new URLSearchParams({ show: $("show").value, count: PAGE, find: $("find").value.trim(), ...where });
  const page = await ask(`api/rows?${asked}`);
  ({ rows, total, first, more } = page);
  const find = $("find").value.trim(), lost = find && !rows.length;
  elsewhere = lost && $("show").value !== "all"
    ? (await ask(`api/rows?${new URLSearchParams({ show: "all", count: 1, find })}`)).total : 0;
  drawList();
  const kept = rows.find((row) => row.row === chosen);
  if (lost) {
    // No row may stay under the keys that is not the one looked for.
    await saveNote();
    chosen = detail = null;
    drawDetail();
  } else if (kept || chosen !== null && (opening || !rows.length)) await choose(chosen);
  else if (rows.length) await choose(rows["before" in where ? rows.length - 1 : 0].row);
  else drawDetail();
  opening = false;
}

async function refresh() {
  // Another page has decided: show it where it is shown here, and leave the rest alone.
  if (!rows.length) return load();
  const { decisions } = await ask(`api/decisions?rows=${rows.map((row) => row.row).join(",")}`);
  for (const row of rows) row.decision = decisions[row.row] || row.decision;
  drawList();
  await choose(chosen);
}

function worstFirst(row) {
  const size = (j) => row.scores[j] ?? Math.abs(row.spreads[j] || 0);
  return state.targets.map((_, j) => j).sort((a, b) => row.off[b] - row.off[a] || size(b) - size(a));
}

// The targets to show of the chosen row.
function targetsShown() {
  const all = state.targets.map((_, j) => j);
  return everyTarget || all.length <= MOST_TARGETS ? all : worstFirst(detail).slice(0, MOST_TARGETS);
}

// 1 is best, below 0.5 is a finding.
const quality = (row) => (row.quality === null ? "not judged" : `quality ${row.quality.toFixed(2)}`);

function badge(decision) {
  const names = { wrong: "wrong", cells: "cells wrong", right: "right", unsure: "unsure" };
  return make("span", { class: `badge ${decision.verdict}`, text: names[decision.verdict] });
}

function drawList() {
  const list = $("rows");
  list.replaceChildren(...rows.map((row) => {
    const head = make("div", { class: "head" }, make("span", { class: "label", text: label(row) }));
    if (row.decision.verdict) head.append(badge(row.decision));
    if (row.decision.note) head.append(make("span", { text: "✎", title: row.decision.note }));
    head.append(make("span", { class: "score", text: quality(row) }));
    const off = make("div", { class: "off" });
    const worst = worstFirst(row).filter((j) => row.given[j] !== null);
    const shown = worst.filter((j) => row.off[j]).slice(0, 3);
    for (const j of shown.length ? shown : worst.slice(0, 1)) {
      const text = `${state.targets[j]}: ${written(row.given[j], exactly)} → ${written(row.expected[j], roughly)}`;
      off.append(make("span", { text }));
    }
    const others = worst.filter((j) => row.off[j]).length - shown.length;
    if (others > 0) off.append(make("span", { class: "soft", text: `and ${others} more targets` }));
    return make("li", {
      role: "option", id: `row-${row.row}`, "aria-selected": String(row.row === chosen),
      on: { click: trying(() => choose(row.row)) },
    }, head, off);
  }));
  if (!rows.length) {
    const waiting = state && !state.fitted;
    const none = { todo: state && state.counts.flagged ? "Nothing left to decide: all findings have a verdict."
      : "No row stands out. “All rows” has them, the least plausible first." };
    const text = waiting ? "The rows appear when the first fit is done." : none[$("show").value] || "No such rows.";
    const lost = $("find").value.trim() && !waiting;
    const empty = make("li", { class: "empty", text: lost ? elsewhere ? "Not in this list. " : "No such rows." : text });
    if (lost && elsewhere) empty.append(make("button", { type: "button", id: "elsewhere",
      text: `${elsewhere.toLocaleString("en")} in all rows`,
      on: { click: trying(() => { $("show").value = "all"; return load(); }) } }));
    list.append(empty);
  }
  $("range").textContent = rows.length
    ? `${(first + 1).toLocaleString("en")} to ${(first + rows.length).toLocaleString("en")} of ${total.toLocaleString("en")}`
    : "";
  $("previous").disabled = !first;
  $("next").disabled = !more;
}

function select() {
  for (const item of $("rows").children) item.setAttribute("aria-selected", String(item.id === `row-${chosen}`));
  const item = $(`row-${chosen}`);
  $("rows").setAttribute("aria-activedescendant", item ? item.id : "");
  if (item) item.scrollIntoView({ block: "nearest" });
}

// -- one row ---------------------------------------------------------------------------------------

async function choose(number) {
  await saveNote();
  const another = number !== chosen;
  chosen = number;
  const answer = await ask(`api/row/${number}`);
  if (chosen !== number) return; // another one was chosen meanwhile
  // A redrawn note would lose the focus, and what is typed next would be taken as verdicts.
  if (!another && document.activeElement.id === "note") return;
  detail = answer;
  mark();
  select();
  drawDetail();
  if (another) $("detail").scrollTop = 0;
  history.replaceState(null, "", `#${new URLSearchParams({ show: $("show").value, row: number })}`);
}

function mark() {
  const { decision, off } = detail;
  marked = new Set(decision.verdict === "cells" ? decision.cells : state.targets.filter((_, j) => off[j]));
}

function drawDetail() {
  const place = $("detail");
  if (!detail || !state) return place.replaceChildren();
  place.replaceChildren(drawHead(), drawTargets(), drawVerdicts(), drawNote(),
    make("h3", { text: "Given against expected" }), drawPlots(),
    make("h3", { text: "Most similar rows, by their inputs" }), drawSimilar(),
    make("h3", { text: "Inputs" }), drawInputs(), ...drawHistory());
}

function drawHead() {
  const head = make("div", { class: "head" }, make("h2", { text: label(detail) }));
  if (detail.line !== null) head.append(make("span", { class: "soft", text: `row ${detail.row}` }));
  if (detail.kind) head.append(make("span", { class: "badge", text: KINDS[detail.kind] || detail.kind }));
  if (detail.twin !== null) {
    head.append(make("button", { type: "button", class: "link", text: `contradicts row ${detail.twin}, which has the same inputs`,
      on: { click: trying(() => choose(detail.twin)) } }));
  }
  if (detail.decision.verdict) head.append(badge(detail.decision));
  const sure = !["row", "cell"].includes(detail.kind) ? "" : detail.certain ? "certain, " : "suspicious, ";
  const flag = detail.flagged ? sure : "no finding, ";
  head.append(make("span", { class: "soft", text: `${flag}${quality(detail)}`,
    title: `Quality: 1 is best, below 0.5 is a finding. Score: ${written(detail.score, briefly)} spreads.` }));
  return head;
}

function drawTargets() {
  const head = make("tr", {}, ...["target", "given", "expected", "off by", "in spreads", ""].map((text) => make("th", { text, scope: "col", class: text === "in spreads" ? "wide" : null })));
  const body = targetsShown().map((j) => {
    const name = state.targets[j];
    const known = detail.given[j] !== null;
    const toggle = make("button", {
      type: "button", class: "marker", "aria-pressed": String(marked.has(name)), disabled: !known,
      title: `Is ${name} wrong?${j < 9 ? ` Key ${j + 1}` : ""}`, text: marked.has(name) ? "wrong" : "fine",
      on: { click: () => toggleCell(name) },
    });
    return make("tr", { class: detail.off[j] ? "off" : null },
      make("th", { scope: "row", text: name }),
      make("td", { class: "given", text: written(detail.given[j], exactly) }),
      make("td", { text: known ? `→ ${written(detail.expected[j], roughly)}` : written(detail.expected[j], roughly) }),
      make("td", { text: written(detail.off_by[j], signed) }),
      make("td", { class: "wide", text: written(detail.spreads[j], signed) }),
      make("td", {}, toggle));
  });
  const table = make("table", { id: "targets" }, make("thead", {}, head), make("tbody", {}, ...body));
  const place = make("div", { class: "scroll", id: "targets-place" }, table);
  if (state.targets.length > MOST_TARGETS) {
    const text = everyTarget ? "the worst targets only" : `all ${count(state.targets.length, "target")}`;
    place.append(make("button", { type: "button", class: "link", id: "every-target", text,
      on: { click: () => { everyTarget = !everyTarget; drawDetail(); } } }));
  }
  return place;
}

function toggleCell(name) {
  if (!marked.delete(name)) marked.add(name);
  const verdicts = document.querySelector(".verdicts");
  $("targets-place").replaceWith(drawTargets());
  verdicts.replaceWith(drawVerdicts());
}

function drawVerdicts() {
  const now = detail.decision.verdict;
  const buttons = VERDICTS.map(([verdict, text, key]) => make("button", {
    type: "button", id: `verdict-${verdict}`, class: verdict, "aria-pressed": String(now === verdict),
    disabled: verdict === "cells" && !marked.size,
    title: { wrong: "The whole row is wrong", cells: `Only these cells are wrong: ${[...marked].join(", ")}`,
      right: "Nothing is wrong; keep it in every fit", unsure: "Look at it later" }[verdict],
    on: { click: trying(() => decide(verdict)) },
  }, `${text} `, make("kbd", { text: key })));
  const withdraw = make("button", { type: "button", id: "verdict-none", disabled: !now,
    on: { click: trying(() => decide("")) } }, "Withdraw ", make("kbd", { text: "z" }));
  return make("div", { class: "verdicts", role: "group", "aria-label": "Verdict" }, ...buttons, withdraw);
}

function drawNote() {
  const area = make("textarea", { id: "note", placeholder: "Note (n)", maxlength: 10000, rows: 1,
    on: { input: () => { clearTimeout(noteTimer); noteTimer = setTimeout(trying(saveNote), 600); }, blur: trying(saveNote) } });
  area.value = detail.decision.note;
  area.dataset.row = detail.row;
  return make("label", { class: "note" }, make("span", { class: "hidden", text: "Note" }), area,
    make("span", { id: "note-state", class: "soft", text: "" }));
}

async function saveNote() {
  clearTimeout(noteTimer);
  const area = $("note");
  if (!area || !detail || Number(area.dataset.row) !== detail.row || area.value === detail.decision.note) return;
  const of = detail, text = area.value;
  const { decision } = await send("api/decide", { row: of.row, note: text, seen: of.decision.version });
  learn(of.row, decision);
  if (detail === of && $("note-state")) $("note-state").textContent = "saved";
}

async function decide(verdict) {
  if (!detail || verdict === "cells" && !marked.size) return;
  await saveNote();
  const of = detail, content = { row: of.row, verdict, seen: of.decision.version };
  if (verdict === "cells") content.cells = [...marked];
  const { decision, replaced } = await send("api/decide", content);
  learn(of.row, decision);
  const names = { wrong: "wrong", cells: "cells wrong", right: "right", unsure: "unsure", "": "undecided" };
  say(replaced ? `${label(of)}: another page had decided “${names[replaced.verdict]}” meanwhile; now it is “${names[decision.verdict]}”.` : "");
  drawList();
  if (verdict && detail === of) await step(1, true);
  else if (detail === of) await choose(of.row);
  await look();
}

function learn(number, decision) {
  if (detail && detail.row === number) detail.decision = decision;
  const row = rows.find((one) => one.row === number);
  if (row) row.decision = decision;
  if (state) state.version = Math.max(state.version, decision.version); // no news
}

async function step(by, stay = false) {
  const at = rows.findIndex((row) => row.row === chosen), to = at + by;
  if (at >= 0 && to >= 0 && to < rows.length) return choose(rows[to].row);
  if (at < 0 && rows.length) return choose(rows[0].row);
  if (by > 0 && more) return load({ after: rows[rows.length - 1].place });
  if (by < 0 && first) return load({ before: rows[0].place });
  if (stay && chosen !== null) await choose(chosen);
}

// -- plots -----------------------------------------------------------------------------------------

function drawPlots() {
  const plots = make("div", { class: "plots" });
  const shown = worstFirst(detail).filter((j) => detail.given[j] !== null && detail.expected[j] !== null).slice(0, 3);
  for (const j of shown) plots.append(drawPlot(j));
  const legend = make("p", { class: "soft legend" }, make("b", { class: "it", text: "●" }), " this row · ",
    make("b", { class: "near", text: "○" }), " similar rows · small dots: rows not flagged · dashes: given = expected");
  return make("div", {}, plots, legend);
}

function drawPlot(j) {
  const size = 240, left = 46, pad = 8, inner = size - left - pad;
  const pairs = (list) => list.filter(([x, y]) => x !== null && y !== null);
  const cloud = points ? pairs(points.expected[j].map((x, k) => [x, points.given[j][k]])) : [];
  const near = pairs(detail.similar.map((row) => [row.expected[j], row.given[j]]));
  const it = [detail.expected[j], detail.given[j]];
  const usual = [...cloud, ...near].flat();
  let [low, high] = [Math.min(...usual, it[0]), Math.max(...usual, it[0])];
  const logarithmic = low > 0 && high / low > 100 && it[1] > 0;
  const along = logarithmic ? Math.log10 : (value) => value;
  [low, high] = [along(low), along(high)];
  const spread = high - low || Math.abs(high) || 1;
  // A value far beyond all others is drawn on the edge, so that the others stay apart.
  const reach = 2 * spread, far = along(it[1]);
  const beyond = far > high + reach ? 1 : far < low - reach ? -1 : 0;
  low = Math.max(Math.min(low, far), low - reach) - 0.04 * spread;
  high = Math.min(Math.max(high, far), high + reach) + 0.04 * spread;
  const place = (value) => (Math.min(Math.max(along(value), low), high) - low) / (high - low);
  const x = (value) => left + inner * place(value), y = (value) => pad + inner * (1 - place(value));
  const height = pad + inner + 18;
  const svg = make("svg", { width: size, height, viewBox: `0 0 ${size} ${height}`, role: "img" });
  svg.append(make("title", { text: `${state.targets[j]}: given ${written(it[1], exactly)}, expected ${written(it[0], roughly)}` }));
  svg.append(make("rect", { class: "frame", x: left, y: pad, width: inner, height: inner }));
  svg.append(make("line", { class: "same", x1: left, y1: pad + inner, x2: left + inner, y2: pad }));
  for (const [a, b] of cloud) svg.append(make("circle", { class: "cloud", cx: x(a), cy: y(b), r: 1.8 }));
  for (const [a, b] of near) svg.append(make("circle", { class: "near", cx: x(a), cy: y(b), r: 3.6 }));
  svg.append(make("line", { class: "gap", x1: x(it[0]), y1: y(it[0]), x2: x(it[0]), y2: y(it[1]) }));
  svg.append(make("circle", { class: "it", cx: x(it[0]), cy: y(it[1]), r: 5 }));
  if (beyond) {
    const at = y(it[1]) + (beyond > 0 ? 16 : -10);
    const right = place(it[0]) > 0.5;
    svg.append(make("text", { x: x(it[0]) + (right ? -8 : 8), y: at, "text-anchor": right ? "end" : "start", text: "far beyond" }));
  }
  const back = (value) => written(logarithmic ? 10 ** value : value, briefly);
  const ends = [[low + 0.04 * (high - low), 0.04], [high - 0.04 * (high - low), 0.96]];
  for (const [value, share] of ends) {
    svg.append(make("text", { x: left - 4, y: pad + inner * (1 - share) + 4, "text-anchor": "end", text: back(value) }));
    svg.append(make("text", { x: left + inner * share, y: pad + inner + 13, "text-anchor": share < 0.5 ? "start" : "end", text: back(value) }));
  }
  svg.append(make("text", { x: left + inner / 2, y: pad + inner + 13, "text-anchor": "middle", text: "expected" }));
  svg.append(make("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(${left - 8} ${pad + inner / 2}) rotate(-90)`, text: "given" }));
  return make("figure", {}, svg, make("figcaption", { text: state.targets[j] + (logarithmic ? " (logarithmic)" : "") }));
}

// -- similar rows, inputs, history -----------------------------------------------------------------

function drawSimilar() {
  const edge = (j) => (j === 0 ? "first-input" : null);
  const head = make("tr", {}, make("th", { text: "row", scope: "col" }), make("th", { text: "distance", scope: "col" }),
    ...targetsShown().map((j) => make("th", { text: state.targets[j], scope: "col" })),
    ...state.inputs.slice(0, MOST_INPUTS).map((text, j) => make("th", { text, scope: "col", class: edge(j) })));
  const body = [detail, ...detail.similar].map((row, k) => {
    const own = k === 0;
    const name = own ? make("th", { scope: "row", text: "this row" })
      : make("th", { scope: "row" }, make("button", { type: "button", text: label(row), on: { click: trying(() => choose(row.row)) } }));
    const cells = targetsShown().map((j) => make("td", { text: written(row.given[j], exactly), class: row.off[j] ? "bad" : null,
      title: row.off[j] ? `expected ${written(row.expected[j], roughly)}` : null }));
    const inputs = row.inputs.slice(0, MOST_INPUTS).map((value, j) => make("td", { text: written(value, ungrouped),
      class: [edge(j), typeof value === "string" ? "text" : null].filter(Boolean).join(" ") || null }));
    return make("tr", { class: own ? "this" : null }, name, make("td", { text: own ? "" : written(row.distance, roughly) }), ...cells, ...inputs);
  });
  return make("div", { class: "scroll", tabindex: 0 }, make("table", { class: "similar" }, make("thead", {}, head), make("tbody", {}, ...body)));
}

function drawInputs() {
  return make("div", { class: "inputs" }, ...state.inputs.map((name, j) => make("div", {},
    make("span", { class: "key", text: name, title: name }),
    make("span", { class: "value" }, make("span", { text: written(detail.inputs[j], ungrouped) }),
      make("small", { text: `usual ${written(state.usual[j], ungrouped)}` })))));
}

function drawHistory() {
  if (!detail.history.length) return [];
  const items = detail.history.map((one) => {
    const cells = one.verdict === "cells" ? ` (${one.cells.join(", ")})` : "";
    const text = `${new Date(one.time).toLocaleString()}, version ${one.version}: ${one.verdict === "cells" ? "cells wrong" : one.verdict || "undecided"}${cells}`;
    return make("li", { text: text + (one.note ? ` – ${one.note}` : "") });
  });
  return [make("h3", { text: "Decisions about this row" }), make("ol", { class: "history" }, ...items)];
}

// -- mouse and keyboard ----------------------------------------------------------------------------

$("show").addEventListener("change", trying(() => load()));
$("find").addEventListener("input", () => {
  clearTimeout($("find").timer);
  $("find").timer = setTimeout(trying(() => load()), 250);
});
$("next").addEventListener("click", trying(() => more && load({ after: rows[rows.length - 1].place })));
$("previous").addEventListener("click", trying(() => first && load({ before: rows[0].place })));
$("refit").addEventListener("click", trying(async () => {
  await saveNote();
  await send("api/refit", {});
  await look();
}));
$("help-button").addEventListener("click", () => $("help").showModal());
document.addEventListener("click", (event) => {
  if (!$("export").contains(event.target) || event.target.closest("a")) $("export").open = false;
});

const KEYS = {
  w: () => decide("wrong"), c: () => decide("cells"), r: () => decide("right"), u: () => decide("unsure"), z: () => decide(""),
  j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
  "]": () => more && load({ after: rows[rows.length - 1].place }), "[": () => first && load({ before: rows[0].place }),
  n: () => $("note") && $("note").focus(), "?": () => $("help").showModal(),
};
let busy = Promise.resolve(); // keys act one after the other, however fast they come
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.matches("textarea, input, select")) {
    if (event.key === "Escape") {
      event.target.blur();
      if (event.target.id === "find" && event.target.value) {
        event.target.value = "";
        trying(() => load())();
      }
    }
    return;
  }
  let act = KEYS[event.key];
  if (/^[1-9]$/.test(event.key) && detail) {
    const j = Number(event.key) - 1;
    if (j < state.targets.length && detail.given[j] !== null) act = () => toggleCell(state.targets[j]);
  }
  if (!act) return;
  event.preventDefault();
  busy = busy.then(trying(async () => act()));
});
window.addEventListener("pagehide", () => { saveNote().catch(() => {}); });

trying(async () => {
  const asked = new URLSearchParams(location.hash.slice(1));
  if ([...$("show").options].some((option) => option.value === asked.get("show"))) $("show").value = asked.get("show");
  if (/^\d+$/.test(asked.get("row") || "")) chosen = Number(asked.get("row"));
  await watch();
  drawList();
})();
