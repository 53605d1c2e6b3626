// What the page shows, in order. A section has charts, says which runs have data for it, and why the others have none.

function lineKey(kinds) {
  return html("ul", { class: "key" }, ...kinds.map(([kind, words]) => html("li", {},
    svg("svg", { class: "stroke", viewBox: "0 0 28 8", "aria-hidden": "true" },
      svg("path", { class: kind === "level" ? "level" : `line ${kind}`, d: "M1,4H27" })), words)));
}

const lossChart = {
  title: "Training loss",
  draw: (width, runs) => lineChart(width, 300, {
    title: "Training loss", name: state.log ? "loss (log)" : "loss", format: plain, log: state.log, metrics: { loss: "loss" },
    series: [
      ...plotted(runs.length > 5 ? [] : runs, "batches", "loss", "faint", "batch_loss"), // of many runs they hide one another
      ...plotted(runs, "curves", "loss", "solid"),
    ],
  }),
};

// A measure in validation (solid) and, where it is known, in training (dashed).
function measureChart(measure) {
  const [val, train] = [`val_${measure.name}`, `train_${measure.name}`];
  const trained = recorded("curves", train);
  const title = report.runs.some(trained) ? capital(measure.name) : `Validation ${measure.name}`;
  return {
    title, has: recorded("curves", val, train),
    key: (runs) => {
      const kinds = [["solid", "validation"], runs.some(trained) && ["dashed", "train"]];
      return lineKey([...kinds, bestLevels(runs, measure).length && ["level", "best possible"]].filter(Boolean));
    },
    draw: (width, runs) => lineChart(width, 300, {
      title, name: `${measure.name}${measure.better === "lower" ? " (lower is better)" : ""}`,
      format: (value, exact = false) => measureFormat(measure.format)(value, exact), metrics: { [val]: "validation", [train]: "train" },
      series: [...plotted(runs, "curves", train, "dashed"), ...plotted(runs, "curves", val, "solid")],
      levels: bestLevels(runs, measure), marks: bestMarks(runs, val),
    }),
  };
}

const hitsChart = {
  title: "Validation hits@k", has: recorded("curves", ...Object.keys(hitLines)),
  key: () => lineKey(Object.values(hitLines)),
  draw: (width, runs) => lineChart(width, 300, {
    title: "Validation hits@k", name: "share ranked k or better", format: share,
    metrics: Object.fromEntries(Object.entries(hitLines).map(([name, [, words]]) => [name, words])),
    series: Object.entries(hitLines).flatMap(([name, [kind]]) => plotted(runs, "curves", name, kind)),
  }),
};

const rankChart = { wide: true, draw: (width, runs) => plainTable(rankTable(runs)) };

const baselineChart = { wide: true, draw: (width, runs) => plainTable(baselineTable(runs)) };

const truthLines = { truth: ["solid", "truth"], forecast: ["dashed", "forecast"] };

function forecastChart(run, line) {
  const xs = run.forecast.snapshots;
  return {
    run, wide: true,
    key: () => lineKey(Object.values(truthLines)),
    note: () => line.name,
    draw: (width) => lineChart(width, 240, {
      title: `Forecast of ${line.name}`, name: line.name, format: plain, x: "snapshot",
      metrics: Object.fromEntries(Object.entries(truthLines).map(([metric, [, words]]) => [metric, words])),
      series: Object.entries(truthLines).map(([metric, [kind]]) => ({ run, metric, kind, repeat: null, x: xs, y: line[metric] })),
    }),
  };
}

function stepChart(column, title, format, zero = false) {
  return {
    title, has: (run) => Boolean(run.balance.steps && run.balance.steps[column].length),
    draw: (width, runs) => lineChart(width, 210, {
      title, name: title, format, zero, x: "step", metrics: { [column]: title },
      series: runs.map((run) => ({
        run, metric: column, kind: "solid", repeat: null,
        x: run.balance.steps[column].map((_, at) => 1 + at * run.balance.each), y: run.balance.steps[column],
      })),
    }),
  };
}

const balanceChart = { wide: true, draw: (width, runs) => plainTable(balanceTable(runs)) };

const classChart = { wide: true, draw: (width, runs) => plainTable(classTable(runs)) };

const phaseChart = { wide: true, draw: (width, runs) => plainTable(phaseTable(runs)) };

const timeChart = {
  wide: true,
  key: (runs) => partKey([...new Set(runs.flatMap((run) => Object.keys(run.time)))]),
  note: (runs) => (comparable(timeRows(runs)) ? "" : "Each bar has its own scale: these epochs differ too much for one."),
  draw: (width, runs) => {
    const rows = timeRows(runs);
    const longest = comparable(rows) ? most(rows.map((row) => row.total)) : null;
    return stackedBars(width, rows, longest, `Where the time of an epoch went. ${inWords(rows)}.`);
  },
  table: (runs) => ({
    columns: ["run", "part", "time", "share"],
    rows: timeRows(runs).flatMap((row) => row.parts.map((part) =>
      [row.label, part.name, duration(part.value), percent(part.value / row.total)])),
  }),
};

