// Spans of work, a row per thread; what runs inside something else is drawn below it.

function timelineChart(width, run) {
  const { threads, names, spans, label } = run.timeline;
  const left = Math.min(130, width * 0.26);
  const lane = 16;
  const end = most(spans.map((span) => span[2] + span[3]));
  const x = linear(0, end, left, width - 12);
  const depths = threads.map((_, row) => 1 + most(spans.filter((span) => span[0] === row).map((span) => span[1])));
  const tops = [];
  let bottom = 4;
  depths.forEach((depth) => {
    tops.push(bottom);
    bottom += depth * lane + 8;
  });
  const said = `Timeline of ${run.name}: ${spans.length} spans of ${threads.length} threads in ${duration(end / 1e3)}.`;
  const target = drawing(width, bottom + 34, said);
  ticks(0, end, width / 110).forEach((value) => target.append(
    svg("line", { class: "grid", x1: x(value), x2: x(value), y1: 0, y2: bottom }),
    svg("text", { class: "tick", x: x(value), y: bottom + 14, "text-anchor": "middle" }, digits(value))));
  const middle = (left + width) / 2;
  target.append(svg("text", { class: "axis-name", x: middle, y: bottom + 30, "text-anchor": "middle" }, "milliseconds"));
  threads.forEach((thread, row) => {
    const floor = tops[row] + depths[row] * lane + 4;
    target.append(
      svg("text", { class: "tick", x: left - 8, y: tops[row] + 12, "text-anchor": "end" }, cut(thread, left - 10, 11)),
      svg("line", { class: "axis", x1: left, x2: width - 12, y1: floor, y2: floor }));
  });
  spans.forEach(([row, depth, begin, length, name, item]) => {
    const box = svg("rect", {
      class: `span ${partClass(names[name])}`, "data-run": run.index,
      x: x(begin), y: tops[row] + depth * lane, width: Math.max(x(begin + length) - x(begin), 0.8), height: lane - 2,
    });
    target.append(withTip(box, html("strong", {}, names[name]),
      html("div", {}, `${item === "" ? "" : `item ${item}, `}${duration(length / 1e3)}`),
      html("div", { class: "muted" }, `${threads[row]}, at ${duration(begin / 1e3)}${label ? `, ${label}` : ""}`)));
  });
  return target;
}

function timelineTable(runs) {
  return {
    columns: ["run", "thread", "name", "item", "begin, ms", "milliseconds"],
    rows: runs.flatMap((run) => run.timeline.spans.map(([row, , begin, length, name, item]) =>
      [run.name, run.timeline.threads[row], run.timeline.names[name], item, digits(begin, 5), digits(length)])),
  };
}
