// Horizontal bars: one stacked bar per row, or one bar per run in each group.

// Colors of parts, fixed by name so that gathering looks the same in every chart. Names unknown here take the rest in turn.
const partColors = new Map(Object.entries({
  wait: 0, starved: 0, gather: 1, rows: 1, features: 1, forward: 2, busy: 2, backward: 3, step: 4, held: 4,
  validate: 5, evaluate: 5, other: 6, sample: 7, train: 8, consumer: 8,
}));

function partClass(name) {
  if (!partColors.has(name)) partColors.set(name, 8 + (partColors.size % 4));
  return `part-${partColors.get(name)}`;
}

function partKey(names) {
  return html("ul", { class: "key" }, ...names.map((name) => html("li", {},
    html("span", { class: `swatch ${partClass(name)}`, "aria-hidden": "true" }), name)));
}

// `rows`: { run, label, note, total, parts: [{ name, value, texts, hint }] }; a text is the first of `texts` that fits.
// The whole width is `full`; null gives it to the total of each row.
function stackedBars(width, rows, full, label) {
  const step = 50;
  const target = drawing(width, rows.length * step + 2, label);
  rows.forEach((row, i) => {
    const top = i * step;
    const head = svg("text", { class: "row-name", x: 0, y: top + 14 }, cut(row.label, width - textWidth(row.note) - 16, 13));
    target.append(head, svg("text", { class: "row-note", x: width, y: top + 14, "text-anchor": "end" }, row.note),
      svg("rect", { class: "track", x: 0, y: top + 21, width, height: 22, rx: 3 }));
    let left = 0;
    row.parts.filter((part) => part.value > 0).forEach((part) => {
      const length = (part.value / (full ?? row.total)) * width;
      const text = part.texts.find((candidate) => textWidth(candidate) + 8 < length);
      const group = svg("g", { "data-run": row.run.index, "data-part": part.name },
        svg("rect", { class: `part ${partClass(part.name)}`, x: left, y: top + 21, width: Math.max(length - 1, 0.5), height: 22 }),
        text && svg("text", { class: "part-name", x: left + length / 2, y: top + 36, "text-anchor": "middle" }, text));
      target.append(withTip(group, html("strong", {}, row.label), html("div", {}, part.hint)));
      left += length;
    });
  });
  return target;
}

// `groups`: [{ name, bars: [{ run, value }] }].
function groupedBars(width, groups, label, format, exact = count) {
  const [bar, gap, right] = [16, 14, 64];
  const left = Math.max(54, 12 + most(groups.map((group) => textWidth(group.name))));
  const longest = most(groups.flatMap((group) => group.bars.map((entry) => entry.value))) || 1;
  const height = groups.reduce((sum, group) => sum + group.bars.length * bar + gap, 0);
  const target = drawing(width, height, label);
  let top = 4;
  groups.forEach((group) => {
    const middle = top + (group.bars.length * bar) / 2 + 4;
    target.append(svg("text", { class: "tick", x: left - 8, y: middle, "text-anchor": "end" }, group.name));
    group.bars.forEach((entry) => {
      const length = (entry.value / longest) * (width - left - right);
      const place = { x: left, y: top + 1, width: Math.max(length, 1), height: bar - 3, rx: 2 };
      const row = svg("g", { "data-run": entry.run.index },
        svg("rect", { class: `bar run-${entry.run.index % 8}`, ...place }),
        svg("text", { class: "bar-value", x: left + length + 6, y: top + 12 }, format(entry.value)));
      target.append(withTip(row, html("strong", {}, entry.run.name), html("div", {}, `${group.name}: ${exact(entry.value)}`)));
      top += bar;
    });
    top += gap;
  });
  return target;
}
