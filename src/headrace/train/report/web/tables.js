// The summary, the options, and the numbers behind each chart.

function plainTable({ columns, rows }) {
  return html("div", { class: "scroll" }, html("table", {},
    html("thead", {}, html("tr", {}, ...columns.map((column) => html("th", { scope: "col" }, column)))),
    html("tbody", {}, ...rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", {}, String(cell))))))));
}

// Built when it is opened: most readers never do, and a table of every point is the heaviest thing on the page.
function dataTable(table) {
  const details = html("details", { class: "data" }, html("summary", {}, "Table"));
  const build = () => {
    if (details.open) details.replaceChildren(details.firstChild, plainTable(table(shownRuns())));
  };
  details.addEventListener("toggle", build);
  return { details, build };
}

// Columns of one measure: those of the splits that any run has a value of, and the best that a dataset allows.
function measureColumns(measure) {
  const format = measureFormat(measure.format);
  const of = (run) => run.summary.measures.find((other) => other.name === measure.name);
  const sign = measure.better === "lower" ? -1 : 1;
  const columns = [["val", "Validation"], ["test", "Test"]].map(([split, words]) => ({
    name: `${words} ${measure.name}`, number: true, has: (run) => known(of(run)?.[split]),
    best: (run) => (known(of(run)?.[split]) ? sign * of(run)[split].mean : null), cell: (run) => [spread(of(run)?.[split], format)],
  }));
  columns.push({
    name: `Best possible ${measure.name}`, number: true, has: (run) => known(of(run)?.possible),
    cell: (run) => [format(of(run)?.possible)],
  });
  return columns.filter((column) => report.runs.some(column.has));
}

const summaryColumns = [
  { name: "Run", cell: (run) => [swatch(run), html("strong", {}, run.name), small(run.path)] },
  { name: "Dataset", cell: (run) => [run.dataset.spec || nothing, oneDataset() ? null : small(graphSize(run.dataset))] },
  { name: "Model", cell: (run) => [run.summary.model || nothing] },
  { name: "Parameters", number: true, cell: (run) => [count(run.summary.parameters)] },
  { name: "Epochs", number: true, cell: (run) => [each(run.summary.epochs), small(repeatCount(run))] },
  { name: "Best epoch", number: true, cell: (run) => [each(run.summary.best_epochs)] },
  ...report.measures.flatMap(measureColumns),
  {
    name: "Median epoch", number: true, best: (run) => negated(run.summary.median_epoch),
    cell: (run) => [duration(run.summary.median_epoch)],
  },
  { name: "Total time", number: true, cell: (run) => [duration(run.summary.seconds)] },
  { name: "Peak memory", number: true, best: (run) => negated(run.summary.peak), cell: (run) => [bytes(run.summary.peak)] },
  {
    name: "Status",
    cell: (run) => [run.summary.status, ...run.summary.notes.map((note) => html("small", { class: "problem" }, note))],
  },
];

// The best figure of a column is marked where the runs are of one dataset; others cannot be compared.
function summaryTable(runs) {
  const bests = summaryColumns.map((column) => {
    const values = column.best && oneDataset() ? runs.map(column.best).filter(known) : [];
    return new Set(values).size > 1 ? most(values) : null;
  });
  return html("table", { class: "summary" },
    html("thead", {}, html("tr", {}, ...summaryColumns.map((column) =>
      html("th", { scope: "col", class: column.number && "number" }, column.name)))),
    html("tbody", {}, ...runs.map((run) => html("tr", { "data-run": run.index }, ...summaryColumns.map((column, i) => {
      const wins = known(bests[i]) && column.best(run) === bests[i];
      return html("td", {
        class: `${column.number ? "number" : ""} ${wins ? "best" : ""}`, "data-name": column.name,
        title: wins && "the best of these runs",
      }, html("div", {}, ...column.cell(run)));
    })))));
}

function negated(value) {
  return known(value) ? -value : null;
}

function oneDataset() {
  return new Set(report.runs.map((run) => run.dataset.spec)).size === 1;
}

function small(text) {
  return text ? html("small", {}, text) : null;
}

function graphSize(dataset, nouns = ["nodes", "edges"]) {
  return nouns.filter((noun) => dataset[noun]).map((noun) => `${count(dataset[noun])} ${noun}`).join(", ");
}

function repeatCount(run) {
  return run.repeats.length > 1 ? `${run.repeats.length} repeats` : "";
}

function each(values) {
  const numbers = values.filter(known);
  if (!numbers.length) return nothing;
  const [low, high] = [least(numbers), most(numbers)];
  return low === high ? count(low) : `${count(low)} to ${count(high)}`;
}

function optionsTable(runs, onlyDiffering) {
  const facts = new Map(runs.map((run) => [run, { dataset: run.dataset.spec, ...run.about, ...run.options }]));
  const names = [...new Set([...facts.values()].flatMap(Object.keys))];
  const rows = names.map((name) => {
    const values = runs.map((run) => facts.get(run)[name] ?? nothing);
    return { name, values, differs: new Set(values).size > 1 };
  }).filter((row) => row.differs || !onlyDiffering);
  if (!rows.length) return html("p", { class: "muted" }, "These runs have the same options.");
  return html("div", { class: "scroll" }, html("table", { class: "options" },
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "option"),
      ...runs.map((run) => html("th", { scope: "col" }, swatch(run), run.name)))),
    html("tbody", {}, ...rows.map((row) => html("tr", { class: row.differs && "differs" },
      html("th", { scope: "row" }, row.name), ...row.values.map((value) => html("td", {}, value)))))));
}
