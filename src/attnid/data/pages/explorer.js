const form = document.getElementById("explorer-form");
const chart = document.getElementById("explorer-chart");
const reading = document.getElementById("explorer-value");
const summary = document.getElementById("explorer-summary");
const KINDS = ["seed", "layer", "head"];
const COLORS = 6;

const cells = await unpacked(document.getElementById("explorer-data").textContent);
let embedded; // the chart as Vega-Embed gives it
let drawing = Promise.resolve();
let lines = [];
let place = [0, 0]; // of the value that is read: its line, and its point there

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

const number = (value) => (value === null ? "no value" : String(value));
const color = (layer) => (layer === undefined ? "var(--ink)" : `var(--layer-${layer % COLORS})`);
const distinct = (values) => [...new Set(values)].sort((one, other) => one - other);
const fieldset = (kind) => form.querySelector(`[data-kind=${kind}]`);
const boxes = (kind) => [...fieldset(kind).querySelectorAll("input")];

function chosen() {
  const { cell, measure, over, logarithmic } = form.elements;
  return {
    measures: cells[cell.value].measures,
    measure: cells[cell.value].measures[measure.value],
    name: measure.selectedOptions[0].textContent,
    overHeads: over.value === "head" && cells[cell.value].measures[measure.value].null !== null,
    logarithmic: logarithmic.checked,
  };
}

// One checkbox a seed, layer and head of the setting; what was switched off stays off.
function fill() {
  KINDS.forEach((kind, index) => {
    const off = new Set(boxes(kind).filter((box) => !box.checked).map((box) => box.value));
    const values = distinct(chosen().measures.rho_qk.lines.map((line) => line[index]));
    fieldset(kind).querySelector(".boxes").replaceChildren(...values.map((value) => {
      const label = document.createElement("label");
      const box = Object.assign(document.createElement("input"), { type: "checkbox", value });
      box.checked = !off.has(box.value);
      label.append(box, ` ${value}`);
      if (kind === "layer") {
        const swatch = Object.assign(document.createElement("span"), { className: "swatch" });
        swatch.style.background = color(value);
        label.append(swatch);
      }
      return label;
    }));
  });
}

// The lines that are switched on, each with its values at the steps and their settled median.
function shown() {
  const { measure } = chosen();
  const on = KINDS.map((kind) => new Set(boxes(kind).filter((box) => box.checked).map((box) => Number(box.value))));
  return measure.lines
    .map((names, index) => ({ names, values: measure.values[index], settled: measure.settled[index] }))
    .filter(({ names }) => names.every((name, index) => on[index].has(name)));
}

const said = (names) => names.map((name, index) => `${KINDS[index]} ${name}`).join(", ");

function stepLines(rows) {
  const { measure } = chosen();
  return rows.map(({ names, values }) => values.map((y, index) => (
    { x: measure.steps[index], y, layer: names[1], said: `${said(names)}, step ${measure.steps[index]}` }
  )));
}

// A line a seed and layer with a point a head; the points of one head stand side by side.
function headLines(rows) {
  const runs = distinct(rows.map(({ names }) => names[1] * 1e6 + names[0]));
  const line = runs.map(() => []);
  for (const { names, settled } of rows) {
    const [seed, layer, head] = names;
    const run = runs.indexOf(layer * 1e6 + seed);
    const aside = 0.6 * ((run + 0.5) / runs.length - 0.5);
    line[run].push({ x: head + aside, y: settled, layer, said: `${said(names)}, second half of training` });
  }
  return line;
}

// The axis holds everything of the setting, so that it stays while lines come and go.
function domain() {
  const { measure, overHeads, logarithmic } = chosen();
  const values = [...(overHeads ? measure.settled : measure.values.flat()), ...(measure.null ?? [])];
  const drawn = values.filter((value) => value !== null && (value > 0 || !logarithmic));
  if (drawn.length === 0) return [0.1, 1];
  return [logarithmic || !measure.null ? Math.min(...drawn) : Math.min(0, ...drawn), Math.max(...drawn)];
}

