// Numbers as people read them.

const nothing = "–";

function known(value) {
  return value !== null && value !== undefined;
}

function digits(value, precision = 3) {
  if (!known(value)) return nothing;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(precision - 1).replace("e+", "e");
  const places = Math.max(0, precision - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(places, 8) });
}

function scaled(value, units) {
  if (!known(value)) return nothing;
  const [factor, name] = units.find(([least]) => Math.abs(value) >= least) || units[units.length - 1];
  return `${digits(value / factor)}${name && ` ${name}`}`;
}

function count(value) {
  if (!known(value)) return nothing;
  return Math.abs(value) < 1e6 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : compact(value);
}

function compact(value) {
  return scaled(value, [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]);
}

function bytes(value) {
  return scaled(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);
}

function bytesPerSecond(value) {
  return known(value) ? `${bytes(value)}/s` : nothing;
}

function duration(value) {
  if (!known(value)) return nothing;
  if (value < 120) return scaled(value, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]);
  const [large, small, names] = value < 7200 ? [60, 1, ["min", "s"]] : [3600, 60, ["h", "min"]];
  const parts = Math.round(value / small);
  return `${Math.floor(parts / (large / small))} ${names[0]} ${String(parts % (large / small)).padStart(2, "0")} ${names[1]}`;
}

function percent(value, places = 1) {
  return known(value) ? `${(100 * value).toFixed(places)} %` : nothing;
}

// How a measure is written: `format` is Python's, as ".4f" or ".2%". On an axis, where it is not `exact`, digits that matter.
function measureFormat(format) {
  const [, places, kind] = /(?:\.(\d+))?([%a-zA-Z]?)$/.exec(format);
  const precision = Math.min(known(places) ? Number(places) : 6, 20);
  const exactly = {
    "%": (value) => percent(value, precision), f: (value) => fixed(value, precision), F: (value) => fixed(value, precision),
    e: (value) => value.toExponential(precision), E: (value) => value.toExponential(precision),
  }[kind] || ((value) => digits(value, Math.max(precision, 1)));
  const roughly = kind === "%" ? (value) => percent(value, 0) : (value) => digits(value, 4);
  return (value, exact = true) => (known(value) ? (exact ? exactly : roughly)(value) : nothing);
}

function fixed(value, places) {
  return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
}

// The mean of repeats and how they spread: 81.50 ± 0.50 %.
function spread(value, format) {
  if (!value) return nothing;
  const mean = format(value.mean);
  if (value.count < 2 || !known(value.std)) return mean;
  const unit = mean.endsWith(" %") ? " %" : "";
  return `${mean.slice(0, mean.length - unit.length)} ± ${format(value.std)}`;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// The unit in which seconds up to `most` are easy to read on an axis.
function timeUnit(most) {
  if (most > 7200) return { factor: 3600, name: "hours" };
  return most > 300 ? { factor: 60, name: "minutes" } : { factor: 1, name: "seconds" };
}
