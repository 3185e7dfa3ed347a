// Draws what stands in the table of every figure that is marked `data-chart`: `lines`, or `areas`, which are stacked.
// The first column is the axis, a moment (`<time datetime>`) or a number; every other column is a series, coloured by
// the `data-tone` of its head. Without this script, and for whoever can't see it, the table is there and says the same.
/* global uPlot */
"use strict";

const HEIGHT = 220;
const TONES = { good: "--good", bad: "--bad", warn: "--warn", calm: "--calm", quiet: "--quiet", link: "--link" };
const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3]];
const drawn = [];

function token(name) {
  return window.getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colour(name) {
  // A token may be `light-dark(…)`: only a property that is a colour has it resolved.
  const probe = document.createElement("span");
  probe.style.color = token(name);
  document.body.append(probe);
  const resolved = window.getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

function value(cell) {
  const moment = cell.querySelector("time");
  if (moment) {
    return Date.parse(moment.dateTime) / 1000;
  }
  const text = (cell.dataset.value ?? cell.textContent).replaceAll(",", "").trim();
  return text === "" || Number.isNaN(Number(text)) ? null : Number(text);
}

function read(table) {
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map(value)).filter((row) => row[0] !== null);
  rows.sort((one, other) => one[0] - other[0]);
  return {
    moments: table.querySelector("tbody time") !== null,
    columns: heads.map((_, column) => rows.map((row) => row[column])),
    series: heads.slice(1).map((head) => ({ label: head.textContent.trim(), tone: TONES[head.dataset.tone] ?? "--link" })),
  };
}

// Each series on top of those before it. Where one adds nothing it isn't drawn: its line would hide the one below.
function stacked(columns) {
  const sums = columns[0].map(() => 0);
  const stack = (column) => {
    const tops = column.map((number, row) => (sums[row] += number ?? 0));
    return tops.map((top, row) => (column[row] || column[row - 1] || column[row + 1] ? top : null));
  };
  return [columns[0], ...columns.slice(1).map(stack)];
}

// The day, or the hour where an axis is divided more finely than by days; in UTC like every moment on a page.
function moments(plot, splits, axis, space, step) {
  const [begin, end] = step < 86400 ? [11, 16] : [0, 10];
  return splits.map((seconds) => new Date(seconds * 1000).toISOString().slice(begin, end));
}

function options(figure, told, width) {
  const areas = figure.dataset.chart === "areas";
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const series = told.series.map(({ label, tone }, position) => ({
    label,
    stroke: colour(tone),
    width: 2,
    dash: areas ? undefined : DASHES[position % DASHES.length],
    fill: areas ? colour(tone).replace("rgb(", "rgba(").replace(")", ", 0.28)") : undefined,
    points: { show: told.columns[0].length < 40 },
    value: (_, shown, column, row) => (row === null ? "" : String(told.columns[column][row] ?? "none")),
  }));
  return {
    width,
    height: HEIGHT,
    bands: areas ? told.series.slice(1).map((_, below) => ({ series: [below + 2, below + 1] })) : [],
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { time: told.moments }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 0) * 1.1)] } },
    axes: [told.moments ? { ...axis, space: 90, values: moments } : axis, { ...axis, size: 54 }],
    series: [{ label: told.moments ? "UTC" : figure.querySelector("thead th").textContent.trim() }, ...series],
  };
}

function draw(figure) {
  const table = figure.querySelector("table");
  const told = read(table);
  if (told.columns[0].length < 2) {
    return; // one point is no line: the table says it better
  }
  const canvas = figure.querySelector(".chart-canvas") ?? document.createElement("div");
  canvas.className = "chart-canvas";
  canvas.setAttribute("aria-hidden", "true");
  canvas.replaceChildren();
  figure.querySelector("figcaption").after(canvas);
  const columns = figure.dataset.chart === "areas" ? stacked(told.columns) : told.columns;
  const plot = new uPlot(options(figure, told, canvas.clientWidth), columns, canvas);
  drawn.push({ figure, canvas, plot });
  const details = figure.querySelector("details");
  if (details && !figure.dataset.drawn) {
    details.open = false;
    figure.dataset.drawn = "";
  }
}

function drawAll() {
  for (const { plot } of drawn.splice(0)) {
    plot.destroy();
  }
  for (const figure of document.querySelectorAll("[data-chart]")) {
    draw(figure);
  }
}

drawAll();
document.addEventListener("schemechange", drawAll);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
window.addEventListener("resize", () => {
  for (const { canvas, plot } of drawn) {
    plot.setSize({ width: canvas.clientWidth, height: HEIGHT });
  }
});
