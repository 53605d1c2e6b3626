// Scales, ticks, and the frame of a chart.

const margin = { top: 24, right: 14, bottom: 40, left: 54 };

function linear(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

function logarithmic(low, high, from, to) {
  const place = linear(Math.log(low), Math.log(high), from, to);
  return (value) => place(Math.log(value));
}

// Round numbers between two values, about `wanted` of them: steps of 1, 2 or 5 times a power of ten.
function ticks(low, high, wanted, whole = false) {
  const rough = (high - low) / Math.max(wanted, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.7);
  if (whole) step = Math.max(1, Math.round(step));
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) values.push(Number((i * step).toPrecision(12)));
  return values;
}

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const factors = decades > 3 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7];
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    factors.forEach((factor) => values.push(Number((factor * 10 ** power).toPrecision(6))));
  }
  return values.filter((value) => value >= low && value <= high);
}

// Lines, numbers and names of both axes. `x` and `y` are { scale, ticks, format, name }.
function frame(target, width, height, x, y) {
  const right = width - margin.right;
  const bottom = height - margin.bottom;
  y.ticks.forEach((value) => {
    const at = y.scale(value);
    target.append(
      svg("line", { class: "grid", x1: margin.left, x2: right, y1: at, y2: at }),
      svg("text", { class: "tick", x: margin.left - 7, y: at + 4, "text-anchor": "end" }, y.format(value)),
    );
  });
  target.append(svg("line", { class: "axis", x1: margin.left, x2: right, y1: bottom, y2: bottom }));
  x.ticks.forEach((value) => {
    const at = x.scale(value);
    target.append(
      svg("line", { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 4 }),
      svg("text", { class: "tick across", x: at, y: bottom + 17, "text-anchor": "middle" }, x.format(value)),
    );
  });
  target.append(
    svg("text", { class: "axis-name", x: (margin.left + right) / 2, y: height - 6, "text-anchor": "middle" }, x.name),
    svg("text", { class: "axis-name", x: 2, y: 12 }, y.name),
  );
}
