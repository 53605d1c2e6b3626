// From the data of runs to what a chart or a table takes.

const plain = (value) => digits(value, 4);
const share = (value, exact) => percent(value, exact ? 2 : 0);
const gigabytes = (value, exact) => (exact ? bytesPerSecond(value) : digits(value / 1e9));

// Whether a run recorded any of these columns, in any repeat.
function recorded(part, ...names) {
  return (run) => run[part].some((columns) => names.some((name) => columns[name]));
}

const hasBatches = recorded("batches", "loss");

function plotted(runs, part, column, kind, metric = column) {
  return runs.flatMap((run) => run[part].map((columns, repeat) => ({
    run, metric, kind, repeat: run.repeats.length > 1 ? repeat : null, joined: column.startsWith("val_"),
    x: columns[state.x], y: columns[column],
  })));
}

// `names`: { column: [heading, format] }.
function columnTable(part, names) {
  const rowsOf = (columns, who) => (columns.epoch || []).map((_, i) =>
    [who, ...Object.entries(names).map(([name, [, format]]) => format(columns[name]?.[i] ?? null))]);
  return (runs) => ({
    columns: ["run", ...Object.values(names).map(([heading]) => heading)],
    rows: runs.flatMap((run) => run[part].flatMap((columns, repeat) =>
      rowsOf(columns, run.repeats.length > 1 ? `${run.name}, ${run.repeats[repeat]}` : run.name))),
  });
}

const hitLines = { val_hits10: ["solid", "hits@10"], val_hits3: ["dashed", "hits@3"], val_hits1: ["dotted", "hits@1"] };
const curveColumns = { epoch: ["epoch", count], seconds: ["time", duration], loss: ["loss", plain] };
const percents = (value) => percent(value, 2);

function curveTable(runs) {
  const recordedBy = ([name]) => runs.some(recorded("curves", name));
  const measures = report.measures.flatMap((measure) => [["train", "train"], ["val", "validation"]].map(([split, words]) =>
    [`${split}_${measure.name}`, [`${words} ${measure.name}`, measureFormat(measure.format)]]));
  const hits = Object.entries(hitLines).map(([name, [, words]]) => [name, [words, percents]]);
  return columnTable("curves", { ...curveColumns, ...Object.fromEntries([...measures, ...hits].filter(recordedBy)) })(runs);
}

function isTask(name) {
  return (run) => run.about.task === name;
}

function classTable(runs) {
  return {
    columns: ["run", "class", "test nodes", "precision", "recall", "F1"],
    rows: runs.flatMap((run) => run.summary.classes.map((row) => [run.name, row.name, count(row.nodes),
      percents(row.precision), percents(row.recall), percents(row.f1)])),
  };
}

function phaseTable(runs) {
  return {
    columns: ["run", "phase", "sent", "time"],
    rows: runs.flatMap((run) => run.summary.phases.map((row) => [run.name, row.name, bytes(row.sent), duration(row.seconds)])),
  };
}

function baselineTable(runs) {
  return {
    columns: ["run", "forecast", ...report.measures.map((measure) => measure.name)],
    rows: runs.flatMap((run) => run.baselines.map((row) => [run.name, row.name,
      ...report.measures.map((measure) => (known(row[measure.name]) ? measureFormat(measure.format)(row[measure.name], true) : nothing))])),
  };
}

function balanceTable(runs) {
  return {
    columns: ["run", "seconds of a step", "bound", "makespan over bound", "idle", "bytes sent by rank 0 in a step"],
    rows: runs.map((run) => {
      const { makespan, bound, idle, bytes: sent } = run.balance.means;
      return [run.name, duration(makespan), duration(bound), plain(bound ? makespan / bound : null), percents(idle), bytes(sent)];
    }),
  };
}

function rankTable(runs) {
  const hits = ["hits@1", "hits@3", "hits@10"];
  return {
    columns: ["run", "ranked", "mrr", ...hits, "mean rank", "candidates", "edges"],
    rows: runs.flatMap((run) => run.summary.ranks.map((row) => [run.name, row.name, plain(row.mrr),
      ...hits.map((name) => percents(row[name])), plain(row.mean_rank), count(row.candidates), count(row.edges)])),
  };
}

