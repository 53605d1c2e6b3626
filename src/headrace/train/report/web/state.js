"use strict";
// What is shown, and its address: the part after # is a link to exactly this view (#only=NAME&x=seconds&loss=log).

window.onerror = (message) => {
  document.documentElement.dataset.ready = `error: ${message}`;
  const line = document.createElement("p");
  line.className = "problem";
  line.textContent = `This page could not be drawn whole: ${message}`;
  document.body.prepend(line);
};

const report = JSON.parse(document.getElementById("data").textContent);
report.runs.forEach((run, index) => { run.index = index; });
// The measures of all runs, each as the first run that has it describes it.
report.measures = [];
report.runs.flatMap((run) => run.summary.measures).forEach((measure) => {
  if (!report.measures.some((other) => other.name === measure.name)) report.measures.push(measure);
});

const state = { shown: new Set(), x: "epoch", log: false, paper: false };

function shownRuns() {
  return report.runs.filter((run) => state.shown.has(run.index));
}

function readAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const only = wanted.getAll("only");
  const named = report.runs.filter((run) => only.includes(run.name));
  state.shown = new Set((named.length ? named : report.runs).map((run) => run.index));
  state.x = wanted.get("x") === "seconds" ? "seconds" : "epoch";
  state.log = wanted.get("loss") === "log";
}

function writeAddress() {
  const address = new URLSearchParams();
  const runs = shownRuns();
  if (runs.length < report.runs.length) runs.forEach((run) => address.append("only", run.name));
  if (state.x !== "epoch") address.set("x", state.x);
  if (state.log) address.set("loss", "log");
  history.replaceState(null, "", `#${address}`);
}