function stageChart(run) {
  return {
    run, wide: report.runs.length === 1,
    draw: (width) => stackedBars(width, stageRows(run), 1, `Stage occupancy of ${run.name}. ${inWords(stageRows(run))}.`),
  };
}

const stageSeconds = {
  title: "Seconds of an epoch that a stage is busy", wide: true,
  draw: (width, runs) => {
    const groups = stageGroups(runs);
    const bars = (group) => group.bars.map((entry) => `${entry.run.name} ${duration(entry.value)}`).join(", ");
    const words = `Seconds of stages: ${groups.map((group) => `${group.name}: ${bars(group)}`).join("; ")}.`;
    return groupedBars(width, groups, words, duration, duration);
  },
};

function stageTable(runs) {
  return {
    columns: ["run", "stage", "threads", "seconds", "busy", "starved", "held"],
    rows: runs.flatMap((run) => run.stages.map((stage) => [run.name, stage.name, stage.threads, duration(stage.seconds),
      percent(stage.busy), percent(stage.starved), percent(stage.held)])),
  };
}

function hopChart(title, what) {
  return {
    title,
    draw: (width, runs) => {
      const groups = hopGroups(runs, what);
      const bars = (group) => group.bars.map((entry) => `${entry.run.name} ${count(entry.value)}`).join(", ");
      return groupedBars(width, groups, `${title}: ${groups.map((group) => `${group.name}: ${bars(group)}`).join("; ")}.`, compact);
    },
    table: (runs) => ({
      columns: ["run", ...hopGroups(runs, what).map((group) => group.name)],
      rows: runs.map((run) => [run.name, ...run.sampled[what].map(count)]),
    }),
  };
}

// `metrics`: { column: [kind of line, words] }.
function loadChart(title, name, format, metrics, levels = () => []) {
  const words = Object.fromEntries(Object.entries(metrics).map(([metric, [, said]]) => [metric, said]));
  return {
    title, has: recorded("loads", ...Object.keys(metrics)),
    key: () => (Object.keys(metrics).length > 1 ? lineKey(Object.values(metrics)) : null),
    draw: (width, runs) => lineChart(width, 210, {
      title, name, format, zero: true, metrics: words, levels: levels(runs),
      series: Object.entries(metrics).flatMap(([metric, [kind]]) => plotted(runs, "loads", metric, kind)),
    }),
  };
}

// The measures that decide, each once.
const deciding = [...new Set(report.runs.flatMap((run) => run.summary.measures.slice(0, 1).map((measure) => measure.name)))];
const curveNames = report.measures.flatMap((measure) => [`train_${measure.name}`, `val_${measure.name}`]);