const diskTable = columnTable("loads", {
  epoch: ["epoch", count], seconds: ["time", duration], disk_loads: ["loads", count], disk_bytes_read: ["read", bytes],
  disk_bytes_written: ["written", bytes], disk_busy: ["busy", (value) => percent(value)], disk_stall_seconds: ["waited for", duration],
});

const loadTable = columnTable("loads", {
  epoch: ["epoch", count], seconds: ["time", duration], seeds: ["seeds/s", compact], edges: ["edges/s", compact],
  bytes: ["bytes/s", bytesPerSecond], data: ["data", bytes], resident: ["resident", bytes], peak: ["peak", bytes],
  buffers: ["buffers", bytes], buffers_peak: ["buffers, peak", bytes], reuse: ["reused", (value) => percent(value)],
});

function bestMarks(runs, column) {
  return runs.flatMap((run) => run.curves.flatMap((columns, repeat) => {
    const i = (columns.epoch || []).indexOf(run.summary.best_epochs[repeat]);
    const [x, y] = [columns[state.x]?.[i], columns[column]?.[i]];
    return known(x) && known(y) ? [{ run, x, y }] : [];
  }));
}

function bestLevels(runs, measure) {
  const possible = (run) => run.summary.measures.find((other) => other.name === measure.name)?.possible;
  const format = measureFormat(measure.format);
  return [...new Set(runs.map(possible).filter(known))].map((y) => ({ y, text: `best possible ${format(y)}` }));
}

function timeRows(runs) {
  return runs.map((run) => {
    const total = Object.values(run.time).reduce((a, b) => a + b, 0) || 1;
    const parts = Object.entries(run.time).map(([name, value]) => {
      const [long, ratio] = [duration(value), percent(value / total, 0)];
      const texts = [`${name} ${long}, ${ratio}`, `${long}, ${ratio}`, long, ratio];
      return { name, value, texts, hint: `${name}: ${long}, ${percent(value / total)}` };
    });
    return { run, label: run.name, note: `${duration(total)} an epoch`, parts, total };
  });
}

// One scale for all bars, unless it would leave the short ones unreadable.
function comparable(rows) {
  const totals = rows.map((row) => row.total);
  return most(totals) <= 8 * least(totals);
}

function stageRows(run) {
  const part = (name, value) => {
    const ratio = percent(value, 0);
    return { name, value, texts: [`${name} ${ratio}`, ratio], hint: `${name} ${percent(value)}` };
  };
  return run.stages.map((stage) => ({
    run, label: `${stage.name}, ${plural(stage.threads, "thread")}`, note: `busy ${percent(stage.busy, 0)}`,
    parts: ["busy", "starved", "held"].map((name) => part(name, stage[name])),
  }));
}

// Seconds that each stage was busy in an epoch: stages overlap, so they are no parts of a whole.
function stageGroups(runs) {
  const names = [...new Set(runs.flatMap((run) => run.stages.map((stage) => stage.name)))];
  return names.map((name) => ({
    name,
    bars: runs.map((run) => ({ run, value: run.stages.find((stage) => stage.name === name)?.seconds }))
      .filter((entry) => known(entry.value)),
  }));
}

// What plans said of the bytes of an epoch.
function plannedLevels(runs, names) {
  return runs.flatMap((run) => names.filter((name) => known(run.summary.predicted[name])).map((name) =>
    ({ y: run.summary.predicted[name], text: `planned to be ${name}${runs.length > 1 ? `, ${run.name}` : ""}` })));
}

function inWords(rows) {
  return rows.map((row) => `${row.label}: ${row.parts.map((part) => part.hint).join(", ")}`).join("; ");
}

// What each hop added. Nodes begin with the seeds; edges with those of the first hop.
function hopGroups(runs, what) {
  const hops = most(runs.map((run) => run.sampled[what].length));
  const name = (hop) => (what === "nodes" ? (hop ? `hop ${hop}` : "seeds") : `hop ${hop + 1}`);
  return Array.from({ length: hops }, (_, hop) => ({
    name: name(hop),
    bars: runs.map((run) => ({ run, value: run.sampled[what][hop] })).filter((entry) => known(entry.value)),
  }));
}
