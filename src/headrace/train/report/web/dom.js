// Elements. Text only ever becomes a text node, so nothing in a run's data is taken for markup.

function html(tag, attributes = {}, ...children) {
  return furnished(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return furnished(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function furnished(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (known(value) && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => known(child) && child !== false));
  return element;
}

function swatch(run) {
  return html("span", { class: `swatch run-${run.index % 8}`, "aria-hidden": "true" });
}

// A drawing of a given width. It is stretched to its place, so that a page printed at another width keeps its shape.
function drawing(width, height, label) {
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

// Letters are measured by the rule of thumb that holds for sans-serif digits and lower case at 12 pixels.
function textWidth(text, size = 12) {
  return text.length * size * 0.56;
}

function cut(text, width, size = 12) {
  const letters = Math.floor(width / (size * 0.56));
  return text.length <= letters ? text : `${text.slice(0, Math.max(letters - 1, 1))}…`;
}

const tip = {
  element: document.getElementById("tip"),
  show(event, ...children) {
    this.element.replaceChildren(...children);
    this.element.hidden = false;
    const { offsetWidth, offsetHeight } = this.element;
    const left = event.clientX + 16 + offsetWidth < innerWidth ? event.clientX + 16 : event.clientX - 16 - offsetWidth;
    const top = Math.min(event.clientY + 12, innerHeight - offsetHeight - 8);
    this.element.style.left = `${Math.max(left, 4)}px`;
    this.element.style.top = `${Math.max(top, 4)}px`;
  },
  hide() {
    tip.element.hidden = true;
  },
};

function withTip(element, ...children) {
  element.addEventListener("pointermove", (event) => tip.show(event, ...children));
  element.addEventListener("pointerleave", tip.hide);
  return element;
}