const sections = [
  {
    id: "curves", title: ["Loss", ...deciding].join(" and "),
    charts: [lossChart, ...report.measures.map(measureChart), hitsChart], table: curveTable,
    intro: (runs) => `A ring marks the best validation.${runs.some(hasBatches) ? " Faint lines are single batches." : ""}`,
    has: (run) => recorded("curves", "loss", ...curveNames)(run) || hasBatches(run),
    absent: "no loss or measure was recorded",
  },
  {
    id: "forecast", title: "Forecast against truth", optional: true,
    intro: "The next snapshot of every test window: the mean of all nodes, and the nodes with the least, the median and the largest "
      + "error. Of the last repeat.",
    charts: report.runs.flatMap((run) => (run.forecast ? run.forecast.lines.map((line) => forecastChart(run, line)) : [])),
    has: (run) => Boolean(run.forecast), absent: "numbers of nodes are not what it forecasts",
  },
  {
    id: "baselines", title: "Baselines of the same windows", charts: [baselineChart], optional: true,
    intro: "What forecasts without a graph network score on the same test windows; means over the repeats.",
    has: (run) => run.baselines.length > 0, absent: "it has no baselines",
  },
  {
    id: "balance", title: "Balance of the ranks", optional: true,
    intro: "A step is as long as its busiest rank (makespan); no deal of its pieces to ranks is shorter than the bound. Means over "
      + "the epochs, then step by step.",
    charts: [balanceChart, stepChart("over_bound", "Makespan over bound", plain), stepChart("idle", "Idle share", share, true),
      stepChart("bytes", "Bytes that rank 0 sent", bytes, true)],
    has: (run) => Boolean(run.balance.means), absent: "it deals no groups",
  },
  {
    id: "ranks", title: "How true ends of test edges rank", charts: [rankChart], optional: true,
    intro: "Among all nodes (full) or sampled ones; filtered leaves other true answers out, raw does not. "
      + "Only rankings of one name can be compared.",
    has: (run) => run.summary.ranks.length > 0, absent: "there is no test result",
  },
  {
    id: "classes", title: "Classes", charts: [classChart], optional: true,
    intro: "Of the test nodes; means over the repeats.",
    has: (run) => run.summary.classes.length > 0, absent: "there is no test result by class",
  },
  {
    id: "time", title: "Where the time of an epoch went", charts: [timeChart],
    intro: "Seconds of the training thread, mean over the epochs.",
    has: (run) => Object.keys(run.time).length > 0, absent: "no times were recorded",
  },
  {
    id: "phases", title: "Between ranks", charts: [phaseChart], optional: true,
    intro: "What rank 0 sent in an epoch and how long it stood in it, waiting for others included; means over the epochs.",
    has: (run) => run.summary.phases.length > 0, absent: "it was trained by one rank",
  },
  {
    id: "stages", title: "Stage occupancy", charts: [...report.runs.map(stageChart), stageSeconds], table: stageTable,
    intro: "Of the time that a stage's threads had: busy working, starved (waiting for the stage before), "
      + "held (far enough ahead). The busiest stage sets the pace.",
    key: () => partKey(["busy", "starved", "held"]),
    has: (run) => run.stages.length > 0,
    absent: (run) => (run.options.full_batch === "true" ? "a full-batch run has no pipeline" : "it has no pipeline"),
  },
  {
    id: "timeline", title: "Timeline",
    intro: "The last spans of trace.json, a row per thread. The whole trace opens in Perfetto or chrome://tracing.",
    charts: report.runs.map((run) => ({
      run, wide: true, key: () => partKey(run.timeline.names),
      draw: (width) => timelineChart(width, run), table: () => timelineTable([run]),
    })),
    has: (run) => Boolean(run.timeline), absent: "there is no trace.json, or it is not complete yet",
  },
  {
    id: "sampled", title: "Sampled sizes", charts: [hopChart("Nodes of a batch", "nodes"), hopChart("Edges of a batch", "edges")],
    intro: "What each hop added to a batch, mean over the epochs.",
    has: (run) => run.sampled.nodes.length + run.sampled.edges.length > 0, optional: !report.runs.some(isTask("node")),
    absent: (run) => {
      if (isTask("link")(run)) return "edges are predicted without neighbors";
      return run.options.full_batch === "true" ? "a full-batch run samples nothing" : "nothing was sampled";
    },
  },
  {
    id: "throughput", title: "Throughput", intro: "Per second of each epoch.", table: loadTable,
    charts: [
      loadChart("Seeds", "seeds/s", compact, { seeds: ["solid", "seeds/s"] }),
      loadChart("Edges", "edges/s", compact, { edges: ["solid", "edges/s"] }),
      loadChart("Bytes", "GB/s", gigabytes, { bytes: ["solid", "rows moved"] }),
      loadChart("Batches in flight, at the most", "batches", count, { in_flight: ["solid", "batches"] }),
    ],
    has: recorded("loads", "seeds", "edges", "bytes", "in_flight"), absent: "no throughput was recorded",
  },
  {
    id: "disk", title: "Disk", intro: "Of each epoch, the first of which also fills the buffer.", table: diskTable, optional: true,
    charts: [
      loadChart("Bytes of rows and state", "bytes", bytes,
        { disk_bytes_read: ["solid", "read"], disk_bytes_written: ["dashed", "written"] },
        (runs) => plannedLevels(runs, ["written"])),
      loadChart("Busy", "share of the epoch", share, { disk_busy: ["solid", "busy"] }),
      loadChart("Waited for partitions", "seconds", duration, { disk_stall_seconds: ["solid", "waited for"] }),
    ],
    has: recorded("loads", "disk_bytes_read"), absent: "its rows are in memory",
  },
  {
    id: "memory", title: "Memory", intro: "At the end of each epoch.", table: loadTable,
    charts: [
      loadChart("Process", "bytes", bytes, { resident: ["solid", "resident"], peak: ["dashed", "peak"], data: ["dotted", "data"] }),
      loadChart("Batch buffers", "bytes", bytes, { buffers: ["solid", "in use"], buffers_peak: ["dashed", "peak"] }),
      loadChart("Buffers taken from the cache", "share", share, { reuse: ["solid", "reused"] }),
    ],
    has: recorded("loads", "data", "resident", "peak", "buffers", "buffers_peak", "reuse"), absent: "no memory was recorded",
  },
];