function specification() {
  const { measure, name, overHeads, logarithmic } = chosen();
  const size = (index) => ({
    init: `containerSize()[${index}]`,
    on: [{ events: "window:resize", update: `containerSize()[${index}]` }],
  });
  const point = { x: { scale: "x", field: "x" }, y: { scale: "y", field: "y" }, stroke: { field: "color" } };
  const rule = { x: { value: 0 }, x2: { signal: "width" }, y: { scale: "y", field: "mean" } };
  const heads = measure.lines.map((names) => names[2]);
  return {
    description: name,
    autosize: { type: "fit", contains: "padding" },
    padding: 5,
    signals: [
      { name: "width", ...size(0) },
      { name: "height", ...size(1) },
      { name: "pointer", on: [{ events: "pointermove, pointerdown", update: "xy()" }] },
    ],
    data: [
      { name: "null", values: measure.null ? [{ mean: measure.null[0], low: measure.null[1], high: measure.null[2] }] : [] },
      { name: "points" },
      { name: "line" },
      { name: "point" },
    ],
    scales: [
      { name: "x", range: "width", zero: false, nice: !overHeads,
        domain: overHeads ? [-0.5, Math.max(...heads) + 0.5] : [0, measure.steps.at(-1) ?? 1] },
      { name: "y", range: "height", zero: false, nice: true, type: logarithmic ? "log" : "linear", domain: domain() },
    ],
    axes: [
      { orient: "bottom", scale: "x", title: overHeads ? "head" : "step", tickMinStep: 1, tickCount: { signal: "max(2, width / 80)" } },
      { orient: "left", scale: "y", title: name, grid: true, tickCount: 6, ...(logarithmic ? { format: ".0e" } : {}) },
    ],
    marks: [
      { type: "rect", name: "band", from: { data: "null" }, encode: { update: {
        x: { value: 0 }, x2: { signal: "width" }, y: { scale: "y", field: "high" }, y2: { scale: "y", field: "low" },
        fill: { value: "var(--null)" },
      } } },
      { type: "rule", name: "mean", from: { data: "null" }, encode: { update: {
        ...rule, stroke: { value: "var(--soft)" }, strokeDash: { value: [6, 4] },
      } } },
      { type: "group", from: { facet: { name: "each", data: "points", groupby: "line" } }, marks: [
        overHeads
          ? { type: "symbol", name: "dots", from: { data: "each" }, encode: { update: { ...point, fill: { field: "color" }, size: { value: 25 } } } }
          : { type: "line", name: "lines", from: { data: "each" }, encode: { update: { ...point, strokeWidth: { value: 1 }, defined: { field: "drawn" } } } },
      ] },
      { type: "line", name: "read", from: { data: "line" }, encode: { update: {
        ...point, strokeWidth: { value: overHeads ? 0 : 3 }, defined: { field: "drawn" },
      } } },
      { type: "symbol", name: "ring", from: { data: "point" }, encode: { update: {
        ...point, stroke: { value: "var(--ink)" }, strokeWidth: { value: 2 }, size: { value: 120 },
      } } },
    ],
    config: {
      background: null,
      view: { stroke: null },
      axis: {
        labelColor: "var(--soft)", titleColor: "var(--ink)", gridColor: "var(--line)", domainColor: "var(--line)",
        tickColor: "var(--line)", labelFont: "system-ui, sans-serif", titleFont: "system-ui, sans-serif",
        labelFontSize: 12, titleFontSize: 13, titleFontWeight: "normal",
      },
    },
  };
}

function describe(rows) {
  const { measure } = chosen();
  const medians = rows.map((row) => row.settled).filter((value) => value !== null).sort((one, other) => one - other);
  const sentences = [`${rows.length} of ${measure.lines.length} lines shown.`];
  if (medians.length > 0) {
    const ends = [medians[0], medians.at(-1)].map(number).join(" to ");
    sentences.push(`Their medians over the second half of training: ${ends}.`);
  }
  if (measure.null) {
    const [mean, low, high] = measure.null.map(number);
    sentences.push(`A random step: ${mean} on average, 95 % of them ${low} to ${high}.`);
  }
  summary.textContent = sentences.join(" ");
}

function read() {
  const [line, index] = place;
  const point = lines[line]?.[index];
  reading.textContent = point ? `${point.said}: ${number(point.y)}` : "";
  embedded.view.data("line", point ? lines[line] : []).data("point", point?.drawn ? [point] : []).runAsync();
}

function readNearest([x, y]) {
  const [left, top] = [embedded.view.scale("x"), embedded.view.scale("y")];
  let nearest = Infinity;
  lines.forEach((points, line) => points.forEach((point, index) => {
    const distance = point.drawn ? Math.hypot(left(point.x) - x, top(point.y) - y) : Infinity;
    if (distance < nearest) [nearest, place] = [distance, [line, index]];
  }));
  if (nearest < Infinity) read();
}

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
chart.addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  if (!move || lines.length === 0) return;
  event.preventDefault();
  if (reading.textContent !== "") {
    const line = Math.min(Math.max(place[0] + move[0], 0), lines.length - 1);
    place = [line, Math.min(Math.max(place[1] + move[1], 0), lines[line].length - 1)];
  }
  read();
});

// One drawing after the other: the chart is that of the last choice.
function redraw() {
  drawing = drawing.then(draw);
}

async function draw() {
  const { measure, overHeads, logarithmic } = chosen();
  const ofHeads = measure.null !== null;
  for (const part of [fieldset("layer"), fieldset("head"), form.elements.over]) part.disabled = !ofHeads;
  reading.textContent = "";
  lines = [];
  embedded?.finalize();
  embedded = await vegaEmbed(chart.firstElementChild, specification(), {
    mode: "vega", renderer: "svg", actions: false, defaultStyle: false, tooltip: false,
  });
  const rows = shown();
  place = [0, 0];
  lines = (overHeads ? headLines : stepLines)(rows);
  lines.forEach((points, line) => points.forEach((point) => Object.assign(point, {
    line, color: color(point.layer), drawn: point.y !== null && (point.y > 0 || !logarithmic),
  })));
  embedded.view.addSignalListener("pointer", (_, position) => readNearest(position));
  await embedded.view.data("points", lines.flat().filter((point) => point.drawn || !overHeads)).runAsync();
  describe(rows);
}

for (const button of form.querySelectorAll("[data-check]")) {
  button.addEventListener("click", () => {
    for (const box of button.parentElement.querySelectorAll("input")) box.checked = button.dataset.check === "true";
    redraw();
  });
}
form.elements.cell.addEventListener("change", fill);
form.addEventListener("change", redraw);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
fill();
redraw();
