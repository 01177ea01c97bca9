// Elements, and tables that change in place: focus, selection and scroll position stay when numbers move.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function text(node, words) {
  const now = String(words);
  if (node.textContent !== now) node.textContent = now;
}

export function className(node, name) {
  if (node.className !== name) node.className = name;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// Facts: a list of [words, value]; the value is set in bold.
export function facts(node, pairs) {
  while (node.children.length > pairs.length) node.lastChild.remove();
  pairs.forEach(([words, value], i) => {
    if (!node.children[i]) node.append(element("span", {}, element("b"), document.createTextNode("")));
    const [bold, rest] = node.children[i].childNodes;
    text(bold, value);
    const said = ` ${words}`;
    if (rest.data !== said) rest.data = said;
  });
}

// A cell whose words are a link to another site.
function linked(cell, words, address, about) {
  if (!cell.firstElementChild) cell.replaceChildren(element("a", { target: "_blank", rel: "noreferrer", title: about }));
  const link = cell.firstElementChild;
  if (link.getAttribute("href") !== address) link.setAttribute("href", address);
  text(link, words);
}

// A table in a box that scrolls. Columns are {name, of(row), number, wide, kind(row), link(row), about}; ``mark(row)`` names a row's
// class.
export class Table {
  constructor(label, columns, mark = () => "") {
    this.columns = columns;
    this.mark = mark;
    this.body = element("tbody");
    const head = columns.map((column) => element("th", { scope: "col", class: column.number ? "n" : "" }, column.name));
    const table = element("table", { "aria-label": label }, element("thead", {}, element("tr", {}, ...head)), this.body);
    this.node = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
  }

  fill(rows) {
    const { body, columns } = this;
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((row, i) => {
      let line = body.rows[i];
      if (!line) {
        line = element("tr", {}, ...columns.map((c) => element("td", { class: c.number ? "n" : c.wide ? "wide" : "" })));
        body.append(line);
      }
      className(line, this.mark(row) || "");
      columns.forEach((column, j) => {
        const address = column.link && column.link(row);
        if (address) linked(line.cells[j], column.of(row), address, column.about);
        else text(line.cells[j], column.of(row));
        if (column.kind) className(line.cells[j], column.kind(row));
      });
    });
  }
}
