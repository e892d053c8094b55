"use strict";
(() => {
  const told = document.getElementById("charts");
  if (!told || !window.uPlot) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const others = ["--link", "--good", "--open", "--soft"];
  const charts = JSON.parse(told.textContent);
  const width = (place) => Math.max(240, place.clientWidth);
  const steps = { incrs: [1, 2, 5].flatMap((n) => [1, 10, 100, 1e3, 1e4, 1e5].map((ten) => n * ten)).sort((a, b) => a - b) };
  const size = (bytes) => {
    const unit = Math.min(3, Math.floor(Math.log2(bytes) / 10));
    return bytes / 1024 ** unit + [" B", " KiB", " MiB", " GiB"][unit];
  };
  const spread = (plot, at) => Math.ceil((at.length * 75 * window.devicePixelRatio) / plot.bbox.width);
  const sizes = { filter: (_, at) => at, values: (plot, at) => at.map((v, n) => (n % spread(plot, at) ? "" : size(v))) };
  document.querySelectorAll(".chart").forEach((place) => {
    const chart = charts[Number(place.dataset.chart)];
    const axis = { stroke: colour("--ink"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    let next = 0;
    const lines = chart.lines.map((line) => ({
      label: line.label,
      stroke: line.blamed ? colour("--mark") : colour(others[next++ % others.length]),
      width: line.blamed ? 3 : 1.5,
      dash: line.blamed ? undefined : [[], [8, 4], [2, 3], [10, 3, 2, 3]][next % 4],
      spanGaps: true,
    }));
    const made = new window.uPlot({
      width: width(place), height: 240,
      scales: {
        x: chart.in_bytes ? { time: false, distr: 3, log: 2 } : { time: false },
        y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.08 : 1] },
      },
      legend: { live: false },
      axes: [{ ...axis, label: chart.along, ...(chart.in_bytes ? sizes : steps) }, { ...axis, size: 70 }],
      series: [{ label: chart.along }, ...lines],
    }, [chart.x, ...chart.lines.map((line) => line.values)], place);
    window.addEventListener("resize", () => made.setSize({ width: width(place), height: 240 }));
  });
})();
(() => {
  const grid = document.getElementById("grid");
  if (!grid) return;
  const cells = () => [...grid.querySelectorAll("a.cell")];

  // One stop for the tab key; the arrow keys go on inside.
  const reach = (chosen) => cells().forEach((cell) => { cell.tabIndex = cell === chosen ? 0 : -1; });
  const beside = (cell, key) => {
    const all = cells(), at = all.indexOf(cell);
    if (key === "ArrowRight") return all[at + 1];
    if (key === "ArrowLeft") return all[at - 1];
    if (key === "Home") return all[0];
    if (key === "End") return all[all.length - 1];
    const here = cell.getBoundingClientRect(), down = key === "ArrowDown";
    const rows = all.filter((other) => {
      const top = other.getBoundingClientRect().top;
      return down ? top > here.top + 2 : top < here.top - 2;
    });
    if (!rows.length) return undefined;
    const tops = rows.map((other) => other.getBoundingClientRect().top);
    const next = down ? Math.min(...tops) : Math.max(...tops);
    const distance = (other) => Math.abs(other.getBoundingClientRect().left - here.left);
    return rows.filter((_, place) => Math.abs(tops[place] - next) < 2).sort((a, b) => distance(a) - distance(b))[0];
  };
  grid.addEventListener("keydown", (event) => {
    if (!["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
    const next = event.target.closest("a.cell") && beside(event.target, event.key);
    if (!next) return;
    event.preventDefault();
    reach(next);
    next.focus();
  });
  grid.addEventListener("focusin", (event) => { if (event.target.matches("a.cell")) reach(event.target); });
  reach(grid.querySelector("a.suspect") || cells()[0]);

  // The same cells in rows of another axis.
  const choice = document.getElementById("axis");
  if (!choice) return;
  const axes = JSON.parse(document.getElementById("axes").textContent);
  const original = [...grid.children];
  const home = cells().map((cell) => [cell.parentElement, cell.parentElement.parentElement]);
  const row = (name, items) => {
    const made = document.createElement("div"), title = document.createElement("div"), list = document.createElement("ul");
    made.className = "row";
    title.className = "name";
    title.textContent = name;
    list.className = "cells";
    list.append(...items);
    made.append(title, list);
    return made;
  };
  choice.addEventListener("change", () => {
    home.forEach(([item, list]) => list.append(item));
    const groups = axes[choice.value];
    if (!groups) return grid.replaceChildren(...original);
    const left = new Map(cells().map((cell) => [Number(cell.dataset.rank), cell.parentElement]));
    const take = (rank) => { const item = left.get(rank); left.delete(rank); return item; };
    const rows = groups.map(([name, ranks]) => row(name, ranks.map(take).filter(Boolean)));
    if (left.size) rows.push(row("in no group", [...left.values()]));
    grid.replaceChildren(...rows);
  });
  choice.closest(".arrange").hidden = false;
})();
