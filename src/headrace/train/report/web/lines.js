// Curves of several runs in one frame: color says the run, the kind of line says what is measured.

// `series`: { run, repeat, metric, kind, joined, x, y }; `levels`: { y, text }; `marks`: { run, x, y }.
// `options`: { title, name, format, zero, log, metrics: { key: words }, series, levels, marks, x }: `x` names what x counts, where
// that is neither epochs nor seconds.
function lineChart(width, height, options) {
  const series = options.series.filter((line) => line.x && line.y);
  const levels = options.levels || [];
  const target = drawing(width, height, describeLines(options, series));
  const usable = (value) => known(value) && (!options.log || value > 0);
  const xs = series.flatMap((line) => line.x).filter(known);
  const ys = [...series.flatMap((line) => line.y), ...levels.map((level) => level.y)].filter(usable);
  if (!xs.length || !ys.length) return target;

  const x = horizontalAxis(least(xs), most(xs), width, options.x);
  const y = verticalAxis(least(ys), most(ys), height, options);
  frame(target, width, height, x, y);
  levels.forEach((level) => {
    const at = y.scale(level.y);
    target.append(
      svg("line", { class: "level", x1: margin.left, x2: width - margin.right, y1: at, y2: at }),
      svg("text", { class: "level-name", x: width - margin.right, y: at - 5, "text-anchor": "end" }, level.text),
    );
  });
  series.forEach((line) => {
    const all = line.x.map((at, i) => known(at) && usable(line.y[i]) && [x.scale(at), y.scale(line.y[i])]);
    const points = line.joined ? all.filter(Boolean) : all;
    const single = all.filter(Boolean).length === 1;
    target.append(svg("path", {
      class: `line ${line.kind} ${single ? "single" : ""} ${known(line.repeat) ? "repeat" : ""} run-${line.run.index % 8}`,
      "data-run": line.run.index, "data-metric": line.metric, "data-repeat": line.repeat, d: outline(points),
    }));
  });
  (options.marks || []).forEach((mark) => target.append(svg("circle", {
    class: `mark run-${mark.run.index % 8}`, "data-run": mark.run.index, cx: x.scale(mark.x), cy: y.scale(mark.y), r: 4,
  })));
  readable(target, width, height, options, series, x, y);
  return target;
}

// Spreading an array into Math.min runs out of stack when it is long.
function least(values) {
  return values.reduce((a, b) => Math.min(a, b), Infinity);
}

function most(values) {
  return values.reduce((a, b) => Math.max(a, b), -Infinity);
}

// A missing value is a gap, unless the line is joined: validation is not done in every epoch.
// A point alone is a dot: a round cap on next to no length.
function outline(points) {
  let path = "";
  let down = false;
  points.forEach((point, i) => {
    if (point) {
      path += `${down ? "L" : "M"}${point[0].toFixed(1)},${point[1].toFixed(1)}`;
      if (!down && !points[i + 1]) path += "h.01";
    }
    down = Boolean(point);
  });
  return path;
}

function horizontalAxis(low, high, width, counted = state.x === "epoch" ? "epoch" : null) {
  const unit = counted ? { factor: 1, name: counted } : timeUnit(high);
  const from = counted ? low : 0;
  return {
    scale: linear(from, from === high ? from + 1 : high, margin.left + 6, width - margin.right),
    ticks: ticks(from / unit.factor, high / unit.factor, width / 80, Boolean(counted)).map((value) => value * unit.factor),
    format: (value) => digits(value / unit.factor), name: unit.name,
  };
}

function verticalAxis(low, high, height, { zero, log, format, name }) {
  const room = [height - margin.bottom, margin.top];
  if (log) {
    const [from, to] = low < high ? [low, high] : [low / 2, high * 2];
    return { scale: logarithmic(from, to, ...room), ticks: logTicks(from, to), format, name };
  }
  const bottom = zero ? 0 : low;
  const pad = (high - bottom) * 0.04 || Math.abs(high) * 0.1 || 1;
  const [from, to] = [zero ? 0 : bottom - pad, high + pad];
  return { scale: linear(from, to, ...room), ticks: ticks(from, to, height / 50), format, name };
}

// Under the pointer: the nearest point of every line, as a small table.
function readable(target, width, height, options, series, x, y) {
  const rule = svg("line", { class: "rule", y1: margin.top, y2: height - margin.bottom, visibility: "hidden" });
  target.append(rule);
  const hide = () => { rule.setAttribute("visibility", "hidden"); tip.hide(); };
  target.addEventListener("pointerleave", hide);
  target.addEventListener("pointermove", (event) => {
    const box = target.getBoundingClientRect();
    const pointer = ((event.clientX - box.left) / box.width) * width;
    const hits = series.map((line) => nearest(line, pointer, x.scale)).filter((hit) => hit.distance < 40);
    if (!hits.length) return hide();
    const closest = hits.reduce((a, b) => (b.distance < a.distance ? b : a));
    rule.setAttribute("x1", x.scale(closest.x));
    rule.setAttribute("x2", x.scale(closest.x));
    rule.setAttribute("visibility", "visible");
    const counted = options.x || (state.x === "epoch" && "epoch");
    const where = counted ? `${counted} ${digits(closest.x)}` : duration(closest.x);
    return tip.show(event, html("strong", {}, where), hitTable(hits, options));
  });
}

function nearest(line, pointer, scale) {
  let best = { distance: Infinity };
  line.x.forEach((at, i) => {
    if (!known(at) || !known(line.y[i])) return;
    const distance = Math.abs(scale(at) - pointer);
    if (distance < best.distance) best = { distance, x: at, y: line.y[i], line };
  });
  return best;
}

function hitTable(hits, options) {
  const metrics = Object.keys(options.metrics).filter((metric) => hits.some((hit) => hit.line.metric === metric));
  const runs = [...new Set(hits.map((hit) => hit.line.run))];
  const cell = (run, metric) => {
    const values = hits.filter((hit) => hit.line.run === run && hit.line.metric === metric).map((hit) => hit.y);
    if (!values.length) return nothing;
    return options.format(values.reduce((a, b) => a + b) / values.length, true) + (values.length > 1 ? " (mean)" : "");
  };
  return html("table", {},
    html("tr", {}, html("th"), ...metrics.map((metric) => html("th", {}, options.metrics[metric]))),
    ...runs.map((run) => html("tr", {},
      html("th", {}, swatch(run), run.name), ...metrics.map((metric) => html("td", {}, cell(run, metric))))));
}

function describeLines(options, series) {
  const last = series.filter((line) => options.metrics[line.metric]).slice(0, 20).map((line) => {
    const value = line.y.filter(known).pop();
    const which = known(line.repeat) ? `${line.run.name} (${line.run.repeats[line.repeat]})` : line.run.name;
    return `${which} ${options.metrics[line.metric]} ends at ${options.format(value ?? null, true)}`;
  });
  return `${options.title} against ${options.x || state.x}: ${last.join("; ")}.`;
}
