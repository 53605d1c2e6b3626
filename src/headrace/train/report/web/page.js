// Builds the page once, and draws it again when runs, axes or the width change.

const main = document.getElementById("main");
const controls = document.getElementById("controls");
const redraws = [];

function heading() {
  const title = report.runs.length === 1 ? report.runs[0].name : `${report.runs.length} runs compared`;
  const { dataset } = report.runs[0];
  const about = oneDataset() ? [dataset.spec, graphSize(dataset, ["nodes", "edges", "relations", "features", "classes"])] : [];
  if (about.length && dataset.multi_label) about.push("several labels per node (micro-F1)");
  const facts = [...about, `headrace ${report.headrace}`, `written ${report.written}`];
  document.getElementById("head").append(
    html("h1", {}, title),
    html("p", { class: "muted" }, facts.filter(Boolean).join(" · ")));
}

function buildControls() {
  const legend = html("div", { class: "legend", role: "group", "aria-label": "Runs shown" });
  report.runs.forEach((run) => {
    const button = html("button", {
      type: "button", "data-toggle": run.index, title: "click: show or hide; double click: only this run",
      click: () => toggle(run), dblclick: () => change(() => { state.shown = new Set([run.index]); }),
      pointerenter: () => dim(run), pointerleave: () => dim(null),
    }, swatch(run), run.name);
    redraws.push(() => button.setAttribute("aria-pressed", state.shown.has(run.index)));
    legend.append(button);
  });
  const axis = html("div", { class: "choice", role: "group", "aria-label": "Horizontal axis" });
  ["epoch", "seconds"].forEach((name) => {
    const words = name === "epoch" ? "by epoch" : "by time";
    const button = html("button", { type: "button", "data-x": name, click: () => change(() => { state.x = name; }) }, words);
    redraws.push(() => button.setAttribute("aria-pressed", state.x === name));
    axis.append(button);
  });
  const log = html("input", { type: "checkbox", id: "log", change: () => change(() => { state.log = log.checked; }) });
  redraws.push(() => { log.checked = state.log; });
  if (report.runs.length > 1) controls.append(legend);
  controls.append(axis, html("label", {}, log, "log loss"));
}

function toggle(run) {
  change(() => {
    if (!state.shown.delete(run.index)) state.shown.add(run.index);
    if (!state.shown.size) state.shown = new Set(report.runs.map((other) => other.index));
  });
}

function dim(run) {
  document.querySelectorAll("main [data-run]").forEach((element) =>
    element.classList.toggle("dim", Boolean(run) && state.shown.has(run.index) && element.dataset.run !== String(run.index)));
}

function section(id, title, intro, ...children) {
  const element = html("section", { id, "aria-labelledby": `${id}-title` },
    html("h2", { id: `${id}-title` }, title), intro && html("p", { class: "intro" }, intro), ...children.filter(Boolean));
  main.append(element);
  return element;
}

function buildSection(about) {
  const having = report.runs.filter(about.has);
  const began = (run) => run.summary.epochs.some((epochs) => epochs > 0);
  const absent = typeof about.absent === "function" ? about.absent : () => about.absent;
  const reason = (run) => (began(run) || about.id === "timeline" ? absent(run) : "no epoch has ended yet");
  const lacking = report.runs.filter((run) => !about.has(run));
  if (!having.length && about.optional) return;
  if (!having.length) {
    const reasons = [...new Set(lacking.map(reason))].join("; ");
    section(about.id, about.title, null, html("p", { class: "muted absent" }, `Nothing to show: ${reasons}.`));
    return;
  }
  const grid = html("div", { class: "charts" });
  const intro = typeof about.intro === "function" ? about.intro(having) : about.intro;
  const element = section(about.id, about.title, intro, about.key?.(), grid);
  const drawn = (chart) => (chart.run ? about.has(chart.run) : having.some(chart.has || about.has));
  about.charts.filter(drawn).forEach((chart) => grid.append(buildChart(chart, about)));
  if (about.table) {
    const { details, build } = dataTable((runs) => about.table(runs.filter(about.has)));
    element.append(details);
    redraws.push(build);
  }
  if (lacking.length) {
    const named = lacking.map((run) => `${run.name} (${reason(run)})`);
    element.append(html("p", { class: "muted absent" }, `Not here: ${named.join(", ")}.`));
  }
}

function buildChart(chart, about) {
  const slot = html("div", { class: "slot" });
  const caption = html("figcaption");
  const figure = html("figure", { class: chart.wide && "wide" }, caption, slot);
  const has = (run) => about.has(run) && (!chart.has || chart.has(run));
  const runs = () => shownRuns().filter((run) => has(run) && (!chart.run || run === chart.run));
  const table = chart.table && dataTable(() => chart.table(runs()));
  if (table) figure.append(table.details);
  redraws.push(() => {
    const drawn = runs();
    figure.hidden = !drawn.length;
    if (!drawn.length) {
      slot.replaceChildren();
      return;
    }
    const title = chart.run ? report.runs.length > 1 && [swatch(chart.run), chart.run.name] : chart.title && [chart.title];
    const key = chart.key?.(drawn);
    const note = chart.note?.(drawn);
    const said = [title && html("strong", {}, ...title), key, note && html("span", { class: "muted" }, note)];
    caption.replaceChildren(...said.filter(Boolean));
    const width = state.paper ? (chart.wide ? 700 : 340) : slot.clientWidth;
    slot.replaceChildren(chart.draw(Math.max(width, 200), drawn));
    table?.build();
  });
  return figure;
}

function buildSummary() {
  const slot = html("div", { class: "scroll" });
  section("summary", "Summary", null, slot);
  redraws.push(() => slot.replaceChildren(summaryTable(shownRuns())));
}

function buildOptions() {
  const slot = html("div");
  const differing = html("input", { type: "checkbox", id: "differing", change: () => draw() });
  const several = report.runs.length > 1;
  section("options", "Options", null, several && html("label", {}, differing, "only what differs"), slot);
  redraws.push(() => slot.replaceChildren(optionsTable(shownRuns(), several && differing.checked)));
}

function draw() {
  tip.hide();
  redraws.forEach((redraw) => redraw());
}

function change(how) {
  how();
  writeAddress();
  draw();
}

function start() {
  heading();
  readAddress();
  buildControls();
  buildSummary();
  sections.forEach(buildSection);
  buildOptions();
  draw();
  let width = main.clientWidth;
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (main.clientWidth === width || state.paper) return;
    width = main.clientWidth;
    draw();
  })).observe(main);
  const paper = (printing) => () => { state.paper = printing; draw(); };
  window.addEventListener("beforeprint", paper(true));
  window.addEventListener("afterprint", paper(false));
  window.addEventListener("hashchange", () => { readAddress(); draw(); });
}

start();
document.documentElement.dataset.ready = "true";
